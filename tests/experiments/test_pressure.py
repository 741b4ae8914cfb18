"""Runs beside a ballast: what they read, how they end, what is refused, and that no process is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import CAPPED, LINUX, LOCKS, children, groups_of, live, meminfo, quiet, until

from labkit.experiments import ballast, stages
from labkit.experiments.ballast import Ballast
from labkit.experiments.measure import measure
from labkit.experiments.pressure import Pressured, pressured
from labkit.settings import SettingsError
from labkit.system import caps
from labkit.system.machine import machine
from labkit.units import GiB, MiB

SAME: dict[str, Any] = {"repack": False, "n_threads": 1, "n_ctx": 256}


def need(path: Path) -> int:
    """The file, and what the process has of its own."""
    return path.stat().st_size + 45 * MiB


@live
def test_a_run_is_stopped_when_the_machine_runs_short(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = meminfo(tmp_path, total=10 * GiB, available=9 * GiB)
    monkeypatch.setattr(stages, "Ballast", partial(Ballast, root=str(root)))

    def fall(share: float, text: str) -> None:
        if text.startswith("decode, token 2"):
            meminfo(root, total=10 * GiB, available=GiB // 2)

    made = pressured(
        filled, cap=None, ballast="16MiB", inside=False, tokens=2, idle_s=30, progress=fall, load_mode="mmap", **SAME
    )
    assert made.outcome == "interrupted"
    assert made.reason.startswith(
        "the run was stopped because the ballast ended: it stopped by itself, since only 512 of"
    )


@live
@pytest.mark.parametrize(("inside", "within"), [(True, False), (False, False), (False, True)])
def test_a_run_beside_too_much_is_refused(
    inside: bool, within: bool, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model and ballast are added up, unless a cap holds both."""
    if (inside or within) and caps.available().how is None:
        pytest.skip("no cap is possible here")
    monkeypatch.setattr("labkit.experiments.measure.machine", lambda: replace(machine(), available_bytes=1000 * MiB))
    cap = 900 * MiB if inside else 300 * MiB if within else None
    made = pressured(filled, cap=cap, ballast=790 * MiB, inside=inside, tokens=1, load_mode="mmap", **SAME)
    assert made.outcome == "refused" and "choose a smaller ballast" in made.reason and made.steps == ()


# Runs beside a ballast


@live
@CAPPED
@LOCKS
def test_a_lock_keeps_file_pages_from_being_reclaimed(filled: Path) -> None:
    cap = need(filled) + 40 * MiB
    rows = {
        mode: pressured(filled, cap=cap, ballast=cap, tokens=3, load_mode=mode, progress=quiet, **SAME)
        for mode in ("mmap", "mmap+mlock", "none")
    }
    for mode, row in rows.items():
        assert (row.outcome, row.reason) == ("ok", ""), mode
        assert [step.stage for step in row.steps] == ["before"] * 3 + ["during"] * 3 + ["after"] * 3
        assert tuple(step.ms for step in row.steps) == row.run.timings.decode_ms
        assert row.ballast_passes >= 1 and row.first_token_ms is None and row.penalty_ms is None
        peak = row.run.measured and row.run.measured.cap_peak_bytes
        assert peak is None or peak <= cap
    read = {mode: row.read_bytes for mode, row in rows.items()}
    if read["mmap"] is not None:
        size = filled.stat().st_size
        assert read["mmap"] > size / 4 and max(read["mmap+mlock"] or 0, read["none"] or 0) < size / 20


@live
@CAPPED
@LOCKS
def test_the_first_token_after_a_pause_reads_what_was_reclaimed(filled: Path) -> None:
    cap = need(filled) + 40 * MiB
    rows = {
        mode: pressured(filled, cap=cap, ballast=2 * cap, tokens=3, idle_s=0.5, load_mode=mode, progress=quiet, **SAME)
        for mode in ("mmap", "mmap+mlock")
    }
    for row in rows.values():
        assert row.outcome == "ok" and [step.stage for step in row.steps] == ["before"] * 3 + ["after"] * 3
        assert row.first_token_ms == row.after_ms[0] and row.during_ms == ()
    read = {mode: row.read_bytes for mode, row in rows.items()}
    if read["mmap"] is not None:
        assert read["mmap"] > filled.stat().st_size / 4 and read["mmap+mlock"] == 0


@live
@CAPPED
@LOCKS
def test_anonymous_memory_keeps_its_pages_or_a_process_is_killed(filled: Path) -> None:
    """Without swap nothing else can happen: a mapped model pages, a locked one is killed or kills the ballast."""
    cap, size = need(filled) + 20 * MiB, 80 * MiB
    paged, locked = (
        pressured(filled, cap=cap, ballast=size, kind="anonymous", tokens=2, load_mode=mode, progress=quiet, **SAME)
        for mode in ("mmap", "mmap+mlock")
    )
    assert (paged.outcome, paged.reason) == ("ok", "") and paged.ballast_passes >= 1
    assert locked.outcome == "oom-killed" or "killed (signal 9)" in locked.ballast_ended
    assert locked.run.measured is not None and locked.run.measured.cap_oom_kills != 0
    assert locked.during_ms == () or locked.ballast_ended


@live
def test_a_ballast_outside_needs_no_cap(filled: Path) -> None:
    made = pressured(filled, cap=None, ballast="16MiB", inside=False, tokens=2, progress=quiet, **SAME)
    assert made.outcome == "ok" and made.recorded is None and len(made.steps) == 6 and made.ballast_passes >= 1


@live
def test_cancelling_ends_both(filled: Path) -> None:
    cancel = threading.Event()

    def stop(share: float, text: str) -> None:
        if text.startswith("decode, token 2"):
            cancel.set()

    made = pressured(
        filled, cap=None, ballast="16MiB", inside=False, tokens=2, idle_s=60, cancel=cancel, progress=stop, **SAME
    )
    assert made.outcome == "interrupted" and len(made.before_ms) <= 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cap": None}, "inside=True needs a cap"),
        ({"kind": "heavy"}, "choose one of file, anonymous"),
        ({"tokens": 0}, "at least one token"),
        ({"idle_s": -1.0}, "at least one token"),
        ({"ballast": 4096}, "at least 1 MiB"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(wrong: dict[str, Any], message: str, filled: Path) -> None:
    with pytest.raises(ValueError, match=message):
        pressured(filled, **{"cap": GiB, "ballast": 16 * MiB, **wrong})


def test_text_and_a_ballast_do_not_go_together(filled: Path) -> None:
    beside = stages.Stages(MiB, rate=MiB, kind="file", inside=False, idle_s=0, tokens=1)
    with pytest.raises(SettingsError, match="a ballast needs made-up tokens"):
        measure(filled, prompt="hello", companion=beside)


# Nothing stays, however it ends

PARENT = """
import sys
from labkit.experiments.pressure import pressured
if __name__ == "__main__":
    made = pressured(
        sys.argv[1], cap=int(sys.argv[2]) or None, ballast=24 << 20, inside=sys.argv[2] != "0", tokens=1, idle_s=120,
        repack=False, n_threads=1, n_ctx=256, timeout_s=200, progress=lambda share, text: None,
    )
"""


@live
@LINUX
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_parent(with_signal: signal.Signals, filled: Path) -> None:
    cap = 400 * MiB if caps.available().how else 0
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(filled), str(cap)], stderr=subprocess.PIPE, text=True)
    try:
        watched = psutil.Process(parent.pid)
        assert until(lambda: len(watched.children()) == 2), "model and ballast"
        both = watched.children()
        if cap and caps.available().how != "systemd-scope":
            assert len(groups_of(parent.pid)) == 1
        parent.send_signal(with_signal)
        _, said = parent.communicate(timeout=60)
        assert until(lambda: not any(process.is_running() for process in both))
        if with_signal == signal.SIGINT:
            assert "Interrupted" in said and groups_of(parent.pid) == []
        base = caps.available().base
        if cap and base:
            assert until(lambda: bool(caps.sweep(base) or not groups_of(parent.pid)))  # the next cap does that
            assert groups_of(parent.pid) == []
    finally:
        parent.kill()
        parent.wait()


@live
@CAPPED
def test_a_killed_model_leaves_no_ballast(filled: Path) -> None:
    def kill(share: float, text: str) -> None:
        if text.startswith("decode, token 1"):
            for process in children():
                process.kill()

    made = pressured(filled, cap=GiB, ballast="16MiB", tokens=1, idle_s=60, progress=kill, **SAME)
    assert made.outcome in ("oom-killed", "interrupted")


# Without caps: recorded runs


@pytest.fixture
def no_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_NO_CAPS", "1")


@pytest.mark.usefixtures("no_caps")
@pytest.mark.parametrize("kind", ballast.KINDS)
@pytest.mark.parametrize("load_mode", ["mmap", "mmap+mlock", "none"])
def test_without_caps_a_recorded_run_stands_in_and_says_so(load_mode: str, kind: str) -> None:
    made = pressured("anything", cap=GiB, ballast=MiB, kind=kind, load_mode=load_mode)
    assert made.recorded is not None and made.recorded.startswith("recorded on ")
    assert (made.run.settings.load_mode, made.kind, made.inside, made.idle_s) == (load_mode, kind, True, 0)
    assert made.run.samples == () and made.run.model.path == ""
    killed = kind == "anonymous" and load_mode != "mmap"
    assert made.outcome == ("oom-killed" if killed else "ok")
    assert len(made.before_ms) > 2 and (made.during_ms == ()) == killed


@pytest.mark.usefixtures("no_caps")
def test_recorded_pauses_and_the_control() -> None:
    for mode in ("mmap", "mmap+mlock", "none"):
        paused = pressured("anything", cap=GiB, ballast=MiB, idle_s=1.0, load_mode=mode)
        assert paused.idle_s > 0 and paused.first_token_ms is not None and paused.penalty_ms is not None
    control = pressured("anything", cap=GiB, ballast=MiB, inside=False)
    assert not control.inside and control.read_bytes == 0
    with pytest.raises(FileNotFoundError, match="no run of dio"):
        pressured("anything", cap=GiB, ballast=MiB, load_mode="dio")


@live
@pytest.mark.usefixtures("no_caps")
def test_without_caps_a_ballast_outside_still_runs(filled: Path) -> None:
    made: Pressured = pressured(filled, cap=None, ballast="16MiB", inside=False, tokens=1, progress=quiet, **SAME)
    assert made.outcome == "ok" and made.recorded is None
