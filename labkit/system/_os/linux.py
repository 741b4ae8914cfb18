"""Linux: everything from /proc and /sys, with the standard library alone.

Every function takes ``root``, the folder that holds ``proc`` and ``sys``, so that tests can use recorded trees.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from labkit.system._os import Host, Limit, ProcessGone, ProcessUse, cgroup
from labkit.system._os.cgroup import read, read_int

_CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h
_STATUS = {
    "rss_bytes": "VmRSS",
    "rss_anon_bytes": "RssAnon",
    "rss_file_bytes": "RssFile",
    "rss_shmem_bytes": "RssShmem",
    "locked_bytes": "VmLck",
    "peak_rss_bytes": "VmHWM",
}


def _fields(text: str) -> dict[str, str]:
    """Values by name, from "Name:  value" lines as in /proc/meminfo and /proc/PID/status."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _kb(fields: dict[str, str], name: str) -> int | None:
    """A "1234 kB" value in bytes (the kernel writes kB and means 1024)."""
    words = fields.get(name, "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _rlimit(limits: str, name: str) -> int | None:
    """The soft limit from /proc/self/limits: bytes, -1 for unlimited, None where the line is missing."""
    for line in limits.splitlines():
        if line.startswith(name):
            soft = line[len(name) :].split()[0]
            return -1 if soft == "unlimited" else int(soft)
    return None


def _cores(status: dict[str, str]) -> int:
    """Number of cores in a list such as "0-3,8", or all cores where there is no such list."""
    total = 0
    for part in filter(None, status.get("Cpus_allowed_list", "").split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total or os.cpu_count() or 1


def _cpu_name(cpuinfo: str) -> str | None:
    """x86 says "model name"; ARM boards say "Model" or "Hardware", if anything."""
    fields = _fields(cpuinfo.replace("\t", ""))
    return next((fields[key] for key in ("model name", "Model", "Hardware") if fields.get(key)), None)


def _l3_bytes(base: Path) -> int | None:
    """Size of the level 3 cache that core 0 uses."""
    for index in range(8):
        cache = base / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        size = read(cache / "size")
        if read(cache / "level") == "3" and size:
            return int(size.rstrip("KM")) * (1 << 20 if size.endswith("M") else 1 << 10)
    return None


def _psi(text: str) -> dict[str, dict[str, float]]:
    """The figures in "some avg10=0.00 … total=5" lines; the total is in microseconds."""
    table = {}
    for kind, *pairs in (line.split() for line in text.splitlines()):
        values = dict(pair.split("=") for pair in pairs)
        table[kind] = {("total_us" if k == "total" else k): float(v) for k, v in values.items()}
    return table


def readahead_bytes(device: int, *, root: str = "/") -> int | None:
    """How far the kernel reads ahead on a device (an ``st_dev``), or None where it does not report it."""
    kib = read_int(Path(root, f"sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"))
    return None if kib is None else kib * 1024


def _root_device(base: Path) -> int | None:
    """The device number of the file system mounted on "/"."""
    for line in (read(base / "proc/self/mountinfo") or "").splitlines():
        words = line.split()
        if len(words) > 4 and words[4] == "/":
            major, minor = words[2].split(":")
            return os.makedev(int(major), int(minor))
    return None


def _room(free: int | None, limits: Iterable[Limit]) -> int | None:
    """What is free, and no more than each limit leaves; never below 0."""
    left = [limit.limit_bytes - limit.used_bytes for limit in limits if limit.used_bytes is not None]
    return None if free is None else max(min([free, *left]), 0)


def available_bytes(*, root: str = "/") -> int | None:
    """What a new program could take now within our control groups' limits (0.2 ms)."""
    free = _kb(_fields(read(Path(root, "proc/meminfo")) or ""), "MemAvailable")
    return _room(free, cgroup.memory_limits(root))


def oom_kills(*, root: str = "/") -> int | None:
    """How many processes the kernel has killed for memory since boot, in any group; None before Linux 4.13."""
    return cgroup.read_table(Path(root, "proc/vmstat")).get("oom_kill")


def host(*, root: str = "/") -> Host:
    """What this computer has and allows; see ``Host``."""
    base = Path(root)
    meminfo = _fields(read(base / "proc/meminfo") or "")
    status = _fields(read(base / "proc/self/status") or "")
    rlimits = read(base / "proc/self/limits") or ""
    reasons: dict[str, str] = {}

    ram, swap = _kb(meminfo, "MemTotal"), _kb(meminfo, "SwapTotal")
    limits = list(cgroup.memory_limits(root))
    address_space = _rlimit(rlimits, "Max address space")
    if address_space is not None and address_space >= 0:
        limits.append(Limit("RLIMIT_AS", address_space, _kb(status, "VmSize")))
    if ram is not None:
        limits.append(Limit("MemTotal", ram))
    available = _room(_kb(meminfo, "MemAvailable"), limits)

    memlock = _rlimit(rlimits, "Max locked memory")
    capabilities = status.get("CapEff")
    device = _root_device(base)
    readahead = None if device is None else readahead_bytes(device, root=root)
    pressure = read(base / "proc/pressure/memory")
    kernel = (read(base / "proc/sys/kernel/osrelease") or "").lower()
    cpu_name, l3 = _cpu_name(read(base / "proc/cpuinfo") or ""), _l3_bytes(base)

    for field, value, why in (
        ("ram_bytes", ram, "/proc/meminfo has no MemTotal"),
        ("available_bytes", available, "/proc/meminfo has no MemAvailable (kernels before 3.14)"),
        ("swap_bytes", swap, "/proc/meminfo has no SwapTotal"),
        ("readahead_bytes", readahead, "/sys/class/bdi does not list the root file system's device"),
        ("memlock_bytes", memlock, "/proc/self/limits does not list it"),
        ("ipc_lock", capabilities, "/proc/self/status does not list our capabilities"),
        ("cpu_name", cpu_name, "/proc/cpuinfo does not name the model"),
        ("l3_bytes", l3, "/sys/devices/system/cpu does not describe a level 3 cache"),
        ("psi", pressure, "/proc/pressure/memory cannot be read (kernels before 4.20, or psi=0)"),
    ):
        if value is None:
            reasons[field] = why
    quota = cgroup.cpu_quota(root)
    if quota is None:
        reasons["cpu_quota"] = "no control group sets a CPU quota"
    if memlock == -1:
        reasons["memlock_bytes"] = "unlimited"
    return Host(
        system="WSL" if "microsoft" in kernel else "Linux",
        ram_bytes=ram,
        available_bytes=available,
        swap_bytes=swap,
        page_bytes=os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096,
        readahead_bytes=readahead,
        memlock_bytes=None if memlock == -1 else memlock,
        memlock_unlimited=memlock == -1,
        ipc_lock=None if capabilities is None else bool(int(capabilities, 16) >> _CAP_IPC_LOCK & 1),
        cores=_cores(status),
        cpu_quota=quota,
        cpu_name=cpu_name,
        l3_bytes=l3,
        psi=None if not pressure else _psi(pressure),
        limits=tuple(limits),
        reasons=reasons,
    )


def start_time(pid: int | str, *, root: str = "/") -> int | None:
    """When a process started, in clock ticks since boot, or None if it has ended. Ids are used again, pairs are not."""
    stat = read(Path(root, f"proc/{pid}/stat"))
    return None if not stat else int(stat.rpartition(")")[2].split()[19])


def process(pid: int, *, root: str = "/", smaps: bool = False) -> ProcessUse:
    """What a process uses now, from its status, stat and io files (about 0.1 ms), plus smaps_rollup when asked for.

    Kernels 6.2 to 6.16 keep the RSS counters per core and may be off by some hundred KiB per core; Pss is exact.

    Raises:
        ProcessGone: the process has ended.
    """
    folder = Path(root, f"proc/{pid}")
    status_text, stat_text = read(folder / "status"), read(folder / "stat")
    if not status_text or not stat_text:
        raise ProcessGone(pid)
    status = _fields(status_text)
    reasons: dict[str, str] = {}
    figures: dict[str, int | None] = {}
    for field, name in _STATUS.items():
        figures[field] = _kb(status, name)
        if figures[field] is None:
            ended = status.get("State", "").startswith(("Z", "X"))
            reasons[field] = "the process has ended" if ended else f"/proc/{pid}/status has no {name}"
    after_name = stat_text.rpartition(")")[2].split()  # the name may hold spaces; fields count from 3 after it
    minor, major = int(after_name[7]), int(after_name[9])
    io = _fields(read(folder / "io") or "")
    figures["read_bytes"] = int(io["read_bytes"]) if "read_bytes" in io else None
    if figures["read_bytes"] is None:
        reasons["read_bytes"] = (
            f"/proc/{pid}/io cannot be read: it is for the process's owner, on kernels that count I/O"
        )
    figures["pss_bytes"] = None
    reasons["pss_bytes"] = "not asked for (smaps=True reads it)"
    if smaps:
        figures["pss_bytes"] = _kb(_fields(read(folder / "smaps_rollup") or ""), "Pss")
        reasons["pss_bytes"] = (
            f"/proc/{pid}/smaps_rollup cannot be read: it is for the process's owner, from Linux 4.14"
        )
    if figures["pss_bytes"] is not None:
        del reasons["pss_bytes"]
    return ProcessUse(**figures, minor_faults=minor, major_faults=major, faults=minor + major, reasons=reasons)
