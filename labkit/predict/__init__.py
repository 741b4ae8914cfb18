"""What a model will need, before it runs: bytes of each kind, and milliseconds per token. Needs no llama.cpp."""

from __future__ import annotations

from labkit.predict.compute import compute_bytes
from labkit.predict.hparams import n_vocab
from labkit.predict.kv import kv_bytes
from labkit.predict.process import (
    PYTHON_ANON_BYTES,
    PYTHON_FILE_BYTES,
    VOCABULARY_BYTES_PER_TOKEN,
    Predicted,
    memory,
)
from labkit.predict.repack import repacked
from labkit.predict.speed import bytes_per_token, decode_ms, paging_ms

__all__ = [
    "PYTHON_ANON_BYTES",
    "PYTHON_FILE_BYTES",
    "VOCABULARY_BYTES_PER_TOKEN",
    "Predicted",
    "bytes_per_token",
    "compute_bytes",
    "decode_ms",
    "kv_bytes",
    "memory",
    "n_vocab",
    "paging_ms",
    "repacked",
]
