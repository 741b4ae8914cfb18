"""The smallest cap under which a model is not killed: found by trying, and predicted."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from labkit import gguf, predict
from labkit.engine import cpu_features
from labkit.experiments import dry_run, recordings
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.models import lookup
from labkit.progress import Progress, bar
from labkit.settings import Settings
from labkit.system import caps
from labkit.system.machine import machine
from labkit.units import MiB, parse_bytes

SPREAD = 0.1  # a search begins with caps at least this share below and above the prediction


@dataclass(frozen=True)
class Boundary:
    """Between which caps a run begins to be killed.

    Attributes:
        survived_bytes: the smallest cap under which a run was not killed; None if there is none.
        killed_bytes: the largest under which it was killed; None if there is none.
        predicted_bytes: ``predict.lock(…).boundary_bytes``.
        runs: all that were made, in order.
        reason: why the search ended early; empty if it did not.
        recorded: on which machine and when, or None if it was measured here.
    """

    survived_bytes: int | None
    killed_bytes: int | None
    predicted_bytes: int
    runs: tuple[Run, ...]
    reason: str = ""
    recorded: str | None = None

    @property
    def error(self) -> float | None:
        """Error of the prediction, as a share of the middle between both caps; None where one of them is missing."""
        if self.survived_bytes is None or self.killed_bytes is None:
            return None
        return 2 * self.predicted_bytes / (self.survived_bytes + self.killed_bytes) - 1


def find_boundary(
    model: str | Path,
    *,
    load_mode: str = "mmap+mlock",
    low: int | str | None = None,
    high: int | str | None = None,
    within: float = 0.005,
    max_runs: int = 10,
    tokens: int = 1,
    timeout_s: float = 30.0,
    progress: Progress | None = None,
    cancel: Event | None = None,
    **settings: Any,
) -> Boundary:
    """Halve the range between a cap that kills and a cap that does not until it is narrow enough.

    Where no cap is possible, a search recorded elsewhere is returned, and says so.

    Args:
        model: as for ``measure``.
        load_mode: without a lock, file pages are reclaimed, and a run may be very slow under a cap that does not kill.
        low: a cap that should kill. By default it and ``high`` are round numbers, 10 % or more off the prediction, so
            that the prediction itself is not among the caps tried.
        high: a cap that should not.
        within: stop when the range is this share of the cap.
        max_runs: or after so many runs.
        tokens: to decode in each run.
        timeout_s: for each run.
        progress: called with the fraction done and a text; by default a bar appears.
        cancel: when set, the search ends with the runs made so far.
        **settings: any of ``Settings``' fields.

    Raises:
        SettingsError, GGUFError, ModelError, Interrupted: as for ``measure``.
        ValueError: ``low`` is not below ``high``.
        FileNotFoundError: no cap is possible and no such search was recorded.
    """
    if caps.available().how is None:
        return recorded(load_mode, type_k=str(settings.get("type_k", "f16")))
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("looking for the boundary"))
        predicted = _predicted(model, Settings.of({**settings, "load_mode": load_mode}))
        around = _window(predicted)
        bounds = [
            parse_bytes(high) if high is not None else around[1],
            parse_bytes(low) if low is not None else around[0],
        ]
        if bounds[1] >= bounds[0]:
            raise ValueError(f"low is {bounds[1]:,} bytes and high {bounds[0]:,}: low must be below high.")
        found = Boundary(None, None, predicted, ())
        while len(found.runs) < max_runs:
            if bounds:
                cap = bounds.pop(0)
            elif found.survived_bytes is None or found.killed_bytes is None:
                break  # all were killed, or none was
            elif found.survived_bytes - found.killed_bytes <= within * found.survived_bytes:
                break
            else:
                cap = (found.survived_bytes + found.killed_bytes) // 2
            report(len(found.runs) / max_runs, f"a cap of {cap / MiB:,.1f} MiB")
            made = measure(
                model,
                cap=cap,
                load_mode=load_mode,
                tokens=tokens,
                timeout_s=timeout_s,
                progress=lambda share, text: None,
                cancel=cancel,
                **settings,
            )
            found = _with(found, made)
            if found.reason:
                break
        if found.error is None and not found.reason:
            killed, advice = ("every", "raise high") if found.survived_bytes is None else ("no", "lower low")
            found = replace(found, reason=f"{killed} cap that was tried killed it: {advice}.")
        report(1.0, "found" if found.error is not None else "not found")
    return found


def _predicted(model: str | Path, wanted: Settings) -> int:
    """Bytes of the smallest cap that should not kill."""
    path = lookup.find(model).path
    header = gguf.read_header(path)
    planned = dry_run.compute_bytes(path, header, wanted)
    here, features = machine(), cpu_features()
    return predict.lock(
        header, wanted, machine=here, cpu_features=features, planned_compute_bytes=planned
    ).boundary_bytes


def _window(predicted: int) -> tuple[int, int]:
    """Two caps around a prediction: round numbers, or halving would try the prediction first and seem to confirm it."""
    step = 1 << max(0, predicted.bit_length() - 4)
    low, high = int(predicted * (1 - SPREAD)), int(predicted * (1 + SPREAD))
    return low // step * step, -(-high // step) * step


def _with(found: Boundary, made: Run) -> Boundary:
    """The search after one more run."""
    found = replace(found, runs=(*found.runs, made))
    if made.outcome not in ("ok", "oom-killed"):
        return replace(found, reason=made.reason)
    if made.caution:  # where pages are not counted or not locked, the cap shows nothing
        return replace(found, reason=made.caution)
    if made.ok:
        return replace(found, survived_bytes=made.cap_bytes)
    return replace(found, killed_bytes=made.cap_bytes)


def recorded(load_mode: str = "mmap+mlock", *, type_k: str = "f16") -> Boundary:
    """The search that comes with the kit (``datasets/runs/boundary.json``).

    Raises:
        FileNotFoundError: there is none of this kind.
    """
    kept = recordings.recorded("boundary")
    runs = [run for run in kept if (run.settings.load_mode, run.settings.type_k) == (load_mode, type_k)]
    if not runs:
        raise FileNotFoundError(f"no search with {load_mode} and a cache of {type_k} was recorded.")
    found = Boundary(None, None, (runs[0].recorded or {})["predicted_boundary_bytes"], ())
    for run in runs:
        found = _with(found, run)
    return replace(found, recorded=recordings.origin(runs[0]))
