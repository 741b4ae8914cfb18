"""Checks of lab 03's exercises."""

from __future__ import annotations

import math
from typing import Any

from labkit import predict
from labkit.course.checking import Slip, Verdict, byte_slips, check_function, check_number, near
from labkit.gguf.types import TYPES
from labkit.models.lookup import header
from labkit.predict.kv import cache as cache_of
from labkit.predict.kv import kv_bytes_per_token
from labkit.settings import CELL_PADDING, Settings
from labkit.units import GiB

__all__ = ["crossover", "fits_in_16", "kv_of", "kv_per_token_8b", "kv_per_token_13b", "window_cells"]

FREE_BYTES = 14 * GiB  # of 16 GiB, with 2 for everything else

# Shape, tokens, and the types of K and V for which a function of the learner's is tried.
CACHES = (
    ("llama-2-7b", 4096, "f16", "f16"),
    ("llama-2-13b", 8192, "q8_0", "q8_0"),
    ("llama-3.1-8b", 131072, "q8_0", "q4_0"),
    ("smollm2-135m", 512, "f16", "q4_0"),
)


def kv_per_token_13b(answer: Any) -> Verdict:
    """Lab 03: bytes that one token of context takes in the f16 cache of Llama 2 13B."""
    return _kv_per_token(answer, "llama-2-13b", {})


def kv_per_token_8b(answer: Any) -> Verdict:
    """Lab 03: the same for Llama 3.1 8B, where four heads share one K and V."""
    model = header("llama-3.1-8b:Q4_K_M")
    heads, kv_heads = (int(model.key(f"attention.{name}")) for name in ("head_count", "head_count_kv"))
    every = f"you counted its {heads} heads; only {kv_heads} have a K and V of their own (head_count_kv)"
    return _kv_per_token(answer, "llama-3.1-8b", {every: kv_bytes_per_token(model, Settings()) * heads / kv_heads})


def _kv_per_token(answer: Any, shape: str, slips: dict[str, Slip]) -> Verdict:
    """The verdict on the bytes of a token in a shape's f16 cache; ``slips`` are those of this shape alone."""
    model = header(f"{shape}:Q4_K_M")
    right = kv_bytes_per_token(model, Settings())
    return check_number(
        answer,
        right=right,
        unit="bytes",
        slips={
            **slips,
            "half of it is missing: K and V both count, and an f16 number takes two bytes": right / 2,
            "that is one layer; every layer has a K and V": right / model.n_layer,
            **byte_slips(right),
        },
    )


def crossover(answer: Any) -> Verdict:
    """Lab 03: up to how many tokens the weights of Llama 2 13B Q4_K_M are larger than its f16 cache."""
    model = header("llama-2-13b:Q4_K_M")
    weights, each = model.tensor_bytes, kv_bytes_per_token(model, Settings())
    equal = weights / each
    right = math.ceil(equal) - 1
    return check_number(
        answer,
        right=right,
        unit="tokens",
        slips={
            "with this many tokens the cache is already larger than the weights": right + 1,
            "there both are equal; count whole tokens": near(equal, 1e-6),
            "you took GiB for GB: the weights are 7.33 GiB, of 1024³ bytes each": near(equal / GiB * 1e9, 0.003),
            "half of it is missing: K and V both count, and an f16 number takes two bytes": near(2 * equal, 0.003),
            "that is for one layer; every layer has a K and V": near(equal * model.n_layer, 0.003),
        },
    )


def kv_of(answer: Any) -> Verdict:
    """Lab 03: bytes of a cache, by a function (layers, KV heads, size of a head, n_ctx, bits per number of K, of V)."""
    sizes = {_arguments(*one): _cache_bytes(*one) for one in CACHES}
    return check_function(
        answer,
        right=lambda *case: sizes[case],
        cases=tuple(sizes),
        slips={
            "K and V both count: you took one of them": lambda n, h, d, c, k, v: n * h * d * c * k / 8,
            "V may be of another type than K: you took K's bits for both": (
                lambda n, h, d, c, k, v: n * h * d * c * 2 * k / 8
            ),
            "you left out the heads: each KV head has its own K and V": (
                lambda n, h, d, c, k, v: n * d * c * (k + v) / 8
            ),
            "you left out the layers: every layer has a K and V": lambda n, h, d, c, k, v: h * d * c * (k + v) / 8,
            "those are bits: 8 of them are a byte": lambda n, h, d, c, k, v: n * h * d * c * (k + v),
            "bits per number may have a fraction, as the 8.5 of q8_0: you dropped it": (
                lambda n, h, d, c, k, v: n * h * d * c * (int(k) + int(v)) / 8
            ),
        },
        within=1e-6,  # a fraction of a byte may be cut off
        unit="bytes",
        case=lambda *case: f"({', '.join(f'{n:g}' for n in case)})",
    )


def fits_in_16(answer: Any) -> Verdict:
    """Lab 03: the largest n_ctx, a multiple of 256, with which Llama 3.1 8B Q4_K_M and its f16 cache fit in 14 GiB."""
    return check_number(
        answer,
        right=_largest(FREE_BYTES),
        unit="tokens",
        slips={
            "you took GB for GiB: 16 GiB less 2 GiB are 14 · 1024³ bytes": _largest(14 * 10**9),
            "you left out the compute buffer": _largest(FREE_BYTES, compute=False),
            "you left out the 2 GiB for everything else": _largest(FREE_BYTES + 2 * GiB),
            "you left out the weights": _largest(FREE_BYTES, weights=False),
            "that is 256 tokens too many: it does not fit": _largest(FREE_BYTES) + CELL_PADDING,
            "llama.cpp rounds this up to a multiple of 256, which does not fit: round down": (
                _largest(FREE_BYTES, step=1)
            ),
        },
    )


def window_cells(answer: Any) -> Verdict:
    """Lab 03: cells that a layer of Gemma 3 4B with a sliding window gets at n_ctx 8192, other settings as they are."""
    model, settings = header("gemma-3-4b:Q4_K_M"), Settings(n_ctx=8192)
    layers = cache_of(model, settings).layers
    (right,) = {layer.cells for layer in layers if layer.kind == "window"}
    (full,) = {layer.cells for layer in layers if layer.kind == "full"}
    n_window = int(model.key("attention.sliding_window"))
    return check_number(
        answer,
        right=right,
        unit="cells",
        slips={
            "that is the window alone; a batch of n_ubatch tokens needs cells besides": n_window,
            "that is what the layers without a window get": full,
            "tokens are computed n_ubatch at a time, not n_batch": n_window + settings.n_batch,
        },
    )


def _arguments(shape: str, n_ctx: int, type_k: str, type_v: str) -> tuple[float, ...]:
    """What a learner's function is called with for one of ``CACHES``."""
    model = header(f"{shape}:Q4_K_M")
    n_head, n_head_kv = (int(model.key(f"attention.{name}")) for name in ("head_count", "head_count_kv"))
    head_dim = int(model.key("embedding_length")) // n_head
    return model.n_layer, n_head_kv, head_dim, n_ctx, TYPES[type_k.upper()].bpw, TYPES[type_v.upper()].bpw


def _cache_bytes(shape: str, n_ctx: int, type_k: str, type_v: str) -> int:
    """The size of one of ``CACHES``."""
    return predict.kv_bytes(header(f"{shape}:Q4_K_M"), Settings(n_ctx=n_ctx, type_k=type_k, type_v=type_v))


def _largest(free_bytes: int, *, weights: bool = True, compute: bool = True, step: int = CELL_PADDING) -> int:
    """The largest multiple of ``step`` with which Llama 3.1 8B fits, as far as its parts are counted."""
    model = header("llama-3.1-8b:Q4_K_M")
    left, each = free_bytes - model.tensor_bytes * weights, kv_bytes_per_token(model, Settings())
    n_ctx = left // each // step * step
    while compute and n_ctx * each + predict.compute_bytes(model, Settings(n_ctx=n_ctx))[0] > left:
        n_ctx -= step
    return n_ctx
