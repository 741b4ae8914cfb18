"""How much disk a file takes up, and how to make a file sparse."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import BinaryIO

from labkit.units import MiB


def disk_bytes(path: Path) -> int:
    """Bytes a file occupies, less than its length if it is sparse (st_blocks; on Windows GetCompressedFileSizeW)."""
    if sys.platform == "win32":
        high = ctypes.c_ulong()
        low = ctypes.windll.kernel32.GetCompressedFileSizeW(str(path), ctypes.byref(high))
        return int(high.value << 32 | low & 0xFFFFFFFF)
    return os.stat(path).st_blocks * 512


def mark_sparse(file: BinaryIO) -> bool:
    """Ask that holes in this new, empty file take no space; returns whether they do not.

    Linux and macOS file systems need no asking, NTFS does (FSCTL_SET_SPARSE), FAT and exFAT have no sparse files.
    """
    if sys.platform == "win32":
        import msvcrt

        handle = msvcrt.get_osfhandle(file.fileno())
        returned = ctypes.c_ulong()
        control = ctypes.windll.kernel32.DeviceIoControl
        fsctl_set_sparse = 0x900C4
        ok = control(ctypes.c_void_p(handle), fsctl_set_sparse, None, 0, None, 0, ctypes.byref(returned), None)
        return bool(ok)
    file.truncate(4 * MiB)
    blocks = os.fstat(file.fileno()).st_blocks
    file.truncate(0)
    return blocks * 512 < 4 * MiB
