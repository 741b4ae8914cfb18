"""What mlock locks, whether this system allows it, and the smallest cap under which a locked model is not killed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.gguf import Header
from labkit.predict.hparams import EMBEDDING
from labkit.predict.process import memory
from labkit.predict.repack import repacked
from labkit.settings import Settings
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.system.machine import Machine

REMEDIES = {
    "Linux": (
        "`ulimit -S -l hard` in the shell that starts it, up to the hard limit; above that, `LimitMEMLOCK=infinity` in "
        "the systemd unit, `USER - memlock unlimited` in /etc/security/limits.conf (from the next login), or "
        "`docker run --ulimit memlock=-1`"
    ),
    "WSL": "`ulimit -l unlimited` as root, and `memory=` in .wslconfig for the size of the memory itself",
    "macOS": "`sudo sysctl vm.user_wire_limit=BYTES` and, where it is lower, `vm.global_user_wire_limit`",
    "Windows": "nothing to set: llama.cpp raises its own working set (SetProcessWorkingSetSize) before VirtualLock",
}


@dataclass(frozen=True)
class Lock:
    """What is locked, and what that takes.

    Attributes:
        locked_bytes: what mlock locks: the mapped span (mmap+mlock) or the weights in anonymous memory (mlock).
        unlocked_anon_bytes: resident anonymous memory that is not locked: repacked weights, cache, output, the used
            part of the compute buffer, Python.
        needed_limit_bytes: the smallest RLIMIT_MEMLOCK with which all of ``locked_bytes`` is locked. llama.cpp locks
            each file from its beginning while it loads, and afterwards unmaps what lies before the first tensor in use.
        allowed: whether this system allows it; None where only trying shows that.
        allowed_by: the limit or capability that decides.
        boundary_bytes: the smallest cap under which the process is not killed: locked and anonymous memory, with as
            much of the compute buffer as the prompt uses. Without a lock, the kernel can drop the file's pages, and
            only the anonymous memory counts.
        full_boundary_bytes: the same with the whole compute buffer in use.
        remedy: how to raise the limit on this system.
    """

    locked_bytes: int
    unlocked_anon_bytes: int
    needed_limit_bytes: int
    allowed: bool | None
    allowed_by: str
    boundary_bytes: int
    full_boundary_bytes: int
    remedy: str


def lock(
    header: Header,
    settings: Settings,
    *,
    machine: Machine,
    cpu_features: Iterable[str] | None,
    prompt_tokens: int = 8,
    planned_compute_bytes: int | None = None,
    memlock_bytes: int | None = None,
) -> Lock:
    """What locking this model takes on a machine.

    Args:
        header: the model's.
        settings: how it is run; ``load_mode`` decides whether it is locked.
        machine: the machine.
        cpu_features: see ``memory``.
        prompt_tokens: largest batch that will be decoded.
        planned_compute_bytes: see ``memory``.
        memlock_bytes: RLIMIT_MEMLOCK of a process without CAP_IPC_LOCK; None for the limits of this process.
    """
    features = tuple(cpu_features or ())
    need = memory(
        header,
        settings,
        cpu_features=features,
        prompt_tokens=prompt_tokens,
        page_bytes=machine.page_bytes,
        planned_compute_bytes=planned_compute_bytes,
    )
    on_heap = need.locked_bytes if need.heap_bytes else 0
    pinned_file = need.locked_bytes - on_heap
    limit = needed_limit_bytes(header, settings, features, machine.page_bytes) if pinned_file else need.locked_bytes
    allowed, by = _permission(limit, machine, memlock_bytes)
    return Lock(
        locked_bytes=need.locked_bytes,
        unlocked_anon_bytes=need.rss_anon_bytes - on_heap,
        needed_limit_bytes=limit,
        allowed=allowed,
        allowed_by=by,
        boundary_bytes=pinned_file + need.rss_anon_bytes,
        full_boundary_bytes=pinned_file + need.anon_floor_bytes,
        remedy=raise_limit(machine.system),
    )


def needed_limit_bytes(header: Header, settings: Settings, cpu_features: Iterable[str], page_bytes: int) -> int:
    """The RLIMIT_MEMLOCK with which each file is locked from its beginning to its last tensor that is used in place.

    Source: llama_mlock::grow_to in src/llama-mmap.cpp, called with the end of each tensor's place in the file by
    llama_model_loader::load_all_data.
    """
    copied = {t.name for t in repacked(header, cpu_features=cpu_features)} if settings.repack else set()
    ends: dict[int, int] = {}
    for t in header.tensors:
        if t.name not in copied or t.name == EMBEDDING:
            ends[t.part] = max(ends.get(t.part, 0), t.offset + t.nbytes)
    return sum(-(-end // page_bytes) * page_bytes for end in ends.values())


def raise_limit(system: str) -> str:
    """How to raise the limit on locked memory on this system (``machine().system``), in words.

    Raises:
        ValueError: not a system that labkit knows.
    """
    if system not in REMEDIES:
        raise ValueError(f"system is {system!r}: choose one of {', '.join(REMEDIES)}.")
    return REMEDIES[system]


def _permission(limit: int, machine: Machine, memlock_bytes: int | None) -> tuple[bool | None, str]:
    """Whether ``limit`` bytes may be locked (None: not known), and what decides."""
    if not limit:
        return True, "nothing is to be locked"
    if memlock_bytes is None:
        if machine.system == "macOS":
            return None, "vm.user_wire_limit decides, which labkit does not read"
        if machine.ipc_lock:
            return True, "CAP_IPC_LOCK"
        if machine.memlock_unlimited:
            return True, "RLIMIT_MEMLOCK is unlimited"
        memlock_bytes = machine.memlock_bytes
    if memlock_bytes is None:
        return None, machine.reasons.get("memlock_bytes", "RLIMIT_MEMLOCK is not known")
    return limit <= memlock_bytes, f"RLIMIT_MEMLOCK {fmt_bytes(memlock_bytes)}"
