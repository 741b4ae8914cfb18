"""The checks of lab 03: what a token of context costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from numbers import Real
from typing import Any

from labkit import gguf, predict
from labkit.course.checking import Verdict, check_function, check_number
from labkit.gguf import Header
from labkit.gguf.types import TYPES
from labkit.models.forge import header_bytes
from labkit.predict.kv import cache as cache_of
from labkit.predict.kv import kv_bytes_per_token
from labkit.settings import CELL_PADDING, Settings
from labkit.units import GiB, KiB

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
    header = _header("llama-2-13b")
    right = kv_bytes_per_token(header, Settings())
    return check_number(
        answer,
        right=right,
        unit="bytes",
        slips={
            "half of it is missing: K and V both count, and an f16 number takes two bytes": right / 2,
            "that is one layer; each of them keeps K and V": right / header.n_layer,
            "those are bits: 8 of them are a byte": right * 8,
            "that is KiB, not bytes": right / KiB,
        },
    )


def kv_per_token_8b(answer: Any) -> Verdict:
    """Lab 03: the same for Llama 3.1 8B, where four heads share one K and V."""
    header = _header("llama-3.1-8b")
    right = kv_bytes_per_token(header, Settings())
    heads, kv_heads = (int(header.key(f"attention.{name}")) for name in ("head_count", "head_count_kv"))
    return check_number(
        answer,
        right=right,
        unit="bytes",
        slips={
            f"you counted its {heads} heads; only {kv_heads} have a K and V of their own (head_count_kv)": (
                right * heads / kv_heads
            ),
            "half of it is missing: K and V both count, and an f16 number takes two bytes": right / 2,
            "that is one layer; each of them keeps K and V": right / header.n_layer,
            "those are bits: 8 of them are a byte": right * 8,
            "that is KiB, not bytes": right / KiB,
        },
    )


def crossover(answer: Any) -> Verdict:
    """Lab 03: up to how many tokens the weights of Llama 2 13B Q4_K_M are larger than its f16 cache."""
    header = _header("llama-2-13b")
    weights, each = header.tensor_bytes, kv_bytes_per_token(header, Settings())
    right = math.ceil(weights / each) - 1
    return check_number(
        answer,
        right=right,
        unit="tokens",
        slips={
            "with so many tokens the cache is already the larger": right + 1,
            "that is where both are equal; count whole tokens": _if_near(answer, weights / each, 1e-6),
            "you took GiB for GB: the weights are 7.33 GiB, each of them 1024³ bytes": (
                _if_near(answer, weights / GiB * 1e9 / each, 0.003)
            ),
            "half of a token is missing: K and V both count, and an f16 number takes two bytes": (
                _if_near(answer, weights / each * 2, 0.003)
            ),
            "that is for one layer; each of them keeps K and V": (
                _if_near(answer, weights / each * header.n_layer, 0.003)
            ),
        },
    )


def kv_of(answer: Any) -> Verdict:
    """Lab 03: a function (layers, KV heads, size of a head, n_ctx, bits per number of K, of V) -> bytes of it all."""
    sizes = {_case(*one): _cache_bytes(*one) for one in CACHES}
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
            "you left out the layers: each keeps K and V": lambda n, h, d, c, k, v: h * d * c * (k + v) / 8,
            "those are bits: 8 of them are a byte": lambda n, h, d, c, k, v: n * h * d * c * (k + v),
            "a number takes its bits as given, 8.5 in q8_0: you dropped the half bit that scales take": (
                lambda n, h, d, c, k, v: n * h * d * c * (int(k) + int(v)) / 8
            ),
        },
        same=_same_size,
        show=_plain,
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
            "that is one step too many: it no longer fits": _largest(FREE_BYTES) + CELL_PADDING,
            "llama.cpp rounds up to a multiple of 256, which then no longer fits: round down": (
                _largest(FREE_BYTES, step=1)
            ),
        },
    )


def window_cells(answer: Any) -> Verdict:
    """Lab 03: cells that a layer of Gemma 3 4B with a sliding window gets at n_ctx 8192, other settings as they are."""
    header, settings = _header("gemma-3-4b"), Settings(n_ctx=8192)
    layers = cache_of(header, settings).layers
    (right,) = {layer.cells for layer in layers if layer.kind == "window"}
    (full,) = {layer.cells for layer in layers if layer.kind == "full"}
    n_window = int(header.key("attention.sliding_window"))
    return check_number(
        answer,
        right=right,
        unit="cells",
        slips={
            "the window alone does not do: a batch of n_ubatch tokens must find room beside it": n_window,
            "that is what the layers without a window get": full,
            "tokens are computed n_ubatch at a time, not n_batch": n_window + settings.n_batch,
        },
    )


def _case(shape: str, n_ctx: int, type_k: str, type_v: str) -> tuple[float, ...]:
    header = _header(shape)
    n_head, n_head_kv = (int(header.key(f"attention.{name}")) for name in ("head_count", "head_count_kv"))
    head_dim = int(header.key("embedding_length")) // n_head
    return header.n_layer, n_head_kv, head_dim, n_ctx, TYPES[type_k.upper()].bpw, TYPES[type_v.upper()].bpw


def _cache_bytes(shape: str, n_ctx: int, type_k: str, type_v: str) -> int:
    return predict.kv_bytes(_header(shape), Settings(n_ctx=n_ctx, type_k=type_k, type_v=type_v))


def _largest(free_bytes: int, *, weights: bool = True, compute: bool = True, step: int = CELL_PADDING) -> int:
    """The largest multiple of ``step`` with which Llama 3.1 8B fits, as far as its parts are counted."""
    header = _header("llama-3.1-8b")
    left, each = free_bytes - header.tensor_bytes * weights, kv_bytes_per_token(header, Settings())
    n_ctx = left // each // step * step
    while compute and n_ctx * each + predict.compute_bytes(header, Settings(n_ctx=n_ctx))[0] > left:
        n_ctx -= step
    return n_ctx


def _if_near(answer: Any, value: float, within: float) -> float:
    """The answer itself if it is about ``value``, however it was rounded; else nothing equals it."""
    is_number = isinstance(answer, (int, float)) and not isinstance(answer, bool)
    return answer if is_number and abs(answer / value - 1) <= within else math.nan


def _same_size(mine: Any, theirs: Any) -> bool:
    return isinstance(mine, Real) and abs(mine - theirs) < 1


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(f'{n:g}' for n in value)})"
    return f"{value:,.0f}" if isinstance(value, (int, float)) else repr(value)


@cache
def _header(shape: str) -> Header:
    return gguf.read_header(header_bytes(shape, "Q4_K_M"))


CHECKS: tuple[Callable[[Any], Verdict], ...] = (
    kv_per_token_13b,
    kv_per_token_8b,
    crossover,
    kv_of,
    fits_in_16,
    window_cells,
)
