"""What llama.cpp's installed libraries contain as text: names of options, messages, backends."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def contents(*patterns: str) -> bytes:
    """The bytes of llama.cpp's installed libraries whose file names match; empty if there are none."""
    spec = importlib.util.find_spec("llama_cpp")
    folders = [Path(folder, "lib") for folder in (spec.submodule_search_locations or [])] if spec else []
    # The library of the command-line tools is installed next to the package, with copies of the package's own.
    folders += [folder.parent.parent / "lib" for folder in folders]
    files = (path.resolve() for folder in folders for pattern in patterns for path in folder.glob(pattern))
    found: dict[str, Path] = {}
    for path in files:
        if path.is_file():
            found.setdefault(path.name, path)
    return b"\0".join(path.read_bytes() for path in found.values())
