"""Checks of lab 05's exercises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from labkit.course.checking import Verdict, byte_slips, check_function, check_number, is_number
from labkit.models.lookup import header
from labkit.planning.context import longest_surviving_context, needed, pinned_bytes
from labkit.predict import Predicted
from labkit.settings import CELL_PADDING, Settings
from labkit.units import GiB, KiB, MiB, fmt_bytes

__all__ = ["context_for_locked_7b", "unlocked_part", "will_lock_fit"]

MODEL = "llama-2-7b:Q4_K_M"
LOCKED = Settings(load_mode="mmap+mlock", repack=False, n_ctx=4096)
REPACKED = replace(LOCKED, repack=True)
AVX2 = ("avx2",)
ROOM_BYTES = 8 * GiB
PAGE_BYTES = 4096
NEAR = 0.01
# As ``ulimit -l`` prints them: the defaults of systems, and what people set. None is so close to the file's size that
# it matters whether the header is locked too.
LIMITS_KIB = (64, 8192, 3_900_000, 4_000_000, 4_100_000, 6_400_000, math.inf)


def will_lock_fit(answer: Any) -> Verdict:
    """Lab 05: a function (limit) -> bool: whether all of Llama 2 7B Q4_K_M may be locked, mapped and not repacked.

    Args:
        answer: called with limits as ``ulimit -l`` prints them, ``math.inf`` for unlimited.
    """
    need = -(-header(MODEL).file_bytes // PAGE_BYTES) * PAGE_BYTES
    everything = need + _at(LOCKED).anon_floor_bytes

    def against(size: float, unit: float) -> Callable[[float], bool]:
        return lambda limit: size <= limit * unit

    return check_function(
        answer,
        right=against(need, KiB),
        cases=tuple((limit,) for limit in LIMITS_KIB),
        slips={
            "`ulimit -l` counts KiB, and you took its number for bytes": against(need, 1),
            "`ulimit -l` counts KiB of 1024 bytes, and you took them for 1000": against(need, 1000),
            "`ulimit -l` counts KiB, and you took its number for MiB": against(need, MiB),
            "only the mapped weights are locked; you added the anonymous memory": against(everything, KiB),
            "you compared the wrong way round": lambda limit: need > limit * KiB,
        },
        same=lambda mine, theirs: mine == theirs,
        case=_limit,
        result=lambda value: str(bool(value)),
    )


def unlocked_part(answer: Any) -> Verdict:
    """Lab 05: bytes that are not locked in a process with Llama 2 7B Q4_K_M (mmap+mlock, no repacking, n_ctx 4096).

    With the whole compute buffer, or with the part of it that a prompt of 8 tokens touches: both are right.
    """
    p, with_repack = _at(LOCKED), _at(REPACKED)
    whole, touched = p.anon_floor_bytes, p.rss_anon_bytes
    right = touched if is_number(answer) and abs(answer - touched) <= NEAR * touched else whole
    return check_number(
        answer,
        right=right,
        unit="bytes",
        within=NEAR,
        slips={
            "you left out the cache, which is not locked": whole - p.kv_bytes,
            "you left out Python's own memory": whole - p.python_bytes,
            "you left out the compute buffer": whole - p.compute_bytes,
            "that is the cache alone; buffers and Python are anonymous too": p.kv_bytes,
            "you counted the repack copy; without repacking there is none": whole + with_repack.repack_bytes,
            "that is what is locked": p.locked_bytes,
            "that is all memory; the mapped weights are locked": whole + p.locked_bytes,
            "that is for n_ctx 512": pinned_bytes(_at(replace(LOCKED, n_ctx=512))) - p.locked_bytes,
            **byte_slips(whole),
        },
    )


def context_for_locked_7b(answer: Any) -> Verdict:
    """Lab 05: the largest n_ctx, a multiple of 256, with which a locked Llama 2 7B Q4_K_M survives in 8 GiB.

    Mapped, no repacking, an f16 cache, the whole compute buffer counted.
    """
    right = longest_surviving_context(header(MODEL), LOCKED, ROOM_BYTES)
    return check_number(
        answer,
        right=right,
        unit="tokens",
        slips={
            "n_ctx is rounded up to a multiple of 256, and the next multiple does not fit": (
                lambda n: right < n < right + CELL_PADDING
            ),
            "you left out the compute buffer": _most(ROOM_BYTES, lambda p: pinned_bytes(p) - p.compute_bytes),
            "you left out everything but weights and cache": _most(ROOM_BYTES, lambda p: p.locked_bytes + p.kv_bytes),
            "you took GB for GiB: 8 GiB are 8 · 1024³ bytes": _most(8 * 10**9, pinned_bytes),
            "locked pages cannot be dropped; you counted the weights as if they could": (
                longest_surviving_context(header(MODEL), replace(LOCKED, load_mode="mmap"), ROOM_BYTES)
            ),
            "you counted the repack copy; without repacking there is none": (
                longest_surviving_context(header(MODEL), REPACKED, ROOM_BYTES, cpu_features=AVX2)
            ),
            "that is with a q8_0 cache; f16 is asked for": (
                longest_surviving_context(header(MODEL), replace(LOCKED, type_k="q8_0", type_v="q8_0"), ROOM_BYTES)
            ),
            "that is the length it was trained for; more fits": 4096,
        },
    )


def _most(room: int, size: Callable[[Predicted], int]) -> int:
    """The longest context, a multiple of 256, whose size is at most ``room``."""
    n = CELL_PADDING
    while size(_at(replace(LOCKED, n_ctx=n + CELL_PADDING))) <= room:
        n += CELL_PADDING
    return n


def _limit(kib: float) -> str:
    """A limit as text."""
    return "unlimited" if kib == math.inf else f"{kib:,.0f} ({fmt_bytes(kib * KiB)})"


@cache
def _at(settings: Settings) -> Predicted:
    """The prediction for some settings."""
    return needed(header(MODEL), settings, settings.n_ctx, cpu_features=AVX2)
