"""Lab 01's checks: llama.cpp's own figures are right, and each usual mistake is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.answers import Check, assert_judged

from labkit import predict
from labkit.course.lab01 import exercises
from labkit.models.lookup import header
from labkit.settings import Settings

SEVEN = header("llama-2-7b:Q4_K_M")
ONE = predict.memory(header("llama-3.2-1b:Q4_K_M"), Settings(repack=False), cpu_features=())
EMBEDDING = 32000 * 4096 * 144 // 256  # rows of Q4_K: 144 bytes for 256 weights
REPACKED = 2943 << 20  # the CPU_REPACK buffer that llama.cpp logs for Llama 2 7B


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (exercises.repack, REPACKED, None),
        (exercises.repack, REPACKED + EMBEDDING, "token embedding"),
        (exercises.repack, 4_080_263_168, "every tensor"),
        (exercises.repack, REPACKED + SEVEN.types["Q6_K"][1], "Q6_K"),
        (exercises.cliff, ONE.mapped_bytes + ONE.rss_anon_bytes, None),
        (exercises.cliff, ONE.mapped_bytes, "file only"),
        (exercises.cliff, ONE.rss_anon_bytes, "anonymous memory only"),
        (exercises.cliff, ONE.mapped_bytes + ONE.anon_floor_bytes, "compute buffer"),
    ],
)
def test_answers_and_slips(check: Check, answer: Any, said: str | None) -> None:
    assert_judged(check, answer, said)


def by_counting(offset: int, nbytes: int) -> int:
    """Pages by looking at every byte: slow and hard to get wrong."""
    return len({(offset + i) // 4096 for i in range(nbytes)})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (by_counting, None),
        (lambda offset, nbytes: nbytes // 4096, "dropped the rest"),
        (lambda offset, nbytes: -(-nbytes // 4096), "its offset decides"),
        (lambda offset, nbytes: nbytes // 4096 + 1, "always added one"),
        (lambda offset, nbytes: by_counting(offset, nbytes) + 1, "expected 1"),
        (lambda offset: 1, "raised TypeError"),
        (lambda offset, nbytes: "1", "expected 1"),
    ],
)
def test_pages(function: Callable[..., Any], said: str | None) -> None:
    assert_judged(exercises.pages, function, said)
