"""Limit how much memory this process may lock."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from labkit.units import fmt_bytes

CAP_IPC_LOCK, CAP_SYS_RESOURCE = 14, 24  # include/uapi/linux/capability.h
_VERSION_3 = 0x20080522


def problem(limit_bytes: int) -> str | None:
    """Why a child cannot be given this RLIMIT_MEMLOCK, in one sentence; None where it can."""
    if sys.platform == "win32":
        return "Windows has no RLIMIT_MEMLOCK: leave memlock out."
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and limit_bytes > hard and not _may_raise():
        return (
            f"memlock is {fmt_bytes(limit_bytes)} and this user's hard limit {fmt_bytes(hard)}: it can only be lowered."
        )
    return None


def _may_raise() -> bool:
    """Whether this process may raise a hard limit."""
    if sys.platform != "linux":
        return os.geteuid() == 0
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> CAP_SYS_RESOURCE & 1)


def lower(limit_bytes: int) -> None:
    """Set RLIMIT_MEMLOCK and give up CAP_IPC_LOCK, which would lift it. This process cannot undo that.

    Raises:
        OSError: the kernel refuses.
        ValueError: the limit is above the hard one, and this user may not raise it.
    """
    if sys.platform == "win32":
        raise OSError("Windows has no RLIMIT_MEMLOCK: leave memlock out.")
    import resource

    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, limit_bytes))
    if sys.platform == "linux":
        _drop(CAP_IPC_LOCK)


def _drop(capability: int) -> None:
    """Remove one capability (below 32) from this thread's sets: effective, permitted, inheritable."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities from 32
    if libc.capget(head, sets) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities of this process cannot be read")
    for i in range(3):
        sets[i] &= ~(1 << capability)
    if libc.capset(head, sets) != 0:
        raise OSError(ctypes.get_errno(), "CAP_IPC_LOCK cannot be given up")
