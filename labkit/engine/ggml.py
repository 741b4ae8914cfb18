"""ggml's own quantization of rows of numbers, from the library that llama.cpp runs on."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.engine import EngineError, library
from labkit.engine.internals.type_traits import decoder
from labkit.gguf.types import TYPES


@cache
def _base() -> ctypes.CDLL:
    """The library ggml-base, with the signatures of the functions used here."""
    lib = library("ggml-base")
    if lib is None:
        raise EngineError("the library of ggml is not installed: run `uv sync`, or install llama-cpp-python.")
    lib.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return lib


def decode(type_name: str, data: NDArray[np.uint8] | bytes) -> NDArray[np.float32]:
    """Weights of whole blocks, as ggml computes them (``ggml_type_traits.to_float``), shape (n_weights,).

    Raises:
        EngineError: llama-cpp-python is not installed, or ggml does not decode this type.
        ValueError: not a whole number of blocks.
    """
    kind = TYPES[type_name]
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data, np.uint8).reshape(-1)
    if raw.size % kind.block_bytes:
        raise ValueError(f"{raw.size} bytes are no whole number of {type_name} blocks of {kind.block_bytes} bytes.")
    to_float = decoder(_base(), kind)
    if to_float is None:
        raise EngineError(f"ggml has no function that decodes {type_name}.")
    weights = np.empty(raw.size // kind.block_bytes * kind.block_elems, np.float32)
    to_float(raw.ctypes.data, weights.ctypes.data, weights.size)
    return weights


def encode(type_name: str, rows: NDArray[Any], *, importance: NDArray[Any] | None = None) -> NDArray[np.uint8]:
    """Blocks of a matrix, as llama-quantize writes them (``ggml_quantize_chunk``), shape (n_bytes,).

    Args:
        rows: shape (n_rows, row_length); a single row may be flat.
        importance: how much each column matters, shape (row_length,); None counts all alike.

    Raises:
        EngineError: llama-cpp-python is not installed.
        ValueError: the rows are no whole number of blocks, or the type needs ``importance``.
    """
    kind = TYPES[type_name]
    x = np.ascontiguousarray(np.atleast_2d(rows), np.float32)
    n_rows, length = x.shape
    if length % kind.block_elems:
        raise ValueError(f"rows of {length} weights are no whole number of {type_name} blocks of {kind.block_elems}.")
    base = _base()
    if importance is None and base.ggml_quantize_requires_imatrix(kind.id):
        raise ValueError(f"{type_name} needs an importance for each column.")
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    data = np.empty(n_rows * length // kind.block_elems * kind.block_bytes, np.uint8)
    pointer = None if weights is None else weights.ctypes.data
    base.ggml_quantize_chunk(kind.id, x.ctypes.data, data.ctypes.data, 0, n_rows, length, pointer)
    return data
