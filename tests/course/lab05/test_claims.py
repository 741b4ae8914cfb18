"""The checks of the claims about locking: each in the world as we know it, and in worlds where it is otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.claim_rules import ToldBench, assert_can_say_more_than_one_thing, assert_follows, assert_stays_open, never

from labkit.course import claims, offers
from labkit.course.claims.bench import Bench
from labkit.course.claims.phases import read_share
from labkit.course.claims.rules import checks
from labkit.course.claims.terms import PAGED
from labkit.course.lab05 import bench as lab05_bench
from labkit.course.lab05.bench import LOCK, LOOSE, LockBench, is_locked
from labkit.course.lab05.claims import CHECKS
from labkit.experiments import recordings
from labkit.experiments.run import Run
from labkit.settings import Settings
from labkit.system import caps
from labkit.units import GiB, MiB


@cache
def kept() -> tuple[Run, ...]:
    """The recorded runs: mapped and locked with pages dropped, denied, and three under one cap."""
    return recordings.recorded("locked")


def changed(run: Run, *, read: int | None = None, locked: int | None = None, **changes: Any) -> Run:
    """A run with so many bytes read while it decoded, and so many locked."""
    if read is not None:
        before = run.phase("prefill")
        assert before is not None and before.read_bytes is not None
        after = replace(run.phases[-1], read_bytes=before.read_bytes + read)
        changes["phases"] = (*run.phases[:-1], after)
    if locked is not None:
        changes["measured"] = replace(run.measured, locked_bytes=locked)
    return replace(run, **changes)


def world(change: Callable[[list[Run]], None] = lambda runs: None) -> list[Run]:
    """The recorded runs as if they were made here, with a change."""
    runs = [replace(run, recorded=None) for run in kept()]
    change(runs)
    return runs


def at(n: int, **changes: Any) -> Callable[[list[Run]], None]:
    def change(runs: list[Run]) -> None:
        runs[n] = changed(runs[n], **changes)

    return change


def grows(runs: list[Run]) -> None:
    """The cache is not there before the first token."""
    of = runs[5]
    load = of.phase("load")
    assert load is not None
    phases = [replace(p, rss_anon_bytes=load.rss_anon_bytes) if p.name == "context" else p for p in of.phases]
    runs[5] = replace(of, phases=tuple(phases))


class ToldLock(LockBench):
    """Lengths of context as the world has them."""

    bench: World

    def longest(self, model: str, settings: Settings, limit_bytes: int) -> int:
        return self.bench.longest(super().longest(model, settings, limit_bytes))


class World(ToldBench):
    """Recorded runs as told; lengths of context as told. Nothing is measured."""

    told: ClassVar = {LockBench: ToldLock}

    def __init__(self, runs: Sequence[Run], longest: Callable[[int], int] = lambda n: n) -> None:
        super().__init__(*runs)
        self.longest = longest


@dataclass(frozen=True)
class Case:
    """A world, and the verdict that follows there; the first case of a claim is the world as we know it."""

    id: str
    verdict: str
    bench: Callable[[], Bench] = lambda: World(world())


CASES = [
    Case("C120", "roughly right"),
    Case("C120", "confirmed", lambda: World(world(at(2, outcome="load-failed", reason="not allowed.")))),
    Case("C120", "wrong", lambda: World(world(at(1, read=900 * MiB)))),
    Case("C120", "misleading", lambda: World(world(at(0, read=0)))),
    Case("C121", "roughly right"),
    Case("C121", "confirmed", lambda: World(world(grows))),
    Case("C121", "wrong", lambda: World(world(at(4, outcome="ok", reason="")))),
    Case("C121", "misleading", lambda: World(world(at(5, outcome="oom-killed", reason="killed.")))),
    Case("C122", "confirmed"),
    Case("C122", "wrong", lambda: World(world(), longest=lambda n: 4096)),
    Case("C122", "roughly right", lambda: World(world(), longest=lambda n: min(n, 9000))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.verdict}".replace(" ", "-"))
def test_the_verdict_follows_from_the_figures(case: Case) -> None:
    assert_follows(CHECKS[case.id](case.bench()), case.verdict)


def test_each_claim_of_lab_05_has_a_check_that_can_say_more_than_one_thing() -> None:
    assert_can_say_more_than_one_thing("05", CHECKS, CASES)


def test_the_ledger_has_the_checks_of_each_lab_once() -> None:
    labs = [module.CHECKS for module in offers.modules("claims")]
    assert sum(map(len, labs)) == len(checks())  # none stands in two labs
    assert sum(map(len, labs)) == len(set().union(*labs))


def test_the_recorded_runs_show_what_they_are_for() -> None:
    loose, locked, denied, short, long, mapped = kept()
    assert read_share(loose) > 0.9 and read_share(locked) == 0
    assert is_locked(locked) and not is_locked(denied) and denied.ok and not is_locked(loose)
    assert (short.outcome, long.outcome, mapped.outcome) == ("ok", "oom-killed", "ok")
    assert short.cap_bytes == long.cap_bytes == mapped.cap_bytes
    assert all(run.recorded and not run.samples and not run.model.path for run in kept())


def test_figures_of_the_evidence_are_those_of_the_runs() -> None:
    found = {name: check(World(world())) for name, check in CHECKS.items()}
    assert found["C120"].figures["locked_bytes"] == kept()[1].predicted.locked_bytes
    assert found["C120"].figures["denied_locked_bytes"] == 0 and "allowed nothing of 92.1 MiB" in found["C120"].evidence
    assert found["C121"].figures["must_stay_bytes"] > found["C121"].figures["cap_bytes"]
    assert found["C121"].figures["locked_13b_n_ctx"] == found["C122"].figures["locked_13b_n_ctx"]
    assert found["C122"].figures["locked_7b_n_ctx"] == 8192


@pytest.mark.parametrize(
    ("name", "runs", "reason"),
    [
        ("C120", lambda: world(lambda runs: _uncounted(runs)), "does not give the read bytes"),
        ("C121", lambda: world(lambda runs: _untold(runs)), "does not give the anonymous memory"),
    ],
)
def test_figures_that_decide_nothing_leave_a_claim_open(name: str, runs: Callable[[], list[Run]], reason: str) -> None:
    (row,) = claims.settle(name, bench=World(runs()))
    assert_stays_open(row, reason)


def _uncounted(runs: list[Run]) -> None:
    runs[1] = replace(runs[1], phases=tuple(replace(p, read_bytes=None) for p in runs[1].phases))


def _untold(runs: list[Run]) -> None:
    runs[5] = replace(runs[5], phases=tuple(replace(p, rss_anon_bytes=None) for p in runs[5].phases))


def test_what_is_missing_is_measured_once_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab05_bench, "LINUX", True)
    monkeypatch.setattr(lab05_bench, "machine", lambda: SimpleNamespace(lockable_bytes=None))
    monkeypatch.setattr(caps, "available", lambda: SimpleNamespace(how="cgroup-v1", reason=""))
    asked: list[tuple[str, int, bool, bool, bool]] = []
    mine = world()

    def measure(model: str, *, progress: Any, **how: Any) -> Run:
        assert how["n_threads"] == 1 and not how["repack"]
        key = (how["load_mode"], how["n_ctx"], "evict" in how, "memlock" in how, "cap" in how)
        asked.append(key)
        assert (model == PAGED) is not key[3]
        number = [
            ("mmap", 512, True, False, False),
            ("mmap+mlock", 512, True, False, False),
            ("mmap+mlock", 512, False, True, False),
            ("mmap+mlock", 512, False, False, True),
            ("mmap+mlock", 8192, False, False, True),
            ("mmap", 8192, False, False, True),
        ].index(key)
        if key[4]:
            assert mine[number].cap_bytes == pytest.approx(how["cap"], rel=0.05)
        return mine[number]

    bench = Bench(measure=measure)
    for _ in range(2):
        rows = claims.settle(*CHECKS, bench=bench)
        assert [row.verdict for row in rows] == [claims.get(name).expected for name in CHECKS]
        assert [row.source for row in rows] == ["measured here", "measured here", "computed"]
    assert len(asked) == 6


@pytest.mark.parametrize("why", ["no caps", "no lock", "no linux"])
def test_where_it_cannot_be_had_recorded_runs_serve(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(lab05_bench, "LINUX", why != "no linux")
    lockable = 8 * MiB if why == "no lock" else None
    monkeypatch.setattr(lab05_bench, "machine", lambda: SimpleNamespace(lockable_bytes=lockable))
    monkeypatch.setattr(caps, "available", lambda: SimpleNamespace(how=None, reason="no memory cap can be set here"))
    given = [] if why == "no linux" else world()[2:3]  # else it would be measured
    given += [] if why != "no caps" else world()[:2]
    rows = {row.id: row for row in claims.settle(*CHECKS, bench=Bench(given, measure=never))}
    assert all(row.verdict == claims.get(name).expected for name, row in rows.items())
    assert rows["C121"].source.startswith("recorded on")
    assert rows["C120"].source.startswith("recorded on") is (why != "no caps")
    empty = Bench(given, measure=never)
    empty.recorded = []
    open_rows = {row.id: row for row in claims.settle(*CHECKS, bench=empty)}
    assert open_rows["C121"].verdict == "open" and open_rows["C122"].verdict == "confirmed"
    said = {"no caps": "no memory cap", "no lock": "may lock 8.00 MiB", "no linux": "only Linux"}[why]
    assert said in open_rows["C121"].source


def test_runs_that_do_not_belong_together_do_not_serve() -> None:
    loose, locked, denied, short, long, mapped = world()
    assert lab05_bench._dropped([loose, replace(locked, model=replace(locked.model, name="other"))]) is None
    assert lab05_bench._dropped([loose, changed(locked, locked=MiB)]) is None
    assert lab05_bench._outgrown([short, replace(long, cap_bytes=GiB), mapped]) is None
    assert lab05_bench._outgrown([changed(short, locked=0), long, mapped]) is None
    assert lab05_bench._outgrown([mapped, long, short]) == (short, long, mapped)
    assert not lab05_bench._is_denied(loose) and not lab05_bench._is_denied(locked) and lab05_bench._is_denied(denied)
    assert not lab05_bench._is_denied(replace(denied, outcome="oom-killed"))
    assert replace(LOOSE, load_mode="mmap+mlock") == LOCK


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what is locked")
def test_live_lab_05_comes_out_as_expected() -> None:
    for row in claims.settle(*CHECKS):
        assert row.verdict == claims.get(row.id).expected, row.evidence
        assert row.figures and row.source
