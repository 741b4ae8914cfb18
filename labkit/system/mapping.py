"""A file mapped from Python, to observe demand paging page by page."""

from __future__ import annotations

import mmap
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from labkit.gguf import Tensor
from labkit.system import probe


@dataclass(frozen=True)
class Touch:
    """Time, faults and disk reads of reading one byte of each page of a range."""

    nbytes: int
    pages: int
    ms: float
    minor_faults: int | None
    major_faults: int | None
    read_bytes: int | None

    def __repr__(self) -> str:
        read = "unknown" if self.read_bytes is None else f"{self.read_bytes / 2**20:.1f} MiB"
        return (
            f"Touch({self.pages} pages in {self.ms:.1f} ms: {self.minor_faults} minor and {self.major_faults} major "
            f"faults, {read} read from disk)"
        )


class MappedFile:
    """A read-only mapping of a file, like llama.cpp's but without prefetching its pages. A context manager."""

    def __init__(self, path: str | Path) -> None:
        """Map the whole of ``path``, without reading it.

        Raises:
            OSError: it cannot be opened.
            ValueError: it is empty.
        """
        self.path = Path(path)
        with open(self.path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.file_bytes = len(self._map)

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Unmap it; calling it again is harmless."""
        self._map.close()

    def touch(self, start: int, nbytes: int) -> Touch:
        """Read one byte of each page of ``[start, start + nbytes)``, cut at the file's ends."""
        first = max(0, start)
        last = min(self.file_bytes, start + nbytes)
        positions = (
            [first, *range((first // mmap.PAGESIZE + 1) * mmap.PAGESIZE, last, mmap.PAGESIZE)] if first < last else []
        )
        before = probe.process(os.getpid())
        begin = time.perf_counter()
        for position in positions:
            self._map[position]
        ms = (time.perf_counter() - begin) * 1000
        after = probe.process(os.getpid())
        return Touch(
            nbytes=max(0, last - first),
            pages=len(positions),
            ms=ms,
            minor_faults=_difference(before.minor_faults, after.minor_faults),
            major_faults=_difference(before.major_faults, after.major_faults),
            read_bytes=_difference(before.read_bytes, after.read_bytes),
        )

    def touch_tensor(self, tensor: Tensor) -> Touch:
        """Touch every page that holds a tensor's data."""
        return self.touch(tensor.offset, tensor.nbytes)

    def read_ahead(self, *, on: bool) -> bool:
        """Turn the kernel's readahead on (its default) or off (MADV_RANDOM). False where there is no such call."""
        name = "MADV_NORMAL" if on else "MADV_RANDOM"
        if not hasattr(mmap, name):
            return False
        self._map.madvise(getattr(mmap, name))
        return True

    def evict(self) -> bool:
        """Drop the file's pages here and from the page cache: the next touch is cold. False where it cannot."""
        if not sys.platform.startswith("linux"):
            return False
        self._map.madvise(mmap.MADV_DONTNEED)  # safe: the mapping is read-only and the file keeps the data
        probe.evict(self.path)
        return True

    def resident(self) -> probe.Residency:
        """Which pages this process has in its page tables."""
        return probe.mapped_pages(os.getpid(), self.path)

    def settle(self, *, most_s: float = 1.0) -> None:
        """Wait until the page cache no longer grows: readahead goes on after a touch has returned."""
        end = time.monotonic() + most_s
        before = -1
        while time.monotonic() < end and (now := self.cached().resident_bytes) is not None and now != before:
            before = now
            time.sleep(0.1)

    def cached(self) -> probe.Residency:
        """Which pages the system has in its page cache, for whichever process."""
        return probe.page_cache(self.path)


def _difference(before: int | None, after: int | None) -> int | None:
    """``after`` less ``before``, or None where one of them is not known."""
    return None if before is None or after is None else after - before
