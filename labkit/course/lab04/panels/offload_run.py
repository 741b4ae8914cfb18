"""A panel that runs a model with some of its layers on the loopback device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.lab04.panels.offload import wide
from labkit.course.panelkit import WIDE, Runner, image, say
from labkit.experiments.measure import measure
from labkit.experiments.offload_sweep import OffloadPoint
from labkit.experiments.run import Run
from labkit.models import lookup
from labkit.predict import Speeds, Split
from labkit.progress import Progress
from labkit.settings import LOOPBACK, Settings
from labkit.units import GiB, MiB, fmt_bytes, fmt_ms


class OffloadRun:
    """Choose how many layers leave, run the model with them on the loopback device, and add the point.

    Args:
        points: what is known already, of the same model; a new run of the same setting joins its point.
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
        self.layers = wide(
            widgets.IntSlider(
                value=every // 2, min=0, max=every, description="n_gpu_layers", continuous_update=False, style=WIDE
            ),
            "420px",
        )
        self.kqv = widgets.Checkbox(value=True, description="offload_kqv", indent=False)
        sizes = [(fmt_bytes(n), n) for n in (256 * MiB, 512 * MiB, 768 * MiB, GiB, 2 * GiB)]
        self.memory = wide(
            widgets.Dropdown(options=[("no limit", None), *sizes], description="device's memory", style=WIDE), "230px"
        )
        self.show = widgets.Dropdown(
            options=[("memory of both processes", "memory"), ("time per token", "time")], description="show", style=WIDE
        )
        self.image = image()
        self.text = widgets.HTML("")
        self.runner = Runner("Run on the loopback device", self._measure)
        self.runner.run.layout.width = "230px"
        for control in (self.layers, self.kqv):
            control.observe(lambda change: self._expect(), names="value")
        self.show.observe(lambda change: self._draw(), names="value")
        self._draw()
        self._expect()
        rows = [[self.layers, self.kqv], [self.memory, self.show]]
        self.view = widgets.VBox([*(widgets.HBox(row) for row in rows), self.runner.row, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _split(self, n_gpu_layers: int, offload_kqv: bool) -> Split:
        from labkit.engine import cpu_features

        chosen = Settings.of({**self._settings, "n_gpu_layers": n_gpu_layers, "offload_kqv": offload_kqv})
        return predict.offload(self._header, chosen, cpu_features=cpu_features())

    def _expect(self) -> None:
        """Say what the chosen setting will take, before it runs."""
        split = self._split(self.layers.value, self.kqv.value)
        said = (
            f"predicted for the next run: host {fmt_bytes(split.host.total_bytes)}, device "
            f"{fmt_bytes(split.devices[0].total_bytes)}"
        )
        if self._speeds is not None:
            said += f", {fmt_ms(predict.offload_ms(split, self._speeds))} per token"
        self.text.value = say(said)

    def _measure(self, progress: Progress, cancel: threading.Event) -> None:
        n, kqv = self.layers.value, self.kqv.value
        run = measure(
            self._model,
            tokens=self._tokens,
            devices=(LOOPBACK,),
            device_memory=self.memory.value,
            n_gpu_layers=n,
            offload_kqv=kqv,
            progress=progress,
            cancel=cancel,
            **self._settings,
        )
        self.add(run)
        self.runner.state.value = say(run.outcome if run.ok else f"{run.outcome}: {run.reason}")
        if run.ok and run.measured and run.device:
            sizes = (run.measured.rss_file_bytes, run.measured.rss_anon_bytes, run.device.rss_anon_bytes)
            known = [fmt_bytes(size) if size is not None else "not counted" for size in sizes]
            speed = "" if run.measured.decode_ms is None else f"; {fmt_ms(run.measured.decode_ms)} per token"
            self.text.value = say(
                f"n_gpu_layers {n}: host {known[0]} file-backed + {known[1]} anonymous, device {known[2]} "
                f"anonymous{speed}"
            )

    def add(self, run: Run) -> None:
        """Add a run to the point of its setting, and draw."""
        n, kqv = run.settings.n_gpu_layers, run.settings.offload_kqv
        for i, point in enumerate(self.points):
            if point.n_gpu_layers == n and point.runs and point.runs[0].settings.offload_kqv is kqv:
                self.points[i] = replace(point, runs=(*point.runs, run))
                break
        else:
            split = self._split(n, kqv)
            ms = None if self._speeds is None else predict.offload_ms(split, self._speeds)
            self.points.append(OffloadPoint(split, (run,), ms))
        self._draw()

    def _draw(self) -> None:
        if not self.points:
            return
        if self.show.value == "memory":
            self.image.value = figures.png(figures.two_processes(self.points))
            return
        line = None
        if self._speeds is not None:
            used = {run.settings.offload_kqv for point in self.points for run in point.runs}
            line = {
                kqv: {n: predict.offload_ms(self._split(n, kqv), self._speeds) for n in range(self._header.n_layer + 2)}
                for kqv in used
            }
        self.image.value = figures.png(figures.offload_speed(self.points, predicted=line))
