"""Windows: what psutil gives."""

from __future__ import annotations

import mmap
import platform

from labkit.system._os import Host, Limit, ProcessUse, portable


def available_bytes(*, root: str = "/") -> int | None:
    """What a new program could take now."""
    return portable.memory()[1]


def oom_kills(*, root: str = "/") -> int | None:
    """Windows refuses memory instead of killing for it."""
    return None


def host(*, root: str = "/") -> Host:
    """What this computer has; see ``Host``."""
    ram, available, swap = portable.memory()
    return Host(
        system="Windows",
        ram_bytes=ram,
        available_bytes=available,
        swap_bytes=swap,
        page_bytes=mmap.PAGESIZE,
        readahead_bytes=None,
        memlock_bytes=None,
        memlock_unlimited=False,
        ipc_lock=None,
        cores=portable.cores(),
        cpu_quota=None,
        cpu_name=platform.processor() or None,
        l3_bytes=None,
        psi=None,
        limits=(Limit("MemTotal", ram),),
        reasons={
            "readahead_bytes": "Windows does not publish it",
            "memlock_bytes": "Windows bounds locked memory by the working-set size, which psutil does not give",
            "ipc_lock": "Windows has no CAP_IPC_LOCK",
            "cpu_quota": "job-object limits are not read",
            "l3_bytes": "psutil does not give it",
            "psi": "pressure stall information is a Linux figure",
        },
    )


def process(pid: int, *, root: str = "/", smaps: bool = False) -> ProcessUse:
    """What a process uses: psutil's working-set figures; Windows counts all page faults together."""
    return portable.process(pid, system="Windows")
