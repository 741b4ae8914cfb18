"""What a process or a file uses now: memory by kind, faults, and which pages of a file are in memory.

Nothing here changes anything but ``evict``, which asks the kernel to drop one file's cached pages.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.system._os import ProcessGone, ProcessUse, reader, residency

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Evicted",
    "MappingUse",
    "ProcessGone",
    "ProcessUse",
    "Residency",
    "evict",
    "mapped_pages",
    "mapping",
    "page_cache",
    "process",
    "system_oom_kills",
]


@dataclass(frozen=True)
class Residency:
    """Which pages of a file are in memory.

    Attributes:
        path: the file.
        file_bytes: its size.
        page_bytes: size of a page.
        pages: one byte per page, 1 resident and 0 not, in file order; None where the system does not report it.
        reason: why ``pages`` is None.
    """

    path: Path
    file_bytes: int
    page_bytes: int
    pages: bytes | None
    reason: str | None = None

    @property
    def n_pages(self) -> int:
        return -(-self.file_bytes // self.page_bytes)

    @property
    def resident_bytes(self) -> int | None:
        """Bytes of the file in memory; of the last page only those that belong to the file."""
        if self.pages is None:
            return None
        overhang = self.n_pages * self.page_bytes - self.file_bytes
        return self.pages.count(1) * self.page_bytes - (overhang if self.pages[-1:] == b"\1" else 0)

    @property
    def resident(self) -> npt.NDArray[np.bool_]:
        """The pages as a boolean array, shape (n_pages,).

        Raises:
            OSError: the system does not report it; the message is ``reason``.
        """
        import numpy as np

        if self.pages is None:
            raise OSError(f"{self.path}: {self.reason}.")
        return np.frombuffer(self.pages, dtype=np.bool_)

    def fractions(self, n_bins: int) -> list[float]:
        """The resident share of each of ``n_bins`` equal parts of the file, 0 to 1; fewer bins for a short file.

        Raises:
            OSError: the system does not report it; the message is ``reason``.
        """
        if self.pages is None:
            raise OSError(f"{self.path}: {self.reason}.")
        n_bins = min(n_bins, self.n_pages)
        edges = [self.n_pages * i // n_bins for i in range(n_bins + 1)] if n_bins else [0]
        return [self.pages.count(1, a, b) / (b - a) for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True, kw_only=True)
class MappingUse:
    """What one process holds of a mapped file, summed over the file's mappings; 0 where it is not mapped.

    Attributes:
        n_mappings: how many separate mappings there are.
        size_bytes: their address space.
        resident_bytes: pages in memory and in this process's page tables.
        pss_bytes: the same with each shared page divided among its users.
        anon_bytes: pages the process has its own changed copy of.
        locked_bytes: pages pinned by mlock, counted as Pss does.
        reasons: for each field that is None, why.
    """

    n_mappings: int | None
    size_bytes: int | None
    resident_bytes: int | None
    pss_bytes: int | None
    anon_bytes: int | None
    locked_bytes: int | None
    reasons: dict[str, str]


@dataclass(frozen=True)
class Evicted:
    """Bytes of the file in the page cache before and after ``evict``; None where the system does not report them."""

    before_bytes: int | None
    after_bytes: int | None
    reason: str | None = None


def process(pid: int, *, root: str = "/", smaps: bool = False) -> ProcessUse:
    """What a process uses now. Cheap enough to sample 50 times a second, without ``smaps``.

    Args:
        pid: the process.
        root: where ``/proc`` is.
        smaps: also read Pss, which takes milliseconds and holds the process's address-space lock meanwhile.

    Raises:
        ProcessGone: the process has ended.
    """
    return reader(root).process(pid, root=root, smaps=smaps)


def system_oom_kills(*, root: str = "/") -> int | None:
    """How many processes the kernel has killed for want of memory since boot; None where it does not count them."""
    return reader(root).oom_kills(root=root)


def _spans(pid: int, path: Path, root: str) -> Iterator[tuple[int, int, int, dict[str, int]]]:
    """(address, bytes, file offset, smaps figures in bytes) of each mapping of the file in a process."""
    wanted = os.fsencode(os.path.realpath(path))
    current: tuple[int, int, int, dict[str, int]] | None = None
    with open(Path(root, f"proc/{pid}/smaps"), "rb") as smaps:
        for line in smaps:
            words = line.split(None, 5)
            if words[0].endswith(b":"):
                if current is not None and len(words) == 3 and words[2] == b"kB":
                    current[3][words[0][:-1].decode()] = int(words[1]) * 1024
                continue
            if current is not None:
                yield current
            current = None
            if len(words) == 6 and words[5].rstrip(b"\n") == wanted:
                first, _, last = words[0].partition(b"-")
                current = (int(first, 16), int(last, 16) - int(first, 16), int(words[2], 16), {})
    if current is not None:
        yield current


def mapping(pid: int, path: str | Path, *, root: str = "/") -> MappingUse:
    """What a process holds of a mapped file, from ``/proc/PID/smaps`` (milliseconds: not for sampling).

    Raises:
        ProcessGone: the process has ended.
    """
    names = ("n_mappings", "size_bytes", "resident_bytes", "pss_bytes", "anon_bytes", "locked_bytes")
    try:
        found = [figures for *_, figures in _spans(pid, Path(path), root)]
    except (PermissionError, FileNotFoundError) as error:
        if Path(root, "proc/self").exists() and isinstance(error, FileNotFoundError):
            raise ProcessGone(pid) from None
        why = f"/proc/{pid}/smaps cannot be read: it exists on Linux only, for the process's owner"
        return MappingUse(**dict.fromkeys(names), reasons=dict.fromkeys(names, why))

    def total(name: str) -> int:
        return sum(figures.get(name, 0) for figures in found)

    return MappingUse(
        n_mappings=len(found),
        size_bytes=total("Size"),
        resident_bytes=total("Rss"),
        pss_bytes=total("Pss"),
        anon_bytes=total("Anonymous"),
        locked_bytes=total("Locked"),
        reasons={},
    )


def mapped_pages(pid: int, path: str | Path) -> Residency:
    """Which pages of a file a process has in its page tables, that is: can read without a fault. Linux only.

    Raises:
        OSError: the file or the process is missing.
    """
    path = Path(path)
    size = path.stat().st_size
    try:
        spans = [(address, length, offset) for address, length, offset, _ in _spans(pid, path, "/")]
        pages = residency.process_pages(f"/proc/{pid}/pagemap", spans, size)
    except PermissionError:
        return Residency(path, size, mmap.PAGESIZE, None, f"/proc/{pid}/pagemap is closed to other users")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            raise ProcessGone(pid) from None
        return Residency(path, size, mmap.PAGESIZE, None, "only Linux shows a process's page tables")
    return Residency(path, size, mmap.PAGESIZE, pages)


def page_cache(path: str | Path) -> Residency:
    """Which pages of a file the system has in memory, for whichever process. About 10 ns a page.

    Raises:
        OSError: the file is missing or cannot be opened.
    """
    path = Path(path)
    why = residency.refusal(str(path))
    if why:
        return Residency(path, path.stat().st_size, mmap.PAGESIZE, None, why)
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return Residency(path, size, mmap.PAGESIZE, residency.cached_pages(fd, size))
    finally:
        os.close(fd)


def evict(path: str | Path, *, offset: int = 0, length: int = 0) -> Evicted:
    """Ask the kernel to drop one file's pages from the page cache. Needs no privilege and changes no data.

    Pages that a process has mapped or locked are not dropped: compare ``after_bytes`` with ``before_bytes``.

    Args:
        path: the file.
        offset: where to begin, in bytes.
        length: how many bytes, 0 for the rest of the file.

    Raises:
        OSError: the file is missing or cannot be opened.
    """
    before = page_cache(path)
    if not hasattr(os, "posix_fadvise"):
        return Evicted(before.resident_bytes, before.resident_bytes, "this system has no posix_fadvise")
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems refuse
            os.fsync(fd)  # a page not yet written to disk cannot be dropped
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return Evicted(before.resident_bytes, page_cache(path).resident_bytes, before.reason)
