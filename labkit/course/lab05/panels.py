"""Panels of lab 05: the context that locked weights leave room for, and a run while another program takes memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from labkit import predict
from labkit.course import figures
from labkit.course.lab05.figures.latency import spread
from labkit.course.panelkit import CACHES, Panel, Runner, axis_end, check, choice, less_or_more, slider, steps, sum_of
from labkit.models import lookup
from labkit.planning.context import CONTEXTS, longest_surviving_context, needed, pinned_bytes
from labkit.progress import Progress
from labkit.settings import Settings
from labkit.units import GiB, MiB, fmt_bytes, fmt_ms, parse_bytes

__all__ = ["LockBudget", "PressureRun"]

if TYPE_CHECKING:
    from labkit.experiments.pressure import Pressured
    from labkit.gguf import Header
    from labkit.predict import Predicted

MODELS = (
    "llama-2-7b:Q4_K_M",
    "llama-2-13b:Q4_K_M",
    "llama-3.1-8b:Q4_K_M",
    "llama-3.2-1b:Q4_K_M",
    "qwen3-30b-a3b:Q4_K_M",
)
LIMITS_GIB = (1, 2, 4, 6, 8, 14, 22, 30, 62)
SLIDER_CONTEXTS = tuple(range(1024, 32768 + 1, 1024))
MODES = ("mmap", "mmap+mlock", "none", "mlock")
BALLASTS = (("file-backed", "file"), ("anonymous", "anonymous"))


class LockBudget(Panel):
    """Choose a model, a context and a limit, and see whether the model runs within it, locked or not. Nothing is run.

    Args:
        models: names such as ``llama-2-7b:Q4_K_M``; no file is needed.
        limit_gib: the limit shown first.
        cpu_features: what ggml repacks for when repacking is on; by default AVX2's.
    """

    def __init__(
        self, models: Sequence[str] = MODELS, *, limit_gib: float = 8, cpu_features: Sequence[str] = ("avx2",)
    ) -> None:
        self._features = tuple(cpu_features)
        limits = [(f"{n:g} GiB", n) for n in sorted({*LIMITS_GIB, limit_gib})]
        self.model = choice("model", models)
        self.limit = choice("cap or RAM", limits, value=limit_gib, width="180px")
        self.cache = choice("cache", CACHES, width="120px")
        self.n_ctx = steps("n_ctx", SLIDER_CONTEXTS, value=4096)
        self.locked = check("lock the weights", value=True)
        self.repack = check("repack", value=False)
        rows = [self.model, self.limit, self.cache], [self.n_ctx, self.locked, self.repack]
        super().__init__(*rows)
        self.on_change(self.redraw, *rows[0], *rows[1])
        self.redraw()

    def draw(self) -> None:
        known, limit = lookup.header(self.model.value), int(self.limit.value * GiB)
        chosen = Settings(
            load_mode="mmap+mlock" if self.locked.value else "mmap",
            repack=self.repack.value,
            n_ctx=self.n_ctx.value,
            type_k=self.cache.value,
            type_v=self.cache.value,
        )
        predict.check(known, chosen)
        figure = figures.lock_budget(
            known,
            chosen,
            limit_bytes=limit,
            selected=chosen.n_ctx,
            last=SLIDER_CONTEXTS[-1],
            # The axis depends on model and limit alone, so that the picture shows what the other controls change.
            top_bytes=axis_end(1.3 * max(limit, known.tensor_bytes)),
            cpu_features=self._features,
        )
        self.show(figure)
        p = needed(known, chosen, chosen.n_ctx, cpu_features=self._features)
        must = pinned_bytes(p)
        self.write(
            f"{self.model.value}, {chosen.n_ctx:,} tokens of context: {_parts(p)} = {fmt_bytes(must)} that must "
            f"stay in memory, {less_or_more(must, limit)} than {fmt_bytes(limit)}: {_fate(p, limit)}.",
            f"The longest context that is not killed: {self._longest(known, chosen, limit, 'mmap+mlock')} with locked "
            f"weights, {self._longest(known, chosen, limit, 'mmap')} with weights that the kernel may drop.",
        )

    def _longest(self, known: Header, chosen: Settings, limit: int, load_mode: str) -> str:
        """The longest context that survives in this load mode, as text."""
        n = longest_surviving_context(known, replace(chosen, load_mode=load_mode), limit, cpu_features=self._features)
        return "none" if not n else f"{n:,} tokens" if n < CONTEXTS[-1] else f"{n:,} tokens or more"


def _parts(p: Predicted) -> str:
    """What must stay in memory, part by part."""
    return sum_of(
        {
            "locked weights": p.locked_bytes,
            "repack copy": p.repack_bytes,
            "cache": p.kv_bytes + p.recurrent_bytes,
            "buffers": p.compute_bytes + p.output_bytes,
            "Python": p.python_bytes,
        }
    )


def _fate(p: Predicted, limit: int) -> str:
    """What becomes of the process under a limit."""
    must = pinned_bytes(p)
    droppable = max(0, p.mapped_bytes - p.repack_bytes)  # mapped weights, less those of which a copy is used
    if must > limit:
        return "the kernel kills it"
    if not p.locked_bytes and must + droppable > limit:
        return "it runs, and reads weights from the disk again and again"
    return "it runs, and reads no weight twice"


class PressureRun(Panel):
    """Run a model under one cap with a ballast, a second program that takes memory, and compare the times per token.

    Args:
        cap: of both together, in bytes or as ``"1100MiB"``.
        rows: measured already by ``pressure.pressured``. The last four are drawn.
        model: see ``measure``.
        tokens: to time in each run.
        most_bytes: the largest ballast to choose; by default half of the cap.
        settings: further ones for ``pressured``, such as ``n_ctx``.
    """

    SHOWN = 4

    def __init__(
        self,
        cap: int | str,
        *,
        rows: Sequence[Pressured] = (),
        model: str = "llama-3.2-1b:Q4_K_M:filled",
        tokens: int = 8,
        most_bytes: int | None = None,
        **settings: Any,
    ) -> None:
        self._cap, self._model, self._tokens = parse_bytes(cap), model, tokens
        self._settings = {"n_threads": 1, "repack": False} | settings
        self.rows = list(rows)
        most = (most_bytes or self._cap // 2) // MiB
        step = max(most // 32, 1)
        half = most // 2 // step * step
        self.load_mode = choice("load_mode", MODES)
        self.ballast = slider("ballast, MiB", least=step, most=most, step=step, value=half, width="420px")
        self.kind = choice("ballast's pages", BALLASTS, width="220px")
        self.runner = Runner("Run under pressure", self._measure)
        super().__init__([self.load_mode, self.ballast, self.kind], self.runner.row)
        self.write(f"Model and ballast share a cap of {fmt_bytes(self._cap)}.")
        self.redraw()

    def _measure(self, progress: Progress, cancel: threading.Event) -> None:
        from labkit.experiments import pressure

        row = pressure.pressured(
            self._model,
            cap=self._cap,
            ballast=self.ballast.value * MiB,
            kind=self.kind.value,
            load_mode=self.load_mode.value,
            tokens=self._tokens,
            progress=progress,
            cancel=cancel,
            **self._settings,
        )
        self.add(row)
        self.runner.write_outcome(row.outcome, row.reason)

    def add(self, row: Pressured) -> None:
        """Add a run, draw the last few, and say how long its tokens took."""
        self.rows.append(row)
        self.redraw()
        said = f"{_label(row)}: {row.outcome}"
        if row.during_ms:
            middle, tail, worst = spread(row.during_ms)
            said += f"; median {fmt_ms(middle)}, p95 {fmt_ms(tail)}, worst {fmt_ms(worst)} per token under pressure"
        elif row.reason:
            said += f", {row.reason}"
        self.write(said)

    def draw(self) -> None:
        if self.rows:
            shown = self.rows[-self.SHOWN :]
            self.show(figures.latency(shown, labels=[_label(row) for row in shown]))


def _label(row: Pressured) -> str:
    """A run by its load mode and its ballast."""
    return f"{row.run.settings.load_mode}, {row.kind} ballast {fmt_bytes(row.ballast_bytes)}"
