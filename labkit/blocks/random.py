"""Random blocks of every type a mixture uses: valid, finite, and of the size of real weights.

Random bytes would not do: as f16 scales, many would be huge, infinite or not numbers, and subnormal ones would slow
arithmetic down. So only the integers are random. The scales are chosen such that the weights have mean 0 and a standard
deviation near 0.02, as trained ones do. Layouts: ``block_*`` in ggml/src/ggml-common.h; decoding:
``dequantize_row_*`` in ggml/src/ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.gguf.types import TYPES

STD = 0.02
"""Standard deviation of the weights."""

Bytes = NDArray[np.uint8]
_Maker = Callable[[np.random.Generator, int], list[Bytes]]


def random_blocks(type_name: str, n_blocks: int, *, seed: int) -> Bytes:
    """Blocks of one type; the same seed gives the same bytes.

    Args:
        type_name: a type in ``SUPPORTED``, such as ``"Q4_K"``.
        n_blocks: how many.
        seed: of the generator.

    Returns:
        Shape (n_blocks, block_bytes).

    Raises:
        ValueError: no random blocks are known for this type.
    """
    maker = _MAKERS.get(type_name)
    if maker is None:
        raise ValueError(f"random {type_name} blocks are not implemented: choose one of {', '.join(_MAKERS)}.")
    rng = np.random.default_rng((seed, TYPES[type_name].id))
    return np.concatenate(maker(rng, n_blocks), axis=1)


def _bytes(rng: np.random.Generator, n: int, width: int) -> Bytes:
    """Random bytes, shape (n, width)."""
    return rng.integers(0, 256, (n, width), dtype=np.uint8)


def _scales(rng: np.random.Generator, n: int, size: float, *, signed: bool = True) -> NDArray[np.float16]:
    """Scales within 20 % of ``size``, shape (n, 1). With random signs, an uneven range of integers has mean 0, too."""
    values = size * rng.uniform(0.8, 1.2, (n, 1))
    return (values * rng.choice([-1, 1], (n, 1)) if signed else values).astype(np.float16)


def _raw(values: NDArray[Any]) -> Bytes:
    """The bytes of some values, row by row."""
    return np.ascontiguousarray(values).view(np.uint8)


def _floats(kind: type[np.floating]) -> _Maker:
    """A maker of normally distributed plain floats, none of them subnormal."""

    def make(rng: np.random.Generator, n: int) -> list[Bytes]:
        values = rng.normal(0, STD, (n, 1))
        # The smallest normal f16 is 0.00006.
        return [_raw(np.copysign(np.maximum(np.abs(values), 1e-4), values).astype(kind))]

    return make


def _simple(width: int, spread: float, middle: float | None = None) -> _Maker:
    """A scale, then integers of standard deviation ``spread``; with an offset where their mean ``middle`` is not 0."""

    def make(rng: np.random.Generator, n: int) -> list[Bytes]:
        d = _scales(rng, n, STD / spread)
        offset = [] if middle is None else [_raw((-middle * d).astype(np.float16))]
        return [_raw(d), *offset, _bytes(rng, n, width)]

    return make


def _q2_k(rng: np.random.Generator, n: int) -> list[Bytes]:
    scale = rng.integers(8, 16, (n, 16), dtype=np.uint8)
    d = _scales(rng, n, STD / (11.7 * 1.12), signed=False)
    # Each sub-block subtracts its own scale times 1.5 d, the mean of 0..3.
    return [_raw(scale | scale << 4), _bytes(rng, n, 64), _raw(d), _raw((1.5 * d).astype(np.float16))]


def _q3_k(rng: np.random.Generator, n: int) -> list[Bytes]:
    return [_bytes(rng, n, 32 + 64 + 12), _raw(_scales(rng, n, STD / (18.5 * 2.29)))]


def _k_scales(rng: np.random.Generator, n: int, low: int, high: int) -> Bytes:
    """Eight 6-bit scales and equal minimums in 12 bytes (``get_scale_min_k4``)."""
    s = rng.integers(low, high, (n, 8), dtype=np.uint8)
    first = s[:, :4] | s[:, 4:] >> 4 << 6
    last = s[:, 4:] & 15
    return np.concatenate([first, first, last | last << 4], axis=1)


def _q4_k(rng: np.random.Generator, n: int) -> list[Bytes]:
    d = _scales(rng, n, STD / (32.8 * 4.61), signed=False)
    return [_raw(d), _raw((7.5 * d).astype(np.float16)), _k_scales(rng, n, 16, 48), _bytes(rng, n, 128)]


def _q5_k(rng: np.random.Generator, n: int) -> list[Bytes]:
    d = _scales(rng, n, STD / (16.2 * 9.23), signed=False)
    return [_raw(d), _raw((15.5 * d).astype(np.float16)), _k_scales(rng, n, 8, 24), _bytes(rng, n, 32 + 128)]


def _q6_k(rng: np.random.Generator, n: int) -> list[Bytes]:
    scale = rng.integers(4, 12, (n, 16), dtype=np.int8) * rng.choice(np.array([-1, 1], np.int8), (n, 16))
    return [_bytes(rng, n, 128 + 64), _raw(scale), _raw(_scales(rng, n, STD / (7.8 * 18.5)))]


def _iq4_xs(rng: np.random.Generator, n: int) -> list[Bytes]:
    # 6-bit scales less 32: here from -3 to 3 without 0, for else the f16 scale would have to be subnormal.
    scale = (32 + rng.integers(1, 4, (n, 8)) * rng.choice([-1, 1], (n, 8))).astype(np.uint16)
    high = np.bitwise_or.reduce((scale >> 4) << (2 * np.arange(8, dtype=np.uint16)), axis=1, keepdims=True)
    low = (scale & 15).astype(np.uint8)
    pairs = low[:, 0::2] | low[:, 1::2] << 4
    return [_raw(_scales(rng, n, STD / (2.16 * 67.5))), _raw(high.astype("<u2")), pairs, _bytes(rng, n, 128)]


def _mxfp4(rng: np.random.Generator, n: int) -> list[Bytes]:
    # The scale is a power of two, 2^(e - 128), and what it multiplies (``kvalues_mxfp4``) has standard deviation 5.85:
    # two blocks of 2^-8 and one of 2^-9 come closest.
    return [rng.choice(np.array([119, 120, 120], np.uint8), (n, 1)), _bytes(rng, n, 16)]


_MAKERS: dict[str, _Maker] = {
    "F32": _floats(np.float32),
    "F16": _floats(np.float16),
    "Q4_0": _simple(16, 4.61),
    "Q4_1": _simple(16, 4.61, middle=7.5),
    "Q5_0": _simple(4 + 16, 9.23),
    "Q5_1": _simple(4 + 16, 9.23, middle=15.5),
    "Q8_0": _simple(32, 73.9),
    "IQ4_NL": _simple(16, 67.5),
    "MXFP4": _mxfp4,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
}
SUPPORTED: tuple[str, ...] = tuple(_MAKERS)
"""Types for which there are random blocks: all those that appear in a mixture."""
