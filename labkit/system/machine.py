"""What this computer has, and how much of it this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labkit.system._os import Host, Limit, reader
from labkit.units import GiB, parse_bytes

__all__ = ["Limit", "Machine", "available_bytes", "machine", "usable_cores"]

PROFILES = ("tiny", "small", "full")


@dataclass(frozen=True, kw_only=True)
class Machine(Host):
    """This computer, as one process sees it: the fields of ``Host``, and what follows from them.

    Attributes:
        limit_bytes: the smallest of all limits on this process's memory.
        limit_by: which limit that is: "MemTotal", "MEM_LIMIT", "RLIMIT_AS", or a control group such as
            "cgroup v2 /user.slice".
        lockable_bytes: how much of it mlock may pin.
    """

    limit_bytes: int | None
    limit_by: str | None
    lockable_bytes: int | None

    @property
    def profile(self) -> str:
        """How much the labs may ask of it: "tiny" (limit up to 2 GiB), "small" (up to 8 GiB) or "full".

        LABKIT_PROFILE in the environment overrides it.

        Raises:
            ValueError: LABKIT_PROFILE is set to something else.
        """
        chosen = os.environ.get("LABKIT_PROFILE", "")
        if chosen:
            if chosen not in PROFILES:
                raise ValueError(f"LABKIT_PROFILE is {chosen!r}: set it to {', '.join(PROFILES)}, or not at all.")
            return chosen
        if self.limit_bytes is None or self.limit_bytes <= 2 * GiB:
            return "tiny"
        return "small" if self.limit_bytes <= 8 * GiB else "full"

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them, with the profile."""
        return {**asdict(self), "limits": [asdict(limit) for limit in self.limits], "profile": self.profile}


def _mem_limit(text: str) -> Limit | None:
    """The limit in MEM_LIMIT, which JupyterHub and Binder set to the bytes a container may use; 0 stands for none.

    Raises:
        ValueError: not a size.
    """
    return Limit("MEM_LIMIT", parse_bytes(text)) if text.strip("0") else None


def available_bytes(*, root: str = "/") -> int | None:
    """What a new program could take now without swapping, within our control groups' limits; quick enough to poll."""
    return reader(root).available_bytes(root=root)


def machine(*, root: str = "/", environ: Mapping[str, str] | None = None) -> Machine:
    """Read what this computer has. Takes about a millisecond.

    Args:
        root: where ``/proc`` and ``/sys`` are; anything but "/" is read as a recorded Linux tree.
        environ: environment variables, by default this process's own.

    Returns:
        The machine; ``reasons`` also says why a MEM_LIMIT that is not a size was left out.
    """
    host = reader(root).host(root=root)
    reasons, limits = dict(host.reasons), host.limits
    try:
        extra = _mem_limit((os.environ if environ is None else environ).get("MEM_LIMIT", ""))
        limits = limits if extra is None else (*limits, extra)
    except ValueError as error:
        reasons["MEM_LIMIT"] = str(error)
    binding = min(limits, key=lambda limit: limit.limit_bytes, default=None)
    limit = binding.limit_bytes if binding else None
    if limit is None:
        reasons["limit_bytes"] = reasons["limit_by"] = "no limit and no memory total could be read"
    available = host.available_bytes
    if available is not None and limit is not None:
        available = min(available, limit)

    lockable = None
    if host.memlock_unlimited or host.ipc_lock:
        lockable = limit
    elif host.memlock_bytes is not None:
        lockable = host.memlock_bytes if limit is None else min(host.memlock_bytes, limit)
    if lockable is None:
        reasons["lockable_bytes"] = reasons.get("memlock_bytes", "the memory limit is not known")
    fields = {
        **vars(host),
        "limits": limits,
        "available_bytes": available,
        "reasons": reasons,
        "limit_bytes": limit,
        "limit_by": binding.by if binding else None,
        "lockable_bytes": lockable,
    }
    return Machine(**fields)


def usable_cores(*, root: str = "/") -> int:
    """How many threads this process can keep busy: its cores by affinity, and no more than its CPU quota allows.

    A quota of one and a half cores counts as two. Source of the quota: ``cpu.max`` (cgroup v2) or
    ``cpu.cfs_quota_us`` (v1) of this process's control groups and their parents.
    """
    host = reader(root).host(root=root)
    quota = math.inf if host.cpu_quota is None else max(math.ceil(host.cpu_quota), 1)
    return int(min(host.cores, quota))
