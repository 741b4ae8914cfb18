"""Lab 00's checks: figures of the files are right, and each usual mistake is named."""

from __future__ import annotations

from typing import Any

import pytest
from support.answers import Check, assert_judged

from labkit.course.lab00 import exercises
from labkit.models.lookup import header
from labkit.units import GiB

SEVEN, THIRTEEN = header("llama-2-7b:Q4_K_M"), header("llama-2-13b:Q4_K_M")
EMBEDDING = 32000 * 4096 * 144 // 256  # rows of Q4_K: 144 bytes for 256 weights
READ_7B = 4_080_263_168 - EMBEDDING
READ_13B = THIRTEEN.tensor_bytes - THIRTEEN.tensor("token_embd.weight").nbytes


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (exercises.token_bytes, READ_7B, None),
        (exercises.token_bytes, 4_080_263_168, "token embedding"),
        (exercises.token_bytes, SEVEN.file_bytes, "whole file"),
        (exercises.token_bytes, READ_7B - SEVEN.tensor("output.weight").nbytes, "output matrix"),
        (exercises.ceiling, 50 * GiB / READ_13B, None),
        (exercises.ceiling, 6.92, None),
        (exercises.ceiling, 50e9 / READ_13B, "GB/s"),
        (exercises.ceiling, 1000 * READ_13B / (50 * GiB), "milliseconds"),
        (exercises.ceiling, 50 * GiB / READ_13B / 8, "bits"),
        (exercises.ceiling, READ_13B / (50 * GiB), "wrong way round"),
    ],
)
def test_answers_and_slips(check: Check, answer: Any, said: str | None) -> None:
    assert_judged(check, answer, said)
