"""Lab 02's checks: ggml's own decoding is right, and each usual mistake is named."""

from __future__ import annotations

from typing import Any

import gguf.quants
import numpy as np
import pytest
from support.answers import Check, assert_judged

from labkit.course.lab02 import exercises

BITS = {kind.name: 8 * size / n for kind, (n, size) in gguf.constants.GGML_QUANT_SIZES.items()}


def unpack(q: bytes) -> tuple[list[int], list[int]]:
    """The twelve bytes as one 96-bit picture: written from the layout, not from the check."""
    scale = [q[0] & 63, q[1] & 63, q[2] & 63, q[3] & 63]
    minimum = [q[4] & 63, q[5] & 63, q[6] & 63, q[7] & 63]
    for j in range(4):
        scale.append(q[8 + j] % 16 + q[j] // 64 * 16)
        minimum.append(q[8 + j] // 16 + q[4 + j] // 64 * 16)
    return scale, minimum


def by_gguf(block: bytes) -> np.ndarray[Any, Any]:
    kind = gguf.GGMLQuantizationType.Q4_K
    return gguf.quants.dequantize(np.frombuffer(block, np.uint8), kind)


def broken_q4_k(block: bytes, *, minimum: float = 1, order: str = "low first", use_d: bool = True) -> list[float]:
    d, dmin = (float(x) for x in np.frombuffer(block[:4], np.float16))
    scale, offset = unpack(block[4:16])
    out = [0.0] * 256
    for group in range(4):
        for i in range(32):
            byte = block[16 + 32 * group + i]
            low, high = byte & 15, byte >> 4
            if order == "high first":
                low, high = high, low
            first, second = (64 * group + i, 64 * group + 32 + i)
            if order == "interleaved":
                first, second = 64 * group + 2 * i, 64 * group + 2 * i + 1
            for place, q in ((first, low), (second, high)):
                sub = place // 32
                out[place] = (d if use_d else 1.0) * scale[sub] * q - minimum * dmin * offset[sub]
    return out


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (exercises.scales, unpack, None),
        (exercises.scales, lambda q: [list(np.array(row)) for row in unpack(q)], None),
        (exercises.q4_k, by_gguf, None),
        (exercises.q4_k, broken_q4_k, None),
        (exercises.q6_weight, lambda low, high, scale, d: d * scale * (low + 16 * high - 32), None),
        (exercises.bits, BITS, None),
        (exercises.scales, lambda q: unpack(q)[::-1], "other way round"),
        (exercises.scales, lambda q: ([b & 63 for b in q[:4]] + [b & 15 for b in q[8:]],
                                         [b & 63 for b in q[4:8]] + [b >> 4 for b in q[8:]]), "upper two bits"),
        (exercises.scales, lambda q: (list(q[:4]) + unpack(q)[0][4:], list(q[4:8]) + unpack(q)[1][4:]),
         "lower six bits"),
        (exercises.scales, lambda q: ([1] * 8, [2] * 8), "expected"),
        (exercises.scales, lambda q: 7, "expected"),
        (exercises.q4_k, lambda b: broken_q4_k(b, minimum=0), "left out −dmin"),
        (exercises.q4_k, lambda b: broken_q4_k(b, minimum=-1), "subtracted"),
        (exercises.q4_k, lambda b: broken_q4_k(b, order="interleaved"), "nibble order"),
        (exercises.q4_k, lambda b: broken_q4_k(b, order="high first"), "other way round"),
        (exercises.q4_k, lambda b: broken_q4_k(b, use_d=False), "left out d"),
        (exercises.q4_k, lambda b: by_gguf(b)[:255], "expected"),
        (exercises.q4_k, lambda b: "text", "expected"),
        (exercises.q6_weight, lambda low, high, scale, d: d * scale * (low | high << 4), "−32"),
        (exercises.q6_weight, lambda low, high, scale, d: d * scale * ((low << 2 | high) - 32), "shift them by 4"),
        (exercises.q6_weight, lambda low, high, scale, d: d * ((low | high << 4) - 32), "scale of the 16"),
        (exercises.bits, dict.fromkeys(exercises.COUNTED, 4.5), "expected"),
        (exercises.bits, {"Q4_0": 4.5}, "no number yet"),
        (exercises.bits, [4.5], "dict"),
        (exercises.bits, {"Q8_0": 8, "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5,
                             "Q6_K": 6, "IQ4_XS": 4}, "scales and minima"),
    ],
)  # fmt: skip
def test_answers_and_slips(check: Check, answer: Any, said: str | None) -> None:
    assert_judged(check, answer, said)


def test_a_dict_of_dots_is_open() -> None:
    assert exercises.bits(dict.fromkeys(exercises.COUNTED, ...)).state == "not attempted"
