"""Which pages of a file are in memory: mincore for the page cache, pagemap for one process.

Both use ctypes and bytes alone and return one byte per page, 1 for resident and 0 for not. The page cache is queried in
parts, so that the answer for a 40 GiB file takes 10 MiB and little address space.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable

_PIECE_BYTES = 64 << 20
_SYS_CACHESTAT = 451  # the same on every architecture, from Linux 6.5
_PROT_READ, _MAP_SHARED = 1, 1
_BIT_0 = bytes(value & 1 for value in range(256))  # the other bits of a mincore byte are not defined
_BIT_7 = bytes(value >> 7 for value in range(256))


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


def _cached_count(libc: ctypes.CDLL, fd: int, start: int, length: int) -> int | None:
    """How many pages of a part of a file are cached, or None where the kernel has no cachestat.

    mincore looks up each page, which takes 20 to 60 ns; cachestat walks only the cached ones.
    """
    if not sys.platform.startswith("linux"):
        return None
    answer = (ctypes.c_uint64 * 5)()  # nr_cache first, see include/uapi/linux/mman.h
    number, file, flags = ctypes.c_long(_SYS_CACHESTAT), ctypes.c_int(fd), ctypes.c_uint(0)
    failed = libc.syscall(number, file, ctypes.byref(_Range(start, length)), answer, flags)
    return None if failed else int(answer[0])


def _libc() -> ctypes.CDLL:
    """The C library, with the signatures of mmap, munmap and mincore."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return libc


def refusal(path: str) -> str | None:
    """Why the system does not report this file's cached pages to this user, or None where it does.

    Since Linux 5.2 mincore reports every page as resident to a user who neither owns the file nor may write it
    (can_do_mincore in mm/mincore.c), so it is not called then.
    """
    if sys.platform == "win32":
        return "Windows does not report which pages of a file are cached"
    if sys.platform.startswith("linux") and os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return "Linux reports a file's cached pages only to its owner and to users who may write it"
    return None


def cached_pages(fd: int, file_bytes: int) -> bytes:
    """The page-cache residency of an open file.

    Raises:
        OSError: the file cannot be mapped.
    """
    libc, answer = _libc(), bytearray()
    for start in range(0, file_bytes, _PIECE_BYTES):
        length = min(_PIECE_BYTES, file_bytes - start)
        pages = -(-length // mmap.PAGESIZE)
        count = _cached_count(libc, fd, start, length)
        if count in (0, pages):
            answer += (b"\1" if count else b"\0") * pages
            continue
        address = libc.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, start)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "the file cannot be mapped to see which pages are cached")
        try:
            buffer = ctypes.create_string_buffer(pages)
            if libc.mincore(address, length, buffer) != 0:
                raise OSError(ctypes.get_errno(), "mincore failed on the file")
        finally:
            libc.munmap(address, length)
        answer += buffer.raw
    return bytes(answer.translate(_BIT_0))


def process_pages(pagemap: str, spans: Iterable[tuple[int, int, int]], file_bytes: int) -> bytes:
    """Which pages of a file a process has in its page tables.

    Args:
        pagemap: path of ``/proc/PID/pagemap``; 8 bytes a page, bit 63 set when present (Documentation/admin-guide/mm).
        spans: (address, bytes, offset in the file) of each mapping of the file.
        file_bytes: the file's size.

    Raises:
        OSError: pagemap cannot be read.
    """
    answer = bytearray(-(-file_bytes // mmap.PAGESIZE))
    with open(pagemap, "rb", buffering=0) as file:
        for address, length, offset in spans:
            first, count = (offset // mmap.PAGESIZE, min(length, file_bytes - offset) // -mmap.PAGESIZE * -1)
            if count <= 0:
                continue
            entries = os.pread(file.fileno(), count * 8, address // mmap.PAGESIZE * 8)
            present = entries[7::8] if sys.byteorder == "little" else entries[0::8]
            present = present.translate(_BIT_7)
            old = int.from_bytes(answer[first : first + len(present)], "little")
            merged = old | int.from_bytes(present, "little")
            answer[first : first + len(present)] = merged.to_bytes(len(present), "little")
    return bytes(answer)
