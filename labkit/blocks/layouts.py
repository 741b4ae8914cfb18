"""The layout of a block of each type: one table for decoding and for explaining.

ggml packs small integers by one rule, whatever their width. Take a run of bytes. The lowest bits of each byte, in
order, are the first integers. The next higher bits of each byte are the integers that follow. When the bits are used
up, the next run begins. Q4_0 has a single run of 16 bytes, so weights 0 to 15 are the low nibbles and 16 to 31 the high
ones. Q4_K has runs of 32. Q6_K keeps 4 bits of a weight in runs of 64 bytes and the other 2 in runs of 32.

Sources: ``block_*`` in ggml/src/ggml-common.h, ``dequantize_row_*`` in ggml/src/ggml-quants.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.gguf.types import TYPES


@dataclass(frozen=True)
class Plane:
    """Some bits of each of a row of integers.

    Attributes:
        part: the member of ggml's struct that holds them.
        bits: how many bits of each integer.
        run: bytes in a run.
        low, high: the bits of each byte that belong to this plane, from ``low`` up to before ``high``.
        start, stop: the bytes of the part that belong to this plane; None is the end.
        up: the place of these bits in the integer, counted from its lowest bit.
        first: index of the first integer.
    """

    part: str
    bits: int
    run: int
    low: int = 0
    high: int = 8
    start: int = 0
    stop: int | None = None
    up: int = 0
    first: int = 0

    @property
    def per_byte(self) -> int:
        """Integers that have bits in one byte."""
        return (self.high - self.low) // self.bits

    def place(self, index: int, part_bytes: int) -> tuple[int, int] | None:
        """Where a plane of a part of so many bytes has the bits of integer ``index``.

        Returns:
            The byte within the part and the lowest bit within that byte; None: this integer has no bits in this plane.
        """
        run, rest = divmod(index - self.first, self.run * self.per_byte)
        level, byte = divmod(rest, self.run)
        byte += self.start + run * self.run
        stop = part_bytes if self.stop is None else self.stop
        return (byte, self.low + level * self.bits) if index >= self.first and byte < stop else None


@dataclass(frozen=True)
class Integers:
    """A row of integers: the sum of its planes, then less ``bias``, or looked up in ``codebook``."""

    planes: tuple[Plane, ...]
    bias: int = 0
    codebook: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A block: weight = d · scale · integer, and where there is an offset, + m or − dmin · minimum.

    Attributes:
        struct: ggml's struct, as a numpy type.
        weights: one integer per weight.
        scales: one per sub-block; None where d alone is the scale.
        mins: one per sub-block, to be multiplied by the part "dmin".
        d: the part that holds the scale.
        d_kind: how it is stored: "f16", "e8m0" or "ue4m3".
    """

    struct: np.dtype[Any]
    weights: Integers
    scales: Integers | None = None
    mins: Integers | None = None
    d: str = "d"
    d_kind: str = "f16"

    @property
    def formula(self) -> str:
        """The weight's formula in the names of ggml's struct."""
        d = "2^(e − 128)" if self.d_kind == "e8m0" else self.d
        product = f"{d} · q" if self.scales is None else f"{d} · sc · q"
        if self.mins is not None:
            return f"{product} − dmin · m"
        return f"{product} + m" if self.has_m else product

    @property
    def has_m(self) -> bool:
        """Whether an f16 is added to every weight."""
        return "m" in self.parts

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Where each part begins in the block and how long it is, in bytes."""
        return {name: (int(at), dtype.itemsize) for name, (dtype, at, *_) in (self.struct.fields or {}).items()}


def _struct(*parts: str) -> np.dtype[Any]:
    """A numpy type from short declarations: "d" is an f16, "qs:16" is 16 bytes, "qs:i32" is 32 signed bytes."""
    fields = []
    for part in parts:
        name, _, width = part.partition(":")
        signed = width.startswith("i")
        shape = (int(width[signed:]),) if width else ()
        fields.append((name, ("i1" if signed else "u1") if width else "<f2", shape))
    return np.dtype(fields)


def _ints(*planes: Plane, bias: int = 0, codebook: tuple[int, ...] = ()) -> Integers:
    return Integers(planes, bias, codebook)


# kvalues_iq4nl and kvalues_fp4 in ggml-common.h. The latter are twice the values of a 4-bit float (E2M1), and its
# scales are half of what they say, so that all are whole numbers.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

_NIBBLES_16 = Plane("qs", 4, 16)
_NIBBLES_32 = Plane("qs", 4, 32)
_FIFTH_BITS = Plane("qh", 1, 1, up=4)

# get_scale_min_k4: eight scales and eight minimums of 6 bits in 12 bytes. The first four of each are the low 6 bits of
# bytes 0-7. The others have their low 4 bits in bytes 8-11 and their upper 2 at the top of bytes 0-7.
_K_SCALES = _ints(
    Plane("scales", 6, 4, high=6, stop=4),
    Plane("scales", 4, 4, high=4, start=8, first=4),
    Plane("scales", 2, 4, low=6, stop=4, up=4, first=4),
)
_K_MINS = _ints(
    Plane("scales", 6, 4, high=6, start=4, stop=8),
    Plane("scales", 4, 4, low=4, start=8, first=4),
    Plane("scales", 2, 4, low=6, start=4, stop=8, up=4, first=4),
)

LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(_struct("d", "qs:16"), _ints(_NIBBLES_16, bias=8)),
    "Q4_1": Layout(_struct("d", "m", "qs:16"), _ints(_NIBBLES_16)),
    "Q5_0": Layout(_struct("d", "qh:4", "qs:16"), _ints(_NIBBLES_16, _FIFTH_BITS, bias=16)),
    "Q5_1": Layout(_struct("d", "m", "qh:4", "qs:16"), _ints(_NIBBLES_16, _FIFTH_BITS)),
    "Q8_0": Layout(_struct("d", "qs:i32"), _ints(Plane("qs", 8, 32))),
    "Q2_K": Layout(
        _struct("scales:16", "qs:64", "d", "dmin"),
        _ints(Plane("qs", 2, 32)),
        _ints(Plane("scales", 4, 16, high=4)),
        _ints(Plane("scales", 4, 16, low=4)),
    ),
    "Q3_K": Layout(
        _struct("hmask:32", "qs:64", "scales:12", "d"),
        _ints(Plane("qs", 2, 32), Plane("hmask", 1, 32, up=2), bias=4),
        _ints(Plane("scales", 4, 8, stop=8), Plane("scales", 2, 4, start=8, up=4), bias=32),
    ),
    "Q4_K": Layout(_struct("d", "dmin", "scales:12", "qs:128"), _ints(_NIBBLES_32), _K_SCALES, _K_MINS),
    "Q5_K": Layout(
        _struct("d", "dmin", "scales:12", "qh:32", "qs:128"),
        _ints(_NIBBLES_32, Plane("qh", 1, 32, up=4)),
        _K_SCALES,
        _K_MINS,
    ),
    "Q6_K": Layout(
        _struct("ql:128", "qh:64", "scales:i16", "d"),
        _ints(Plane("ql", 4, 64), Plane("qh", 2, 32, up=4), bias=32),
        _ints(Plane("scales", 8, 16)),
    ),
    "IQ4_NL": Layout(_struct("d", "qs:16"), _ints(_NIBBLES_16, codebook=_IQ4)),
    "IQ4_XS": Layout(
        _struct("d", "scales_h:2", "scales_l:4", "qs:128"),
        _ints(_NIBBLES_16, codebook=_IQ4),
        _ints(Plane("scales_l", 4, 1), Plane("scales_h", 2, 1, up=4), bias=32),
    ),
    "TQ2_0": Layout(_struct("qs:64", "d"), _ints(Plane("qs", 2, 32), bias=1)),
    "MXFP4": Layout(_struct("e:1", "qs:16"), _ints(_NIBBLES_16, codebook=_FP4), d="e", d_kind="e8m0"),
    "NVFP4": Layout(_struct("d:4", "qs:32"), _ints(Plane("qs", 4, 8), codebook=_FP4), d_kind="ue4m3"),
    "Q1_0": Layout(_struct("d", "qs:16"), _ints(Plane("qs", 1, 1), codebook=(-1, 1))),
    "Q2_0": Layout(_struct("d", "qs:16"), _ints(Plane("qs", 2, 1), bias=1)),
}


@dataclass(frozen=True)
class FloatFormat:
    """A plain floating-point type: the top bit is the sign, then come the exponent and the fraction."""

    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        """What is taken from the stored exponent."""
        return (1 << (self.exponent_bits - 1)) - 1


FLOATS: dict[str, FloatFormat] = {"F32": FloatFormat(8, 23), "F16": FloatFormat(5, 10), "BF16": FloatFormat(8, 7)}

SUPPORTED: tuple[str, ...] = (*FLOATS, *LAYOUTS)
"""Types that can be decoded and explained. Not among them: IQ1, IQ2 and IQ3 (large codebooks) and TQ1_0 (base 3)."""


def check(type_name: str) -> None:
    """Raise ValueError unless this type is supported."""
    if type_name in SUPPORTED:
        return
    if type_name in TYPES:
        raise ValueError(f"{type_name} blocks are not implemented: choose one of {', '.join(SUPPORTED)}.")
    raise ValueError(f"{type_name!r} is not a ggml tensor type: choose one of {', '.join(SUPPORTED)}.")
