"""What reading a file costs when its pages are on the disk, and when they are in memory."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from labkit.progress import Progress
from labkit.system.bandwidth import Disk, disk_bandwidth
from labkit.system.mapping import MappedFile, Touch
from labkit.units import MiB

ALONE_BYTES = 4 * MiB  # without reading ahead each page is a read of its own, and the whole file would take long
TRIES = 3  # reads from the disk; the fastest counts, because other programs only make a read slower
KEPT_SHARE = 0.05  # of the file may still be in memory when its pages have been dropped


class StorageError(RuntimeError):
    """Pages cannot be read from the disk on request here; the message says why."""


@dataclass(frozen=True)
class Storage:
    """One file touched page by page through a mapping, then read from beginning to end.

    Attributes:
        alone: its first 4 MiB from the disk, the kernel told not to read ahead.
        cold: all of it from the disk, with reading ahead, as is normal.
        warm: all of it again, mapped anew, its pages in memory.
        disk: bandwidth of reading it in large pieces.
    """

    alone: Touch
    cold: Touch
    warm: Touch
    disk: Disk


def examine(source: Path, *, folder: Path, progress: Progress) -> Storage:
    """Measure with a copy of ``source`` in ``folder``: about half a second for 100 MiB, more on a slow disk.

    A copy, because pages of a file that any process has mapped cannot be dropped from memory. It has no name, so the
    kernel frees it when this process closes it or ends. Linux only.

    Raises:
        StorageError: pages cannot be dropped here, or the copy cannot be written.
    """
    if sys.platform != "linux":
        raise StorageError("only Linux lets a program drop a file's pages from memory")
    progress(0.0, "copying a file to read it cold")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as copy, open(source, "rb") as original:
            shutil.copyfileobj(original, copy, 4 * MiB)
            copy.flush()
            return _examine(Path(f"/proc/self/fd/{copy.fileno()}"), progress)
    except OSError as error:
        raise StorageError(f"no copy can be written to {folder} ({error.strerror or error})") from None


def _examine(path: Path, progress: Progress) -> Storage:
    size = path.stat().st_size
    with MappedFile(path) as mapped:
        mapped.evict()
        kept = mapped.cached().resident_bytes
        if kept is None or kept > KEPT_SHARE * size:
            raise StorageError("a file's pages could not be dropped from memory; its folder may itself be in memory")
        mapped.read_ahead(on=False)
        alone = mapped.touch(0, ALONE_BYTES)
        mapped.read_ahead(on=True)
        mapped.evict()
        cold = mapped.touch(0, size)
    with MappedFile(path) as mapped:
        warm = mapped.touch(0, size)
    tries = [disk_bandwidth(path, progress=progress) for _ in range(TRIES)]
    return Storage(alone, cold, warm, max(tries, key=lambda disk: disk.cold_bytes_per_s or 0.0))
