"""The ballast: what it holds, how it ends, and that it never exhausts the machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import CAPPED, LINUX, live, meminfo, until

from labkit.experiments import ballast, watch
from labkit.experiments.ballast import Ballast, PressureError
from labkit.experiments.child import ballast_worker
from labkit.experiments.child.ballast_worker import shortage
from labkit.experiments.child.process import Child
from labkit.system.caps import Cap
from labkit.units import GiB, MiB


@live
@LINUX
@pytest.mark.parametrize(("kind", "field"), [("anonymous", "rss_anon_bytes"), ("file", "rss_file_bytes")])
def test_it_holds_what_it_was_asked_to(kind: str, field: str) -> None:
    with Ballast("64MiB", kind=kind) as held:
        assert held.wait_until_full() and held.ended is None
        got = getattr(held.use(), field)
        assert 64 * MiB <= got < 64 * MiB + 40 * MiB
        assert Path(f"/proc/{held.pid}/oom_score_adj").read_text() == "1000\n"
    assert held.update().ended == "it was closed" or held.ended is None
    held.close()


@live
def test_a_slow_one_fills_slowly() -> None:
    """4 MiB at 4 MiB/s cannot be full at once; it does not catch up in a rush."""
    start = time.monotonic()
    with Ballast(4 * MiB, rate_bytes_per_s=4 * MiB) as held:
        assert held.wait_until_full()
        assert time.monotonic() - start > 0.8


@live
@CAPPED
def test_it_shares_the_cap_of_another_process() -> None:
    with Cap(128 * MiB) as limit, Ballast(48 * MiB, cap=limit) as one, Ballast(24 * MiB, cap=limit) as two:
        assert one.wait_until_full() and two.wait_until_full()
        held = limit.stats().anon_bytes
        assert held is not None and held >= 72 * MiB and limit.stats().oom_kills == 0


@live
@CAPPED
def test_one_that_does_not_fit_its_cap_is_killed_alone() -> None:
    with Cap(64 * MiB) as limit, Ballast(256 * MiB, cap=limit) as held:
        assert not held.wait_until_full()
        assert held.ended == "it was killed from outside (signal 9), as the kernel does when memory runs out"
        assert limit.stats().oom_kills == 1 and not held.aborted


@live
@CAPPED
def test_file_pages_are_reclaimed_and_nothing_is_killed() -> None:
    with Cap(96 * MiB) as limit, Ballast(256 * MiB, cap=limit, kind="file") as held:
        assert held.wait_until_full() and held.ended is None
        stats = limit.stats()
        assert stats.oom_kills == 0 and stats.peak_bytes is not None and stats.peak_bytes <= 96 * MiB


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 4096}, "at least 1 MiB"),
        ({"size": "much"}, "much"),
        ({"size": "8MiB", "rate_bytes_per_s": 0}, "touches at least 1 MiB"),
        ({"size": "8MiB", "kind": "heavy"}, "choose one of file, anonymous"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ballast(**wrong)


# No ballast exhausts the machine


def test_more_than_is_safe_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    monkeypatch.setattr(ballast, "available_bytes", lambda root: 100 * MiB)
    monkeypatch.setattr(Child, "__init__", lambda self, *args, **how: started.append(args))
    with pytest.raises(
        PressureError, match=r"of 81\.0 MiB is too much for this machine, which has 100 MiB.*choose 80\.0 MiB"
    ):
        Ballast(81 * MiB)
    assert not started
    Ballast(80 * MiB)
    assert started


@live
@CAPPED
def test_a_cap_bounds_what_can_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballast, "available_bytes", lambda root: 100 * MiB)
    with Cap(64 * MiB) as limit, Ballast(512 * MiB, cap=limit, kind="file") as held:
        assert held.ended is None
    with Cap(96 * MiB) as limit, pytest.raises(PressureError):
        Ballast(512 * MiB, cap=limit)


def test_a_tenth_is_the_line(tmp_path: Path) -> None:
    assert shortage(str(meminfo(tmp_path, total=10 * GiB, available=GiB))) is None
    assert shortage(str(meminfo(tmp_path, total=10 * GiB, available=GiB - MiB))) == (
        "only 1023 of 10240 MiB of this machine's memory were left"
    )
    assert shortage() is None  # or these tests should not run


def test_a_system_without_proc_is_asked_through_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(total=16 * GiB, available=GiB))
    assert shortage() == "only 1024 of 16384 MiB of this machine's memory were left"
    assert ballast_worker.ABORT_SHARE == watch.ABORT_SHARE == 0.1


@live
@pytest.mark.parametrize("kind", ballast.KINDS)
def test_it_ends_when_the_machine_runs_short(kind: str, tmp_path: Path) -> None:
    root = meminfo(tmp_path, total=10 * GiB, available=9 * GiB)
    with Ballast(16 * MiB, kind=kind, root=str(root)) as held:
        assert held.wait_until_full() and held.ended is None
        meminfo(root, total=10 * GiB, available=GiB // 2)
        assert until(lambda: held.update().ended is not None)
        assert held.aborted and held.ended == (
            "it stopped by itself, since only 512 of 10240 MiB of this machine's memory were left"
        )
        assert until(lambda: not psutil.pid_exists(held.pid))
