"""Data files of the kit, files written in one step, and the disk space that files take."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from labkit.units import MiB, fmt_bytes

_HERE = Path(__file__).resolve().parent
SPARE_BYTES = 256 * MiB  # left free on the disk for everything else


def data_path(name: str) -> Path:
    """The path of a file of the ``datasets`` folder: in an installed package, else in a checkout.

    Args:
        name: relative to the folder, such as ``"shapes.json"``.

    Raises:
        FileNotFoundError: the kit does not come with such a file.
    """
    for folder in (_HERE / "_data", _HERE.parent / "datasets"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"this installation of labkit has no data file {name!r}: install it again.")


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A name next to ``target`` to write to. It becomes ``target`` when the block ends and is removed if it fails.

    A ``target`` that exists keeps its permissions. What a killed process left behind under such a name is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def shortage(folder: Path, file_bytes: int) -> str | None:
    """One sentence if a file of this size does not fit on the disk of ``folder``, else None."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free >= file_bytes + SPARE_BYTES:
        return None
    return (
        f"{fmt_bytes(file_bytes)} and {fmt_bytes(SPARE_BYTES)} to spare are needed, but {folder} has "
        f"{fmt_bytes(free)} free: delete something, or choose a folder on a larger disk (LABKIT_HOME for labkit's "
        "cache)."
    )


def _sweep(target: Path) -> None:
    """Remove what processes that no longer exist left behind under names that ``new_file`` gives."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        import psutil

        pid = part.suffixes[-2][1:]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            part.unlink(missing_ok=True)


def disk_bytes(path: Path) -> int:
    """Bytes a file occupies, less than its length if it is sparse (st_blocks; on Windows GetCompressedFileSizeW)."""
    if sys.platform == "win32":
        high = ctypes.c_ulong()
        low = ctypes.windll.kernel32.GetCompressedFileSizeW(str(path), ctypes.byref(high))
        return int(high.value << 32 | low & 0xFFFFFFFF)
    return os.stat(path).st_blocks * 512


def mark_sparse(file: BinaryIO) -> bool:
    """Make this new, empty file sparse, so that holes in it take no space; return whether it is.

    On Linux and macOS files are sparse by default, on NTFS after FSCTL_SET_SPARSE, on FAT and exFAT never.
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
