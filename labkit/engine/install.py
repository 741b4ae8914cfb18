"""Which llama-cpp-python is installed, found without importing it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

PINNED = "0.3.36"
_CPU_FEATURES = ("avx2", "avx512", "neon", "dotprod", "matmul_int8", "sve", "vxe", "amx_int8")


class EngineError(RuntimeError):
    """llama.cpp refused something; the message is one sentence with its reason."""


def installed_version() -> str | None:
    """Version of llama-cpp-python without importing it, or None."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def version_problem() -> str | None:
    """One sentence if the installed llama-cpp-python is not the one this kit was checked against, else None."""
    version = installed_version()
    if version is None:
        return f"llama-cpp-python is not installed: run `pip install llama-cpp-python=={PINNED}` or use `uv run`."
    if version != PINNED:
        return (
            f"llama-cpp-python {version} is installed and this kit is checked against {PINNED}: names and figures "
            f"differ between versions, so run `pip install llama-cpp-python=={PINNED}`."
        )
    return None


@cache
def library(name: str) -> ctypes.CDLL | None:
    """One of the shared libraries that llama-cpp-python ships (``ggml-cpu``), without importing the package."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(spec.submodule_search_locations[0]) / "lib")
    stem = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    path = folder / stem
    return ctypes.CDLL(str(path)) if path.exists() else None


@cache
def cpu_features() -> frozenset[str] | None:
    """CPU features this build of ggml uses (``avx2``, ``neon``, …); they decide what is repacked. None: no engine.

    Source: ggml_cpu_has_* in ggml/include/ggml-cpu.h.
    """
    lib = library("ggml-cpu")
    if lib is None:
        return None
    return frozenset(name for name in _CPU_FEATURES if getattr(lib, f"ggml_cpu_has_{name}")())
