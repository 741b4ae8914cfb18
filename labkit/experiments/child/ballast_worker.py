"""The ballast's side of ``pressure``: take memory, touch it at a rate, and stop before the machine runs short.

Runs in a child process, which is the first to be killed when memory runs out and ends with its parent.
"""

from __future__ import annotations

import mmap
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ABORT_SHARE = 0.1  # of the machine's memory
_STEP_S = 0.01


def carry(job: dict[str, Any], send: Callable[..., None]) -> dict[str, Any]:
    """Touch every page in turn, over and over, until this process is ended.

    Args:
        job: ``bytes``, ``rate_bytes_per_s``, ``kind``, ``folder`` (for a file) and ``root`` (of /proc).
        send: gets ``touching`` before the first page, and ``pass`` whenever all have been touched once more.

    Returns:
        Only when the machine runs short: why it stopped, under ``aborted``.
    """
    size = job["bytes"]
    step = min(size, max(mmap.PAGESIZE, int(job["rate_bytes_per_s"] * _STEP_S) // mmap.PAGESIZE * mmap.PAGESIZE))
    pause = step / job["rate_bytes_per_s"]
    with _memory(job["kind"], size, job["folder"]) as memory:
        writes = job["kind"] == "anonymous"
        send("touching")
        start, due = 0, time.monotonic()
        while True:
            short = shortage(job["root"])
            if short:
                return {"aborted": short}
            end = min(start + step, size)
            if writes:
                memory[start : end : mmap.PAGESIZE] = bytes(-(-(end - start) // mmap.PAGESIZE))
            else:
                memory[start : end : mmap.PAGESIZE]  # the slice is read, one byte of each page
            start = end
            if start == size:
                start = 0
                send("pass")
            due = max(due + pause, time.monotonic() - pause)  # what reclaim held up is not caught up
            time.sleep(max(0.0, due - time.monotonic()))


def shortage(root: str = "/") -> str | None:
    """Why a ballast must go, as a clause, when less than a tenth of the machine's memory is available; else None.

    The machine's own figure counts, not that of the control group in which this process may be.
    """
    total, left = _memory_of_machine(root)
    if total and left is not None and left < ABORT_SHARE * total:
        return f"only {left >> 20} of {total >> 20} MiB of this machine's memory were left"
    return None


def _memory_of_machine(root: str) -> tuple[int | None, int | None]:
    if root == "/" and not sys.platform.startswith("linux"):
        import psutil

        memory = psutil.virtual_memory()
        return memory.total, memory.available
    lines = Path(root, "proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kib["MemTotal"] << 10, kib["MemAvailable"] << 10


@contextmanager
def _memory(kind: str, size: int, folder: str) -> Iterator[mmap.mmap]:
    if kind == "anonymous":
        private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
        with mmap.mmap(-1, size, **private) as memory:
            yield memory
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:  # has no name, so nothing of it can stay
        file.truncate(size)  # a hole: its pages are page cache like any, and no disk is read or written
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as memory:
            yield memory
