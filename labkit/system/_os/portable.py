"""The only module here that uses psutil, for the systems without /proc.

psutil's records differ between systems and between its major versions, so each figure is read by its attribute's name,
and a missing one becomes None with a reason.
"""

from __future__ import annotations

import os

from labkit.system._os import ProcessGone, ProcessUse


def _int(record: object, name: str) -> int | None:
    """A figure of a record, or None where the record lacks it."""
    value = getattr(record, name, None)
    return None if value is None else int(value)


def process(pid: int, *, system: str) -> ProcessUse:
    """What psutil reports of a process; ``system`` is named in the reasons.

    Raises:
        ProcessGone: the process has ended.
    """
    import psutil

    memory = io = None
    why = f"{system} does not report it through psutil"
    try:
        handle = psutil.Process(pid)
        memory = handle.memory_info()
        if hasattr(handle, "io_counters"):  # not on macOS
            io = handle.io_counters()
    except psutil.NoSuchProcess:
        raise ProcessGone(pid) from None
    except psutil.AccessDenied:
        why = f"{system} keeps process {pid} to its owner"

    faults, major = _int(memory, "pfaults"), _int(memory, "pageins")  # macOS, where pfaults counts both kinds
    minor = None if faults is None or major is None else faults - major
    figures = {
        "rss_bytes": _int(memory, "rss"),
        "rss_anon_bytes": None,
        "rss_file_bytes": None,
        "rss_shmem_bytes": None,
        "pss_bytes": None,
        "locked_bytes": None,
        "peak_rss_bytes": _int(memory, "peak_wset"),  # Windows
        "minor_faults": minor,
        "major_faults": major,
        "faults": _int(memory, "num_page_faults") if faults is None else faults,  # Windows counts both kinds in one
        "read_bytes": _int(io, "read_bytes"),
    }
    return ProcessUse(**figures, reasons={name: why for name, value in figures.items() if value is None})


def memory() -> tuple[int, int, int]:
    """Total, available and swap bytes."""
    import psutil

    ram = psutil.virtual_memory()
    return int(ram.total), int(ram.available), int(psutil.swap_memory().total)


def cores() -> int:
    """Cores this process may run on, by affinity where the system has it."""
    import psutil

    affinity = getattr(psutil.Process(), "cpu_affinity", None)
    return len(affinity()) if affinity else os.cpu_count() or 1
