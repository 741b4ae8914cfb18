"""Formulas for what a model needs: bytes of each kind of memory, and milliseconds per token. llama.cpp is not used."""

from __future__ import annotations

from labkit.predict.compute import compute_bytes, output_bytes
from labkit.predict.hparams import n_vocab
from labkit.predict.kv import Cache, LayerCache, cache, kv_bytes, kv_bytes_per_token, recurrent_bytes
from labkit.predict.limits import check, check_types, too_long
from labkit.predict.lock import Lock, lock, raise_limit
from labkit.predict.offload import Side, Split, offload
from labkit.predict.offload_speed import Speeds, calibrate, offload_ms
from labkit.predict.placement import EXPERTS, place
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
    "EXPERTS",
    "PYTHON_ANON_BYTES",
    "PYTHON_FILE_BYTES",
    "VOCABULARY_BYTES_PER_TOKEN",
    "Cache",
    "LayerCache",
    "Lock",
    "Predicted",
    "Side",
    "Speeds",
    "Split",
    "bytes_per_token",
    "cache",
    "calibrate",
    "check",
    "check_types",
    "compute_bytes",
    "decode_ms",
    "kv_bytes",
    "kv_bytes_per_token",
    "lock",
    "memory",
    "n_vocab",
    "offload",
    "offload_ms",
    "output_bytes",
    "paging_ms",
    "place",
    "raise_limit",
    "recurrent_bytes",
    "repacked",
    "too_long",
]
