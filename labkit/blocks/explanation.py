"""One block, bit by bit: what every field holds, and how each weight is computed from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.blocks.decoder import Data, as_bytes, decode, integers, scale_factors
from labkit.blocks.layouts import FLOATS, LAYOUTS, Integers, Layout, check
from labkit.gguf.types import TYPES


@dataclass(frozen=True)
class Field:
    """Some bits of a block that belong together. The fields of a block cover each of its bits once.

    Attributes:
        name: such as "d", "weight 17" or "scale 4, bits 0–3".
        part: the member of ggml's struct that it lies in.
        byte_start, byte_end: its bytes in the block, from ``byte_start`` up to before ``byte_end``.
        bit_start, bit_end: its bits, counted from the lowest bit of byte ``byte_start``; bytes are little-endian.
        raw: those bits as a number.
        value: what they stand for; where an integer is split, what this piece adds to it.
        meaning: the same in words.
    """

    name: str
    part: str
    byte_start: int
    byte_end: int
    bit_start: int
    bit_end: int
    raw: int
    value: float
    meaning: str


@dataclass(frozen=True)
class Weight:
    """How one weight is computed.

    Attributes:
        index: which weight of the block.
        sub_block: which of the sub-blocks with a scale of their own; 0 where the block has a single scale.
        value: the weight, exactly as ``decode`` gives it.
        formula: in the names of ggml's struct, "d · sc · q − dmin · m".
        text: with numbers, "0.0123 · 17 · 9 − 0.004 · 5 = 1.8619". Every operation rounds to float32.
        fields: the fields it is computed from.
    """

    index: int
    sub_block: int
    value: float
    formula: str
    text: str
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"weight {self.index} = {self.formula} = {self.text}"


@dataclass(frozen=True)
class Explanation:
    """All fields of a block in the order of their bits, and all its weights in the order of the tensor."""

    type: str
    data: bytes
    fields: tuple[Field, ...]
    weights: tuple[Weight, ...]

    def weight(self, index: int) -> Weight:
        """How weight ``index`` is computed.

        Raises:
            IndexError: the block has no such weight.
        """
        if not 0 <= index < len(self.weights):
            raise IndexError(f"a {self.type} block has the weights 0 to {len(self.weights) - 1}, not {index}.")
        return self.weights[index]

    def at(self, byte: int) -> tuple[Field, ...]:
        """The fields that have bits in this byte of the block, lowest first."""
        return tuple(field for field in self.fields if field.byte_start <= byte < field.byte_end)


def explain(type_name: str, block: Data) -> Explanation:
    """Say what every bit of one block means.

    Args:
        type_name: one of ``SUPPORTED``.
        block: the bytes of one block.

    Raises:
        ValueError: unknown type, or not exactly one block.

    Source: ``block_*`` in ggml/src/ggml-common.h, ``dequantize_row_*`` in ggml/src/ggml-quants.c.
    """
    data = as_bytes(type_name, block)
    if data.size != TYPES[type_name].block_bytes:
        raise ValueError(f"{data.size} bytes are not one {type_name} block of {TYPES[type_name].block_bytes} bytes.")
    if type_name in FLOATS:
        fields, weight = _float(type_name, data)
        return Explanation(type_name, data.tobytes(), fields, (weight,))
    layout = LAYOUTS[type_name]
    with np.errstate(over="ignore", invalid="ignore"):
        d = _scale_fields(data, layout)
        m = [_half(data, layout, "m", "f16, added to every weight")] if layout.has_m else []
        dmin = [_half(data, layout, "dmin", "f16, multiplies every minimum")] if layout.mins else []
        scales = _integers("scale", data, layout, layout.scales)
        mins = _integers("minimum", data, layout, layout.mins)
        own = _integers("weight", data, layout, layout.weights)
    n_sub = max(len(d), len(scales))
    values = decode(type_name, data).tolist()
    weights = []
    for i, (q, pieces) in enumerate(own):
        sub = i * n_sub // len(own)
        factor = d[sub % len(d)]
        text, used = _number(factor.value), [factor]
        if scales:
            text += f" · {_operand(scales[sub][0])}"
            used += scales[sub][1]
        text += f" · {_operand(q)}"
        used += pieces
        if mins:
            text += f" − {_operand(dmin[0].value)} · {mins[sub][0]}"
            used += [*dmin, *mins[sub][1]]
        if m:
            text += f" + {_operand(m[0].value)}"
            used += m
        text += f" = {_number(values[i])}"
        weights.append(Weight(i, sub, values[i], layout.formula, text, tuple(used)))
    all_fields = [*d, *m, *dmin, *(field for _, pieces in (*scales, *mins, *own) for field in pieces)]
    all_fields.sort(key=lambda field: 8 * field.byte_start + field.bit_start)
    return Explanation(type_name, data.tobytes(), tuple(all_fields), tuple(weights))


def bits_per_weight(type_name: str) -> float:
    """Bits per weight, scales included, of any ggml type.

    Raises:
        ValueError: ggml has no such type.
    """
    if type_name not in TYPES:
        check(type_name)
    return TYPES[type_name].bpw


def bit_budget(type_name: str) -> dict[str, float]:
    """Bits per weight that each part of a block takes; they add up to ``bits_per_weight``.

    Raises:
        ValueError: the type is not in ``SUPPORTED``.
    """
    check(type_name)
    if type_name in FLOATS:
        form = FLOATS[type_name]
        return {"fraction": form.fraction_bits, "exponent": form.exponent_bits, "sign": 1}
    return {part: 8 * size / TYPES[type_name].block_elems for part, (_, size) in LAYOUTS[type_name].parts.items()}


def _half(data: NDArray[np.uint8], layout: Layout, part: str, meaning: str) -> Field:
    """The field of an f16 that the block stores in ``part``."""
    at = layout.parts[part][0]
    half = data[at : at + 2]
    return Field(part, part, at, at + 2, 0, 16, int(half.view("<u2")[0]), float(half.view("<f2")[0]), meaning)


def _scale_fields(data: NDArray[np.uint8], layout: Layout) -> list[Field]:
    """The fields of the scale d, of which some types have several."""
    if layout.d_kind == "f16":
        return [_half(data, layout, layout.d, "f16, multiplies every scale" if layout.scales else "f16, the step")]
    at, size = layout.parts[layout.d]
    meaning = {"e8m0": "a power of two, 2^(e − 128): the step", "ue4m3": "half of an 8-bit float: the step"}
    fields = []
    for i, value in enumerate(scale_factors(data.view(layout.struct), layout)[0].tolist()):
        name = layout.d if size == 1 else f"{layout.d} {i}"
        fields.append(Field(name, layout.d, at + i, at + i + 1, 0, 8, int(data[at + i]), value, meaning[layout.d_kind]))
    return fields


def _integers(
    kind: str, data: NDArray[np.uint8], layout: Layout, spec: Integers | None
) -> list[tuple[int, list[Field]]]:
    """A row of integers, each with the fields that hold its bits."""
    if spec is None:
        return []
    found = []
    for index, value in enumerate(integers(data.view(layout.struct), spec)[0].tolist()):
        pieces = []
        for plane in spec.planes:
            offset, size = layout.parts[plane.part]
            place = plane.place(index, size)
            if place is not None:
                byte, bit = offset + place[0], place[1]
                pieces.append((plane, byte, bit, int(data[byte]) >> bit & (1 << plane.bits) - 1))
        total = sum(raw << plane.up for plane, _, _, raw in pieces)
        fields = []
        for plane, byte, bit, raw in pieces:
            name, worth, meaning = f"{kind} {index}", value, _meaning(total, value, spec)
            if len(pieces) > 1:
                last = plane.up + plane.bits - 1
                name += f", bit {last}" if plane.bits == 1 else f", bits {plane.up}–{last}"
                worth = raw << plane.up
                meaning = f"{worth} of {total}" + (f"; {meaning}" if total != value else "")
            fields.append(Field(name, plane.part, byte, byte + 1, bit, bit + plane.bits, raw, worth, meaning))
        found.append((value, fields))
    return found


def _meaning(total: int, value: int, spec: Integers) -> str:
    """How the stored number becomes the integer in the formula, in words."""
    if spec.codebook:
        return f"codebook[{total}] = {_number(value)}"
    if spec.bias:
        return f"{total} − {spec.bias} = {_number(value)}"
    return str(total) if total == value else f"{total}, as a signed byte {_number(value)}"


def _number(value: float) -> str:
    """The shortest decimal that gives this number in float32."""
    text = str(value if isinstance(value, int) else np.float32(value))
    return f"−{text[1:]}" if text.startswith("-") else text


def _operand(value: float) -> str:
    """A number in a formula, in parentheses if it is negative."""
    text = _number(value)
    return f"({text})" if text.startswith("−") else text


def _float(type_name: str, data: NDArray[np.uint8]) -> tuple[tuple[Field, ...], Weight]:
    """Sign, exponent and fraction of a plain float (IEEE 754; BF16 is the upper half of an F32)."""
    form = FLOATS[type_name]
    bits, value = int.from_bytes(data.tobytes(), "little"), float(decode(type_name, data)[0])
    one, top = 1 << form.fraction_bits, (1 << form.exponent_bits) - 1
    f, e, s = bits % one, bits // one & top, bits >> 8 * data.size - 1
    normal = e > 0
    fraction = _bits("fraction", 0, form.fraction_bits, f, normal + f / one, f"{int(normal)} + {f} / {one}")
    exponent = _bits(
        "exponent",
        form.fraction_bits,
        form.exponent_bits,
        e,
        2.0 ** (max(e, 1) - form.bias) if e < top else np.inf,
        f"2^({max(e, 1)} − {form.bias})" if e < top else "infinite or not a number",
    )
    sign = _bits("sign", 8 * data.size - 1, 1, s, -1 if s else 1, "minus" if s else "plus")
    formula = f"s · 2^({'e' if normal else 1} − {form.bias}) · ({int(normal)} + f / {one})"
    text = f"{_number(sign.value)} · {exponent.meaning} · ({fraction.meaning}) = {_number(value)}"
    if e == top:
        formula, text = ("not a number", "not a number") if f else ("s · infinity", f"{_number(sign.value)} · infinity")
    fields = (fraction, exponent, sign)
    return fields, Weight(0, 0, value, formula, text, fields)


def _bits(name: str, first: int, count: int, raw: int, value: float, meaning: str) -> Field:
    """The field of ``count`` bits of a plain float, from bit ``first`` on."""
    byte, bit = divmod(first, 8)
    return Field(name, "float", byte, (first + count + 7) // 8, bit, bit + count, raw, value, meaning)
