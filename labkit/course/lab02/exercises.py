"""Checks of lab 02's exercises."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit import blocks
from labkit.blocks.random import random_blocks
from labkit.course.checking import Verdict, check_function, check_values
from labkit.gguf.types import TYPES

__all__ = ["bits", "q4_k", "q6_weight", "scales"]

Scales = tuple[list[int], list[int]]

COUNTED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


def scales(answer: Any) -> Verdict:
    """Lab 02: a function (12 bytes) -> (8 scales, 8 minima) of a Q4_K block, whole numbers from 0 to 63."""
    return check_function(
        answer,
        right=_scales,
        cases=tuple((np.random.default_rng(seed).bytes(12),) for seed in range(4)),
        slips={
            "sub-blocks 4 to 7 keep their upper two bits in the first eight bytes: you left them out": (
                lambda q: _scales(q, upper=False)
            ),
            "scales and minima are the other way round": lambda q: _scales(q)[::-1],
            "sub-blocks 0 to 3 use the lower six bits of their byte only: you took all eight": (
                lambda q: _scales(q, mask=255)
            ),
            "in sub-blocks 4 to 7 the low nibble belongs to the scale and the high one to the minimum": (
                lambda q: _scales(q, swapped=True)
            ),
        },
        same=_same_scales,
        case=_short,
        result=_short,
    )


def q4_k(answer: Any) -> Verdict:
    """Lab 02: a function (144 bytes) -> 256 weights of a Q4_K block."""
    return check_function(
        answer,
        right=lambda block: blocks.decode("Q4_K", block),
        cases=tuple((block,) for block in _blocks("Q4_K")),
        slips={
            "you left out −dmin · m": lambda block: _q4_k(block, minimum=0.0),
            "the minimum is subtracted, not added": lambda block: _q4_k(block, minimum=-1.0),
            "nibble order: of each 32 bytes, first all low nibbles are 32 weights, then all high nibbles": (
                lambda block: _q4_k(block, interleaved=True)
            ),
            "high and low nibbles are the other way round": lambda block: _q4_k(block, high_first=True),
            "you left out d: a scale is d times its six-bit number": lambda block: _q4_k(block, d=1.0),
        },
        same=_close,
        case=_short,
        result=_short,
    )


def q6_weight(answer: Any) -> Verdict:
    """Lab 02: a function (low 4 bits, high 2 bits, scale, d) -> one Q6_K weight."""
    cases = ((0, 0, 3, 0.5), (15, 3, 3, 0.5), (7, 1, -4, 0.25), (8, 2, 127, 0.001))
    return check_function(
        answer,
        right=lambda low, high, scale, d: d * scale * ((low | high << 4) - 32),
        cases=cases,
        slips={
            "you left out −32: the six bits count from 0 to 63 and stand for −32 to 31": (
                lambda low, high, scale, d: d * scale * (low | high << 4)
            ),
            "the two high bits go above the four low ones: shift them by 4": (
                lambda low, high, scale, d: d * scale * ((low << 2 | high) - 32)
            ),
            "you left out the scale of the 16 weights": lambda low, high, scale, d: d * ((low | high << 4) - 32),
        },
        same=_close,
        result=_short,
    )


def bits(answer: Any) -> Verdict:
    """Lab 02: bits per weight of each type in ``COUNTED``, as a dict."""
    right = {name: TYPES[name].bpw for name in COUNTED}
    return check_values(
        answer,
        right=right,
        slips={
            "you counted the weights' own bits; scales and minima are in the block too": {
                name: float(re.sub(r"\D.*", "", name.lstrip("IQ"))) for name in COUNTED
            },
            "those are bytes per weight": {name: value / 8 for name, value in right.items()},
        },
    )


def _scales(q: Sequence[int], *, upper: bool = True, mask: int = 63, swapped: bool = False) -> Scales:
    """The scales and minima of a block, or with one of the mistakes."""
    low, high = (4, 0) if swapped else (0, 4)
    scale = [q[j] & mask for j in range(4)]
    minimum = [q[j + 4] & mask for j in range(4)]
    for j in range(4):
        scale.append((q[j + 8] >> low & 15) | ((q[j] >> 6) << 4 if upper else 0))
        minimum.append((q[j + 8] >> high & 15) | ((q[j + 4] >> 6) << 4 if upper else 0))
    return scale, minimum


def _q4_k(
    block: bytes,
    *,
    minimum: float = 1.0,
    d: float | None = None,
    interleaved: bool = False,
    high_first: bool = False,
) -> NDArray[np.float32]:
    """The 256 weights of a block, or with one of the mistakes."""
    real_d, dmin = (float(half) for half in np.frombuffer(block[:4], np.float16))
    scale, offset = _scales(block[4:16])
    nibbles = np.frombuffer(block[16:], np.uint8).reshape(4, 32)
    low, high = nibbles & 15, nibbles >> 4
    pair = (high, low) if high_first else (low, high)
    q = np.stack(pair, axis=2 if interleaved else 1).reshape(8, 32)
    factor = np.array(scale) * (real_d if d is None else d)
    weights = q * factor[:, None] - minimum * dmin * np.array(offset)[:, None]
    return weights.reshape(256).astype(np.float32)


@cache
def _blocks(type_name: str) -> tuple[bytes, ...]:
    """A few valid blocks, always the same."""
    return tuple(block.tobytes() for block in random_blocks(type_name, 4, seed=2))


def _same_scales(mine: Any, theirs: Any) -> bool:
    """Whether two pairs of lists have the same whole numbers."""
    return [[int(n) for n in row] for row in mine] == [list(row) for row in theirs]


def _close(mine: Any, theirs: Any) -> bool:
    """Whether two numbers or arrays are the same up to rounding."""
    a, b = np.asarray(mine, np.float64).reshape(-1), np.asarray(theirs, np.float64).reshape(-1)
    # A learner may add in float64 where ggml rounds to float32 after each step.
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-5, atol=1e-6 * float(np.abs(b).max() or 1)))


def _short(value: Any) -> str:
    """A result or an argument as text: of bytes and arrays, the beginning."""
    if isinstance(value, bytes):
        return f"the {len(value)} bytes {value[:6].hex(' ')} …"
    if isinstance(value, np.ndarray):
        return f"[{', '.join(f'{x:.4g}' for x in value.reshape(-1)[:4])}, …]"
    return repr(value)
