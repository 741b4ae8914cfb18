"""A panel that runs a model with some of its layers on the loopback device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.panelkit import Panel, Runner, check, choice, slider
from labkit.experiments.measure import measure
from labkit.experiments.offload_sweep import OffloadPoint
from labkit.experiments.run import Run
from labkit.models import lookup
from labkit.predict import Speeds, Split
from labkit.progress import Progress
from labkit.settings import LOOPBACK, Settings
from labkit.units import GiB, MiB, fmt_bytes, fmt_ms

DEVICE_SIZES = (256 * MiB, 512 * MiB, 768 * MiB, GiB, 2 * GiB)


class OffloadRun(Panel):
    """Choose how many layers are offloaded, run the model with them on the loopback device, and add the run.

    Args:
        points: measured already with the same model; a new run of the same setting is added to its point.
        model: see ``measure``.
        speeds: found from earlier points, to predict the time; None predicts memory alone.
        tokens: to decode in each run.
        settings: further ones for ``measure``, such as ``n_ctx``.
    """

    def __init__(
        self,
        points: Sequence[OffloadPoint] = (),
        *,
        model: str = "llama-3.2-1b:Q4_K_M",
        speeds: Speeds | None = None,
        tokens: int = 8,
        **settings: Any,
    ) -> None:
        self._model, self._speeds, self._tokens = model, speeds, tokens
        self._settings = {"n_ctx": 1024, "n_batch": 512, "n_threads": 1} | settings
        self._header = gguf.read_header(lookup.find(model).path)
        self.points = list(points)
        every = self._header.n_layer + 1
        self.layers = slider("n_gpu_layers", most=every, value=every // 2, width="420px")
        self.kqv = check("offload_kqv", value=True)
        sizes = [("no limit", None), *((fmt_bytes(n), n) for n in DEVICE_SIZES)]
        self.memory = choice("device memory", sizes, width="230px")
        self.picture = choice("picture", [("memory of both processes", "memory"), ("time per token", "time")])
        self.runner = Runner("Run on the loopback device", self._measure)
        super().__init__([self.layers, self.kqv], [self.memory, self.picture], self.runner.row)
        self.on_change(self._predict, self.layers, self.kqv)
        self.on_change(self.redraw, self.picture)
        self.redraw()
        self._predict()

    def _split(self, n_gpu_layers: int, offload_kqv: bool) -> Split:
        """What host and device hold with these layers offloaded."""
        from labkit.engine import cpu_features

        chosen = Settings.of({**self._settings, "n_gpu_layers": n_gpu_layers, "offload_kqv": offload_kqv})
        return predict.offload(self._header, chosen, cpu_features=cpu_features())

    def _ms(self, split: Split) -> float | None:
        """Predicted milliseconds per token, or None without speeds."""
        return None if self._speeds is None else predict.offload_ms(split, self._speeds)

    def _predict(self) -> None:
        """Say what a run of the chosen setting will take."""
        split = self._split(self.layers.value, self.kqv.value)
        ms = self._ms(split)
        self.write(
            f"predicted for the next run: host {fmt_bytes(split.host.total_bytes)}, device "
            f"{fmt_bytes(split.devices[0].total_bytes)}" + ("" if ms is None else f", {fmt_ms(ms)} per token")
        )

    def _measure(self, progress: Progress, cancel: threading.Event) -> None:
        run = measure(
            self._model,
            tokens=self._tokens,
            devices=(LOOPBACK,),
            device_memory=self.memory.value,
            n_gpu_layers=self.layers.value,
            offload_kqv=self.kqv.value,
            progress=progress,
            cancel=cancel,
            **self._settings,
        )
        self.add(run)
        self.runner.write_outcome(run.outcome, run.reason)
        if run.ok and run.measured and run.device:
            sizes = (run.measured.rss_file_bytes, run.measured.rss_anon_bytes, run.device.rss_anon_bytes)
            file, anon, device = ("an unknown size" if size is None else fmt_bytes(size) for size in sizes)
            ms = run.measured.decode_ms
            self.write(
                f"n_gpu_layers {run.settings.n_gpu_layers}: host {file} file-backed + {anon} anonymous, "
                f"device {device} anonymous" + ("" if ms is None else f"; {fmt_ms(ms)} per token")
            )

    def add(self, run: Run) -> None:
        """Add a run to the point of its setting, or make a new point of it, and draw."""
        n, kqv = run.settings.n_gpu_layers, run.settings.offload_kqv
        for i, point in enumerate(self.points):
            if point.n_gpu_layers == n and point.runs and point.runs[0].settings.offload_kqv is kqv:
                self.points[i] = replace(point, runs=(*point.runs, run))
                break
        else:
            split = self._split(n, kqv)
            self.points.append(OffloadPoint(split, (run,), self._ms(split)))
        self.redraw()

    def draw(self) -> None:
        if not self.points:
            return
        if self.picture.value == "memory":
            self.show(figures.two_processes(self.points))
            return
        lines: dict[bool, dict[int, float]] = {}
        if self._speeds is not None:
            for kqv in {run.settings.offload_kqv for point in self.points for run in point.runs}:
                splits = {n: self._split(n, kqv) for n in range(self._header.n_layer + 2)}
                lines[kqv] = {n: predict.offload_ms(split, self._speeds) for n, split in splits.items()}
        self.show(figures.offload_speed(self.points, predicted=lines or None))
