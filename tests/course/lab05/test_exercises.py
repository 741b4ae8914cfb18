"""Lab 05's checks: right answers pass, and each usual mistake is named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.answers import Check, assert_judged

from labkit.course.lab05 import exercises

# Llama 2 7B Q4_K_M with n_ctx 4096, as llama.cpp 0c1e57098 reports it; its file, and Python as the kit counts it.
FILE, KV, OUTPUT, PYTHON = 4_080_281_344, 2048 << 20, 128_000, 22 << 20
COMPUTE = 105_396_224
WHOLE = KV + COMPUTE + OUTPUT + PYTHON
REPACK = 2943 << 20


def fits(limit: float) -> bool:
    return limit * 1024 >= FILE


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (exercises.will_lock_fit, fits, None),
        (exercises.will_lock_fit, lambda limit: np.bool_(fits(limit)), None),
        (exercises.will_lock_fit, lambda limit: limit * 1024 >= 4_080_267_264, None),  # the span that stays mapped
        (exercises.unlocked_part, WHOLE, None),
        (exercises.unlocked_part, 0.995 * WHOLE, None),
        (exercises.unlocked_part, WHOLE - COMPUTE + (2 << 20), None),  # what 8 tokens touch of the compute buffer
        (exercises.context_for_locked_7b, 8192, None),
        (exercises.context_for_locked_7b, np.int64(8192), None),
        (exercises.will_lock_fit, lambda limit: limit >= FILE, "took its number for bytes"),
        (exercises.will_lock_fit, lambda limit: limit * 1000 >= FILE, "took them for 1000"),
        (exercises.will_lock_fit, lambda limit: limit * 1024**2 >= FILE, "took its number for MiB"),
        (exercises.will_lock_fit, lambda limit: limit * 1024 >= FILE + WHOLE, "only the mapped weights"),
        (exercises.will_lock_fit, lambda limit: limit * 1024 < FILE, "the wrong way round"),
        (exercises.will_lock_fit, lambda limit: False, "for 4,000,000 (3.81 GiB) yours is False, expected True."),
        (exercises.will_lock_fit, lambda limit: True, "for 64 (64.0 KiB) yours is True, expected False."),
        (exercises.will_lock_fit, lambda limit: math.isfinite(limit) and fits(limit), "for unlimited yours is False"),
        (exercises.will_lock_fit, True, "a function is asked for"),
        (exercises.will_lock_fit, lambda limit: 1 / 0, "raised ZeroDivisionError"),
        (exercises.unlocked_part, WHOLE - KV, "left out the cache"),
        (exercises.unlocked_part, WHOLE - PYTHON, "left out Python"),
        (exercises.unlocked_part, KV + PYTHON + OUTPUT - PYTHON, "the cache alone"),
        (exercises.unlocked_part, KV, "the cache alone"),
        (exercises.unlocked_part, WHOLE + REPACK, "without repacking there is none"),
        (exercises.unlocked_part, FILE, "what is locked"),
        (exercises.unlocked_part, WHOLE + FILE, "the mapped weights are locked"),
        (exercises.unlocked_part, (256 << 20) + 101_726_208 + OUTPUT + PYTHON, "n_ctx 512"),
        (exercises.unlocked_part, round(WHOLE / 1024**3, 2), "GiB, not bytes"),
        (exercises.unlocked_part, WHOLE / 1024**2, "MiB, not bytes"),
        (exercises.unlocked_part, 7, f"expected {WHOLE:,} bytes"),
        (exercises.context_for_locked_7b, 8448, "left out the compute buffer"),
        (exercises.context_for_locked_7b, 8300, "rounded up to a multiple of 256"),
        (exercises.context_for_locked_7b, 7168, "GB for GiB"),
        (exercises.context_for_locked_7b, 15872, "counted the weights as if they could"),
        (exercises.context_for_locked_7b, 2304, "the repack copy"),
        (exercises.context_for_locked_7b, 15616, "q8_0"),
        (exercises.context_for_locked_7b, 4096, "it was trained for"),
        (exercises.context_for_locked_7b, 5000, "expected 8,192 tokens."),
    ],
)  # fmt: skip
def test_answers_and_slips(check: Check, answer: Any, said: str | None) -> None:
    assert_judged(check, answer, said)
