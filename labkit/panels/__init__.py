"""Controls around figures and experiments, for notebooks. Each panel is drawn once at its defaults.

A panel changes the value of an Image or HTML widget; it never prints. Slow work happens in a child process, watched by
a thread, with a progress bar and a button that stops it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit import figures, gguf, models, predict, task
from labkit.experiment import measure
from labkit.imatrix import Imatrix
from labkit.mapping import MappedFile
from labkit.panels.blocks import BlockExplorer
from labkit.panels.cache import CacheQuality, ContextCost, SlotMap
from labkit.panels.lock import LockBudget, PressureRun
from labkit.panels.offload import Offload
from labkit.panels.offloadrun import OffloadRun
from labkit.panels.parts import WIDE, Runner, image, say
from labkit.panels.tuner import Tuner
from labkit.progress import Progress
from labkit.quality import quality
from labkit.quantize import quantize
from labkit.run import Run
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes, fmt_ms


class Residency:
    """Touch a mapped file from its start and watch which of its pages are in memory.

    Attributes:
        slider: how much of the file to touch, in percent. Moving it back forgets nothing: pages stay until evicted.
        view: the panel, for ``display``.
    """

    def __init__(self, model: str | Path = models.BUNDLED) -> None:
        path = models.find(model).path
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
        return figures.png(self._file.figure(self._tensors))

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

    def __init__(self, choices: Sequence[str] = (models.BUNDLED,), *, runs: Sequence[Run] = ()) -> None:
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
            header = gguf.read_header(models.find(self.model.value).path)
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


class WhatIf:
    """The roofline for memory that is not yours: move the bandwidth and read the ceiling of each model."""

    def __init__(self, rows: Sequence[figures.SpeedRow], *, bandwidth_bytes_per_s: float) -> None:
        self._rows = rows
        # Fixed at twice the time that this machine's memory takes: bars that move must not move their axis along.
        self._axis_ms = {
            row.label: 2 * predict.decode_ms(row.bytes_per_token, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
            for row in rows
        }
        here = round(bandwidth_bytes_per_s / GiB)
        self.slider = widgets.IntSlider(
            value=here,
            min=5,
            max=max(1000, here),
            step=5,
            description="bandwidth, GiB/s",
            continuous_update=False,
            style=WIDE,
        )
        self.slider.layout.width = "560px"
        self.text = widgets.HTML("")
        self.image = image()
        self.slider.observe(lambda change: self._draw(), names="value")
        self._draw()
        self.view = widgets.VBox([self.slider, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _draw(self) -> None:
        bandwidth = self.slider.value * GiB
        # What was measured here says nothing about another machine's memory: only the roofline moves.
        there = [
            replace(
                row,
                roofline_ms=predict.decode_ms(row.bytes_per_token, bandwidth_bytes_per_s=bandwidth),
                predicted_ms=None,
                measured_ms=None,
            )
            for row in self._rows
        ]
        title = f"At {fmt_bytes(bandwidth)}/s, the best each model can do (predicted, not measured)"
        shown = figures.speed_check(there, bandwidth_bytes_per_s=bandwidth, axis_ms=self._axis_ms, title=title)
        self.image.value = figures.png(shown)
        said = (
            f"{row.label}: at best {fmt_ms(row.roofline_ms)}, {1000 / row.roofline_ms:,.1f} tokens/s" for row in there
        )
        self.text.value = "".join(say(line) for line in said)


class Ask:
    """A prompt for the bundled model; the answer appears as it is generated."""

    def __init__(self, prompt: str, *, tokens: int = 60, answer: str = "") -> None:
        self.tokens = tokens
        self.prompt = widgets.Text(value=prompt, description="prompt", layout=widgets.Layout(width="560px"))
        self.answer = widgets.HTML(say(answer))
        self.runner = Runner("Run", self._generate)
        self.view = widgets.VBox([self.prompt, self.runner.row, self.answer])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _generate(self, progress: Progress, cancel: threading.Event) -> None:
        pieces: list[str] = []

        def add(text: str) -> None:
            pieces.append(text)
            self.answer.value = say("".join(pieces))

        run = measure(
            models.BUNDLED,
            prompt=self.prompt.value,
            tokens=self.tokens,
            n_ctx=1024,
            n_threads=task.default_threads(),
            progress=progress,
            on_text=add,
            cancel=cancel,
        )
        speed = (
            ""
            if run.measured is None or not run.measured.decode_ms
            else f", {fmt_ms(run.measured.decode_ms)} per token"
        )
        self.runner.state.value = say((run.outcome if run.ok else f"{run.outcome}: {run.reason}") + speed)


class WhatItCosts:
    """Choose a file type, quantize to it, and see what it costs: divergence from the reference against size.

    Args:
        reference: the file to quantize from, and to compare with.
        rows: what is known already; a new measurement of the same type takes its place.
        imatrix: the importance matrix that the checkbox turns on; None leaves it off.
    """

    def __init__(
        self,
        reference: str | Path,
        *,
        quants: Sequence[str],
        rows: Sequence[figures.BitRow] = (),
        imatrix: Imatrix | None = None,
    ) -> None:
        self._reference, self._imatrix = reference, imatrix
        self.rows = {row.label: row for row in rows}
        self.quant = widgets.Dropdown(options=list(quants), description="file type", style=WIDE)
        self.matrix = widgets.Checkbox(
            value=False, description="importance matrix", indent=False, disabled=imatrix is None
        )
        self.image = image()
        self.runner = Runner("Run", self._judge)
        self._draw()
        self.view = widgets.VBox([widgets.HBox([self.quant, self.matrix]), self.runner.row, self.image])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _judge(self, progress: Progress, cancel: threading.Event) -> None:
        matrix = self._imatrix if self.matrix.value else None
        how: dict[str, Any] = {"progress": progress, "cancel": cancel}
        made = quantize(self._reference, self.quant.value, imatrix=matrix, **how)
        found = quality(made.path, self._reference, tokens=256, **how)
        label = f"{made.quant} with imatrix" if matrix else made.quant
        self.rows[label] = figures.BitRow(label, made.file_bytes, found.kld_mean)
        self._draw()
        self.runner.state.value = say(f"{label}: {fmt_bytes(made.file_bytes)}, divergence {found.kld_mean:.4f}")

    def _draw(self) -> None:
        if self.rows:
            self.image.value = figures.png(figures.what_a_bit_buys(list(self.rows.values())))


__all__ = [
    "Ask",
    "BlockExplorer",
    "CacheQuality",
    "ContextCost",
    "LockBudget",
    "Offload",
    "OffloadRun",
    "PressureRun",
    "Residency",
    "SlotMap",
    "Tuner",
    "WhatIf",
    "WhatItCosts",
    "WhereItIs",
    "say",
]
