"""Runs of lab 05, made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from labkit import gguf
from labkit.engine.log import Buffer
from labkit.experiments.boundary import Boundary
from labkit.experiments.pressure import Pressured, Step
from labkit.experiments.run import Measured, Phase, Run
from labkit.models.forge import header_bytes
from labkit.settings import Settings
from labkit.units import MiB
from support.memory_runs import predicted
from support.memory_runs import run as any_run

SPAN, KV, OWN, TOUCHED = 770 * MiB, 128 * MiB, 40 * MiB, 10 * MiB

KILLED = {"outcome": "oom-killed", "reason": "the kernel killed it in context.", "phases": (), "buffers": ()}


@cache
def header(shape: str = "llama-2-7b") -> gguf.Header:
    return gguf.read_header(header_bytes(shape, "Q4_K_M"))


def ran(mode: str = "mmap", *, locked: int | None = None, cap: int | None = None, **changes: Any) -> Run:
    """A run of a 1B whose memory is as predicted; the lock may have got less."""
    mapped = mode in ("mmap", "mmap+mlock")
    repack = changes.pop("repack", 0)
    heap = 0 if mapped else SPAN
    asked = SPAN if mode.endswith("mlock") else 0
    got = asked if locked is None else locked
    anon = heap + repack + KV + OWN + TOUCHED
    file = (SPAN if mapped else 0) + 22 * MiB
    foreseen = predicted(heap=heap, repack=repack, kv=KV, python=OWN, touched=TOUCHED, file=file, locked=asked)
    at: dict[str, Any] = {"minor_faults": 1, "major_faults": 0, "read_bytes": 0, "rss_file_bytes": file}
    ends = {"start": OWN, "load": OWN + heap + repack, "context": OWN + heap + repack + KV, "decode": anon}
    buffers = [Buffer("CPU_Mapped" if mapped else "CPU", "model", SPAN), Buffer("CPU", "kv", KV)]
    buffers += [Buffer("CPU_REPACK", "model", repack)] if repack else []
    base = any_run(
        settings=Settings(load_mode=mode, repack=bool(repack)),
        predicted=replace(foreseen, mapped_bytes=SPAN if mapped else 0),
        measured=Measured(rss_anon_bytes=anon, peak_rss_bytes=None, decode_ms=40.0, locked_bytes=got, **at),
        buffers=(*buffers, Buffer("CPU", "compute", 96 * MiB)),
        phases=tuple(
            Phase(name, 0, 1, pss_bytes=None, rss_anon_bytes=size, locked_bytes=got, **at)
            for name, size in ends.items()
        ),
        samples=(),
        cap_bytes=cap,
    )
    return replace(base, **changes)


def pressed(
    mode: str = "mmap",
    during: Sequence[float] = (),
    *,
    before: Sequence[float] = (40.0, 41.0, 39.5, 42.0),
    after: Sequence[float] = (),
    idle_s: float = 0.0,
    faults: int | None = 3,
    recorded: str | None = None,
    **changes: Any,
) -> Pressured:
    stages = {"before": before, "during": during, "after": after}
    steps = tuple(Step(stage, ms, faults, 0) for stage, times in stages.items() for ms in times)
    how = {"kind": "file", "inside": True, "rate_bytes_per_s": 400 * MiB, "ballast_passes": 3, "recorded": recorded}
    return Pressured(run=ran(mode, **changes), ballast_bytes=300 * MiB, idle_s=idle_s, steps=steps, **how)


def search(
    boundary: int, predicted_bytes: int, *, mode: str = "mmap+mlock", steps: int = 7, **settings: Any
) -> Boundary:
    low, high, runs = 700 * MiB, 1100 * MiB, []
    for _ in range(steps):
        middle = (low + high) // 2
        ok = middle >= boundary
        low, high = (low, middle) if ok else (middle, high)
        one = ran(mode, cap=middle, **({} if ok else KILLED))
        runs.append(replace(one, settings=Settings(load_mode=mode, repack=False, **settings)))
    return Boundary(high, low, predicted_bytes, tuple(runs))


PAGED = [300.0, 310, 320, 290, 305, 333, 900]

ROWS = [
    pressed("mmap", PAGED, faults=1234),
    pressed("mmap+mlock", [40, 41, 42, 43, 44, 40, 47], faults=0),
    pressed("none", **KILLED),
]

AFTER_PAUSE = [
    pressed("mmap", after=[1400, 41, 42, 40], idle_s=5, faults=777),
    pressed("mmap+mlock", after=[44, 41, 42, 40], idle_s=5, faults=0),
]

FOUND = search(948 * MiB, 955 * MiB, n_ctx=1024)
