"""What this computer has: recorded trees of several systems, and the live one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.paths import FIXTURES

from labkit.system._os import Limit, cgroup, darwin, linux
from labkit.system.bandwidth import Disk, disk_bandwidth, ram_bandwidth
from labkit.system.machine import Machine, available_bytes, machine, usable_cores
from labkit.units import GiB, KiB, MiB


def live_on_linux(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that reads this computer's own /proc."""
    here = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads this computer's own /proc")
    return pytest.mark.live(here(test))


def read(tree: str, **environ: str) -> Machine:
    return machine(root=str(FIXTURES / tree), environ=environ)


@pytest.mark.parametrize(
    ("tree", "limit_bytes", "limit_by", "available"),
    [
        # available: the smaller of MemAvailable and (limit - (use - inactive file)) of each group
        ("proc_v1", 2 * GiB, "cgroup v1 /docker/5f3c", 2 * GiB - 600 * MiB),
        (
            "proc_v2",
            1536 * MiB,
            "cgroup v2 /user.slice/user-1000.slice/user@1000.service/app.slice/run-r7a.scope",
            1536 * MiB - 336 * MiB,
        ),
        ("proc_v2_nested", 6 * GiB, "cgroup v2 /user.slice", 3 * GiB),
        ("proc_v2_max", 16318480 * KiB, "MemTotal", 15000000 * KiB),
        ("proc_v2_container", 1536 * MiB, "RLIMIT_AS", 1536 * MiB - 29024 * KiB),
        ("proc_hybrid", 4 * GiB, "cgroup v1 /box", 2 * GiB),
        ("proc_wsl", 8023204 * KiB, "MemTotal", 6900000 * KiB),
        ("proc_missing", 2 * GiB, "MemTotal", None),
    ],
)
def test_the_smallest_limit_binds(tree: str, limit_bytes: int, limit_by: str, available: int | None) -> None:
    here = read(tree)
    assert (here.limit_bytes, here.limit_by) == (limit_bytes, limit_by)
    assert here.available_bytes == available


def test_mem_limit_binds_when_it_is_the_smallest() -> None:
    here = read("proc_v2_nested", MEM_LIMIT=str(2 * GiB))
    assert (here.limit_bytes, here.limit_by, here.available_bytes) == (2 * GiB, "MEM_LIMIT", 2 * GiB)
    assert read("proc_v2_nested", MEM_LIMIT=str(64 * GiB)).limit_by == "cgroup v2 /user.slice"
    assert read("proc_v2_nested", MEM_LIMIT="0").limit_by == "cgroup v2 /user.slice"
    unreadable = read("proc_v2_nested", MEM_LIMIT="plenty")
    assert unreadable.limit_by == "cgroup v2 /user.slice" and "plenty" in unreadable.reasons["MEM_LIMIT"]


def test_every_limit_is_listed_with_its_use() -> None:
    limits = read("proc_v2_nested").limits
    assert Limit("cgroup v2 /user.slice/user-1000.slice", 8 * GiB, 3 * GiB - 512 * MiB) in limits
    assert Limit("cgroup v2 /user.slice", 6 * GiB, 3 * GiB) in limits
    assert Limit("MemTotal", 16318480 * KiB) in limits
    assert len(limits) == 3  # "max" is no limit


@pytest.mark.parametrize(
    ("tree", "cores", "quota", "usable"),
    [
        ("proc_v1", 4, 1.5, 2),
        ("proc_v2", 8, 2.5, 3),
        ("proc_v2_nested", 4, 1.5, 2),  # the ancestor's quota is smaller than the nearer group's
        ("proc_v2_container", 16, 1.0, 1),
        ("proc_hybrid", 2, None, 2),
        ("proc_wsl", 12, None, 12),
    ],
)
def test_cores_by_affinity_and_quota(tree: str, cores: int, quota: float | None, usable: int) -> None:
    here = read(tree)
    assert (here.cores, here.cpu_quota) == (cores, quota)
    assert ("cpu_quota" in here.reasons) == (quota is None)
    assert usable_cores(root=str(FIXTURES / tree)) == usable


@pytest.mark.parametrize(("quota", "usable"), [("400000 100000", 1), ("50000 100000", 1), ("max 100000", 1)])
def test_a_quota_never_gives_more_than_there_is_nor_less_than_one(tmp_path: Path, quota: str, usable: int) -> None:
    shutil.copytree(FIXTURES / "proc_v2_container", tmp_path / "tree")
    status = tmp_path / "tree/proc/self/status"
    status.write_text(re.sub(r"(?m)^Cpus_allowed_list:.*", "Cpus_allowed_list:\t0", status.read_text()))
    for file in (tmp_path / "tree").rglob("cpu.max"):
        file.write_text(quota + "\n")
    assert usable_cores(root=str(tmp_path / "tree")) == usable


@pytest.mark.parametrize(
    ("tree", "memlock", "unlimited", "ipc_lock", "lockable"),
    [
        ("proc_v1", 65536, False, False, 65536),
        ("proc_v2", None, True, True, 1536 * MiB),
        ("proc_v2_nested", 8 * MiB, False, False, 8 * MiB),
        ("proc_hybrid", 8 * MiB, False, True, 4 * GiB),  # CAP_IPC_LOCK lifts the limit
        ("proc_missing", None, False, None, None),
    ],
)
def test_what_may_be_locked(
    tree: str, memlock: int | None, unlimited: bool, ipc_lock: bool | None, lockable: int | None
) -> None:
    here = read(tree)
    assert (here.memlock_bytes, here.memlock_unlimited, here.ipc_lock) == (memlock, unlimited, ipc_lock)
    assert here.lockable_bytes == lockable


def test_names_caches_swap_and_pressure() -> None:
    v1, v2 = read("proc_v1"), read("proc_v2")
    assert v1.cpu_name == "Intel(R) Xeon(R) CPU @ 2.20GHz"
    assert v1.l3_bytes == 55 * MiB
    assert v1.swap_bytes == 2097148 * KiB
    assert v1.psi is None and "4.20" in v1.reasons["psi"]
    assert v2.psi is not None
    assert v2.psi["some"] == {"avg10": 1.25, "avg60": 0.4, "avg300": 0.11, "total_us": 123456}
    assert v2.psi["full"]["avg10"] == 0.5
    assert read("proc_v2_max").cpu_name is None
    assert (v2.system, read("proc_wsl").system) == ("Linux", "WSL")


@pytest.mark.parametrize("tree", [path.name for path in sorted(FIXTURES.glob("proc_*"))])
def test_what_is_not_known_is_none_with_a_reason(tree: str) -> None:
    here = read(tree)
    for field, value in vars(here).items():
        assert (value is None) == (field in here.reasons), field
        if value is None:
            assert len(here.reasons[field]) > 5
    assert json.loads(json.dumps(here.to_dict()))["limit_bytes"] == here.limit_bytes


def test_nothing_readable_at_all(tmp_path: Path) -> None:
    here = machine(root=str(tmp_path), environ={})
    assert here.ram_bytes is None and here.limit_bytes is None and here.limit_by is None
    assert {"ram_bytes", "available_bytes", "limit_bytes", "limit_by", "lockable_bytes"} <= set(here.reasons)
    assert here.profile == "tiny"  # unknown is treated with care
    assert available_bytes(root=str(tmp_path)) is None


@pytest.mark.skipif(sys.platform == "win32", reason="the kernel's name for a device has a colon")
def test_readahead_of_the_root_device(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("27 1 254:3 / / rw - ext4 /dev/vda3 rw\n")
    (tmp_path / "sys/class/bdi/254:3").mkdir(parents=True)
    (tmp_path / "sys/class/bdi/254:3/read_ahead_kb").write_text("128\n")
    assert machine(root=str(tmp_path), environ={}).readahead_bytes == 128 * KiB
    assert linux.readahead_bytes(os.makedev(254, 4), root=str(tmp_path)) is None


def test_groups_own_first_and_only_as_far_as_the_mount_shows() -> None:
    nested = cgroup.groups(root=str(FIXTURES / "proc_v2_nested"))
    assert [group.name for group in nested] == [
        "/user.slice/user-1000.slice/session-3.scope",
        "/user.slice/user-1000.slice",
        "/user.slice",
        "/",
    ]
    docker = cgroup.groups(root=str(FIXTURES / "proc_v1"))
    assert [(group.version, group.name) for group in docker] == [(1, "/docker/5f3c")]
    assert docker[0].path == FIXTURES / "proc_v1/sys/fs/cgroup/memory"
    hybrid = cgroup.groups(root=str(FIXTURES / "proc_hybrid"))
    assert [(group.version, group.name) for group in hybrid] == [(2, "/"), (1, "/box/c7be"), (1, "/box"), (1, "/")]


def test_group_outside_the_mounted_part(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1048576\n")
    for name, mount_root in (("/../other", "/"), ("/kubepods/x", "/lxc/1")):
        (tmp_path / "proc/self/cgroup").write_text(f"0::{name}\n")
        (tmp_path / "proc/self/mountinfo").write_text(f"1 2 0:29 {mount_root} /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
        (limit,) = cgroup.memory_limits(str(tmp_path))
        assert (limit.limit_bytes, limit.used_bytes) == (MiB, None)


def test_groups_without_mountinfo_are_looked_for_in_the_usual_places(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/a\n")
    (tmp_path / "sys/fs/cgroup/memory/a").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/a/memory.limit_in_bytes").write_text(f"{GiB}\n")
    assert [limit.by for limit in cgroup.memory_limits(str(tmp_path))] == ["cgroup v1 /a"]


def test_profile_follows_the_limit_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_PROFILE", raising=False)
    profiles = {tree: read(tree).profile for tree in ("proc_v1", "proc_hybrid", "proc_v2_max")}
    assert profiles == {"proc_v1": "tiny", "proc_hybrid": "small", "proc_v2_max": "full"}
    monkeypatch.setenv("LABKIT_PROFILE", "small")
    assert read("proc_v1").profile == "small"
    monkeypatch.setenv("LABKIT_PROFILE", "huge")
    with pytest.raises(ValueError, match="tiny, small, full"):
        _ = read("proc_v1").profile


# macOS, from recorded command output


@pytest.mark.parametrize(
    ("file", "page", "available", "anonymous"),
    [
        ("apple_silicon.txt", 16384, (21034 + 15880 + 371502) * 16384, 515458 * 16384),
        ("intel.txt", 4096, (812345 + 201100 + 998712) * 4096, 1300956 * 4096),
    ],
)
def test_vm_stat(file: str, page: int, available: int, anonymous: int) -> None:
    stat = darwin.vm_stat((FIXTURES / "vm_stat" / file).read_text())
    assert stat["page"] == page
    assert darwin.available(stat) == available
    assert stat["Anonymous pages"] == anonymous


def test_vm_stat_in_another_format() -> None:
    with pytest.raises(ValueError, match="page size"):
        darwin.vm_stat("Pages free: 12.\n")
    assert darwin.available(darwin.vm_stat("(page size of 4096 bytes)\nPages free: 12.\n")) is None


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
@pytest.mark.parametrize(("file", "page"), [("apple_silicon.txt", 16384), ("intel.txt", 4096)])
def test_a_mac(file: str, page: int) -> None:
    answers = {
        "vm_stat": (FIXTURES / "vm_stat" / file).read_text(),
        "hw.memsize": "17179869184\n",
        "vm.swapusage": "total = 2048.00M  used = 1024.50M  free = 1023.50M  (encrypted)\n",
        "machdep.cpu.brand_string": "Apple M2\n",
    }
    here = darwin.host(run=lambda *command: answers.get(command[-1], ""))
    assert (here.ram_bytes, here.swap_bytes, here.page_bytes, here.cpu_name) == (16 * GiB, 2 * GiB, page, "Apple M2")
    assert here.l3_bytes is None and "level 3" in here.reasons["l3_bytes"]
    assert {"readahead_bytes", "ipc_lock", "psi", "cpu_quota"} <= set(here.reasons)
    assert Limit("MemTotal", 16 * GiB) in here.limits


# This computer


@live_on_linux
def test_live_machine() -> None:
    here = machine()
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert here.ram_bytes == int(meminfo["MemTotal"].split()[0]) * KiB
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.page_bytes == os.sysconf("SC_PAGE_SIZE")
    assert here.limit_bytes is not None and here.limit_bytes <= here.ram_bytes
    assert here.limit_bytes == min(limit.limit_bytes for limit in here.limits)
    assert here.available_bytes is not None and 0 < here.available_bytes <= here.limit_bytes
    now = available_bytes()
    assert now is not None and 0 < now <= here.ram_bytes


@live_on_linux
def test_live_address_space_limit_is_seen() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "from labkit.system.machine import machine\n"
        "print(*(limit.limit_bytes for limit in machine(environ={}).limits if limit.by == 'RLIMIT_AS'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 8 * GiB


@pytest.mark.live
def test_ram_bandwidth_uses_the_threads_it_is_given() -> None:
    assert ram_bandwidth(seconds=0.02, n_threads=1).n_threads == 1
    with pytest.raises(ValueError, match="n_threads"):
        ram_bandwidth(seconds=0.02, n_threads=0)


@pytest.mark.live
def test_ram_bandwidth_reports_progress_and_adds_up() -> None:
    seen: list[tuple[float, str]] = []
    result = ram_bandwidth(seconds=0.2, progress=lambda share, text: seen.append((share, text)))
    assert result.n_threads == len(result.per_thread) >= 1
    assert result.bytes_per_s == pytest.approx(sum(result.per_thread))
    assert result.bytes_read % (result.buffer_bytes // result.n_threads) == 0
    assert result.bytes_read >= result.buffer_bytes
    assert result.bytes_read / result.seconds <= result.bytes_per_s * 1.001
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    assert all(text for _, text in seen)
    with pytest.raises(ValueError, match="seconds is 0: write a time above 0"):
        ram_bandwidth(seconds=0)


@live_on_linux
def test_disk_bandwidth_of_a_full_and_of_a_sparse_file(tmp_path: Path) -> None:
    full, sparse, seen = tmp_path / "full", tmp_path / "sparse", []
    full.write_bytes(os.urandom(8 * MiB))
    with open(sparse, "wb") as file:
        file.truncate(8 * MiB)
    result = disk_bandwidth(full, progress=lambda share, text: seen.append(share))
    assert result.bytes_read == 8 * MiB and result.warm_bytes_per_s > 0
    assert (result.cold_bytes_per_s is None) == (result.reason is not None)  # None where /tmp is in memory
    assert seen == sorted(seen) and seen[-1] == 1
    result = disk_bandwidth(sparse, max_bytes=4 * MiB)
    assert result.bytes_read == 4 * MiB and result.cold_bytes_per_s is None
    assert result.reason is not None and "sparse" in result.reason
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="nothing to read"):
        disk_bandwidth(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        disk_bandwidth(tmp_path / "absent")


@live_on_linux
def test_disk_bandwidth_refuses_to_call_memory_cold() -> None:
    path = Path("/dev/shm") / f"labkit-test-{os.getpid()}"
    try:
        path.write_bytes(bytes(4 * MiB))
    except OSError:
        pytest.skip("no /dev/shm to write to")
    try:
        result: Disk = disk_bandwidth(path)
    finally:
        path.unlink()
    assert result.cold_bytes_per_s is None and result.reason is not None and "memory" in result.reason
