"""A panel that quantizes a model and measures what that costs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.course import figures
from labkit.course.panelkit import Panel, Runner, check, choice
from labkit.progress import Progress
from labkit.quant.imatrix import Imatrix
from labkit.quant.quality import quality
from labkit.quant.quantize import quantize
from labkit.units import fmt_bytes

TOKENS = 256


class WhatItCosts(Panel):
    """Choose a file type, quantize to it, and see its divergence from the reference against its size.

    Args:
        reference: the file to quantize from, and to compare with.
        quants: file types to choose from.
        rows: measured already; a new measurement of the same type replaces the earlier one.
        imatrix: the importance matrix that the checkbox turns on; None disables the checkbox.
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
        self.quant = choice("file type", quants)
        self.matrix = check("importance matrix", value=False, disabled=imatrix is None)
        self.runner = Runner("Run", self._measure)
        super().__init__([self.quant, self.matrix], self.runner.row)
        self.redraw()

    def _measure(self, progress: Progress, cancel: threading.Event) -> None:
        matrix = self._imatrix if self.matrix.value else None
        how: dict[str, Any] = {"progress": progress, "cancel": cancel}
        made = quantize(self._reference, self.quant.value, imatrix=matrix, **how)
        found = quality(made.path, self._reference, tokens=TOKENS, **how)
        label = f"{made.quant} with imatrix" if matrix else made.quant
        self.rows[label] = figures.BitRow(label, made.file_bytes, found.kld_mean)
        self.redraw()
        self.runner.write("ok")
        self.write(
            f"{label}: {fmt_bytes(made.file_bytes)}, divergence {found.kld_mean:.4f} nats over {found.n_tokens} tokens"
        )

    def draw(self) -> None:
        if self.rows:
            self.show(figures.what_a_bit_buys(list(self.rows.values())))
