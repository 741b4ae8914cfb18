"""Write a file under another name first, so that a half-written one is never found."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.units import MiB, fmt_bytes

SPARE_BYTES = 256 * MiB  # left free on the disk for everything else


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A name next to ``target`` to write to. It becomes ``target`` when the block ends and is removed if it fails.

    What a killed process left behind under such a name is removed, too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield temporary
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
        f"{fmt_bytes(free)} free: make room, or choose a folder on a larger disk (LABKIT_HOME for labkit's cache)."
    )


def _sweep(target: Path) -> None:
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        import psutil

        pid = part.suffixes[-2][1:]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            part.unlink(missing_ok=True)
