"""One reader per operating system, all returning the same records.

``linux`` reads ``/proc`` and ``/sys`` with the standard library alone and takes a ``root``, so that it can read a tree
of recorded files. ``darwin`` and ``windows`` use psutil and the system's own commands. A figure that a system does not
report is ``None``, and ``reasons`` says why under the field's name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class ProcessGone(ProcessLookupError):
    """The process has ended, or never existed."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"there is no process {pid}: it has ended or never existed.")


@dataclass(frozen=True)
class Limit:
    """One limit on the memory that this process may use.

    Attributes:
        by: what sets it, such as "MemTotal" or "cgroup v2 /user.slice".
        limit_bytes: how much.
        used_bytes: what already counts against it and cannot be reclaimed, or None where that is not known.
    """

    by: str
    limit_bytes: int
    used_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the operating system reports of this computer. Sizes in bytes; None means "not known", see ``reasons``.

    Attributes:
        system: "Linux", "WSL" (Linux inside Windows), "macOS" or "Windows".
        ram_bytes: all the memory the system has.
        available_bytes: what a new program could take without swapping, within every limit below.
        swap_bytes: total swap.
        page_bytes: the unit in which memory is handed out.
        readahead_bytes: how far the kernel reads ahead in a file on the root file system's device.
        memlock_bytes: RLIMIT_MEMLOCK, None when unlimited (then ``memlock_unlimited``) or not known.
        ipc_lock: whether CAP_IPC_LOCK lifts RLIMIT_MEMLOCK for this process.
        cores: CPU cores this process may run on.
        cpu_quota: cores' worth of CPU time a container allows, None when there is no quota.
        l3_bytes: the last-level cache that core 0 sees.
        psi: pressure stall information for memory: {"some": {"avg10": %, …, "total_us": …}, "full": {…}}.
        limits: every limit found, in no particular order.
        reasons: for each field that is None, why.
    """

    system: str
    ram_bytes: int | None
    available_bytes: int | None
    swap_bytes: int | None
    page_bytes: int
    readahead_bytes: int | None
    memlock_bytes: int | None
    memlock_unlimited: bool
    ipc_lock: bool | None
    cores: int
    cpu_quota: float | None
    cpu_name: str | None
    l3_bytes: int | None
    psi: Mapping[str, Mapping[str, float]] | None
    limits: tuple[Limit, ...]
    reasons: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ProcessUse:
    """What one process holds at one moment. Sizes in bytes, faults and reads counted since it started.

    Attributes:
        rss_bytes: all its resident memory.
        rss_anon_bytes: resident memory with no file behind it (heap, stack, private copies).
        rss_file_bytes: resident pages of mapped files, shared with the page cache.
        rss_shmem_bytes: resident shared memory.
        pss_bytes: resident memory with each shared page divided among its users; only when asked for.
        locked_bytes: memory that mlock pins.
        peak_rss_bytes: the largest ``rss_bytes`` so far.
        minor_faults: page faults served from memory.
        major_faults: page faults that waited for a disk.
        faults: both together; some systems count only these.
        read_bytes: bytes fetched from a disk on its behalf, readahead included.
        reasons: for each field that is None, why.
    """

    rss_bytes: int | None
    rss_anon_bytes: int | None
    rss_file_bytes: int | None
    rss_shmem_bytes: int | None
    pss_bytes: int | None
    locked_bytes: int | None
    peak_rss_bytes: int | None
    minor_faults: int | None
    major_faults: int | None
    faults: int | None
    read_bytes: int | None
    reasons: Mapping[str, str]


class Reader(Protocol):
    """What each system's module provides."""

    def host(self, *, root: str = "/") -> Host: ...

    def available_bytes(self, *, root: str = "/") -> int | None: ...

    def oom_kills(self, *, root: str = "/") -> int | None: ...

    def process(self, pid: int, *, root: str = "/", smaps: bool = False) -> ProcessUse: ...


def reader(root: str = "/") -> Reader:
    """The reader for this system. A ``root`` other than "/" is a recorded Linux tree and read as such anywhere."""
    if root != "/" or sys.platform.startswith("linux"):
        from labkit.system._os import linux

        return linux
    if sys.platform == "darwin":
        from labkit.system._os import darwin

        return darwin
    if sys.platform == "win32":
        from labkit.system._os import windows

        return windows
    raise OSError(f"labkit cannot read memory figures on {sys.platform}: use Linux, macOS or Windows.")
