"""A panel that measures what a quantized cache loses."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from labkit.course import figures
from labkit.course.panelkit import Panel, Runner, check, choice
from labkit.models import lookup
from labkit.progress import Progress
from labkit.quant.cache_quality import CacheQuality as Measured
from labkit.quant.cache_quality import cache_quality
from labkit.settings import CACHE_TYPES

TYPES = tuple(name for name in CACHE_TYPES if name != "f32")
ROTATED = {
    (True, True): "K and V were rotated",
    (True, False): "K was rotated",
    (False, True): "V was rotated",
    (False, False): "nothing was rotated",
}


class CacheQuality(Panel):
    """Choose types for K and V, compare the model's predictions with those of an f16 cache, and add the pair.

    Args:
        rows: measured already by ``cache_quality``; a new measurement of the same pair replaces the earlier one.
        model: the one that was measured for ``rows``.
        tokens: of the text, to read in each comparison.
    """

    def __init__(self, rows: Sequence[Measured] = (), *, model: str | Path = lookup.BUNDLED, tokens: int = 256) -> None:
        self._model, self._tokens = model, tokens
        self.rows = {(row.type_k, row.type_v, row.rotated): row for row in rows}
        self.type_k = choice("type_k", TYPES, value="q5_1", width="130px")
        self.type_v = choice("type_v", TYPES, value="q4_0", width="130px")
        self.rotation = check("rotate K and V where quantized", value=True)
        self.runner = Runner("Run the comparison", self._compare)
        super().__init__([self.type_k, self.type_v, self.rotation], self.runner.row)
        self.redraw()

    def _compare(self, progress: Progress, cancel: threading.Event) -> None:
        [row] = cache_quality(
            self._model,
            pairs=[(self.type_k.value, self.type_v.value)],
            rotation=[self.rotation.value],
            tokens=self._tokens,
            progress=progress,
            cancel=cancel,
        )
        self.rows[row.type_k, row.type_v, row.rotated] = row
        self.redraw()
        self.runner.write("ok")
        found = row.quality
        self.write(
            f"{row.type_k}/{row.type_v}, {ROTATED[row.k_rotated, row.v_rotated]}: "
            f"divergence {found.kld_mean:.5f} ± {found.kld_mean_error:.5f} nats over {found.n_tokens} tokens, "
            f"the same most likely token for {100 * found.top1:.1f} % of them."
        )

    def draw(self) -> None:
        if self.rows:
            self.show(figures.cache_quality(list(self.rows.values())))
