"""Where the files that come with the kit are."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """The path of a file of the ``datasets`` folder: in an installed package, else in a checkout.

    Args:
        name: relative to the folder, such as ``"shapes.json"``.

    Raises:
        FileNotFoundError: the kit does not come with such a file.
    """
    for folder in (_HERE / "_data", _HERE.parent / "datasets"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"This installation of labkit has no data file {name!r}: install it again.")
