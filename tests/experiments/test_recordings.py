"""Runs kept in files: labels, what is read back, and that the kit's own files are made again as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.full_run import REFUSED, RUN

from labkit.experiments import boundary, cap_sweep, offload_sweep, pressure
from labkit.experiments.recordings import __main__ as maker
from labkit.experiments.recordings import labelled, load, origin, recorded, save
from labkit.experiments.run import Run
from labkit.files import data_path


@pytest.mark.parametrize("n", [0, 1, 99, 100, 101, 199, 200, 250, 10_000])
def test_a_recorded_run_is_labelled_small_and_without_a_path(n: int, tmp_path: Path) -> None:
    run = replace(RUN, samples=tuple(replace(RUN.samples[0], t_s=float(i)) for i in range(n)))
    how = {"date": "2026-11-29", "command": "labkit measure smollm2"}
    save([labelled(made, **how) for made in (run, REFUSED)], tmp_path / "runs.json")
    first, second = load(tmp_path / "runs.json")
    assert first.recorded == {"machine": "AMD EPYC", **how}
    assert first.model.path == second.model.path == ""
    assert min(n, 50) <= len(first.samples) <= 100
    assert first.samples[:1] == run.samples[:1]
    assert [s.t_s for s in first.samples] == sorted({s.t_s for s in first.samples})
    assert replace(first, samples=run.samples, model=run.model, recorded=None) == run
    assert "/home/learner" not in (tmp_path / "runs.json").read_text()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ('{"schema": 2}', "[1]", "null", '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"^this (is not a|run has schema 2)"):
            load(path)
    path.write_text(RUN.to_json())
    assert load(path) == (RUN,)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.json")


# The files that come with the kit


@pytest.mark.parametrize("name", maker.MAKERS)
def test_every_file_says_where_and_when(name: str) -> None:
    runs = recorded(name)
    for run in runs:
        assert run.recorded is not None and {"machine", "date", "command"} <= set(run.recorded)
        assert origin(run) == f"recorded on {run.recorded['machine']}, {run.recorded['date']}"
        assert run.model.path == ""
    assert sorted(maker.MAKERS) == sorted(path.stem for path in data_path("runs").glob("*.json"))


def test_runs_recorded_before_there_were_devices_still_load() -> None:
    for name in ("cliff", "killed"):
        runs = recorded(name)
        assert runs and all(run.device is None and not run.settings.devices for run in runs)


class Again:
    """Stands for ``measure``: hands out the runs of a file in their order, and notes what was asked for."""

    def __init__(self, runs: tuple[Run, ...]) -> None:
        self.runs = [replace(run, recorded=None) for run in runs]
        self.asked: list[dict[str, Any]] = []

    def __call__(self, model: str, **how: Any) -> Run:
        self.asked.append({"model": model, **how})
        return self.runs[len(self.asked) - 1]


def made_again(name: str, folder: Path) -> None:
    """Make a file anew; it must equal the kit's own, but for the date and the command."""
    assert maker.main([name, "--folder", str(folder)]) == 0
    now, before = load(folder / f"{name}.json"), recorded(name)
    assert {(run.recorded or {})["command"] for run in now} == {f"python -m labkit.experiments.recordings {name}"}
    for made, kept in zip(now, before, strict=True):
        when = {key: (kept.recorded or {})[key] for key in ("date", "command")}
        assert replace(made, recorded={**(made.recorded or {}), **when}) == kept


@pytest.fixture(autouse=True)
def possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine on which everything can be recorded."""
    monkeypatch.setattr(maker, "_problem", lambda name: None)


@pytest.mark.parametrize("name", ["killed", "locked"])
def test_single_runs_are_made_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = Again(recorded(name))
    monkeypatch.setattr(maker, "measure", again)
    made_again(name, tmp_path)
    for asked, run in zip(again.asked, again.runs, strict=True):
        assert asked["model"] == run.model.name and asked["load_mode"] == run.settings.load_mode
        assert (asked.get("n_ctx", 512), asked.get("evict")) == (run.settings.n_ctx, run.evict)
        assert ("cap" in asked, "memlock" in asked) == (run.cap_bytes is not None, run.memlock_bytes is not None)


def test_a_sweep_of_caps_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "cap_sweep", lambda **how: replace(cap_sweep.recorded(), recorded=None))
    made_again("cliff", tmp_path)


def test_a_sweep_of_layers_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (features,) = {tuple((run.recorded or {})["cpu_features"]) for run in recorded("offload")}
    monkeypatch.setattr(maker, "cpu_features", lambda: features)
    monkeypatch.setattr(maker, "offload_sweep", lambda model, **how: offload_sweep.recorded())
    made_again("offload", tmp_path)


def test_runs_beside_a_ballast_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressured(model: str, *, load_mode: str, **how: Any) -> pressure.Pressured:
        kind, inside, idle = how.get("kind", "file"), how.get("inside", True), how.get("idle_s", 0) > 0
        made = pressure.recorded(load_mode, kind=kind, inside=inside, idle=idle)
        assert (made.ballast_bytes, made.run.cap_bytes) == (how["ballast"], how["cap"])
        return made

    monkeypatch.setattr(maker, "pressured", pressured)
    made_again("pressure", tmp_path)


def test_searches_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "find_boundary", lambda model, *, type_k, **how: boundary.recorded(type_k=type_k))
    made_again("boundary", tmp_path)


@pytest.mark.parametrize(
    ("name", "function", "disturbed"),
    [
        ("pressure", "pressured", lambda *_, **__: replace(pressure.recorded("mmap"), run=replace(RUN, caution="a."))),
        ("locked", "measure", lambda *_, **__: replace(RUN, caution="a.")),
        ("boundary", "find_boundary", lambda *_, **__: replace(boundary.recorded(), reason="a.")),
    ],
)
def test_what_was_disturbed_is_not_kept(
    name: str, function: str, disturbed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker, function, disturbed)
    with pytest.raises(SystemExit, match=r"cannot be recorded: a\."):
        maker.main([name, "--folder", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_where_it_is_not_possible_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("LABKIT_NO_CAPS", "1")
    with pytest.raises(SystemExit, match="cliff cannot be recorded here: memory caps are switched off"):
        maker.main(["cliff", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit):
        maker.main(["nothing"])
