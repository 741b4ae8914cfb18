"""Runs on a machine that behaves as told, for checks of claims that look at runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.terms import MAPPED
from labkit.engine.log import Buffer
from labkit.experiments.run import Measured, ModelInfo, Phase, Run, Timings
from labkit.settings import Settings
from labkit.units import GiB, MiB

HEADERS = Bench()


def set_machine(patch: pytest.MonkeyPatch, profile: str = "full", available_bytes: int = 20 * GiB) -> None:
    """The machine that lab 01's checks choose a model for; by default one with room for a 7B."""
    here = SimpleNamespace(profile=profile, available_bytes=available_bytes)
    patch.setattr("labkit.course.lab01.bench.machine", lambda: here)


def fake_run(
    model: str,
    settings: Settings = MAPPED,
    *,
    file: float = 1.0,
    file_after: float | None = None,
    copied: float = 0.0,
    span: float = 1.0,
    kv: float = 1.0,
    grown_bytes: int = 0,
    read: float = 0.0,
    ms: tuple[float, ...] = (100.0,) * 8,
    peak_bytes: int | None = None,
    cap_share: float | None = None,
    outcome: str = "ok",
    **changes: Any,
) -> Run:
    """A run on a machine that behaves as told; by default as predicted.

    Args:
        file, file_after: share of the mapping resident after loading and after decoding.
        copied: share of the weights that loading copied, beyond what the settings say.
        span: share of the mapping that the engine reports.
        kv: share of the cache resident when the context is made.
        grown_bytes: anonymous memory added by decoding.
        read: share of the weights read from disk per token.
    """
    header = HEADERS.header(model)
    need = predict.memory(header, settings, cpu_features={"avx2"})
    anon = 24 * MiB + need.heap_bytes + need.repack_bytes + round(copied * need.weights_bytes)
    resident = 21 * MiB + round(file * need.mapped_bytes)
    last = resident if file_after is None else 21 * MiB + round(file_after * need.mapped_bytes)
    cache = anon + round(kv * need.kv_bytes)
    rows = {
        "start": (24 * MiB, 21 * MiB, 0),
        "load": (anon, resident, 0),
        "context": (cache, resident, 0),
        "prefill": (cache, last, 0),
        "decode": (cache + grown_bytes, last, round(read * need.weights_bytes * len(ms))),
    }
    measured = Measured(cache, last, peak_bytes or cache + last, 0, 0, 0, 0, ms[0] if ms else None)
    run = Run(
        model=ModelInfo(model, "", "llama", header.file_bytes, True),
        settings=settings,
        outcome=outcome,
        reason="" if outcome == "ok" else "it was told to.",
        predicted=need,
        measured=measured,
        cap_bytes=None if cap_share is None else int(cap_share * (need.mapped_bytes + need.rss_anon_bytes)),
        buffers=(Buffer("CPU_Mapped", "model", round(span * need.mapped_bytes)),),
        timings=Timings(load_s=0.5, decode_ms=ms),
        phases=tuple(Phase(name, 0, 1, a, f, None, 0, 0, r // MiB, r) for name, (a, f, r) in rows.items()),
        machine={"cpu_name": "Abacus", "cores": 2, "limit_bytes": 16 * GiB},
    )
    return replace(run, **changes)


class Counting:
    """A stand-in for measure that counts, and says what it was asked."""

    def __init__(self, **how: Any) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.how = how

    def __call__(self, model: str, *, tokens: int, progress: Any, cap: int | None = None, **settings: Any) -> Run:
        self.asked.append((model, {"tokens": tokens, "cap": cap, **settings}))
        progress(0.5, "half way")
        run = fake_run(model, Settings.of(settings), **{"ms": (100.0,) * tokens, **self.how})
        return run if cap is None else replace(run, cap_bytes=cap)
