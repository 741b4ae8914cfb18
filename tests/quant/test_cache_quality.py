"""Divergence of quantized caches: against the comparison of two models, against arithmetic done another way, live."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small import small

from labkit import engine
from labkit.experiments.child import task
from labkit.models.forge import forge
from labkit.quant.cache_quality import CacheQuality, binned, cache_quality, in_child
from labkit.quant.quality import ROWS_BYTES, TokenScore, quality
from labkit.settings import Settings, SettingsError

SENTENCE = "The kettle boils, the tea is ready, and the cat is asleep on the chair by the window."


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str, bool], CacheQuality]:
    pairs = [("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "f16"), ("f16", "q4_0")]
    found = cache_quality(pairs=pairs, rotation=(True, False), tokens=40, threads=1)
    assert [(row.type_k, row.type_v, row.rotated) for row in found] == [(*p, r) for p in pairs for r in (True, False)]
    return {(row.type_k, row.type_v, row.rotated): row for row in found}


@pytest.mark.live
def test_f16_against_itself_loses_nothing(rows: dict[tuple[str, str, bool], CacheQuality]) -> None:
    for rotated in (True, False):
        same = rows["f16", "f16", rotated]
        assert (same.quality.kld_mean, same.quality.kld_p99, same.quality.top1) == (0, 0, 1)
        assert same.quality.perplexity == same.quality.reference_perplexity
        assert set(same.kld_by_position) == {0}


@pytest.mark.live
def test_k_is_the_sensitive_half_and_rotation_helps_it(rows: dict[tuple[str, str, bool], CacheQuality]) -> None:
    kld = {key: row.quality.kld_mean for key, row in rows.items()}
    assert 0 < kld["q8_0", "q8_0", True] < kld["q4_0", "f16", True]
    assert 0 < kld["f16", "q4_0", True] < kld["q4_0", "f16", True] < kld["q4_0", "f16", False]
    assert len({row.quality.reference_perplexity for row in rows.values()}) == 1  # all beside the same reference


@pytest.mark.live
def test_llama_cpp_says_which_halves_it_rotated(
    rows: dict[tuple[str, str, bool], CacheQuality], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {key: (row.k_rotated, row.v_rotated) for key, row in rows.items()}
    assert said["f16", "f16", True] == (False, False)
    assert said["q8_0", "q8_0", True] == (True, True)
    assert said["q4_0", "f16", True] == (True, False)
    assert said["f16", "q4_0", True] == (False, True)
    assert not any(any(halves) for (*_, rotated), halves in said.items() if not rotated)
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")  # of the notebook's own environment
    (row,) = cache_quality(pairs=[("q8_0", "q4_0")], text=SENTENCE, threads=1)
    assert (row.rotated, row.k_rotated, row.v_rotated) == (True, True, True)


@pytest.mark.live
def test_one_pair_is_scored_as_a_model_is(smollm2_path: Path) -> None:
    (row,) = cache_quality(pairs=[("q8_0", "q4_0")], text=SENTENCE, threads=1)
    one = quality(smollm2_path, smollm2_path, text=SENTENCE, threads=1, type_k="q8_0", type_v="q4_0")
    assert replace(row.quality, seconds=one.seconds) == one


def test_divergence_by_position() -> None:
    rng = np.random.default_rng(7)
    positions = [*range(10), *range(10), *range(3)]
    klds = rng.exponential(size=len(positions)).tolist()
    found = binned([TokenScore(0.0, 0.0, kld, True) for kld in klds], positions, 4)
    assert len(found) == 3
    for index, (mean, error) in enumerate(found):
        inside = [kld for kld, position in zip(klds, positions, strict=True) if position // 4 == index]
        middle = math.fsum(inside) / len(inside)
        variance = math.fsum((kld - middle) ** 2 for kld in inside) / (len(inside) - 1)
        assert (mean, error) == (pytest.approx(middle), pytest.approx(math.sqrt(variance / len(inside))))
    assert math.isnan(binned([TokenScore(0.0, 0.0, 1.0, True)], [0], 4)[0][1])


@pytest.mark.live
def test_chunks_of_another_size_and_progress() -> None:
    seen: list[float] = []
    (row,) = cache_quality(
        pairs=[("q4_0", "q4_0")],
        tokens=40,
        chunk=16,
        bin_tokens=4,
        threads=1,
        progress=lambda share, text: seen.append(share),
    )
    assert row.quality.n_tokens == 15 + 15 + 7
    assert (row.bin_tokens, len(row.kld_by_position), len(row.kld_by_position_error)) == (4, 4, 4)
    weights = [sum(p // 4 == b for n in (15, 15, 7) for p in range(n)) for b in range(4)]
    total = sum(weight * kld for weight, kld in zip(weights, row.kld_by_position, strict=True))
    assert total / 37 == pytest.approx(row.quality.kld_mean)
    assert seen == sorted(seen) and len(seen) == 2 and seen[-1] <= 1


@pytest.mark.live
def test_rows_of_all_contexts_together_are_bounded(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Settings] = []
    original = engine.Context.__init__

    def watched(self: engine.Context, model: engine.Model, settings: Settings, **kwargs: Any) -> None:
        made.append(settings)
        original(self, model, settings, **kwargs)

    monkeypatch.setattr(engine.Context, "__init__", watched)
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "0")  # so that it is put back
    how: dict[str, Any] = {"chunk": 256, "bin_tokens": 32, "threads": 1, "send": lambda *_, **__: None}
    in_child(model=str(smollm2_path), text=SENTENCE, tokens=8, caches=[("q8_0", "q8_0", True)] * 4, **how)
    assert len(made) == 5 and {one.flash_attn for one in made} == {"on"}
    assert 1 < sum(one.n_batch for one in made) * 4 * 49152 <= 2 * ROWS_BYTES


@pytest.mark.live
def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="type_k is 'q3_0': choose one of"):
        cache_quality(pairs=[("q3_0", "f16")])
    with pytest.raises(task.TaskError, match="at least two tokens"):
        cache_quality(pairs=[("q8_0", "f16")], text="a")
    with pytest.raises(task.TaskError, match="chunk is 2"):
        cache_quality(pairs=[("q8_0", "f16")], chunk=2)
    forged = forge(small(), "Q4_0", path=tmp_path / "forged.gguf").path
    with pytest.raises(task.TaskError, match=r"forged\.gguf is forged and has no vocabulary"):
        cache_quality(forged, pairs=[("q8_0", "f16")])
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(task.Cancelled, match=r"comparing caches of .* was cancelled"):
        cache_quality(pairs=[("q8_0", "f16")], cancel=cancel)
