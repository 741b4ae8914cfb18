"""The control groups to which this process belongs, and the limits on memory and CPU time that they set.

A process is in one group of each hierarchy, and a limit on any ancestor applies as well. Version 2 has one hierarchy
for everything; version 1 has one per controller; some systems mount both. Inside a container the mount shows only part
of the tree, so paths are relative to the part that is mounted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from labkit.system._os import Limit

# Where there is no limit, version 1 reports the largest multiple of a page in 63 bits.
_V1_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Group:
    """A control group: its hierarchy's version, the kernel's name for it, and its folder."""

    version: int
    name: str
    path: Path

    @property
    def by(self) -> str:
        return f"cgroup v{self.version} {self.name}"


def read(path: Path) -> str | None:
    """The stripped text of a kernel file, or None where it is absent or this user may not read it."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The number in a kernel file, or None where there is none."""
    text = read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def read_table(path: Path) -> dict[str, int]:
    """A file of "name value" lines, such as memory.stat; empty where it cannot be read."""
    rows = (line.split() for line in (read(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].lstrip("-").isdigit()}


def _mounts(root: Path) -> list[tuple[int, set[str], str, str]]:
    """Each cgroup mount as (version, controllers, root inside the hierarchy, mount point)."""
    found = []
    for line in (read(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if after[0] == "cgroup2" else 1
        where = before[4].replace("\\040", " ")
        found.append((version, set(after[2].split(",")), before[3].replace("\\040", " "), where))
    if not found:  # mountinfo cannot be read: try the usual places
        found = [(2, set(), "/", "/sys/fs/cgroup")]
        found += [(1, {name}, "/", f"/sys/fs/cgroup/{name}") for name in ("memory", "cpu")]
    return found


def _chain(version: int, name: str, mount_root: str, point: Path) -> list[Group]:
    """The group ``name`` and its ancestors, nearest first, as far as the mount shows them."""
    inside = PurePosixPath(name)
    if ".." in inside.parts:  # outside our namespace
        return [Group(version, "/", point)]
    try:
        relative = inside.relative_to(mount_root)
    except ValueError:  # the mount shows another branch, as in a container: the top of the mount is our group
        return [Group(version, name, point)]
    steps = [relative, *relative.parents]
    return [Group(version, str(PurePosixPath(mount_root) / step), point / step) for step in steps]


def groups(controller: str = "memory", *, root: str = "/", pid: int | str = "self") -> tuple[Group, ...]:
    """The groups whose limits apply to a process, own group first in each hierarchy, version 2 before version 1.

    Args:
        controller: "memory" or "cpu".
        root: where ``/proc`` and ``/sys`` are.
        pid: the process.

    Returns:
        Groups whose folder exists; empty where control groups are absent.
    """
    base = Path(root)
    names: dict[int, str] = {}
    for line in (read(base / f"proc/{pid}/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            names[2] = name
        elif controller in controllers.split(","):
            names[1] = name
    found: dict[int, list[Group]] = {}
    for version, controllers_here, mount_root, point in _mounts(base):
        if version not in names or version in found or (version == 1 and controller not in controllers_here):
            continue
        chain = _chain(version, names[version], mount_root, base / point.lstrip("/"))
        present = [group for group in chain if group.path.is_dir()]
        if present:
            found[version] = present
    return tuple(group for version in (2, 1) for group in found.get(version, []))


def memory_limits(root: str = "/") -> tuple[Limit, ...]:
    """Every memory limit set on this process's groups, and what they use that cannot be reclaimed.

    That is ``memory.current`` less ``inactive_file``: cached file pages count against the limit but can be reclaimed.
    """
    limits = []
    for group in groups("memory", root=root):
        if group.version == 2:
            limit = read_int(group.path / "memory.max")  # "max" is no number: no limit
            used, inactive = "memory.current", "inactive_file"
        else:
            limit = read_int(group.path / "memory.limit_in_bytes")
            used, inactive = "memory.usage_in_bytes", "total_inactive_file"
        if limit is None or limit >= _V1_UNLIMITED:
            continue
        now = read_int(group.path / used)
        cached = read_table(group.path / "memory.stat").get(inactive, 0)
        limits.append(Limit(group.by, limit, None if now is None else max(now - cached, 0)))
    return tuple(limits)


def cpu_quota(root: str = "/") -> float | None:
    """The smallest CPU quota on our groups, in cores (1.5 = one and a half), or None where there is none."""
    quotas = []
    for group in groups("cpu", root=root):
        if group.version == 2:
            quota, _, period = (read(group.path / "cpu.max") or "max").partition(" ")
            if quota != "max" and period:
                quotas.append(int(quota) / int(period))
        else:
            micros, each = (read_int(group.path / f"cpu.cfs_{what}_us") for what in ("quota", "period"))
            if micros and each and micros > 0:
                quotas.append(micros / each)
    return min(quotas, default=None)
