"""macOS: vm_stat and sysctl for the computer, psutil for a process."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable

from labkit.system._os import Host, Limit, ProcessUse, portable

Run = Callable[..., str]


def _run(*command: str) -> str:
    """A command's output, empty when it fails (an unknown sysctl, say)."""
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def vm_stat(text: str) -> dict[str, int]:
    """The rows of ``vm_stat`` that count pages, in bytes, and the page size as "page".

    Raises:
        ValueError: the first line does not give the page size.
    """
    size = re.search(r"page size of (\d+) bytes", text)
    if not size:
        raise ValueError("vm_stat does not state its page size in the first line; labkit does not know this format.")
    page = int(size[1])
    rows = re.findall(r'^"?((?:File-backed |Anonymous )?[Pp]ages[^:"]*)"?:\s+(\d+)\.', text, flags=re.M)
    return {"page": page, **{name: int(count) * page for name, count in rows}}


def available(stat: dict[str, int]) -> int | None:
    """Free, speculative (read ahead and not yet used) and inactive pages; vm_stat leaves speculative out of free."""
    names = ("Pages free", "Pages speculative", "Pages inactive")
    return sum(stat[name] for name in names) if all(name in stat for name in names) else None


def available_bytes(*, root: str = "/") -> int | None:
    """What a new program could take now."""
    return available(vm_stat(_run("vm_stat")))


def oom_kills(*, root: str = "/") -> int | None:
    """macOS does not count them."""
    return None


def _soft_limit(name: str) -> int | None:
    """A resource limit in bytes, None for unlimited."""
    import resource

    soft: int = resource.getrlimit(getattr(resource, name))[0]
    # The stubs of other systems lack this module, and "infinity" is their -1 or their largest number.
    return None if soft in (-1, resource.RLIM_INFINITY) or soft >= 1 << 62 else soft


def host(*, root: str = "/", run: Run = _run) -> Host:
    """What this Mac has; see ``Host``. ``run`` executes a command and returns what it prints."""

    def number(key: str) -> int | None:
        text = run("sysctl", "-n", key).strip()
        return int(text) if text.isdigit() else None

    stat = vm_stat(run("vm_stat"))
    ram, free = number("hw.memsize"), available(stat)
    swap = re.search(r"total = ([\d.]+)M", run("sysctl", "-n", "vm.swapusage"))
    memlock, address_space = _soft_limit("RLIMIT_MEMLOCK"), _soft_limit("RLIMIT_AS")
    l3 = number("hw.l3cachesize") or None  # 0 or missing on Apple silicon
    cpu_name = run("sysctl", "-n", "machdep.cpu.brand_string").strip() or None
    limits = [Limit(by, size) for by, size in (("RLIMIT_AS", address_space), ("MemTotal", ram)) if size is not None]
    reasons = {
        "readahead_bytes": "macOS does not publish it",
        "ipc_lock": "macOS has no CAP_IPC_LOCK",
        "cpu_quota": "macOS has no control groups",
        "psi": "pressure stall information is a Linux figure",
    }
    for field, value, why in (
        ("ram_bytes", ram, "sysctl hw.memsize gives nothing"),
        ("available_bytes", free, "vm_stat lacks the free, inactive or speculative row"),
        ("swap_bytes", swap, "sysctl vm.swapusage gives nothing"),
        ("memlock_bytes", memlock, "unlimited"),
        ("l3_bytes", l3, "sysctl hw.l3cachesize gives nothing (Apple silicon has no level 3 cache of this kind)"),
        ("cpu_name", cpu_name, "sysctl machdep.cpu.brand_string gives nothing"),
    ):
        if value is None:
            reasons[field] = why
    return Host(
        system="macOS",
        ram_bytes=ram,
        available_bytes=free,
        swap_bytes=None if swap is None else int(float(swap[1]) * (1 << 20)),
        page_bytes=stat["page"],
        readahead_bytes=None,
        memlock_bytes=memlock,
        memlock_unlimited=memlock is None,
        ipc_lock=None,
        cores=os.cpu_count() or 1,
        cpu_quota=None,
        cpu_name=cpu_name,
        l3_bytes=l3,
        psi=None,
        limits=tuple(limits),
        reasons=reasons,
    )


def process(pid: int, *, root: str = "/", smaps: bool = False) -> ProcessUse:
    """What a process uses: psutil's task figures."""
    return portable.process(pid, system="macOS")
