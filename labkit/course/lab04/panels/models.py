"""The models and contexts that the panels of lab 04 offer, and how far a picture of a model's memory reaches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from labkit import predict
from labkit.models import lookup
from labkit.settings import Settings

MODELS = (
    "llama-2-13b:Q4_K_M",
    "llama-2-7b:Q4_K_M",
    "llama-3.1-8b:Q4_K_M",
    "llama-3.2-1b:Q4_K_M",
    "qwen3-30b-a3b:Q4_K_M",
    "llama-2-70b:Q4_K_M",
)
CONTEXTS = tuple(512 << n for n in range(7))


@cache
def most_bytes(model: str) -> int:
    """The most that host or device holds with up to 8,192 tokens of context: no control but the model changes it."""
    known = lookup.header(model)
    chosen = Settings(n_ctx=min(8192, known.key("context_length", 8192)))
    ends = [predict.offload(known, replace(chosen, n_gpu_layers=n)) for n in (0, -1)]
    return max(max(split.host.total_bytes, split.devices[0].total_bytes) for split in ends)
