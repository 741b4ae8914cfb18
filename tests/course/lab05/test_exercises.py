"""Lab 05's checks: right answers pass, and each usual slip is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labkit.course import exercises
from labkit.course.checking import Verdict
from labkit.course.lab05 import exercises as lab_05

# Llama 2 7B Q4_K_M with n_ctx 4096, as llama.cpp 0c1e57098 reports it; its file, and Python as the kit counts it.
FILE, KV, OUTPUT, PYTHON = 4_080_281_344, 2048 << 20, 128_000, 31 << 20
COMPUTE = 105_396_224
WHOLE = KV + COMPUTE + OUTPUT + PYTHON
REPACK = 2943 << 20


def fits(limit: float) -> bool:
    return limit * 1024 >= FILE


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (lab_05.will_lock_fit, fits),
        (lab_05.will_lock_fit, lambda limit: np.bool_(fits(limit))),
        (lab_05.will_lock_fit, lambda limit: limit * 1024 >= 4_080_267_264),  # the span that stays mapped
        (lab_05.unlocked_part, WHOLE),
        (lab_05.unlocked_part, 0.995 * WHOLE),
        (lab_05.unlocked_part, WHOLE - COMPUTE + (2 << 20)),  # what 8 tokens touch of the compute buffer
        (lab_05.context_for_locked_7b, 8192),
        (lab_05.context_for_locked_7b, np.int64(8192)),
    ],
)
def test_right_answers(check: Callable[[Any], Verdict], answer: Any) -> None:
    assert check(answer), check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (lab_05.will_lock_fit, lambda limit: limit >= FILE, "took its figure for bytes"),
        (lab_05.will_lock_fit, lambda limit: limit * 1000 >= FILE, "took them for 1000"),
        (lab_05.will_lock_fit, lambda limit: limit * 1024**2 >= FILE, "took its figure for MiB"),
        (lab_05.will_lock_fit, lambda limit: limit * 1024 >= FILE + WHOLE, "the mapped weights alone"),
        (lab_05.will_lock_fit, lambda limit: limit * 1024 < FILE, "the wrong way round"),
        (lab_05.will_lock_fit, lambda limit: False, "for 4,000,000 (3.81 GiB) yours is False, expected True."),
        (lab_05.will_lock_fit, lambda limit: True, "for 64 (64.0 KiB) yours is True, expected False."),
        (lab_05.will_lock_fit, lambda limit: math.isfinite(limit) and fits(limit), "for unlimited yours is False"),
        (lab_05.will_lock_fit, True, "a function is asked for"),
        (lab_05.will_lock_fit, lambda limit: 1 / 0, "raised ZeroDivisionError"),
        (lab_05.unlocked_part, WHOLE - KV, "left out the cache"),
        (lab_05.unlocked_part, WHOLE - PYTHON, "left out Python"),
        (lab_05.unlocked_part, KV + PYTHON + OUTPUT - PYTHON, "the cache alone"),
        (lab_05.unlocked_part, KV, "the cache alone"),
        (lab_05.unlocked_part, WHOLE + REPACK, "without repacking there is none"),
        (lab_05.unlocked_part, FILE, "what mlock does cover"),
        (lab_05.unlocked_part, WHOLE + FILE, "the mapped weights are locked"),
        (lab_05.unlocked_part, (256 << 20) + 101_726_208 + OUTPUT + PYTHON, "n_ctx 512"),
        (lab_05.unlocked_part, round(WHOLE / 1024**3, 2), "GiB, not bytes"),
        (lab_05.unlocked_part, WHOLE / 1024**2, "MiB, not bytes"),
        (lab_05.unlocked_part, 7, "expected 2,285,513,728 bytes"),
        (lab_05.context_for_locked_7b, 8448, "left out the compute buffer"),
        (lab_05.context_for_locked_7b, 8300, "rounded up to a multiple of 256"),
        (lab_05.context_for_locked_7b, 7168, "GB for GiB"),
        (lab_05.context_for_locked_7b, 15872, "counted the weights as if they could"),
        (lab_05.context_for_locked_7b, 2304, "the repack copy"),
        (lab_05.context_for_locked_7b, 15616, "q8_0"),
        (lab_05.context_for_locked_7b, 4096, "what it was trained for"),
        (lab_05.context_for_locked_7b, 5000, "expected 8,192 tokens."),
    ],
)  # fmt: skip
def test_slips_are_named(check: Callable[[Any], Verdict], answer: Any, said: str) -> None:
    verdict = check(answer)
    assert verdict.state == "wrong" and said in verdict.text, verdict


@pytest.mark.parametrize("check", lab_05.CHECKS, ids=lambda check: check.__name__)
def test_open_answers(check: Callable[[Any], Verdict]) -> None:
    assert check(...).state == check(None).state == "not attempted"
    assert getattr(exercises, check.__name__) is check
    assert check("much").state == "wrong"
