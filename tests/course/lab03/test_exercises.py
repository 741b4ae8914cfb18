"""Lab 03's checks: llama.cpp's own figures are right, and each usual slip is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labkit.course import exercises
from labkit.course.checking import Verdict
from labkit.course.lab03 import exercises as lab_03

WEIGHTS_13B, WEIGHTS_8B = 7_865_210_880, 4_912_898_304  # bytes of all tensors in Q4_K_M
COMPUTE_8B = 279_447_552  # as llama.cpp's dry run of Llama 3.1 8B reports it, rounded to 0.01 MiB


def cache(layers: int, kv_heads: int, head: int, n_ctx: int, bits_k: float, bits_v: float) -> float:
    return layers * kv_heads * head * n_ctx * (bits_k + bits_v) / 8


def largest(free: int, *, compute: int = COMPUTE_8B) -> int:
    return (free - WEIGHTS_8B - compute) // 131_072 // 256 * 256


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (lab_03.kv_per_token_13b, 2 * 40 * 5120 * 2),
        (lab_03.kv_per_token_13b, 819_200.0),
        (lab_03.kv_per_token_8b, 2 * 32 * 8 * 128 * 2),
        (lab_03.crossover, WEIGHTS_13B // 819_200),
        (lab_03.crossover, 9601),
        (lab_03.kv_of, cache),
        (lab_03.kv_of, lambda *case: int(cache(*case))),
        (lab_03.fits_in_16, largest(14 * 1024**3)),
        (lab_03.window_cells, 1024 + 512),
    ],
)
def test_right_answers(check: Callable[[Any], Verdict], answer: Any) -> None:
    assert check(answer), check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (lab_03.kv_per_token_13b, 40 * 5120 * 2, "K and V both count"),
        (lab_03.kv_per_token_13b, 2 * 5120 * 2, "one layer"),
        (lab_03.kv_per_token_13b, 819_200 * 8, "bits"),
        (lab_03.kv_per_token_13b, 800, "KiB"),
        (lab_03.kv_per_token_13b, 7, "expected 819,200 bytes"),
        (lab_03.kv_per_token_8b, 524_288, "only 8 have a K and V"),
        (lab_03.kv_per_token_8b, 65_536, "K and V both count"),
        (lab_03.kv_per_token_8b, 4096, "one layer"),
        (lab_03.kv_per_token_8b, 128, "KiB"),
        (lab_03.crossover, 9602, "already the larger"),
        (lab_03.crossover, WEIGHTS_13B / 819_200, "whole tokens"),
        (lab_03.crossover, int(7.33e9 / 819_200), "GiB for GB"),
        (lab_03.crossover, int(7.325e9 / 819_200), "GiB for GB"),
        (lab_03.crossover, 2 * 9601, "K and V both count"),
        (lab_03.crossover, 40 * 9601, "one layer"),
        (lab_03.crossover, 9600, "yours is 9,600 tokens, expected 9,601 tokens."),
        (lab_03.crossover, "9601", "a number is asked for"),
        (lab_03.kv_of, lambda n, h, d, c, k, v: cache(n, h, d, c, k, 0), "K and V both count"),
        (lab_03.kv_of, lambda n, h, d, c, k, v: cache(n, h, d, c, k, k), "K's bits for both"),
        (lab_03.kv_of, lambda n, h, d, c, k, v: cache(n, 1, d, c, k, v), "left out the heads"),
        (lab_03.kv_of, lambda n, h, d, c, k, v: cache(1, h, d, c, k, v), "left out the layers"),
        (lab_03.kv_of, lambda *case: 8 * cache(*case), "bits"),
        (lab_03.kv_of, lambda n, h, d, c, k, v: cache(n, h, d, c, k // 1, v // 1), "half bit"),
        (lab_03.kv_of, lambda *case: "much", "yours is 'much'"),
        (lab_03.kv_of, lambda *case: 1, "expected 2,147,483,648"),
        (lab_03.kv_of, lambda n: n, "raised TypeError"),
        (lab_03.fits_in_16, largest(14 * 10**9), "GB for GiB"),
        (lab_03.fits_in_16, largest(14 * 1024**3, compute=0), "compute buffer"),
        (lab_03.fits_in_16, largest(16 * 1024**3), "2 GiB"),
        (lab_03.fits_in_16, largest(14 * 1024**3) + 256, "no longer fits"),
        (lab_03.fits_in_16, (14 * 1024**3 - WEIGHTS_8B - COMPUTE_8B) // 131_072, "round down"),
        (lab_03.fits_in_16, largest(14 * 1024**3 + WEIGHTS_8B), "left out the weights"),
        (lab_03.window_cells, 1024, "a batch of n_ubatch"),
        (lab_03.window_cells, 8192, "without a window"),
        (lab_03.window_cells, 1024 + 2048, "not n_batch"),
    ],
)  # fmt: skip
def test_slips_are_named(check: Callable[[Any], Verdict], answer: Any, said: str) -> None:
    verdict = check(answer)
    assert verdict.state == "wrong" and said in verdict.text, verdict


@pytest.mark.parametrize("check", lab_03.CHECKS, ids=lambda check: check.__name__)
def test_open_answers(check: Callable[[Any], Verdict]) -> None:
    assert check(...).state == check(None).state == "not attempted"
    assert getattr(exercises, check.__name__) is check
