"""Memory caps: how one is chosen, and live ones where they are possible."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import SOAK, groups_of, until

from labkit.system import caps, probe
from labkit.system._os.linux import start_time
from labkit.system.cap_stats import read_v1, read_v2
from labkit.system.caps import Cap, CapError, CapMethod
from labkit.units import MiB

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="control groups are Linux's")
NO_SUCH_PID = 1 << 22  # one more than the kernel ever hands out

GREEDY = "block = bytearray(140 << 20); block[::4096] = b'x' * len(block[::4096]); print('survived')"
READER = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    for _ in range(3):
        total = sum(mapped[at] for at in range(0, len(mapped), 4096))
print("survived", total)
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_stats_of_version_1(tmp_path: Path) -> None:
    group = write(
        tmp_path,
        memory__limit_in_bytes="104857600\n",
        memory__usage_in_bytes="97284096\n",
        memory__max_usage_in_bytes="104857600\n",
        memory__failcnt="12\n",
        memory__stat="cache 1\nrss 2\nworkingset_refault_file 100\ntotal_cache 96468992\ntotal_rss 524288\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    )
    (group / "memory.memsw.failcnt").write_text("30\n")
    stats = read_v1(group, 1)
    assert (stats.limit_bytes, stats.current_bytes, stats.peak_bytes) == (100 * MiB, 97284096, 100 * MiB)
    assert (stats.anon_bytes, stats.file_bytes, stats.oom_kills) == (524288, 96468992, 2)
    assert (stats.limit_hits, stats.refault_bytes) == (42, 100 * mmap.PAGESIZE)
    assert stats.reasons == {} and stats.alive

    write(group, memory__failcnt="0\n")
    (group / "memory.memsw.failcnt").write_text("0\n")
    stats = read_v1(group, 1)  # at its limit and never hit it: a kernel that no longer counts
    assert stats.limit_hits is None and "count" in stats.reasons["limit_hits"]


def test_stats_of_version_2(tmp_path: Path) -> None:
    group = write(
        tmp_path,
        memory__max="104857600\n",
        memory__current="97284096\n",
        memory__stat="anon 524288\nfile 96468992\nworkingset_refault_anon 9\nworkingset_refault_file 7\n",
        memory__events="low 0\nhigh 0\nmax 42\noom 1\noom_kill 1\noom_group_kill 0\n",
    )
    stats = read_v2(group, 1)
    assert (stats.limit_bytes, stats.current_bytes, stats.oom_kills, stats.limit_hits) == (100 * MiB, 97284096, 1, 42)
    assert (stats.anon_bytes, stats.file_bytes, stats.refault_bytes) == (524288, 96468992, 7 * mmap.PAGESIZE)
    assert stats.peak_bytes is None and "5.19" in stats.reasons["peak_bytes"]
    assert set(stats.reasons) == {"peak_bytes"}


def test_caps_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_NO_CAPS", "1")
    method = caps.available()
    assert method.how is None and "LABKIT_NO_CAPS" in method.reason
    with pytest.raises(CapError, match=r"switched off by LABKIT_NO_CAPS\."):
        Cap(100 * MiB)
    with pytest.raises(ValueError, match="1 MiB"):
        Cap(1000)


def test_other_systems_have_no_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_NO_CAPS", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert caps.available() == CapMethod(None, "memory caps need Linux control groups")


@LINUX
def test_each_way_is_tried_and_each_failure_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(version: int) -> CapMethod:
        # An ordinary folder: a child cannot enter it (version 2) or the limit cannot be set (version 1).
        where = tmp_path / str(version)
        where.mkdir(exist_ok=True)
        return CapMethod(f"cgroup-v{version}", "", where)

    monkeypatch.setattr(caps, "_systemd_method", lambda: CapMethod(None, "no systemd here"))
    monkeypatch.setattr(caps, "_folder_method", folder)
    method = caps._first_that_works.__wrapped__()
    assert method.how is None
    assert method.reason.startswith("no memory cap can be set here: no systemd here; cgroup-v2: ")
    assert "No such file" in method.reason and "cgroup-v1: " in method.reason
    assert list(tmp_path.glob("*/*")) == []


@LINUX
def test_a_scope_that_hangs_or_fails_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "_TRIAL_S", 0.2)
    hangs = CapMethod("systemd-scope", "", tmp_path, ("sh", "-c", "exec sleep 5"))
    assert "did not start" in caps._try(hangs).reason
    fails = CapMethod("systemd-scope", "", tmp_path, ("sh", "-c", "echo Failed to connect to bus >&2; exit 1"))
    assert caps._try(fails) == CapMethod(None, "systemd-scope: Failed to connect to bus")


@LINUX
def test_the_scope_command(tmp_path: Path) -> None:
    method = CapMethod("systemd-scope", "", tmp_path, ("systemd-run", "--user", "--scope"))
    with Cap(600 * MiB, "seven B", _method=method) as cap:
        command = cap.command(["python", "-c", "print()"])
    assert command[:3] == ["systemd-run", "--user", "--scope"]
    assert command[-4:] == ["--", "python", "-c", "print()"]
    assert f"--property=MemoryMax={600 * MiB}" in command and "--property=MemorySwapMax=0" in command
    assert f"--unit={cap.name}.scope" in command and cap.name.endswith("-seven_B")


@LINUX
def test_a_scope_that_is_gone_is_remembered(tmp_path: Path) -> None:
    write(tmp_path, memory__events="max 0\noom_kill 5\n")
    with Cap(100 * MiB, _method=CapMethod("systemd-scope", "", tmp_path, ("true",))) as cap:
        stats = cap.stats()
        assert not stats.alive and stats.current_bytes is None and "no process" in stats.reasons["current_bytes"]
        assert stats.oom_kills == 0
        cap.path.mkdir()  # what systemd does when the command starts
        write(cap.path, memory__max="104857600\n", memory__current="4096\n", memory__events="max 3\noom_kill 0\n")
        assert cap.stats().current_bytes == 4096 and cap.stats().limit_hits == 3
        for file in cap.path.iterdir():
            file.unlink()
        cap.path.rmdir()  # and when its last process has ended
        write(tmp_path, memory__events="max 9\noom_kill 6\n")
        stats = cap.stats()
        assert (stats.alive, stats.current_bytes, stats.limit_hits, stats.oom_kills) == (False, 4096, 3, 1)
        assert "slice" in stats.reasons["oom_kills"]
    write(tmp_path, memory__events="max 9\noom_kill 60\n")
    assert cap.stats().oom_kills == 1  # what happens after close() is not ours


@LINUX
def test_sweep_removes_only_groups_whose_maker_has_ended(tmp_path: Path) -> None:
    me, started = os.getpid(), start_time("self")
    assert started is not None
    stale = [f"labkit-{NO_SUCH_PID}-1-0", f"labkit-{NO_SUCH_PID}-77-3-name", f"labkit-{me}-{started + 1}-0"]
    kept = [f"labkit-{me}-{started}-0", "labkit-notes", "labkit-1-2", "user.slice", f"xlabkit-{NO_SUCH_PID}-1-0"]
    for name in (*stale, *kept):
        (tmp_path / name).mkdir()
    assert sorted(caps.sweep(tmp_path)) == sorted(stale)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    assert caps.sweep(tmp_path / "absent") == []


# Live, where a cap is possible here


@pytest.fixture(scope="module")
def method() -> CapMethod:
    found = caps.available()
    if found.how is None:
        pytest.skip(found.reason)
    return found


def run(cap: Cap, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        cap.command([sys.executable, "-c", code, *arguments]), capture_output=True, text=True, check=False
    )


@pytest.mark.live
def test_anonymous_memory_above_the_cap_is_killed(method: CapMethod) -> None:
    with Cap(100 * MiB) as cap:
        done = run(cap, GREEDY)
        stats = cap.stats()
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert "survived" not in done.stdout
    assert stats.limit_bytes == 100 * MiB
    assert stats.oom_kills == 1
    assert groups_of(os.getpid()) == []


@pytest.mark.live
def test_the_same_memory_below_the_cap_is_not(method: CapMethod) -> None:
    with Cap(200 * MiB) as cap:
        done = run(cap, GREEDY)
        stats = cap.stats()
    assert (done.returncode, done.stdout, done.stderr) == (0, "survived\n", "")
    assert not stats.oom_kills
    if stats.alive:
        assert stats.peak_bytes is None or 140 * MiB < stats.peak_bytes <= 200 * MiB


@pytest.mark.live
def test_a_mapped_file_larger_than_the_cap_is_only_reclaimed(method: CapMethod, tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(b"\1" * (150 * MiB))
    probe.evict(path)  # pages already cached would be charged to someone else
    with Cap(100 * MiB) as cap:
        done = run(cap, READER, str(path))
        stats = cap.stats()
        cached = probe.page_cache(path).resident_bytes
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["survived", str(150 * MiB // 4096)]
    assert not stats.oom_kills
    assert cached is not None and cached <= 100 * MiB
    assert groups_of(os.getpid()) == []


@pytest.mark.live
def test_the_child_keeps_its_id_its_streams_and_its_status(method: CapMethod) -> None:
    with Cap(100 * MiB) as cap:
        child = subprocess.Popen(
            cap.command([sys.executable, "-c", "import os; print(os.getpid()); print(input()); raise SystemExit(7)"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        out, _ = child.communicate("a 'quoted' line\n")
    assert out.split("\n")[:2] == [str(child.pid), "a 'quoted' line"]
    assert child.returncode == 7


@pytest.mark.live
def test_stats_while_the_child_runs(method: CapMethod) -> None:
    code = "block = b'x' * (30 << 20); print('ready', flush=True); input()"
    with Cap(100 * MiB) as cap:
        child = subprocess.Popen(
            cap.command([sys.executable, "-c", code]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        stats = cap.stats()
        assert str(child.pid) in (cap.path / "cgroup.procs").read_text().split()
        child.communicate("\n")
    assert stats.alive and stats.anon_bytes is not None and stats.current_bytes is not None
    assert stats.current_bytes >= 30 * MiB and stats.anon_bytes <= 100 * MiB
    assert not cap.stats().alive and cap.stats().limit_bytes == 100 * MiB


@pytest.mark.live
def test_close_ends_what_still_runs_and_may_be_called_again(method: CapMethod) -> None:
    cap = Cap(100 * MiB)
    child = subprocess.Popen(cap.command(["sleep", "60"]))
    until(lambda: cap.path.is_dir() and str(child.pid) in (cap.path / "cgroup.procs").read_text().split())
    cap.close()
    assert child.wait(timeout=30) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert not cap.path.exists()
    cap.close()
    assert groups_of(os.getpid()) == []


@pytest.mark.live
def test_many_kills_leave_nothing(method: CapMethod) -> None:
    for _ in range(SOAK):
        with Cap(20 * MiB) as cap:
            assert run(cap, GREEDY).returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert groups_of(os.getpid()) == []


@pytest.mark.live
def test_an_exception_inside_leaves_nothing(method: CapMethod) -> None:
    with pytest.raises(KeyboardInterrupt), Cap(20 * MiB):
        raise KeyboardInterrupt
    assert groups_of(os.getpid()) == []


MAKER = """
import os, signal, subprocess, sys, time
from labkit.system.caps import Cap
cap = Cap(50 << 20)
child = subprocess.Popen(cap.command(["sleep", "60"]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not (cap.path.is_dir() and str(child.pid) in (cap.path / "cgroup.procs").read_text().split()):
    time.sleep(0.01)
print(cap.path, child.pid, flush=True)
"""


def make(ending: str) -> tuple[Path, int]:
    done = subprocess.run([sys.executable, "-c", MAKER + ending], capture_output=True, text=True, check=False)
    path, pid = done.stdout.split()
    return Path(path), int(pid)


@pytest.mark.live
def test_a_killed_maker_is_cleaned_up_after(method: CapMethod) -> None:
    path, pid = make("os.kill(os.getpid(), signal.SIGKILL)")
    assert path.is_dir() and Path(f"/proc/{pid}").exists()
    with Cap(20 * MiB):
        pass
    assert not path.exists()
    assert until(lambda: not running(pid))


def running(pid: int) -> bool:
    """Alive, and not a zombie that nobody has reaped."""
    try:
        return probe.process(pid).rss_bytes is not None
    except probe.ProcessGone:
        return False


@pytest.mark.live
def test_a_maker_that_forgets_is_cleaned_up_at_its_exit(method: CapMethod) -> None:
    path, pid = make("")
    assert not path.exists() and not running(pid)


@pytest.mark.live
def test_a_fork_of_the_maker_does_not_take_the_group_away(method: CapMethod) -> None:
    ending = "pid = os.fork()\nif pid == 0:\n    cap.close()\n    os._exit(0)\n"
    ending += "os.waitpid(pid, 0)\nassert cap.path.is_dir() and child.poll() is None\nprint('kept')"
    done = subprocess.run([sys.executable, "-c", MAKER + ending], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("kept\n"), done.stderr


@pytest.mark.live
def test_the_limit_is_seen_from_inside(method: CapMethod) -> None:
    with Cap(300 * MiB) as cap:
        done = run(
            cap, "from labkit.system.machine import machine; m = machine(environ={}); print(m.limit_bytes, m.limit_by)"
        )
    size, by = done.stdout.split(" ", 1)
    assert int(size) == 300 * MiB, done.stderr
    assert by.startswith("cgroup v") and cap.name in by
