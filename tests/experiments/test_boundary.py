"""The search for the smallest cap that does not kill: on made-up answers, live, and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import CAPPED, LOCKS, live, quiet

from labkit.experiments import boundary
from labkit.experiments.boundary import Boundary, find_boundary
from labkit.models.forge import forge
from labkit.system import caps
from labkit.units import GiB, MiB


@live
@CAPPED
@LOCKS
@pytest.mark.parametrize(("cache", "low", "high"), [("f16", "896MiB", "960MiB"), ("q8_0", "832MiB", "896MiB")])
def test_the_boundary_is_where_it_was_predicted(cache: str, low: str, high: str, tmp_path: Path) -> None:
    """To 3 %, on a model that no other process has mapped; holes in its file are charged like data."""
    model = forge("llama-3.2-1b", "Q4_K_M", path=tmp_path / "x.gguf").path
    options = {"n_ctx": 4096, "type_k": cache, "type_v": cache, "repack": False, "n_threads": 1}
    found = find_boundary(model, low=low, high=high, within=0.02, progress=quiet, **options)
    assert found.reason == "" and found.recorded is None
    assert found.killed_bytes is not None and found.survived_bytes is not None and found.error is not None
    assert 0 < found.survived_bytes - found.killed_bytes <= 0.02 * found.survived_bytes
    assert abs(found.error) < 0.03
    assert {run.outcome for run in found.runs} == {"ok", "oom-killed"}
    killed = [run for run in found.runs if not run.ok]
    assert all(run.measured is not None and run.measured.cap_oom_kills == 1 for run in killed)
    assert found.predicted_bytes not in [run.cap_bytes for run in found.runs]


@pytest.mark.parametrize("predicted", [60 * MiB, 863 * MiB, 923 * MiB, 5 * GiB])
def test_a_search_does_not_try_the_prediction_itself(predicted: int) -> None:
    low, high = boundary._window(predicted)
    assert low <= 0.9 * predicted and high >= 1.1 * predicted and high - low < 0.5 * predicted
    assert low % MiB == high % MiB == 0


def test_a_search_ends_when_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if caps.available().how is None:
        monkeypatch.setattr(caps, "available", lambda: caps.CapMethod("cgroup-v2", "for the test"))
    of = boundary.recorded()
    ok, killed = (next(run for run in of.runs if run.ok is finished) for finished in (True, False))
    monkeypatch.setattr(boundary, "_predicted", lambda model, wanted: 100 * MiB)
    for answer, reason in [
        (replace(ok, caution="a caution."), "a caution."),
        (replace(ok, outcome="refused", reason="a refusal."), "a refusal."),
        (ok, "no cap that was tried killed it: lower low."),
        (killed, "every cap that was tried killed it: raise high."),
    ]:
        monkeypatch.setattr(
            boundary, "measure", lambda model, *, cap, answer=answer, **_: replace(answer, cap_bytes=cap)
        )
        found = find_boundary("x", progress=quiet)
        assert (found.reason, found.error) == (reason, None) and len(found.runs) <= 2
    with pytest.raises(ValueError, match="low must be below high"):
        find_boundary("x", low="2GiB", high="1GiB", progress=quiet)


def test_halving_finds_any_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    if caps.available().how is None:
        monkeypatch.setattr(caps, "available", lambda: caps.CapMethod("cgroup-v2", "for the test"))
    of = boundary.recorded()
    ok, killed = (next(run for run in of.runs if run.ok is finished) for finished in (True, False))
    monkeypatch.setattr(boundary, "_predicted", lambda model, wanted: 1000 * MiB)
    for truth in (930 * MiB + 1, 1000 * MiB, 1090 * MiB):
        monkeypatch.setattr(
            boundary,
            "measure",
            lambda model, *, cap, truth=truth, **_: replace(ok if cap >= truth else killed, cap_bytes=cap),
        )
        found = find_boundary("x", within=0.002, max_runs=20, progress=quiet)
        assert found.killed_bytes is not None and found.survived_bytes is not None
        assert found.killed_bytes < truth <= found.survived_bytes
        assert found.survived_bytes - found.killed_bytes <= 0.002 * found.survived_bytes


def test_a_recorded_search_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_NO_CAPS", "1")
    for cache in ("f16", "q8_0"):
        found = find_boundary("anything", type_k=cache)
        assert isinstance(found, Boundary) and found.recorded is not None and found.recorded.startswith("recorded on ")
        assert found.error is not None and abs(found.error) < 0.03
        assert {run.settings.type_k for run in found.runs} == {cache}
    with pytest.raises(FileNotFoundError, match="no search with mmap"):
        find_boundary("anything", load_mode="mmap")
