"""GGUF files: header, metadata, tensor table, and single blocks of a tensor.

The ``gguf`` package of llama.cpp reads these files too. This reader takes milliseconds for a vocabulary of 128k
tokens, needs nothing but the standard library, and answers a damaged or hostile file with one sentence instead of a
traceback or a huge allocation (``benchmarks/bench_gguf.py``).
"""

from labkit.gguf.header import GGUFArray, GGUFError, Header, Tensor
from labkit.gguf.reader import read_header
from labkit.gguf.types import TYPES, TYPES_BY_ID, GGMLType, row_bytes
from labkit.gguf.writer import Typed, write_header

__all__ = [
    "TYPES",
    "TYPES_BY_ID",
    "GGMLType",
    "GGUFArray",
    "GGUFError",
    "Header",
    "Tensor",
    "Typed",
    "read_header",
    "row_bytes",
    "write_header",
]
