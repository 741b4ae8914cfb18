"""Lab 04's checks: llama.cpp's own figures are right, and each usual slip is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labkit.course import exercises
from labkit.course.checking import Verdict
from labkit.course.lab04 import exercises as lab_04

# Llama 3.2 1B Q4_K_M with n_ctx 4096 on a loopback device: weights, cache, compute buffer as llama.cpp reports them.
PARTS = {
    17: (799_862_912, 128 << 20, 266_862_592),
    9: (507_670_656, 64 << 20, 266_862_592),
    1: (215_478_272, 0, 266_862_592),
}
WHOLE = sum(PARTS[17])
EMBEDDING = 215_470_080
LINK = 31.504e9
BLOCK_7B = 116 * (1 << 20)  # weights of a block of Llama 2 7B, roughly


def device(n: int, *, weights: bool = True, cache: bool = True, compute: bool = True) -> int:
    return sum(size for size, counts in zip(PARTS[n], (weights, cache, compute), strict=True) if counts)


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (lab_04.plus_one, 33),
        (lab_04.leaves_first, ["output", 13, 14, 15]),
        (lab_04.leaves_first, {15, 14, 13, "output"}),
        (lab_04.leaves_first, ("Output layer", "13", "blk.14", np.int64(15))),
        (lab_04.device_bytes, WHOLE),
        (lab_04.device_bytes, 0.995 * WHOLE),
        (lab_04.device_bytes, device),
        (lab_04.crossing_bytes, 4096 * 4),
        (lab_04.hop_ms, 16384 / LINK * 1000),
        (lab_04.hop_ms, 16384 / 31.5e9 * 1000),
        (lab_04.layers_for_13b, 35),
    ],
)
def test_right_answers(check: Callable[[Any], Verdict], answer: Any) -> None:
    assert check(answer), check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (lab_04.plus_one, 32, "the output layer counts as one more"),
        (lab_04.plus_one, 34, "token embedding never leaves"),
        (lab_04.plus_one, 99, "the smallest number that does"),
        (lab_04.plus_one, -1, "the smallest number that does"),
        (lab_04.plus_one, 31, "yours is 31 layers, expected 33 layers."),
        (lab_04.leaves_first, [0, 1, 2, 3], "the last blocks leave first"),
        (lab_04.leaves_first, ["output", 0, 1, 2], "the last blocks leave, not the first"),
        (lab_04.leaves_first, ["output", 0, 1, 2, 3], "counts as one of the four"),
        (lab_04.leaves_first, [12, 13, 14, 15], "the output layer takes one of the four"),
        (lab_04.leaves_first, range(12, 16), "the output layer takes one of the four"),
        (lab_04.leaves_first, ["output", 12, 13, 14, 15], "so only three blocks leave"),
        (lab_04.leaves_first, [13, 14, 15], "which leaves before any block"),
        (lab_04.leaves_first, ["embedding", "output", 13, 14, 15], "token embedding never leaves"),
        (lab_04.leaves_first, ["token_embd", 14, 15, "output"], "token embedding never leaves"),
        (lab_04.leaves_first, ["output", 5], "yours is output, 5, expected output, 13, 14, 15."),
        (lab_04.leaves_first, ["output", 13.5, math.nan], "yours is 13.5, nan, output"),
        (lab_04.leaves_first, [], "yours is nothing"),
        (lab_04.leaves_first, 4, "a list of block numbers"),
        (lab_04.leaves_first, "output", "a list of block numbers"),
        (lab_04.device_bytes, device(17, cache=False), "left out the cache"),
        (lab_04.device_bytes, device(17, compute=False), "left out the compute buffer"),
        (lab_04.device_bytes, device(17, cache=False, compute=False), "the weights alone"),
        (lab_04.device_bytes, WHOLE - EMBEDDING, "you counted it once"),
        (lab_04.device_bytes, WHOLE / 1024**3 * 1e9, "GB for GiB"),
        (lab_04.device_bytes, round(WHOLE / 1024**3, 2), "GiB, not bytes"),
        (lab_04.device_bytes, 5, "yours is 5 bytes"),
        (lab_04.device_bytes, lambda n: device(n, compute=False), "left out the compute buffer"),
        (lab_04.device_bytes, lambda n: device(n, cache=False), "left out the cache"),
        (lab_04.device_bytes, lambda n: device(n) - EMBEDDING, "you counted it once"),
        (lab_04.device_bytes, lambda n: device(17), "for n_gpu_layers 9 yours is 1,200,943,232 bytes"),
        (lab_04.device_bytes, lambda n: "much", "yours is 'much'"),
        (lab_04.crossing_bytes, 4096, "each is a 32-bit number"),
        (lab_04.crossing_bytes, 8192, "32 bits, not 16"),
        (lab_04.crossing_bytes, 16384 * 8, "bits"),
        (lab_04.crossing_bytes, 16, "KiB"),
        (lab_04.crossing_bytes, 32768, "there and back"),
        (lab_04.crossing_bytes, 32000 * 4, "logits"),
        (lab_04.crossing_bytes, BLOCK_7B, "weights stay where they are"),
        (lab_04.crossing_bytes, 7, "expected 16,384 bytes"),
        (lab_04.hop_ms, BLOCK_7B / LINK * 1000, "a block's weights"),
        (lab_04.hop_ms, 5, "what the article says"),
        (lab_04.hop_ms, 16384 * 8 / LINK * 1000, "divided bits by bytes"),
        (lab_04.hop_ms, 16384 / 8 / LINK * 1000, "divided bytes by bits"),
        (lab_04.hop_ms, 16384 / LINK, "seconds"),
        (lab_04.hop_ms, 16384 / LINK * 1e6, "microseconds"),
        (lab_04.hop_ms, 16384 / (31.504 * 1024**3) * 1000, "GiB for GB"),
        (lab_04.hop_ms, 1, "expected 0.00052 milliseconds"),
        (lab_04.layers_for_13b, 34, "counts the output layer too"),
        (lab_04.layers_for_13b, 36, "one too many"),
        (lab_04.layers_for_13b, 6, "stays on the host"),
        (lab_04.layers_for_13b, 39, "margin"),
        (lab_04.layers_for_13b, 41, "left out the cache"),
        (lab_04.layers_for_13b, 32, "GB for GiB"),
        (lab_04.layers_for_13b, 20, "expected 35 layers."),
    ],
)  # fmt: skip
def test_slips_are_named(check: Callable[[Any], Verdict], answer: Any, said: str) -> None:
    verdict = check(answer)
    assert verdict.state == "wrong" and said in verdict.text, verdict


@pytest.mark.parametrize("check", lab_04.CHECKS, ids=lambda check: check.__name__)
def test_open_answers(check: Callable[[Any], Verdict]) -> None:
    assert check(...).state == check(None).state == "not attempted"
    assert getattr(exercises, check.__name__) is check
