"""Panels around locked weights: the context they leave room for, and a run while another program takes memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from labkit import predict
from labkit.course import figures
from labkit.course.lab04.panels.offload import header, wide
from labkit.course.lab05.figures.latency import spread
from labkit.course.panelkit import WIDE, Runner, draw, image, refuse, say
from labkit.planning.context import CONTEXTS, longest_surviving_context, needed, pinned_bytes
from labkit.progress import Progress
from labkit.settings import Settings, SettingsError
from labkit.units import GiB, MiB, fmt_bytes, fmt_ms, parse_bytes

__all__ = ["LockBudget", "PressureRun"]

if TYPE_CHECKING:
    from labkit.experiments.pressure import Pressured
    from labkit.gguf import Header

MODELS = (
    "llama-2-7b:Q4_K_M",
    "llama-2-13b:Q4_K_M",
    "llama-3.1-8b:Q4_K_M",
    "llama-3.2-1b:Q4_K_M",
    "qwen3-30b-a3b:Q4_K_M",
)
CACHES = ("f16", "q8_0", "q4_0")
LIMITS = (1, 2, 4, 6, 8, 14, 22, 30, 62)  # GiB
SLIDER_CONTEXTS = tuple(range(1024, 32768 + 1, 1024))
MODES = ("mmap", "mmap+mlock", "none", "mlock")


class LockBudget:
    """Choose a model, a context and a limit, and see whether it lives with its weights locked. Nothing is run.

    Args:
        models: names such as ``llama-2-7b:Q4_K_M``; no file is needed.
        limit_gib: the limit shown first.
        cpu_features: what ggml repacks for when repacking is on; by default AVX2's.
    """

    def __init__(
        self, models: Sequence[str] = MODELS, *, limit_gib: float = 8, cpu_features: Sequence[str] = ("avx2",)
    ) -> None:
        self._features = tuple(cpu_features)
        self.model = widgets.Dropdown(options=list(models), description="model", style=WIDE)
        sizes = sorted({*LIMITS, limit_gib})
        self.limit = wide(
            widgets.Dropdown(
                options=[(f"{n:g} GiB", n) for n in sizes], value=limit_gib, description="cap or RAM", style=WIDE
            ),
            "180px",
        )
        self.n_ctx = wide(
            widgets.SelectionSlider(
                options=[(f"{n:,}", n) for n in SLIDER_CONTEXTS],
                value=4096,
                description="n_ctx",
                continuous_update=False,
                style=WIDE,
            ),
            "480px",
        )
        self.cache = wide(widgets.Dropdown(options=list(CACHES), description="cache", style=WIDE), "120px")
        self.locked = widgets.Checkbox(value=True, description="lock the weights", indent=False)
        self.repack = widgets.Checkbox(value=False, description="repack", indent=False)
        self.image = image()
        self.text = widgets.HTML("")
        for control in (self.model, self.limit, self.n_ctx, self.cache, self.locked, self.repack):
            control.observe(lambda change: self._draw(), names="value")
        self._draw()
        rows = [[self.model, self.limit, self.cache], [self.n_ctx, self.locked, self.repack]]
        self.view = widgets.VBox([*(widgets.HBox(row) for row in rows), self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _draw(self) -> None:
        known, limit = header(self.model.value), int(self.limit.value * GiB)
        chosen = Settings(
            load_mode="mmap+mlock" if self.locked.value else "mmap",
            repack=self.repack.value,
            n_ctx=self.n_ctx.value,
            type_k=self.cache.value,
            type_v=self.cache.value,
        )
        try:
            predict.check(known, chosen)
        except SettingsError as error:
            refuse(self.image, self.text, error)
            return
        # The axis depends on the model and the limit alone: what the other controls change must not change it too.
        top = 1 << math.ceil(math.log2(1.3 * max(limit, known.tensor_bytes)))
        shown = figures.lock_budget(
            known,
            chosen,
            limit_bytes=limit,
            selected=chosen.n_ctx,
            last=SLIDER_CONTEXTS[-1],
            top_bytes=top,
            cpu_features=self._features,
        )
        draw(self.image, figures.png(shown))
        self.text.value = "".join(say(line) for line in self._lines(known, chosen, limit))

    def _lines(self, known: Header, chosen: Settings, limit: int) -> list[str]:
        how: dict[str, Any] = {"cpu_features": self._features}
        p = needed(known, chosen, chosen.n_ctx, **how)
        must = pinned_bytes(p)
        parts = {
            "locked weights": p.locked_bytes,
            "repack copy": p.repack_bytes,
            "cache": p.kv_bytes + p.recurrent_bytes,
            "buffers": p.compute_bytes + p.output_bytes,
            "Python": p.python_bytes,
        }
        said = " + ".join(f"{name} {fmt_bytes(size)}" for name, size in parts.items() if size)
        side = "less" if must <= limit else "more"
        if must > limit:
            fate = "the kernel kills it"
        elif not p.locked_bytes and must + max(0, p.mapped_bytes - p.repack_bytes) > limit:  # copies replace pages
            fate = "it lives, and reads weights from the disk again and again"
        else:
            fate = "it lives, and nothing of it is read twice"
        loose = longest_surviving_context(known, replace(chosen, load_mode="mmap"), limit, **how)
        locked = longest_surviving_context(known, replace(chosen, load_mode="mmap+mlock"), limit, **how)
        return [
            f"{self.model.value}, {chosen.n_ctx:,} tokens of context: {said} = {fmt_bytes(must)} that must stay, "
            f"{fmt_bytes(abs(limit - must))} {side} than {fmt_bytes(limit)}: {fate}.",
            f"Longest context that survives: {_tokens(locked)} locked, {_tokens(loose)} with weights that give way.",
        ]


class PressureRun:
    """Choose a load mode and how much a second program takes, run both under one cap, and compare token times.

    Args:
        cap: of both together, in bytes or as ``"1100MiB"``.
        rows: what is known already, as ``pressure.pressured`` gives it.
        model: see ``measure``.
        tokens: to time in each run.
        most_bytes: right end of the ballast slider; by default half of the cap.
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
        self.load_mode = widgets.Dropdown(options=list(MODES), description="load_mode", style=WIDE)
        most = (most_bytes or self._cap // 2) // MiB
        step = max(most // 32, 1)
        self.ballast = wide(
            widgets.IntSlider(
                value=most // 2 // step * step,
                min=step,
                max=most,
                step=step,
                description="ballast, MiB",
                continuous_update=False,
                style=WIDE,
            ),
            "420px",
        )
        self.kind = wide(
            widgets.Dropdown(
                options=[("pages of a file", "file"), ("anonymous", "anonymous")], description="of", style=WIDE
            ),
            "170px",
        )
        self.image = image()
        self.text = widgets.HTML(say(f"Model and ballast share a cap of {fmt_bytes(self._cap)}."))
        self.runner = Runner("Run under pressure", self._press)
        self._draw()
        controls = widgets.HBox([self.load_mode, self.ballast, self.kind])
        self.view = widgets.VBox([controls, self.runner.row, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _press(self, progress: Progress, cancel: threading.Event) -> None:
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
        self.runner.state.value = say(row.outcome if row.outcome == "ok" else f"{row.outcome}: {row.reason}")

    def add(self, row: Pressured) -> None:
        """Add a run, and draw the last few."""
        self.rows.append(row)
        self._draw()
        said = f"{self._name(row)}: {row.outcome}"
        if row.during_ms:
            middle, tail, worst = spread(row.during_ms)
            said += f"; median {fmt_ms(middle)}, p95 {fmt_ms(tail)}, worst {fmt_ms(worst)} per token under pressure"
        elif row.reason:
            said += f", {row.reason}"
        self.text.value = say(said)

    @staticmethod
    def _name(row: Pressured) -> str:
        return f"{row.run.settings.load_mode}, {row.kind} ballast {fmt_bytes(row.ballast_bytes)}"

    def _draw(self) -> None:
        if self.rows:
            shown = self.rows[-self.SHOWN :]
            self.image.value = figures.png(figures.latency(shown, labels=[self._name(row) for row in shown]))


def _tokens(n: int) -> str:
    return "none" if not n else f"{n:,} tokens" if n < CONTEXTS[-1] else f"{n:,} tokens and more"
