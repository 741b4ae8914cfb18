"""Time per token and memory of both sides against the number of layers on the loopback device."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import gguf, models
from labkit.engine import cpu_features
from labkit.experiment import measure
from labkit.predict.offload import Split, offload
from labkit.predict.offload_speed import Speeds, calibrate, offload_ms
from labkit.progress import Progress, bar
from labkit.run import Run
from labkit.settings import LOOPBACK, Settings


@dataclass(frozen=True)
class OffloadPoint:
    """One setting, measured several times.

    Attributes:
        split: what lies where, predicted.
        runs: the measurements.
        predicted_ms: by ``offload_ms``; None where nothing could be calibrated.
        calibrates: the prediction was made from this very point.
    """

    split: Split
    runs: tuple[Run, ...]
    predicted_ms: float | None = None
    calibrates: bool = False

    @property
    def n_gpu_layers(self) -> int:
        """Layers on the device, the output layer counted."""
        return self.split.n_gpu_layers

    @property
    def decode_ms(self) -> tuple[float, ...]:
        """Every token of every run that ended well."""
        return tuple(ms for run in self.runs if run.ok for ms in run.timings.decode_ms)

    @property
    def typical_ms(self) -> float | None:
        """Median of the faster half of the tokens: what disturbs a token only ever makes it slower."""
        times = sorted(self.decode_ms)
        return statistics.median(times[: (len(times) + 1) // 2]) if times else None


@dataclass(frozen=True)
class OffloadSweep:
    """Points by number of layers; ``speeds`` were found from the first and the last, None where these did not run."""

    points: tuple[OffloadPoint, ...]
    speeds: Speeds | None

    @property
    def error(self) -> float | None:
        """Median error of the predicted times, as a share, over the points that did not calibrate."""
        off = [
            abs(point.predicted_ms / point.typical_ms - 1)
            for point in self.points
            if point.predicted_ms and point.typical_ms and not point.calibrates
        ]
        return statistics.median(off) if off else None


def offload_sweep(
    model: str | Path,
    *,
    layers: Sequence[int],
    rounds: int = 3,
    tokens: int = 12,
    device_memory: int | str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **settings: Any,
) -> OffloadSweep:
    """Measure a model with each number of layers on the loopback device, in rounds, so that all meet the same weather.

    Args:
        model: a path, ``smollm2``, or ``SHAPE:QUANT``.
        layers: values of ``n_gpu_layers``; the prediction is calibrated on the smallest and the largest.
        rounds: how often each is run.
        tokens: to decode in each run.
        device_memory: size of the device's memory.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, the sweep ends with what it has.
        **settings: further ones, such as ``n_ctx`` and ``n_threads``, which both sides take.

    Raises:
        SettingsError, GGUFError, ModelError: see ``measure``.
        Interrupted: Ctrl-C.
    """
    wanted = sorted(set(layers))
    runs: dict[int, list[Run]] = {n: [] for n in wanted}
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("offloading"))
        order = [n for turn in range(rounds) for n in (wanted if turn % 2 == 0 else wanted[::-1])]
        for done, n in enumerate(order):
            if cancel is not None and cancel.is_set():
                break
            report(done / len(order), f"{n} layers on the device")
            run = measure(
                model,
                tokens=tokens,
                devices=(LOOPBACK,),
                n_gpu_layers=n,
                device_memory=device_memory,
                progress=lambda share, text: None,
                cancel=cancel,
                **settings,
            )
            runs[n].append(run)
            if run.outcome == "refused":
                break  # so will the others be
    header = gguf.read_header(models.find(model).path)
    points = []
    for n in wanted:
        chosen = Settings.of({**settings, "n_gpu_layers": n, "devices": (LOOPBACK,)})
        points.append(OffloadPoint(offload(header, chosen, cpu_features=cpu_features()), tuple(runs[n])))
    return predicted(points)


def predicted(points: Sequence[OffloadPoint]) -> OffloadSweep:
    """The same points with times predicted from two of them: all on the host, and all on the device."""
    first, last = points[0], points[-1]
    if first.n_gpu_layers or not first.typical_ms or not last.typical_ms or last.split.host.cache_token_bytes:
        return OffloadSweep(tuple(points), None)
    speeds = calibrate((first.split, first.typical_ms), (last.split, last.typical_ms))
    return OffloadSweep(
        tuple(
            OffloadPoint(point.split, point.runs, offload_ms(point.split, speeds), point in (first, last))
            for point in points
        ),
        speeds,
    )
