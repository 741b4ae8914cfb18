"""Panels of lab 01: which pages of a mapped file are in memory, and where the bytes of a loaded model are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.panelkit import Panel, Runner, button, check, choice, slider, steps
from labkit.experiments.child import task
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.models import lookup
from labkit.progress import Progress
from labkit.settings import LOAD_MODES, Settings
from labkit.system.mapping import MappedFile, Touch
from labkit.units import fmt_bytes

__all__ = ["Residency", "WhereItIs"]


class Residency(Panel):
    """Map a file, touch its pages from the start, and see which of them are in memory.

    Args:
        model: see ``lookup.find``.

    Attributes:
        slider: how much of the file to touch, in percent. Moving it back changes nothing: a page stays until the kernel
            needs its memory.
    """

    def __init__(self, model: str | Path = lookup.BUNDLED) -> None:
        path = lookup.find(model).path
        self._file = MappedFile(path)
        self._tensors = gguf.read_header(path).tensors
        self.slider = slider("touched, % of the file", most=100)
        self.evict = button("Evict", self._evict, tooltip="Drop this file's pages from memory, and start again")
        super().__init__([self.slider, self.evict])
        self.on_change(self._touch, self.slider)
        self._evict()

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()

    def _evict(self) -> None:
        self._file.evict()
        self._touched_bytes = 0
        self._touches: list[Touch] = []
        self.fit(self.slider, most=100, value=0)
        self.redraw()

    def _touch(self) -> None:
        end = self._file.file_bytes * self.slider.value // 100
        if end > self._touched_bytes:
            self._touches.append(self._file.touch(self._touched_bytes, end - self._touched_bytes))
            self._touched_bytes = end
        self.redraw()

    def draw(self) -> None:
        self.show(figures.resident_pages(self._file, self._tensors))
        minor = _total(touch.minor_faults for touch in self._touches)
        major = _total(touch.major_faults for touch in self._touches)
        read = _total((touch.read_bytes for touch in self._touches), fmt_bytes)
        self.write(
            f"touched {fmt_bytes(self._touched_bytes)}: minor faults (the page was in memory) {minor}, "
            f"major faults (the page came from the disk) {major}, read from the disk {read}"
        )


class WhereItIs(Panel):
    """Choose how a model is loaded, run it, and see where its bytes are, as predicted and as measured.

    Args:
        models: to choose from; see ``lookup.find``.
        runs: measured already. The last three runs are drawn.
    """

    SHOWN = 3

    def __init__(self, models: Sequence[str] = (lookup.BUNDLED,), *, runs: Sequence[Run] = ()) -> None:
        self.runs = list(runs)[-self.SHOWN :]
        self.model = choice("model", models)
        self.load_mode = choice("load_mode", [mode for mode in LOAD_MODES if mode != "auto"], value="mmap")
        self.repack = check("repack", value=True)
        self.n_ctx = steps("n_ctx", [512, 1024, 2048, 4096, 8192], width="300px")
        self.runner = Runner("Run", self._measure)
        super().__init__([self.model, self.load_mode, self.repack, self.n_ctx], self.runner.row)
        self.on_change(self._predict, self.model, self.load_mode, self.repack, self.n_ctx)
        self.redraw()
        self._predict()

    def _predict(self) -> None:
        """Say what a run of the chosen settings will take."""
        from labkit.engine import cpu_features

        try:
            header = gguf.read_header(lookup.find(self.model.value).path)
        except (ValueError, OSError) as error:
            self.write(str(error))
            return
        chosen = Settings(load_mode=self.load_mode.value, repack=self.repack.value, n_ctx=self.n_ctx.value)
        p = predict.memory(header, chosen, cpu_features=cpu_features())
        self.write(
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
        self.runs = [*self.runs, run][-self.SHOWN :]
        self.redraw()
        self.runner.write_outcome(run.outcome, run.reason)

    def draw(self) -> None:
        if self.runs:
            self.show(figures.where_the_model_is(self.runs, labels=[_label(run) for run in self.runs]))


def _total(counts: Iterable[int | None], show: Callable[[int], str] = "{:,}".format) -> str:
    """The sum as text; on a system that does not count, that it is unknown."""
    known = list(counts)
    return "unknown" if None in known else show(sum(filter(None, known)))


def _label(run: Run) -> str:
    """A run by its model and by how it was loaded."""
    return f"{run.model.name}, {run.settings.load_mode}" + ("" if run.settings.repack else ", no repack")
