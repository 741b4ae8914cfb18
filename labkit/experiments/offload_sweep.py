"""Measure a model with each number of layers on the loopback device: time per token, memory of both processes."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit import gguf
from labkit.engine import cpu_features
from labkit.experiments import recordings
from labkit.experiments.device import problem
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.gguf import Header
from labkit.models import lookup
from labkit.models.forge import header_bytes
from labkit.planning.tuner import Tuned
from labkit.predict.offload import Split, offload
from labkit.predict.offload_speed import Speeds, calibrate, offload_ms
from labkit.progress import Progress, bar
from labkit.settings import LOOPBACK, Settings, SettingsError
from labkit.system.machine import machine


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
        """Median of the faster half of the tokens, since background load can only make a token slower."""
        times = sorted(self.decode_ms)
        return statistics.median(times[: (len(times) + 1) // 2]) if times else None


@dataclass(frozen=True)
class OffloadSweep:
    """Points by number of layers.

    ``speeds`` were found from the first and the last, None where these did not run. ``recorded`` says on which machine
    and when, or None if it was measured here.
    """

    points: tuple[OffloadPoint, ...]
    speeds: Speeds | None
    recorded: str | None = None

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
    """Measure a model with each number of layers on the loopback device.

    It is done in rounds, so that background load slows every setting alike.

    Where the build of llama.cpp has no RPC, the sweep recorded in ``datasets/runs/offload.json`` is returned.

    Args:
        model: a path, ``smollm2``, or ``SHAPE:QUANT``.
        layers: values of ``n_gpu_layers``; the prediction is calibrated on the smallest and the largest.
        rounds: how often each number of layers is run.
        tokens: to decode in each run.
        device_memory: size of the device's memory.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, the sweep ends with the runs made so far.
        **settings: further ones, such as ``n_ctx`` and ``n_threads``, which hold for both processes.

    Raises:
        SettingsError: ``layers`` is empty, or see ``measure``.
        GGUFError, ModelError: see ``measure``.
        Interrupted: Ctrl-C.
    """
    if not layers:
        raise SettingsError("layers is empty: give at least one n_gpu_layers.")
    if problem():
        return recorded()
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
                break  # the others would be refused, too
    header = gguf.read_header(lookup.find(model).path)
    return predicted(header, runs, cpu_features=cpu_features(), page_bytes=machine().page_bytes)


def recorded() -> OffloadSweep:
    """The sweep that comes with the kit: Llama 3.2 1B Q4_K_M."""
    runs: dict[int, list[Run]] = {}
    for run in recordings.recorded("offload"):
        runs.setdefault(run.settings.n_gpu_layers, []).append(run)
    header = gguf.read_header(header_bytes(*run.model.name.split(":")))
    sweep = predicted(header, runs, cpu_features=(run.recorded or {}).get("cpu_features", ()))
    return replace(sweep, recorded=recordings.origin(run))


def predicted(
    header: Header,
    runs: Mapping[int, Sequence[Run]],
    *,
    cpu_features: Iterable[str] | None,
    page_bytes: int = 4096,
) -> OffloadSweep:
    """A sweep from its runs: times are predicted from the runs with no layer and with all layers on the device.

    Args:
        header: of the model that ran.
        runs: by ``n_gpu_layers``, with the same settings otherwise; a number may have no run.
        cpu_features: of the machine on which they ran.
        page_bytes: the same.
    """
    base = next((run.settings for ran in runs.values() for run in ran), Settings())
    points = []
    for n in sorted(runs):
        settings = replace(base, n_gpu_layers=n)
        split = offload(header, settings, cpu_features=cpu_features, page_bytes=page_bytes)
        points.append(OffloadPoint(split, tuple(runs[n])))
    first, last = points[0], points[-1]
    whole = header.n_layer + 1
    if first.n_gpu_layers != 0 or last.n_gpu_layers != whole or not first.typical_ms or not last.typical_ms:
        return OffloadSweep(tuple(points), None)
    speeds = calibrate((first.split, first.typical_ms), (last.split, last.typical_ms))
    with_times = [replace(p, predicted_ms=offload_ms(p.split, speeds), calibrates=p in (first, last)) for p in points]
    return OffloadSweep(tuple(with_times), speeds)


@dataclass(frozen=True)
class Verified:
    """Two runs on a device: ``fits`` with the tuned number of layers, ``one_more`` with one more if there is one."""

    device: str
    fits: Run
    one_more: Run | None

    @property
    def right(self) -> bool:
        """The device holds what was tuned for it, and not one layer more."""
        return self.fits.ok and (self.one_more is None or not self.one_more.ok)


def verify(
    model: str | Path,
    tuned: Tuned,
    *,
    vram: int | str,
    device: str = LOOPBACK,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Load the model with the tuned number of layers, and with one more, and see which the device refuses.

    The loopback device gets ``vram`` bytes. A real device has its own memory, of which its driver takes a part.

    Args:
        model: what was tuned; a header alone cannot be loaded.
        tuned: with no experts kept on the host.
        vram: the memory it was tuned for, less the margin.
        device: a name, as ``labkit doctor`` lists them.
        settings: those it was tuned for.
        progress: called with the fraction done and a text.

    Raises:
        ValueError: experts were kept on the host, which ``measure`` cannot do.
        SettingsError, GGUFError, ModelError, Interrupted: see ``measure``.
    """
    if tuned.n_cpu_moe:
        raise ValueError(
            "experts that stay on the host cannot be verified here: start llama.cpp with its option -ncmoe."
        )
    base = (settings or Settings()).to_dict() | {"devices": (device,), "n_threads": 1}
    limit = {"device_memory": vram} if device == LOOPBACK else {}
    runs = []
    for n in (tuned.n_gpu_layers, tuned.n_gpu_layers + 1):
        if n <= len(tuned.split.layers_on) + 1:
            how: dict[str, Any] = base | limit | {"n_gpu_layers": n}
            runs.append(measure(model, tokens=1, progress=progress, **how))
    return Verified(device, runs[0], runs[1] if len(runs) > 1 else None)
