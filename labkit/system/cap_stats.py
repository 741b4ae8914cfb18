"""What a memory-capped group of processes has used, read from its control files."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from labkit.system._os.cgroup import read_int, read_table


@dataclass(frozen=True, kw_only=True)
class CapStats:
    """What the group counted so far; a field is None where it cannot be read.

    Attributes:
        limit_bytes: the cap as the kernel rounded it.
        current_bytes: charged to the group now, page cache included.
        peak_bytes: the largest ``current_bytes`` so far.
        anon_bytes: anonymous memory now.
        file_bytes: page cache now, mapped or not.
        oom_kills: processes killed for exceeding the cap.
        limit_hits: how often the cap was reached and pages had to be reclaimed.
        refault_bytes: file pages that were reclaimed and needed again.
        alive: whether the group still exists; if not, the figures are the last ones read.
        reasons: why a figure is None, or its source where that is not the group itself.
    """

    limit_bytes: int
    current_bytes: int | None = None
    peak_bytes: int | None = None
    anon_bytes: int | None = None
    file_bytes: int | None = None
    oom_kills: int | None = None
    limit_hits: int | None = None
    refault_bytes: int | None = None
    alive: bool
    reasons: Mapping[str, str]

    def explained(self, why: str) -> CapStats:
        """The same figures, with ``why`` as the reason for each one that is missing and has none yet."""
        missing = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, reasons={**dict.fromkeys(missing, why), **self.reasons})


def _refault_bytes(stat: Mapping[str, int]) -> int | None:
    """Bytes of the file pages that were read again, from memory.stat."""
    pages = stat.get("workingset_refault_file", stat.get("workingset_refault"))  # one name before Linux 5.9
    return None if pages is None else pages * mmap.PAGESIZE


def read_v1(group: Path, limit_bytes: int) -> CapStats:
    """The figures of a version 1 group; ``limit_bytes`` stands in where the kernel's own cannot be read."""
    stat = read_table(group / "memory.stat")
    limit = read_int(group / "memory.limit_in_bytes") or limit_bytes
    peak = read_int(group / "memory.max_usage_in_bytes")
    # The limit with swap equals the one without and is checked first, so most hits are counted there.
    hits, swap_hits = (read_int(group / f"memory.{name}failcnt") for name in ("", "memsw."))
    total = None if hits is None else hits + (swap_hits or 0)
    if total == 0 and peak is not None and peak >= limit:
        total = None  # kernel 6.18 still has the file and no longer counts
    return CapStats(
        limit_bytes=limit,
        current_bytes=read_int(group / "memory.usage_in_bytes"),
        peak_bytes=peak,
        anon_bytes=stat.get("total_rss"),
        file_bytes=stat.get("total_cache"),
        oom_kills=read_table(group / "memory.oom_control").get("oom_kill"),
        limit_hits=total,
        refault_bytes=_refault_bytes(stat),
        alive=True,
        reasons={},
    ).explained("this kernel's cgroup v1 does not count it")


def read_v2(group: Path, limit_bytes: int) -> CapStats:
    """The figures of a version 2 group; ``limit_bytes`` stands in where the kernel's own cannot be read."""
    stat, events = (read_table(group / f"memory.{name}") for name in ("stat", "events"))
    return CapStats(
        limit_bytes=read_int(group / "memory.max") or limit_bytes,
        current_bytes=read_int(group / "memory.current"),
        peak_bytes=read_int(group / "memory.peak"),
        anon_bytes=stat.get("anon"),
        file_bytes=stat.get("file"),
        oom_kills=events.get("oom_kill"),
        limit_hits=events.get("max"),
        refault_bytes=_refault_bytes(stat),
        alive=True,
        reasons={},
    ).explained("this kernel's cgroup v2 does not count it (memory.peak needs Linux 5.19)")
