"""Panels of lab 00: the speed limit of another machine's memory, and a prompt for the small model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from labkit import predict
from labkit.course import figures
from labkit.course.panelkit import Panel, Runner, entry, slider
from labkit.experiments.child import task
from labkit.experiments.measure import measure
from labkit.models import lookup
from labkit.progress import Progress
from labkit.units import GiB, fmt_bytes, fmt_ms

__all__ = ["Ask", "WhatIf"]

WIDTH = "560px"


class WhatIf(Panel):
    """Set another memory bandwidth, and see the shortest time per token that it allows each model.

    Args:
        rows: the models, as measured or predicted on this machine.
        bandwidth_bytes_per_s: of this machine's memory, which the slider shows first.
    """

    def __init__(self, rows: Sequence[figures.SpeedRow], *, bandwidth_bytes_per_s: float) -> None:
        self._rows = rows
        # Twice the time that this machine's memory takes, so that the axis does not move with the bars.
        self._axis_ms = {
            row.label: 2 * predict.decode_ms(row.bytes_per_token, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
            for row in rows
        }
        here = round(bandwidth_bytes_per_s / GiB)
        self.slider = slider("bandwidth, GiB/s", least=5, most=max(1000, here), step=5, value=here, width=WIDTH)
        super().__init__([self.slider])
        self.on_change(self.redraw, self.slider)
        self.redraw()

    def draw(self) -> None:
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
        title = f"The shortest time per token that {fmt_bytes(bandwidth)}/s allows (predicted, not measured)"
        self.show(figures.speed_check(there, bandwidth_bytes_per_s=bandwidth, axis_ms=self._axis_ms, title=title))
        self.write(
            *(
                f"{row.label}: at best {fmt_ms(row.roofline_ms)} per token, {1000 / row.roofline_ms:,.1f} tokens/s"
                for row in there
            )
        )


class Ask(Panel):
    """Write a prompt for the bundled model, and read its answer while it is generated.

    Args:
        prompt: the one shown first.
        tokens: to generate at most.
    """

    def __init__(self, prompt: str, *, tokens: int = 60) -> None:
        self._tokens = tokens
        self.prompt = entry("prompt", value=prompt, width=WIDTH)
        self.runner = Runner("Run", self._generate)
        super().__init__([self.prompt], self.runner.row, picture=False)

    def _generate(self, progress: Progress, cancel: threading.Event) -> None:
        pieces: list[str] = []

        def add(text: str) -> None:
            pieces.append(text)
            self.write("".join(pieces))

        run = measure(
            lookup.BUNDLED,
            prompt=self.prompt.value,
            tokens=self._tokens,
            n_ctx=1024,
            n_threads=task.default_threads(),
            progress=progress,
            on_text=add,
            cancel=cancel,
        )
        if run.ok and run.measured and run.measured.decode_ms:
            self.runner.write(f"ok, {fmt_ms(run.measured.decode_ms)} per token")
        else:
            self.runner.write_outcome(run.outcome, run.reason)
