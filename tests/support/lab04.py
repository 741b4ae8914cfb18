"""Runs of lab 04 on a loopback device, made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from labkit import gguf, predict
from labkit.engine.log import Buffer
from labkit.experiments.offload_sweep import OffloadPoint
from labkit.experiments.run import DeviceUse, Measured, Run, Timings
from labkit.models.forge import header_bytes
from labkit.predict import Split
from labkit.settings import Settings
from labkit.units import MiB
from support.memory_runs import run as any_run

IDLE = 21 * MiB
TOUCHED = 2 * MiB


@cache
def header(shape: str = "llama-3.2-1b") -> gguf.Header:
    return gguf.read_header(header_bytes(shape, "Q4_K_M"))


def split(
    n: int, shape: str = "llama-3.2-1b", *, on_cpu: Sequence[str] = (), n_devices: int = 1, **how: object
) -> Split:
    settings = Settings.of({"n_gpu_layers": n, "n_ctx": 1024, **how})
    return predict.offload(header(shape), settings, on_cpu=on_cpu, n_devices=n_devices)


def ran(n: int, *, kqv: bool = True, ms: Sequence[float] = (30, 31, 32, 33), **changes: object) -> Run:
    """A run whose memory is what the split says, with 2 MiB of each compute buffer touched."""
    at = split(n, offload_kqv=kqv)
    host, [device] = at.host, at.devices
    buffers = [Buffer("CPU_Mapped", "model", host.mapped_bytes), Buffer("CPU", "kv", host.kv_bytes)]
    buffers += [Buffer("CPU", "compute", host.compute_bytes), Buffer("CPU", "output", host.output_bytes)]
    for kind, size in (("model", device.weights_bytes), ("kv", device.kv_bytes), ("compute", device.compute_bytes)):
        buffers += [Buffer("loopback", kind, size)] if size else []
    seen = {"peak_rss_bytes": None, "locked_bytes": 0, "minor_faults": 1, "major_faults": 0, "read_bytes": 0}
    own = 40 * MiB
    held = {"start": own, "load": own, "context": own + host.kv_bytes}
    there = device.weights_bytes + device.kv_bytes + (TOUCHED if device.compute_bytes else 0)
    base = any_run(
        settings=Settings(n_gpu_layers=n, offload_kqv=kqv, devices=("loopback",)),
        measured=Measured(
            rss_anon_bytes=own + host.kv_bytes + TOUCHED,
            rss_file_bytes=host.mapped_bytes + 24 * MiB,
            decode_ms=31,
            **seen,
        ),
        device=DeviceUse("loopback", None, 1, idle_rss_anon_bytes=IDLE, rss_anon_bytes=IDLE + there),
        buffers=tuple(buffers),
        phases=tuple(replace(p, rss_anon_bytes=held.get(p.name, 0)) for p in any_run().phases if p.name in held),
        timings=Timings(decode_ms=tuple(ms)),
    )
    return replace(base, **changes)


def failed(n: int, outcome: str = "load-failed", **changes: object) -> Run:
    gone = {"outcome": outcome, "reason": "no room", "buffers": (), "timings": Timings(), "phases": ()}
    return ran(n, **{**gone, **changes})


def point(n: int, *runs: Run, kqv: bool = True, ms: float | None = None, calibrates: bool = False) -> OffloadPoint:
    return OffloadPoint(split(n, offload_kqv=kqv), runs, ms, calibrates)


STEPS = (0, 1, 4, 8, 16, 17)

POINTS = [point(n, ran(n, ms=[60 - n, 61 - n, 62 - n, 90]), ms=61.0 - n, calibrates=n in (0, 17)) for n in STEPS]

STAYS = [point(n, ran(n, kqv=False, ms=[70 + n, 71 + n]), kqv=False, ms=71.5 + n) for n in (8, 17)]
