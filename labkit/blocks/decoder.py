"""From blocks to weights, with ggml's own operations in ggml's own order, so that every bit agrees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.blocks.layouts import LAYOUTS, Integers, Layout, Plane, check
from labkit.gguf.types import TYPES

Data: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]

# Weights decoded at a time: enough to hide numpy's cost per call, few enough that the pieces stay in the cache.
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Unpacked:
    """The integers of some blocks with their scales and offsets: weight = scale · integer + offset.

    Attributes:
        integers: shape (n_blocks, block_elems), int8 or uint8.
        scales: shape (n_blocks, sub-blocks), float32.
        offsets: shape (n_blocks, sub-blocks), float32; None for a type without offsets.
    """

    integers: NDArray[Any]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None


def decode(type_name: str, data: Data) -> NDArray[np.float32]:
    """The weights in some blocks, equal to the last bit to what ggml computes on x86-64.

    Where a compiler fuses multiplication and addition (64-bit ARM), ggml rounds once where this rounds twice, and types
    with an offset (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) can differ in the last bit of the product.

    Args:
        type_name: one of ``SUPPORTED``.
        data: whole blocks, one after the other, as they lie in a GGUF file.

    Returns:
        Shape (n_blocks * block_elems,), a new array; for F32, which needs no decoding, a view of ``data``.

    Raises:
        ValueError: unknown type, or not a whole number of blocks.

    Source: ``dequantize_row_*`` in ggml/src/ggml-quants.c.
    """
    raw = as_bytes(type_name, data)
    if type_name == "F32":
        return raw.view("<f4")
    if type_name == "F16":
        return _from_halves(raw.view("<u2"))
    if type_name == "BF16":
        return _from_bfloats(raw.view("<u2"))
    layout = LAYOUTS[type_name]
    blocks = raw.view(layout.struct)
    width = TYPES[type_name].block_elems
    weights = np.empty((len(blocks), width), np.float32)
    step = _CHUNK // width
    # Where a scale is infinite or not a number, so are the weights, as in ggml.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            _decode_into(weights[start : start + step], blocks[start : start + step], layout)
    return weights.reshape(-1)


def unpack(type_name: str, data: Data) -> Unpacked:
    """The integers, scales and offsets of blocks, not yet multiplied.

    Args:
        type_name: a block type in ``SUPPORTED``.
        data: whole blocks.

    Raises:
        ValueError: as ``decode``, or the type is a plain float, without integers and scales.
    """
    raw = as_bytes(type_name, data)
    if type_name not in LAYOUTS:
        raise ValueError(f"{type_name} is a plain float without integers or scales: use decode.")
    layout = LAYOUTS[type_name]
    with np.errstate(over="ignore", invalid="ignore"):
        return _unpack(raw.view(layout.struct), layout)


def as_bytes(type_name: str, data: Data) -> NDArray[np.uint8]:
    """The data as a flat array of bytes; ValueError unless it is whole blocks of a supported type."""
    check(type_name)
    if not isinstance(data, np.ndarray):
        data = np.frombuffer(data, np.uint8)
    elif data.dtype != np.uint8:
        raise ValueError(f"the blocks are an array of {data.dtype}: pass bytes or an array of uint8.")
    block_bytes = TYPES[type_name].block_bytes
    if data.size % block_bytes:
        raise ValueError(f"{data.size} bytes are not a whole number of {type_name} blocks of {block_bytes} bytes.")
    return np.ascontiguousarray(data).reshape(-1)


def _decode_into(weights: NDArray[np.float32], blocks: NDArray[Any], layout: Layout) -> None:
    """Write the weights of some blocks to ``weights``, shape (n_blocks, block_elems)."""
    unpacked = _unpack(blocks, layout)
    sub_blocks = weights.reshape(*unpacked.scales.shape, -1)
    sub_blocks[...] = unpacked.integers.reshape(sub_blocks.shape)
    sub_blocks *= unpacked.scales[:, :, None]
    if unpacked.offsets is not None:
        sub_blocks += unpacked.offsets[:, :, None]


def _unpack(blocks: NDArray[Any], layout: Layout) -> Unpacked:
    """The integers, scales and offsets of some blocks."""
    scales = scale_factors(blocks, layout)
    if layout.scales is not None:
        scales = scales * integers(blocks, layout.scales)
    offsets = None
    if layout.mins is not None:
        offsets = -(_column(blocks["dmin"]) * integers(blocks, layout.mins))
    elif layout.has_m:
        offsets = _column(blocks["m"])
    return Unpacked(integers(blocks, layout.weights), scales, offsets)


def scale_factors(blocks: NDArray[Any], layout: Layout) -> NDArray[np.float32]:
    """The part ``d`` as float32, shape (n_blocks, how many there are in a block)."""
    if layout.d_kind == "f16":
        return _column(blocks[layout.d])
    scales: NDArray[np.float32] = _small_floats(layout.d_kind)[blocks[layout.d]]
    return scales


def _column(halves: NDArray[Any]) -> NDArray[np.float32]:
    """f16 values as float32, shape (n_blocks, 1)."""
    return halves.astype(np.float32)[:, None]


def integers(blocks: NDArray[Any], spec: Integers) -> NDArray[Any]:
    """One row of integers per block, uint8 or int8."""
    groups: dict[int, NDArray[Any]] = {}
    for plane in spec.planes:
        values = _plane(blocks[plane.part], plane)
        if plane.first in groups:
            groups[plane.first] |= values
        else:
            groups[plane.first] = values
    total = groups[0] if len(groups) == 1 else np.concatenate([groups[first] for first in sorted(groups)], axis=1)
    if spec.codebook:
        # The quickest table look-up of bytes that Python has.
        table = np.array(spec.codebook, np.int8).tobytes().ljust(256, b"\0")
        return np.frombuffer(total.tobytes().translate(table), np.int8).reshape(total.shape)
    if spec.bias:
        total = total.view(np.int8)
        total -= np.int8(spec.bias)
    return total


def _plane(part: NDArray[Any], plane: Plane) -> NDArray[Any]:
    """The bits of one plane at their place in the integers, shape (n_blocks, number of integers)."""
    part = _copy(part[:, plane.start : plane.stop])
    if plane.bits == 8:
        return part
    if plane.bits == plane.run == 1:
        bits = np.unpackbits(part, axis=1, bitorder="little")
        bits *= np.uint8(1 << plane.up)
        return bits
    n_blocks, n_bytes = part.shape
    values = np.empty((n_blocks, n_bytes // plane.run, plane.per_byte, plane.run), np.uint8)
    runs = _runs(values)
    mask = np.uint8(((1 << plane.bits) - 1) << plane.up)
    for level in range(plane.per_byte):
        down = plane.low + level * plane.bits - plane.up
        # Multiplying moves to the left: numpy does it ten times as fast as shifting bytes left.
        moved = part >> np.uint8(down) if down > 0 else part * np.uint8(1 << -down)
        moved &= mask
        runs[:, :, level] = _runs(moved.reshape(n_blocks, -1, plane.run))
    return values.reshape(n_blocks, -1)


def _copy(part: NDArray[Any]) -> NDArray[Any]:
    """The rows of ``part`` in memory of their own, one after the other."""
    copy = np.empty(part.shape, part.dtype)
    _runs(copy)[...] = _runs(part)
    return copy


def _runs(values: NDArray[Any]) -> NDArray[Any]:
    """A view with the last axis as one item each, which numpy copies several times as fast as rows of bytes."""
    return values.view(f"V{values.shape[-1]}")[..., 0]


def _from_halves(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """f16 values, given as their bits, as float32."""
    weights = np.empty(len(halves), np.float32)
    for start in range(0, len(halves), _CHUNK):
        # There are only 65536 halves, and looking one up takes half the time of converting it. No index can be out of
        # range; "wrap" spares the check.
        np.take(_all_halves(), halves[start : start + _CHUNK], out=weights[start : start + _CHUNK], mode="wrap")
    return weights


@cache
def _all_halves() -> NDArray[np.float32]:
    """All 65,536 f16 values as float32, in the order of their bits."""
    with np.errstate(invalid="ignore"):
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _from_bfloats(bfloats: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bf16 values, given as their bits, as float32."""
    words = np.empty(len(bfloats), np.uint32)
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK]
        chunk[...] = bfloats[start : start + _CHUNK]
        chunk <<= 16
    return words.view(np.float32)


@cache
def _small_floats(kind: str) -> NDArray[np.float32]:
    """The scale of each byte, shape (256,) (ggml_e8m0_to_fp32_half and ggml_ue4m3_to_fp32 in ggml/src/ggml-impl.h)."""
    byte = np.arange(256)
    if kind == "e8m0":
        return np.ldexp(np.float32(1), byte - 128)
    exponent, fraction = byte >> 3 & 15, (byte & 7).astype(np.float32)
    values = np.where(exponent == 0, np.ldexp(fraction, -10), np.ldexp(1 + fraction / 8, exponent - 8))
    values[0x7F] = 0  # not a number
    return values.astype(np.float32)
