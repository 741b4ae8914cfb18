"""A memory cap for one child process: a control group that the child joins before it starts its work.

Of three ways, the first that works is taken: a scope of the user's systemd (version 2, no privilege), a group of our
own in version 2, a group of our own in version 1. A cap counts whatever the child is the first to touch: its anonymous
memory, and the pages of files that it is the first to read. Where anonymous memory exceeds the cap, the kernel kills
the child; file pages are only reclaimed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from labkit.system._os import cgroup
from labkit.system._os.linux import start_time
from labkit.system.cap_stats import CapStats, read_v1, read_v2

__all__ = ["Cap", "CapError", "CapMethod", "CapStats", "available", "sweep"]

_TRIAL_S = 5.0
_TRIAL_BYTES = 64 << 20
_MIN_BYTES = 1 << 20
_NAME = re.compile(r"labkit-(\d+)-(\d+)-\d+(?:-\w+)?(?:\.scope)?")  # maker's pid, maker's start time, serial number
_SERIAL = itertools.count()


class CapError(RuntimeError):
    """No cap can be set here, or it cannot be removed; the message says why."""


@dataclass(frozen=True)
class CapMethod:
    """How a cap can be set here.

    Attributes:
        how: "systemd-scope", "cgroup-v2", "cgroup-v1", or None where none can.
        reason: what is done, or why nothing works.
        base: the folder in which the groups appear.
        start: the command that starts a scope, up to its properties.
    """

    how: str | None
    reason: str
    base: Path | None = None
    start: tuple[str, ...] = ()


def available() -> CapMethod:
    """How a cap can be set here, found by starting a trial process each way; tried once, then remembered.

    LABKIT_NO_CAPS=1 in the environment switches caps off.
    """
    if os.environ.get("LABKIT_NO_CAPS", "") not in ("", "0"):
        return CapMethod(None, "memory caps are switched off by LABKIT_NO_CAPS")
    if not sys.platform.startswith("linux"):
        return CapMethod(None, "memory caps need Linux control groups")
    return _first_that_works()


@lru_cache(maxsize=1)
def _first_that_works() -> CapMethod:
    """The first of the three ways under which a trial process runs, or the reasons why none does."""
    reasons = []
    for find in (_systemd_method, lambda: _folder_method(2), lambda: _folder_method(1)):
        method = _try(find())
        if method.how:
            return method
        reasons.append(method.reason)
    return CapMethod(None, "no memory cap can be set here: " + "; ".join(reasons))


def _systemd_method() -> CapMethod:
    """A scope of the user's systemd, if that runs and uses version 2."""
    if not (shutil.which("systemd-run") and shutil.which("systemctl")):
        return CapMethod(None, "systemd-run is not installed")
    top = [group for group in cgroup.groups("memory") if group.version == 2][-1:]
    if not top:
        return CapMethod(None, "systemd would need cgroup v2")
    # In a service or a plain ssh session, the environment may not say where the user's systemd listens.
    runtime = Path(f"/run/user/{os.getuid()}")
    hidden = "XDG_RUNTIME_DIR" not in os.environ and (runtime / "systemd/private").exists()
    prefix = ("env", f"XDG_RUNTIME_DIR={runtime}") if hidden else ()
    ask = (*prefix, "systemctl", "--user", "show", "--property=ControlGroup", "--value")
    try:
        manager = subprocess.run(ask, check=False, capture_output=True, text=True, timeout=_TRIAL_S).stdout.strip()
    except subprocess.TimeoutExpired:
        return CapMethod(None, "the user's systemd does not respond")
    if not manager:
        return CapMethod(None, "no systemd runs for this user")
    start = (*prefix, "systemd-run", "--user", "--scope", "--quiet", "--collect", "--slice=app.slice")
    base = top[0].path / manager.lstrip("/") / "app.slice"
    return CapMethod("systemd-scope", "the user's systemd starts the child in a scope", base, start)


def _folder_method(version: int) -> CapMethod:
    """Where new groups can be made: in our own group (version 1), or in its nearest ancestor that may limit memory."""
    groups = [group for group in cgroup.groups("memory") if group.version == version]
    if version == 2:
        groups = [g for g in groups if "memory" in (cgroup.read(g.path / "cgroup.subtree_control") or "").split()]
    if not groups:
        return CapMethod(None, f"cgroup v{version} does not manage memory here")
    return CapMethod(f"cgroup-v{version}", f"a group of our own in cgroup v{version}", groups[0].path)


def _try(method: CapMethod) -> CapMethod:
    """The method if a child really runs under it, else the reason why not."""
    if method.how is None:
        return method
    try:
        with Cap(_TRIAL_BYTES, _method=method) as cap:
            command = cap.command(["true"])
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TRIAL_S)
    except subprocess.TimeoutExpired:
        return CapMethod(None, f"{method.how} did not start a trial process within {_TRIAL_S:.0f} s")
    except OSError as error:
        return CapMethod(None, f"{method.how}: {error.strerror}")
    except CapError as error:
        return CapMethod(None, f"{method.how}: {error}")
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return CapMethod(None, f"{method.how}: {said[-1] if said else f'status {done.returncode}'}")
    return method


def _write(path: Path, text: str | int, *, optional: bool = False) -> None:
    """Write a control file. Never creates one: an absent file means that the kernel lacks the control."""
    try:
        with open(path, "r+") as file:
            file.write(str(text))
    except OSError:
        if not optional:
            raise


def _remove(folder: Path, *, scope: bool, maker: int, wait_s: float = 5.0) -> None:
    """Kill what still runs in a group of ours and remove it; systemd itself removes a scope that is empty."""
    if os.getpid() != maker:  # a fork of the process that made the group must not remove it
        return
    until = time.monotonic() + wait_s
    while folder.is_dir():
        members = (cgroup.read(folder / "cgroup.procs") or "").split()
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if not scope:
            with contextlib.suppress(OSError):
                folder.rmdir()
                return
        if time.monotonic() > until:
            if scope and not members:
                return  # it is empty, and systemd will remove it
            raise CapError(
                f"the control group {folder} could not be emptied: end its processes and remove it with rmdir."
            )
        time.sleep(0.005)


def sweep(base: Path) -> list[str]:
    """Remove groups that labkit made in ``base`` and whose process has ended; groups of others are left alone.

    Returns:
        The names removed.
    """
    removed = []
    for folder in base.iterdir() if base.is_dir() else ():
        match = _NAME.fullmatch(folder.name)
        if match and start_time(int(match[1])) != int(match[2]):
            with contextlib.suppress(CapError, PermissionError):
                _remove(folder, scope=folder.name.endswith(".scope"), maker=os.getpid(), wait_s=1.0)
                removed.append(folder.name)
    return removed


class Cap:
    """A memory cap, as a context manager. Starting a child under it:

    >>> with Cap(600 << 20) as cap:                       # doctest: +SKIP
    ...     child = subprocess.Popen(cap.command([sys.executable, "work.py"]))
    ...     child.wait()
    ...     print(cap.stats().oom_kills)

    Args:
        limit_bytes: how much memory, at least 1 MiB. Swap does not extend it.
        name: letters and digits by which to recognise the group.

    Raises:
        CapError: no cap can be set here.
        ValueError: the limit is too small.
    """

    def __init__(self, limit_bytes: int, name: str | None = None, *, _method: CapMethod | None = None) -> None:
        if limit_bytes < _MIN_BYTES:
            raise ValueError(f"a memory cap of {limit_bytes} bytes is too small: give at least 1 MiB.")
        method = _method or available()
        if method.how is None or method.base is None:
            raise CapError(f"{method.reason}.")
        self.how: str = method.how
        self.limit_bytes = limit_bytes
        label = "-" + re.sub(r"\W", "_", name, flags=re.ASCII) if name else ""
        self.name = f"labkit-{os.getpid()}-{start_time('self') or 0}-{next(_SERIAL)}{label}"
        self._method = method
        self._last: CapStats | None = None
        sweep(method.base)
        if self._scope:
            # A scope is removed with its last process, and so are its counters; those of the slice above remain.
            self.path = method.base / f"{self.name}.scope"
            self._kills_before = self._slice_kills() or 0
        else:
            self.path = method.base / self.name
            self.path.mkdir()
        # Also at interpreter exit, where close() was not called.
        self._remove = weakref.finalize(self, _remove, self.path, scope=self._scope, maker=os.getpid())
        try:
            self._set_limit()
        except OSError:
            self.close()
            raise

    @property
    def _scope(self) -> bool:
        return self.how == "systemd-scope"

    def _set_limit(self) -> None:
        if self.how == "cgroup-v2":
            _write(self.path / "memory.max", self.limit_bytes)
            _write(self.path / "memory.swap.max", 0, optional=True)
        elif self.how == "cgroup-v1":
            _write(self.path / "memory.limit_in_bytes", self.limit_bytes)
            # Where swap is not counted, swappiness 0 prevents that reclaim in this group swaps.
            _write(self.path / "memory.memsw.limit_in_bytes", self.limit_bytes, optional=True)
            _write(self.path / "memory.swappiness", 0, optional=True)

    def _slice_kills(self) -> int | None:
        return cgroup.read_table(self.path.parent / "memory.events").get("oom_kill")

    def command(self, argv: list[str]) -> list[str]:
        """The command line that enters the cap and then becomes ``argv``, under the same process id."""
        if self._scope:
            limits = [f"--property=MemoryMax={self.limit_bytes}", "--property=MemorySwapMax=0"]
            return [*self._method.start, f"--unit={self.name}.scope", *limits, "--", *argv]
        return ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(self.path), *argv]

    def stats(self) -> CapStats:
        """The group's figures now, or the last ones read if it has been removed. Reads a few small files (0.1 ms).

        A scope is removed when its last process ends, so read them while the child runs.
        """
        if self.path.is_dir():
            stats = (read_v1 if self.how == "cgroup-v1" else read_v2)(self.path, self.limit_bytes)
            if stats.current_bytes is not None:  # else it was removed meanwhile
                self._last = stats
                return stats
        self._last = self._after(self._last or CapStats(limit_bytes=self.limit_bytes, alive=False, reasons={}))
        return self._last

    def _after(self, last: CapStats) -> CapStats:
        """The last figures of a group that has been removed."""
        if self._scope and self._remove.alive and not last.oom_kills:
            kills = self._slice_kills()
            if kills is not None:
                last = replace(last, oom_kills=kills - self._kills_before)
            if last.oom_kills:
                why = "counted in the slice that holds the scope, which other programs share"
                last = replace(last, reasons={**last.reasons, "oom_kills": why})
        return replace(last, alive=False).explained(
            "the group holds no process: none was started, or it ended before its figures were read"
        )

    def close(self) -> None:
        """Kill what still runs under the cap and remove the group; calling it again is harmless.

        Raises:
            CapError: the group cannot be emptied.
        """
        if self._remove.alive:
            self.stats()
            self._remove()

    def __enter__(self) -> Cap:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
