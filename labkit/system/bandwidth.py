"""How fast this computer reads memory, and a file cold and warm. Each measurement takes a few seconds."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.progress import Progress, bar
from labkit.system._os import reader
from labkit.system.machine import usable_cores
from labkit.system.probe import evict, process
from labkit.units import GiB, MiB, fmt_bytes

_CACHES = 8  # read so many times the size of the last-level cache, so that almost nothing is found in it
_PER_CORE_BYTES, _PLENTY_BYTES = 256 * MiB, 2 * GiB  # a virtual machine may also use caches that it does not report
_SHARE = 4  # take at most one part in so many of the available memory
_BLOCK_BYTES = 4 * MiB
_COLD = 0.9  # a read is cold if at least this share came from the disk


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Memory read bandwidth.

    Attributes:
        bytes_per_s: all threads together, each reading its own array.
        per_thread: each thread's part of it, bytes per second.
        one_thread_bytes_per_s: a single thread reading while the others rest.
        n_threads: how many read at once.
        buffer_bytes: size of all arrays together.
        bytes_read: bytes read while timing all threads.
        seconds: how long that took.
        caution: why the figure may be too high, or None.
    """

    bytes_per_s: float
    per_thread: tuple[float, ...]
    one_thread_bytes_per_s: float
    n_threads: int
    buffer_bytes: int
    bytes_read: int
    seconds: float
    caution: str | None


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Sequential read bandwidth of one file, through read() in 4 MiB blocks.

    Attributes:
        cold_bytes_per_s: from the disk; None when the data did not come from one, see ``reason``.
        warm_bytes_per_s: the same bytes again, from the page cache.
        bytes_read: how much of the file was read.
        reason: why the cold figure is None.
    """

    cold_bytes_per_s: float | None
    warm_bytes_per_s: float
    bytes_read: int
    reason: str | None


def ram_bandwidth(*, seconds: float = 1.0, n_threads: int | None = None, progress: Progress | None = None) -> Bandwidth:
    """Measure how fast memory can be read, by numpy sums over arrays several times the last-level cache.

    The sums are of 64-bit integers. With floats, each addition waits for the one before: on an AMD EPYC core such sums
    reach 18 GiB/s where integer sums reach 30, so they would measure the core and not the memory.

    Args:
        seconds: how long all threads read; a single thread reads for half as long again.
        n_threads: how many read at once; by default one for each usable core.
        progress: called with (fraction done, what is happening); by default a bar appears in a notebook or terminal.

    Raises:
        ValueError: ``seconds`` or ``n_threads`` is not positive.
        MemoryError: not even 16 MiB a core are available.
    """
    import numpy as np

    if progress is None:
        with bar("measuring memory") as progress:
            return ram_bandwidth(seconds=seconds, n_threads=n_threads, progress=progress)
    if seconds <= 0:
        raise ValueError(f"seconds is {seconds}: write a time above 0.")
    if n_threads is not None and n_threads < 1:
        raise ValueError(f"n_threads is {n_threads}: write at least 1.")
    host = reader().host()
    cores = n_threads or usable_cores()
    wanted = max(_CACHES * (host.l3_bytes or 0), min(cores * _PER_CORE_BYTES, _PLENTY_BYTES))
    room = wanted if host.available_bytes is None else host.available_bytes // _SHARE
    each = min(wanted, room) // cores // 8 * 8
    if each < 16 * MiB:
        raise MemoryError(f"only {fmt_bytes(room * _SHARE)} are available: free some memory to measure its bandwidth.")
    caution = None
    if each * cores < 2 * (host.l3_bytes or 0):
        caution = f"too little memory is available to read past the {fmt_bytes(host.l3_bytes or 0)} cache"
    total_s = seconds * 1.5

    def report(done_s: float, text: str) -> None:
        progress(min(done_s / total_s, 1.0), text)

    report(0, f"filling {fmt_bytes(each * cores)} of memory")
    arrays = [np.ones(each // 8, dtype=np.int64) for _ in range(cores)]

    def read(use: int, for_s: float, already_s: float, text: str) -> list[tuple[int, float]]:
        """(bytes, seconds) of each of ``use`` threads that read for ``for_s``."""
        results: list[tuple[int, float]] = [(0, 0.0)] * use
        start = time.perf_counter()

        def work(index: int) -> None:
            passes, begun = 0, time.perf_counter()
            while passes == 0 or time.perf_counter() - start < for_s:
                arrays[index].sum()  # numpy releases the interpreter lock meanwhile
                passes += 1
            results[index] = (passes * each, time.perf_counter() - begun)

        threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(use)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
                report(already_s + min(time.perf_counter() - start, for_s), text)
        return results

    together = read(cores, seconds, 0, f"reading memory with {cores} thread{'s' if cores > 1 else ''}")
    rates = tuple(done / took for done, took in together)
    alone = rates[0] if cores == 1 else None
    if alone is None:
        ((done, took),) = read(1, seconds / 2, seconds, "reading memory with one thread")
        alone = done / took
    report(total_s, f"{sum(rates) / GiB:.1f} GiB/s")
    return Bandwidth(
        bytes_per_s=sum(rates),
        per_thread=rates,
        one_thread_bytes_per_s=alone,
        n_threads=cores,
        buffer_bytes=each * cores,
        bytes_read=sum(done for done, _ in together),
        seconds=max(took for _, took in together),
        caution=caution,
    )


def _disk_bytes() -> int | None:
    """Bytes read from a disk for this process so far; None where the system does not count them."""
    return process(os.getpid()).read_bytes


def _read(path: Path, most: int, limit_s: float, report: Callable[[float], None]) -> tuple[int, float]:
    """Bytes read from the beginning of a file, and seconds; at most ``most`` bytes or ``limit_s``."""
    block, total = bytearray(_BLOCK_BYTES), 0
    with open(path, "rb", buffering=0) as file:
        start = time.perf_counter()
        while total < most and time.perf_counter() - start < limit_s:
            got = file.readinto(memoryview(block)[: most - total])
            if not got:
                break
            total += got
            report(total / most)
        return total, time.perf_counter() - start


def disk_bandwidth(
    path: str | Path, *, max_bytes: int = 512 * MiB, limit_s: float = 5.0, progress: Progress | None = None
) -> Disk:
    """Measure how fast a file is read from disk and then from memory. Only this file's cached pages are dropped.

    In a virtual machine the host may still have the data in its memory: cold means cold for this system.

    Args:
        path: the file.
        max_bytes: read no more than its first so many bytes.
        limit_s: stop the cold read after so many seconds.
        progress: called with (fraction done, what is happening); by default a bar appears in a notebook or terminal.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: the file is empty, or ``max_bytes`` is not positive.
    """
    if progress is None:
        with bar("measuring the disk") as progress:
            return disk_bandwidth(path, max_bytes=max_bytes, limit_s=limit_s, progress=progress)
    path = Path(path)
    most = min(path.stat().st_size, max_bytes)
    if most <= 0:
        raise ValueError(f"{path} has nothing to read: give a file with data, and max_bytes above 0.")

    evict(path, length=most)
    before = _disk_bytes()
    done, cold_s = _read(path, most, limit_s, lambda share: progress(share / 2, "reading from disk"))
    after = _disk_bytes()
    _, warm_s = _read(path, done, math.inf, lambda share: progress(0.5 + share / 2, "reading from memory"))
    progress(1.0, "done")

    reason = None
    if before is None or after is None:
        reason = "this system does not report how much came from the disk"
    elif after - before < _COLD * done:
        reason = f"only {fmt_bytes(after - before)} of {fmt_bytes(done)} came from the disk: "
        sparse = path.stat().st_blocks * 512 < _COLD * path.stat().st_size
        reason += (
            "the file is sparse or compressed"
            if sparse
            else "it stayed in memory, because a process maps it or its file system is one of memory"
        )
    return Disk(
        cold_bytes_per_s=None if reason else done / cold_s,
        warm_bytes_per_s=done / warm_s,
        bytes_read=done,
        reason=reason,
    )
