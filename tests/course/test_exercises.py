"""Every check accepts the right answer, tells "not attempted" apart, and names the slips that learners make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labkit import gguf, predict
from labkit.course import checking, exercises
from labkit.models.forge import header_bytes
from labkit.settings import Settings
from labkit.units import GiB

SEVEN = gguf.read_header(header_bytes("llama-2-7b", "Q4_K_M"))
THIRTEEN = gguf.read_header(header_bytes("llama-2-13b", "Q4_K_M"))
ONE = predict.memory(gguf.read_header(header_bytes("llama-3.2-1b", "Q4_K_M")), Settings(repack=False), cpu_features=())
EMBEDDING = 32000 * 4096 * 144 // 256  # rows of Q4_K: 144 bytes for 256 weights
READ_13B = THIRTEEN.tensor_bytes - THIRTEEN.tensor("token_embd.weight").nbytes
CHECKS = (exercises.token_bytes, exercises.ceiling, exercises.pages, exercises.repack, exercises.cliff)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("answer", [None, ...])
def test_an_open_answer_is_not_attempted(check: Callable[[Any], checking.Verdict], answer: Any) -> None:
    assert check(answer).state == "not attempted"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("answer", ["4", [], True, -1, 0])
def test_nonsense_is_wrong_and_raises_nothing(check: Callable[[Any], checking.Verdict], answer: Any) -> None:
    verdict = check(answer)
    assert verdict.state == "wrong" and not verdict


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (exercises.token_bytes, 4_080_263_168 - EMBEDDING, None),
        (exercises.token_bytes, 4_080_263_168, "token embedding"),
        (exercises.token_bytes, SEVEN.file_bytes, "whole file"),
        (
            exercises.token_bytes,
            4_080_263_168 - EMBEDDING - SEVEN.tensor("output.weight").nbytes,
            "output matrix",
        ),
        (exercises.ceiling, 50 * GiB / READ_13B, None),
        (exercises.ceiling, 6.92, None),
        (exercises.ceiling, 50e9 / READ_13B, "GB/s"),
        (exercises.ceiling, 1000 * READ_13B / (50 * GiB), "milliseconds"),
        (exercises.ceiling, 50 * GiB / READ_13B / 8, "bits"),
        (exercises.ceiling, READ_13B / (50 * GiB), "wrong way round"),
        (exercises.repack, 2943 * 1024 * 1024, None),  # the CPU_REPACK buffer llama.cpp logs for this model
        (exercises.repack, 2943 * 1024 * 1024 + EMBEDDING, "token embedding"),
        (exercises.repack, 4_080_263_168, "every tensor"),
        (
            exercises.repack,
            2943 * 1024 * 1024 + SEVEN.types["Q6_K"][1],
            "Q6_K",
        ),
        (exercises.cliff, ONE.mapped_bytes + ONE.rss_anon_bytes, None),
        (exercises.cliff, ONE.mapped_bytes, "file only"),
        (exercises.cliff, ONE.rss_anon_bytes, "anonymous memory only"),
        (exercises.cliff, ONE.mapped_bytes + ONE.anon_floor_bytes, "compute buffer"),
    ],
)
def test_answers_and_slips(check: Callable[[Any], checking.Verdict], answer: float, said: str | None) -> None:
    verdict = check(answer)
    assert verdict.state == ("right" if said is None else "wrong"), verdict
    assert said is None or said in verdict.text


def by_counting(offset: int, nbytes: int) -> int:
    """Pages by looking at every byte: slow and hard to get wrong."""
    return len({(offset + i) // 4096 for i in range(nbytes)})


def test_pages_is_right_when_every_byte_is_counted() -> None:
    assert exercises.pages(by_counting)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda offset, nbytes: nbytes // 4096, "dropped the rest"),
        (lambda offset, nbytes: -(-nbytes // 4096), "its offset decides"),
        (lambda offset, nbytes: nbytes // 4096 + 1, "always added one"),
        (lambda offset, nbytes: by_counting(offset, nbytes) + 1, "expected 1"),
        (lambda offset: 1, "raised TypeError"),
        (lambda offset, nbytes: 1 // 0, "raised ZeroDivisionError"),
        (lambda offset, nbytes: "1", "expected 1"),
    ],
)
def test_pages_names_the_slip(wrong: Callable[..., Any], said: str) -> None:
    verdict = exercises.pages(wrong)
    assert verdict.state == "wrong" and said in verdict.text


def test_an_array_where_a_number_is_asked_for_is_wrong() -> None:
    verdict = checking.check_function(lambda x: np.array([1, 2]), right=lambda x: 3, cases=((1,),), slips={})
    assert verdict.state == "wrong" and "expected 3" in verdict.text


def test_a_function_that_returns_nothing_is_not_attempted() -> None:
    assert exercises.pages(lambda offset, nbytes: None).state == "not attempted"
    assert exercises.pages(lambda offset, nbytes: ...).state == "not attempted"


@pytest.mark.parametrize(
    ("predicted", "measured", "unit", "said"),
    [
        (40.0, 128.0, "ms", "You predicted 40.0 ms, measured 128 ms: off by 3.2×."),
        (128, 40, "ms", "You predicted 128 ms, measured 40.0 ms: off by 3.2×."),
        (3 * GiB, 3 * GiB, "bytes", "You predicted 3.00 GiB, measured 3.00 GiB: right."),
        (None, 3.0, "ms", "Measured: 3.00 ms. You made no prediction; set one above and run this again."),
        (None, None, "ms", "Nothing was measured, so there is nothing to compare."),
        (0, 3.0, "ms", "You predicted 0.00 ms, measured 3.00 ms: off by 3.00 ms."),
        (3.0, -1.0, "MiB", "You predicted 3 MiB, measured -1 MiB: off by 4 MiB."),
        (-1, 3.0, "ms", "Measured: 3.00 ms. A prediction must not be below 0."),
        ("3 GiB", GiB, "bytes", "Measured: 1.00 GiB. Your prediction is '3 GiB'; write a number."),
        (True, 3.0, "ms", "Measured: 3.00 ms. Your prediction is True; write a number."),
        (math.nan, 3.0, "ms", "Measured: 3.00 ms. Your prediction is nan; write a number."),
        (np.int64(2), 4.0, "ms", "You predicted 2.00 ms, measured 4.00 ms: off by 2.0×."),
        (10, 12.5, "times slower", "You predicted 10 times slower, measured 12.5 times slower: off by 1.25×."),
    ],
)
def test_compare(predicted: float | None, measured: float | None, unit: str, said: str) -> None:
    assert checking.compare(predicted, measured, unit=unit) == said


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        (None, "Measured: 'V'. You made no prediction; set one above and run this again."),
        ("V", "You predicted 'V', measured 'V': right."),
        ("K", "You predicted 'K', measured 'V': not so."),
        ("v ", "You predicted 'v ', measured 'V': right."),
        ("both", "Measured: 'V'. 'both' is not among 'K', 'V': choose one of these."),
        (3, "Measured: 'V'. 3 is not among 'K', 'V': choose one of these."),
    ],
)
def test_compare_words(predicted: object, said: str) -> None:
    assert checking.compare(predicted, "V", choices=("K", "V")) == said
