"""The ballast's process: it takes memory, touches it at a rate, and ends before the machine runs short.

It is the first process that the kernel kills when memory runs out, and it ends with its parent.
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


def hold_memory(
    *, size_bytes: int, rate_bytes_per_s: int, kind: str, folder: str, root: str, send: Callable[..., None]
) -> dict[str, Any]:
    """Touch every page in turn, over and over, until this process is ended.

    Args:
        size_bytes: how much to hold.
        rate_bytes_per_s: how fast to touch it.
        kind: ``anonymous`` memory, or pages of a ``file``.
        folder: for the file.
        root: of /proc.
        send: gets ``touching`` before the first page, and ``pass`` whenever all have been touched once more.

    Returns:
        Only when the machine runs short: why it stopped, under ``aborted``.
    """
    step = min(size_bytes, max(mmap.PAGESIZE, int(rate_bytes_per_s * _STEP_S) // mmap.PAGESIZE * mmap.PAGESIZE))
    pause = step / rate_bytes_per_s
    with _memory(kind, size_bytes, folder) as memory:
        writes = kind == "anonymous"
        send("touching")
        start, due = 0, time.monotonic()
        while True:
            short = shortage(root)
            if short:
                return {"aborted": short}
            end = min(start + step, size_bytes)
            if writes:
                memory[start : end : mmap.PAGESIZE] = bytes(-(-(end - start) // mmap.PAGESIZE))
            else:
                memory[start : end : mmap.PAGESIZE]  # the slice is read, one byte of each page
            start = end
            if start == size_bytes:
                start = 0
                send("pass")
            due = max(due + pause, time.monotonic() - pause)  # time lost to reclaim is not made up for
            time.sleep(max(0.0, due - time.monotonic()))


def shortage(root: str = "/") -> str | None:
    """Why a ballast must end, as a clause, when less than a tenth of the machine's memory is available; else None.

    The machine's own figure counts, not that of the control group in which this process may be.
    """
    total, left = _memory_of_machine(root)
    if total and left is not None and left < ABORT_SHARE * total:
        return f"only {left >> 20} of {total >> 20} MiB of this machine's memory were left"
    return None


def _memory_of_machine(root: str) -> tuple[int | None, int | None]:
    """Bytes of memory that the machine has, and that are available."""
    if root == "/" and not sys.platform.startswith("linux"):
        import psutil

        memory = psutil.virtual_memory()
        return memory.total, memory.available
    lines = Path(root, "proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kib["MemTotal"] << 10, kib["MemAvailable"] << 10


@contextmanager
def _memory(kind: str, size: int, folder: str) -> Iterator[mmap.mmap]:
    """The memory to touch: private and anonymous, or a shared mapping of an unnamed file."""
    if kind == "anonymous":
        private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
        with mmap.mmap(-1, size, **private) as memory:
            yield memory
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, so it is gone with the process
        file.truncate(size)  # a hole: its pages are page cache like any, and no disk is read or written
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as memory:
            yield memory
