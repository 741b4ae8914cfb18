"""Write the header of a GGUF file: everything up to the tensor data."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.gguf.types import DEFAULT_ALIGNMENT, MAX_DIMS, MAX_NAME, TYPES, VALUE_TYPES, row_bytes

_BY_NAME = {t.name: t for t in VALUE_TYPES}
_INT_RANGES = (("u32", 0, 2**32), ("i32", -(2**31), 2**31), ("u64", 0, 2**64), ("i64", -(2**63), 2**63))


@dataclass(frozen=True)
class Typed:
    """A metadata value, or a list of values, with its type given instead of inferred: ``Typed("u16", 3)``.

    ``type`` is one of llama.cpp's names: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str.
    """

    type: str
    value: Any


def write_header(
    metadata: Mapping[str, Any],
    tensors: Sequence[tuple[str, Sequence[int], str]],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> bytes:
    """The magic, the metadata and the tensor table (``gguf_write_out`` in ggml/src/gguf.cpp).

    Tensors lie one after the other, each padded to ``alignment``, as llama.cpp requires.

    Args:
        metadata: values by key. bool, float (f32), str and int (u32, or the first of i32, u64, i64 that holds it) are
            stored as such, a list as an array of one of these; ``Typed`` picks another type.
        tensors: (name, dims, type) with dims in ggml's order, dims[0] being the row length.
        alignment: of the tensor data, in bytes; written as ``general.alignment`` if it is not 32.

    Returns:
        The header, padded to ``alignment``: its length is the position of the first tensor's data.

    Raises:
        ValueError: llama.cpp would refuse the file; the message names the key or tensor.
    """
    if alignment <= 0 or alignment & (alignment - 1) or alignment >= 2**32:
        raise ValueError(f"alignment {alignment} is not a power of two that fits 32 bits.")
    if "general.alignment" in metadata:
        raise ValueError("give the alignment as an argument; general.alignment is written from it.")
    if alignment != DEFAULT_ALIGNMENT:
        metadata = {**metadata, "general.alignment": alignment}
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        if not key:
            raise ValueError("a metadata key is empty: give it a name.")
        out += _string(key) + _value(key, value)
    offset = 0
    seen: set[str] = set()
    for name, dims, type_name in tensors:
        if name in seen:
            raise ValueError(f"tensor {name!r} is listed twice: tensor names must differ.")
        seen.add(name)
        if len(name.encode()) >= MAX_NAME:
            raise ValueError(f"tensor name {name!r} is longer than {MAX_NAME - 1} bytes.")
        if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 0:
            raise ValueError(f"tensor {name!r} has dimensions {tuple(dims)}; it takes 1 to {MAX_DIMS}, none negative.")
        nbytes = row_bytes(type_name, dims[0])
        for n in dims[1:]:
            nbytes *= n
        out += _string(name) + struct.pack(f"<I{len(dims)}q", len(dims), *dims)
        out += struct.pack("<IQ", TYPES[type_name].id, offset)
        offset += nbytes + -nbytes % alignment
    return bytes(out) + bytes(-len(out) % alignment)


def _string(text: str) -> bytes:
    """A string as GGUF stores it: its length in bytes, then the bytes."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> bytes:
    """A metadata value as GGUF stores it: its type, then the value."""
    explicit = value.type if isinstance(value, Typed) else None
    if isinstance(value, Typed):
        value = value.value
    is_array = not isinstance(value, str | bytes) and isinstance(value, Iterable)
    items = list(value) if is_array else [value]
    type_name = explicit or _infer(key, items)
    if type_name not in _BY_NAME or type_name == "arr":
        raise ValueError(f"metadata {key!r}: {type_name!r} is not a value type.")
    kind = _BY_NAME[type_name]
    out = bytearray()
    if is_array:
        out += struct.pack("<IIQ", _BY_NAME["arr"].id, kind.id, len(items))
    else:
        out += struct.pack("<I", kind.id)
    try:
        if kind.code:
            out += struct.pack(f"<{len(items)}{kind.code}", *items)
        else:
            out += b"".join(_string(item) for item in items)
    except (struct.error, OverflowError, AttributeError) as e:
        raise ValueError(f"metadata {key!r}: {value!r} cannot be stored as {type_name} ({e}).") from e
    return bytes(out)


def _infer(key: str, items: list[Any]) -> str:
    """The value type of some items of one Python type; ValueError where there is none."""
    if items and all(isinstance(x, bool) for x in items):
        return "bool"
    if items and all(isinstance(x, str) for x in items):
        return "str"
    if items and all(isinstance(x, float) for x in items):
        return "f32"
    if items and all(isinstance(x, int) and not isinstance(x, bool) for x in items):
        for name, low, end in _INT_RANGES:
            if low <= min(items) and max(items) < end:
                return name
        raise ValueError(f"metadata {key!r}: an integer needs more than 64 bits.")
    raise ValueError(f"metadata {key!r}: no value type for {items!r}; give one with Typed.")
