"""Lab 04's checks: llama.cpp's own figures are right, and each usual mistake is named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.answers import Check, assert_judged

from labkit.course.lab04 import exercises

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
    ("check", "answer", "said"),
    [
        (exercises.plus_one, 33, None),
        (exercises.leaves_first, ["output", 13, 14, 15], None),
        (exercises.leaves_first, {15, 14, 13, "output"}, None),
        (exercises.leaves_first, ("Output layer", "13", "blk.14", np.int64(15)), None),
        (exercises.device_bytes, WHOLE, None),
        (exercises.device_bytes, 0.995 * WHOLE, None),
        (exercises.device_bytes, device, None),
        (exercises.crossing_bytes, 4096 * 4, None),
        (exercises.crossing_ms, 16384 / LINK * 1000, None),
        (exercises.crossing_ms, 16384 / 31.5e9 * 1000, None),
        (exercises.layers_for_13b, 35, None),
        (exercises.plus_one, 32, "the output layer counts as one more"),
        (exercises.plus_one, 34, "token embedding stays on the host"),
        (exercises.plus_one, 99, "the smallest number that does"),
        (exercises.plus_one, -1, "the smallest number that does"),
        (exercises.plus_one, 31, "yours is 31 layers, expected 33 layers."),
        (exercises.leaves_first, [0, 1, 2, 3], "then the last blocks"),
        (exercises.leaves_first, ["output", 0, 1, 2], "the last blocks are offloaded, not the first"),
        (exercises.leaves_first, ["output", 0, 1, 2, 3], "and the output layer is one of the four"),
        (exercises.leaves_first, [12, 13, 14, 15], "the output layer is one of the four"),
        (exercises.leaves_first, range(12, 16), "the output layer is one of the four"),
        (exercises.leaves_first, ["output", 12, 13, 14, 15], "so only three blocks are offloaded"),
        (exercises.leaves_first, [13, 14, 15], "offloaded before any block"),
        (exercises.leaves_first, ["embedding", "output", 13, 14, 15], "token embedding stays on the host"),
        (exercises.leaves_first, ["token_embd", 14, 15, "output"], "token embedding stays on the host"),
        (exercises.leaves_first, ["output", 5], "yours is output, 5, expected output, 13, 14, 15."),
        (exercises.leaves_first, ["output", 13.5, math.nan], "yours is 13.5, nan, output"),
        (exercises.leaves_first, [], "yours is nothing"),
        (exercises.leaves_first, 4, "a list of block numbers"),
        (exercises.leaves_first, "output", "a list of block numbers"),
        (exercises.device_bytes, device(17, cache=False), "left out the cache"),
        (exercises.device_bytes, device(17, compute=False), "left out the compute buffer"),
        (exercises.device_bytes, device(17, cache=False, compute=False), "the weights alone"),
        (exercises.device_bytes, WHOLE - EMBEDDING, "you counted it once"),
        (exercises.device_bytes, WHOLE / 1024**3 * 1e9, "GB for GiB"),
        (exercises.device_bytes, round(WHOLE / 1024**3, 2), "GiB, not bytes"),
        (exercises.device_bytes, 5, "yours is 5 bytes"),
        (exercises.device_bytes, lambda n: device(n, compute=False), "left out the compute buffer"),
        (exercises.device_bytes, lambda n: device(n, cache=False), "left out the cache"),
        (exercises.device_bytes, lambda n: device(n) - EMBEDDING, "you counted it once"),
        (exercises.device_bytes, lambda n: device(17), "for n_gpu_layers 9 yours is 1,200,943,232 bytes"),
        (exercises.device_bytes, lambda n: "much", "yours is 'much'"),
        (exercises.crossing_bytes, 4096, "each is a 32-bit number"),
        (exercises.crossing_bytes, 8192, "32 bits, not 16"),
        (exercises.crossing_bytes, 16384 * 8, "bits"),
        (exercises.crossing_bytes, 16, "KiB"),
        (exercises.crossing_bytes, 32768, "there and back"),
        (exercises.crossing_bytes, 32000 * 4, "logits"),
        (exercises.crossing_bytes, BLOCK_7B, "weights stay where they are"),
        (exercises.crossing_bytes, 7, "expected 16,384 bytes"),
        (exercises.crossing_ms, BLOCK_7B / LINK * 1000, "a block's weights"),
        (exercises.crossing_ms, 5, "what the article says"),
        (exercises.crossing_ms, 16384 * 8 / LINK * 1000, "divided bits by bytes"),
        (exercises.crossing_ms, 16384 / 8 / LINK * 1000, "divided bytes by bits"),
        (exercises.crossing_ms, 16384 / LINK, "seconds"),
        (exercises.crossing_ms, 16384 / LINK * 1e6, "microseconds"),
        (exercises.crossing_ms, 16384 / (31.504 * 1024**3) * 1000, "GiB for GB"),
        (exercises.crossing_ms, 1, "expected 0.00052 milliseconds"),
        (exercises.layers_for_13b, 34, "counts the output layer too"),
        (exercises.layers_for_13b, 36, "one too many"),
        (exercises.layers_for_13b, 6, "stays on the host"),
        (exercises.layers_for_13b, 39, "margin"),
        (exercises.layers_for_13b, 41, "left out the cache"),
        (exercises.layers_for_13b, 32, "GB for GiB"),
        (exercises.layers_for_13b, 20, "expected 35 layers."),
    ],
)  # fmt: skip
def test_answers_and_slips(check: Check, answer: Any, said: str | None) -> None:
    assert_judged(check, answer, said)
