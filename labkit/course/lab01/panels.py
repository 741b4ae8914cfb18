"""Controls of lab 01: pages of a file, and where a loaded model is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.panelkit import WIDE, Runner, image, say
from labkit.experiments.child import task
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.models import lookup
from labkit.progress import Progress
from labkit.settings import Settings
from labkit.system.mapping import MappedFile
from labkit.units import fmt_bytes

__all__ = ["Residency", "WhereItIs"]


class Residency:
    """Touch a mapped file from its start and watch which of its pages are in memory.

    Attributes:
        slider: how much of the file to touch, in percent. Moving it back forgets nothing: pages stay until evicted.
        view: the panel, for ``display``.
    """

    def __init__(self, model: str | Path = lookup.BUNDLED) -> None:
        path = lookup.find(model).path
        self._file = MappedFile(path)
        self._tensors = gguf.read_header(path).tensors
        self._file.evict()
        self._touched = 0
        self._faults = [0, 0, 0]
        self.slider = widgets.IntSlider(
            value=0, min=0, max=100, step=1, description="touched, % of the file", continuous_update=False, style=WIDE
        )
        self.slider.layout.width = "480px"
        self.again = widgets.Button(description="Evict", tooltip="Forget all pages of this file and start again")
        self.image = image(self._png())
        self.text = widgets.HTML(self._text())
        self.slider.observe(self._move, names="value")
        self.again.on_click(self._evict)
        self.view = widgets.VBox([widgets.HBox([self.slider, self.again]), self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _move(self, change: Any) -> None:
        end = self._file.file_bytes * self.slider.value // 100
        if end > self._touched:
            touch = self._file.touch(self._touched, end - self._touched)
            self._touched = end
            seen = (touch.minor_faults, touch.major_faults, touch.read_bytes)
            self._faults = [total + (new or 0) for total, new in zip(self._faults, seen, strict=True)]
        self._draw()

    def _evict(self, button: Any) -> None:
        self._file.evict()
        self._touched, self._faults = 0, [0, 0, 0]
        self.slider.value = 0
        self._draw()

    def _draw(self) -> None:
        self.image.value, self.text.value = self._png(), self._text()

    def _png(self) -> bytes:
        return figures.png(figures.resident_pages(self._file, self._tensors))

    def _text(self) -> str:
        minor, major, read = self._faults
        return say(
            f"touched {fmt_bytes(self._touched)}: {minor:,} minor faults (page was in memory), {major:,} major faults "
            f"(waited for the disk), {fmt_bytes(read)} read from disk"
        )

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()


class WhereItIs:
    """Choose how a model is loaded, run it, and see where its bytes are: predicted above, measured below."""

    def __init__(self, choices: Sequence[str] = (lookup.BUNDLED,), *, runs: Sequence[Run] = ()) -> None:
        self.runs = list(runs)[-3:]
        self.model = widgets.Dropdown(options=list(choices), description="model", style=WIDE)
        modes = ["mmap", "none", "mmap+mlock", "mlock", "dio"]
        self.load_mode = widgets.Dropdown(options=modes, description="load_mode", style=WIDE)
        self.repack = widgets.Checkbox(value=True, description="repack", indent=False)
        self.n_ctx = widgets.SelectionSlider(
            options=[512, 1024, 2048, 4096, 8192], value=512, description="n_ctx", continuous_update=False, style=WIDE
        )
        self.image = image()
        self.text = widgets.HTML("")
        self.runner = Runner("Run", self._measure)
        for control in (self.model, self.load_mode, self.repack, self.n_ctx):
            control.observe(lambda change: self._expect(), names="value")
        self._draw()
        self._expect()
        controls = widgets.HBox([self.model, self.load_mode, self.repack, self.n_ctx])
        self.view = widgets.VBox([controls, self.runner.row, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _expect(self) -> None:
        """Say what the chosen settings will take, before they run."""
        from labkit.engine import cpu_features

        try:
            header = gguf.read_header(lookup.find(self.model.value).path)
        except (ValueError, OSError) as error:
            self.text.value = say(str(error))
            return
        chosen = Settings(load_mode=self.load_mode.value, repack=self.repack.value, n_ctx=self.n_ctx.value)
        p = predict.memory(header, chosen, cpu_features=cpu_features())
        self.text.value = say(
            f"predicted for the next run: {fmt_bytes(p.rss_anon_bytes)} anonymous, {fmt_bytes(p.rss_file_bytes)} "
            f"file-backed, {fmt_bytes(p.locked_bytes)} locked"
        )

    def _measure(self, progress: Progress, cancel: threading.Event) -> None:
        run = measure(
            self.model.value,
            tokens=2,
            load_mode=self.load_mode.value,
            repack=self.repack.value,
            n_ctx=self.n_ctx.value,
            n_threads=task.default_threads(),
            progress=progress,
            cancel=cancel,
        )
        self.runs = [*self.runs, run][-3:]
        self._draw()
        self.runner.state.value = say(run.outcome if run.ok else f"{run.outcome}: {run.reason}")

    def _draw(self) -> None:
        if self.runs:
            labels = [f"{run.model.name}, {run.settings.load_mode}" for run in self.runs]
            labels = [
                f"{label}, no repack" * (not run.settings.repack) or label
                for label, run in zip(labels, self.runs, strict=True)
            ]
            self.image.value = figures.png(figures.where_the_model_is(self.runs, labels=labels))
