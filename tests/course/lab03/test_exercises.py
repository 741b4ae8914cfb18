"""Lab 03's checks: llama.cpp's own figures are right, and each usual mistake is named."""

from __future__ import annotations

from typing import Any

import pytest
from support.answers import Check, assert_judged

from labkit.course.lab03 import exercises

WEIGHTS_13B, WEIGHTS_8B = 7_865_210_880, 4_912_898_304  # bytes of all tensors in Q4_K_M
COMPUTE_8B = 279_447_552  # as llama.cpp's dry run of Llama 3.1 8B reports it, rounded to 0.01 MiB


def cache(layers: int, kv_heads: int, head: int, n_ctx: int, bits_k: float, bits_v: float) -> float:
    return layers * kv_heads * head * n_ctx * (bits_k + bits_v) / 8


def largest(free: int, *, compute: int = COMPUTE_8B) -> int:
    return (free - WEIGHTS_8B - compute) // 131_072 // 256 * 256


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (exercises.kv_per_token_13b, 2 * 40 * 5120 * 2, None),
        (exercises.kv_per_token_13b, 819_200.0, None),
        (exercises.kv_per_token_8b, 2 * 32 * 8 * 128 * 2, None),
        (exercises.crossover, WEIGHTS_13B // 819_200, None),
        (exercises.crossover, 9601, None),
        (exercises.kv_of, cache, None),
        (exercises.kv_of, lambda *case: int(cache(*case)), None),
        (exercises.fits_in_16, largest(14 * 1024**3), None),
        (exercises.window_cells, 1024 + 512, None),
        (exercises.kv_per_token_13b, 40 * 5120 * 2, "K and V both count"),
        (exercises.kv_per_token_13b, 2 * 5120 * 2, "one layer"),
        (exercises.kv_per_token_13b, 819_200 * 8, "bits"),
        (exercises.kv_per_token_13b, 800, "KiB"),
        (exercises.kv_per_token_13b, 7, "expected 819,200 bytes"),
        (exercises.kv_per_token_8b, 524_288, "only 8 have a K and V"),
        (exercises.kv_per_token_8b, 65_536, "K and V both count"),
        (exercises.kv_per_token_8b, 4096, "one layer"),
        (exercises.kv_per_token_8b, 128, "KiB"),
        (exercises.crossover, 9602, "already larger"),
        (exercises.crossover, WEIGHTS_13B / 819_200, "whole tokens"),
        (exercises.crossover, int(7.33e9 / 819_200), "GiB for GB"),
        (exercises.crossover, int(7.325e9 / 819_200), "GiB for GB"),
        (exercises.crossover, 2 * 9601, "K and V both count"),
        (exercises.crossover, 40 * 9601, "one layer"),
        (exercises.crossover, 9600, "yours is 9,600 tokens, expected 9,601 tokens."),
        (exercises.crossover, "9601", "a number is asked for"),
        (exercises.kv_of, lambda n, h, d, c, k, v: cache(n, h, d, c, k, 0), "K and V both count"),
        (exercises.kv_of, lambda n, h, d, c, k, v: cache(n, h, d, c, k, k), "K's bits for both"),
        (exercises.kv_of, lambda n, h, d, c, k, v: cache(n, 1, d, c, k, v), "left out the heads"),
        (exercises.kv_of, lambda n, h, d, c, k, v: cache(1, h, d, c, k, v), "left out the layers"),
        (exercises.kv_of, lambda *case: 8 * cache(*case), "bits"),
        (exercises.kv_of, lambda n, h, d, c, k, v: cache(n, h, d, c, k // 1, v // 1), "a fraction"),
        (exercises.kv_of, lambda *case: "much", "yours is 'much'"),
        (exercises.kv_of, lambda *case: 1, "expected 2,147,483,648"),
        (exercises.kv_of, lambda n: n, "raised TypeError"),
        (exercises.fits_in_16, largest(14 * 10**9), "GB for GiB"),
        (exercises.fits_in_16, largest(14 * 1024**3, compute=0), "compute buffer"),
        (exercises.fits_in_16, largest(16 * 1024**3), "2 GiB"),
        (exercises.fits_in_16, largest(14 * 1024**3) + 256, "256 tokens too many"),
        (exercises.fits_in_16, (14 * 1024**3 - WEIGHTS_8B - COMPUTE_8B) // 131_072, "round down"),
        (exercises.fits_in_16, largest(14 * 1024**3 + WEIGHTS_8B), "left out the weights"),
        (exercises.window_cells, 1024, "a batch of n_ubatch"),
        (exercises.window_cells, 8192, "without a window"),
        (exercises.window_cells, 1024 + 2048, "not n_batch"),
    ],
)  # fmt: skip
def test_answers_and_slips(check: Check, answer: Any, said: str | None) -> None:
    assert_judged(check, answer, said)
