"""Quantize to a chosen type and see what it costs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit.course import figures
from labkit.course.panelkit import WIDE, Runner, image, say
from labkit.progress import Progress
from labkit.quant.imatrix import Imatrix
from labkit.quant.quality import quality
from labkit.quant.quantize import quantize
from labkit.units import fmt_bytes

__all__ = ["WhatItCosts"]


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
