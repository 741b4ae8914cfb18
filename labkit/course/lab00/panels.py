"""Controls of lab 00: another machine's memory, and a prompt."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from labkit import predict
from labkit.course import figures
from labkit.course.panelkit import WIDE, Runner, image, say
from labkit.experiments.child import task
from labkit.experiments.measure import measure
from labkit.models import lookup
from labkit.progress import Progress
from labkit.units import GiB, fmt_bytes, fmt_ms

__all__ = ["Ask", "WhatIf"]


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
            lookup.BUNDLED,
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
