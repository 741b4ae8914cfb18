"""Child processes in tests: which run, waiting for one, acting in a phase of a measurement, and that none is left."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.system import caps
from labkit.system.machine import machine
from labkit.units import MiB

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
CAPPED = pytest.mark.skipif(caps.available().how is None, reason=caps.available().reason)
LOCKS = pytest.mark.skipif((machine().lockable_bytes or 0) < 400 * MiB, reason="this user may lock little memory")
SOAK = 50 if os.environ.get("LABKIT_SOAK") == "1" else 5
"""How often a test repeats what must leave nothing behind."""


def children() -> list[psutil.Process]:
    """All processes that this one has started, and theirs."""
    return psutil.Process().children(recursive=True)


def groups_of(pid: int) -> list[str]:
    """The control groups that a process has made for caps."""
    base = caps.available().base
    return [name for name in os.listdir(base) if name.startswith(f"labkit-{pid}-")] if base else []


def nothing_left() -> Iterator[None]:
    """Body of a fixture: no child and no control group of ours remain, and as many threads and open files as before."""
    caps.available()
    files = psutil.Process().num_fds() if sys.platform != "win32" else 0
    threads = threading.active_count()
    yield
    assert children() == []
    assert groups_of(os.getpid()) == []
    assert threading.active_count() == threads
    if sys.platform != "win32":
        assert psutil.Process().num_fds() == files


def live(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts processes; it must leave none."""
    return pytest.mark.live(pytest.mark.usefixtures("nothing_left")(test))


def until(true: Callable[[], bool], *, within_s: float = 60.0) -> bool:
    """Whether a condition becomes true within that time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.01)
    return False


def quiet(fraction: float, text: str) -> None:
    """A progress callback that does nothing."""


def at(phase: str, action: Callable[[], Any]) -> Callable[[float, str], None]:
    """A progress callback that acts once, when a phase has begun."""
    done = []

    def progress(fraction: float, text: str) -> None:
        if text.startswith(phase) and not done:
            done.append(True)
            action()

    return progress


def meminfo(root: Path, *, total: int, available: int) -> Path:
    """Let ``root`` have a /proc/meminfo with these figures, in bytes; replaced at once, so that no reader sees half."""
    folder = root / "proc"
    folder.mkdir(exist_ok=True)
    draft = folder / "draft"
    draft.write_text(f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\n")
    draft.replace(folder / "meminfo")
    return root
