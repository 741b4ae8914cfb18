"""Panels around the KV cache: what a context costs, which cell belongs to whom, what a quantized cache loses."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.panelkit import WIDE, Runner, draw, image, refuse, say, set_range
from labkit.experiments import cache_slots, cache_trace
from labkit.models import lookup
from labkit.models.forge import header_bytes
from labkit.planning.context import CONTEXTS, budget, context_curve, longest_context
from labkit.progress import Progress
from labkit.quant.cache_quality import CacheQuality as Measured
from labkit.quant.cache_quality import cache_quality
from labkit.settings import CACHE_TYPES, Settings, SettingsError
from labkit.units import GiB, fmt_bytes

__all__ = ["CacheQuality", "ContextCost", "SlotMap"]

MODELS = (
    "llama-2-13b:Q4_K_M",
    "llama-2-7b:Q4_K_M",
    "llama-3.1-8b:Q4_K_M",
    "gemma-3-12b:Q4_K_M",
    "qwen3-30b-a3b:Q4_K_M",
    "llama-3.2-1b:Q4_K_M",
)
_MACHINES = (8, 16, 24, 32, 64, 128)  # GiB, of which the system keeps 2


@cache
def _header(model: str) -> gguf.Header:
    shape, colon, quant = model.partition(":")
    return gguf.read_header(header_bytes(shape, quant) if colon else lookup.find(model).path)


class ContextCost:
    """Choose a model, a kind of cache and a length, and see what they need against a limit. Nothing is run.

    Args:
        models: names such as ``llama-2-13b:Q4_K_M``; no file is needed.
        machine_gib: memory of the machine shown first, of which the system keeps 2 GiB.
    """

    def __init__(self, models: Sequence[str] = MODELS, *, machine_gib: int = 16) -> None:
        if machine_gib <= 2:
            raise ValueError(f"machine_gib is {machine_gib}: the system keeps 2 of it, so write more.")
        machines = sorted({*_MACHINES, machine_gib})
        self.model = widgets.Dropdown(options=list(models), description="model", style=WIDE)
        self.limit = widgets.Dropdown(
            options=[(f"{n} GiB less 2", n - 2) for n in machines],
            value=machine_gib - 2,
            description="machine",
            style=WIDE,
        )
        self.type_k = widgets.Dropdown(options=list(CACHE_TYPES), value="f16", description="type_k", style=WIDE)
        self.type_v = widgets.Dropdown(options=list(CACHE_TYPES), value="f16", description="type_v", style=WIDE)
        self.n_ctx = widgets.SelectionSlider(
            options=[(f"{n:,}", n) for n in CONTEXTS],
            value=8192,
            description="n_ctx",
            continuous_update=False,
            style=WIDE,
        )
        self.n_seq = widgets.SelectionSlider(
            options=[1, 2, 4, 8, 16], description="n_seq_max", continuous_update=False, style=WIDE
        )
        for dropdown in (self.limit, self.type_k, self.type_v):
            dropdown.layout.width = "190px"
        for slider in (self.n_ctx, self.n_seq):
            slider.layout.width = "360px"
        self.image = image()
        self.text = widgets.HTML("")
        controls = (self.model, self.limit, self.type_k, self.type_v, self.n_ctx, self.n_seq)
        for control in controls:
            control.observe(lambda change: self._draw(), names="value")
        self._draw()
        rows = [widgets.HBox(list(controls[:4])), widgets.HBox(list(controls[4:]))]
        self.view = widgets.VBox([*rows, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _draw(self) -> None:
        header, limit = _header(self.model.value), self.limit.value * GiB
        try:
            chosen = Settings(
                n_ctx=self.n_ctx.value, n_seq_max=self.n_seq.value, type_k=self.type_k.value, type_v=self.type_v.value
            )
            predict.check(header, chosen)
        except SettingsError as error:
            refuse(self.image, self.text, error)
            return
        # The axis depends on the model and the machine alone: what the other controls change must not change it too.
        top = 1 << math.ceil(math.log2(1.6 * max(limit, header.tensor_bytes)))
        curve = context_curve(header, chosen, limit_bytes=limit)
        shown = figures.context_budget(curve, limit_bytes=limit, selected=chosen.n_ctx, top_bytes=top)
        draw(self.image, figures.png(shown))
        self.text.value = "".join(say(line) for line in self._lines(header, chosen, limit))

    def _lines(self, header: gguf.Header, chosen: Settings, limit: int) -> list[str]:
        row = budget(header, chosen)
        _, exact = predict.compute_bytes(header, chosen)
        types = chosen.type_k if chosen.type_k == chosen.type_v else f"{chosen.type_k}/{chosen.type_v}"
        room = limit - row.bytes
        sequences = f" for {chosen.n_seq_max} sequences" if chosen.n_seq_max > 1 else ""
        needed = (
            f"{self.model.value}, {chosen.n_ctx:,} tokens of context{sequences}, {types}: weights "
            f"{fmt_bytes(row.weights_bytes)} + cache {fmt_bytes(row.kv_bytes)} + buffers "
            f"{'' if exact else 'about '}{fmt_bytes(row.compute_bytes)} = {fmt_bytes(row.bytes)}, "
            f"{fmt_bytes(abs(room))} {'less' if room >= 0 else 'more'} than the limit of {fmt_bytes(limit)}."
        )
        longest = longest_context(header, chosen, limit)
        most = f"up to {longest:,} tokens of context" if longest < CONTEXTS[-1] else f"{longest:,} tokens and more"
        step = 8192  # so many more, since cells come in padded numbers and windows fill up
        more = predict.kv_bytes(header, replace(chosen, n_ctx=chosen.n_ctx + step * chosen.n_seq_max))
        further = (more - predict.kv_bytes(header, chosen)) / (step * chosen.n_seq_max)
        each = f"A further token of context takes {fmt_bytes(further)}."
        return [needed, f"{each} {'No context fits.' if not longest else f'Memory is enough for {most}.'}"]


def traces() -> dict[str, tuple[cache_trace.Step, ...]]:
    """Traces worth watching, by name; each fits 256 cells until its last step or so."""
    return {
        "requests come and go": cache_slots.demo_trace(),
        "a long chat makes room": (
            cache_trace.add(0, 200),
            cache_trace.add(0, 60),
            *cache_trace.context_shift(0, n_keep=20, n_discard=90),
            cache_trace.add(0, 60),
        ),
        "three share a beginning": (
            cache_trace.add(0, 100),
            cache_trace.copy(0, 1),
            cache_trace.copy(0, 2),
            cache_trace.add(0, 30),
            cache_trace.add(1, 30),
            cache_trace.add(2, 30),
            cache_trace.remove(0),
            cache_trace.remove(2),
            cache_trace.remove(1),
        ),
    }


class SlotMap:
    """Run a trace in llama.cpp, then step through it and see which cell belongs to which sequence.

    Args:
        named: traces by name; without it, ``traces()``.
        snapshots: of an earlier ``slots.slot_map``, shown until something is run.
    """

    def __init__(
        self,
        named: Mapping[str, Sequence[cache_trace.Step]] | None = None,
        *,
        snapshots: Sequence[cache_slots.Snapshot] = (),
    ) -> None:
        self._named = dict(named) if named is not None else traces()
        self.snapshots = tuple(snapshots)
        self.trace = widgets.Dropdown(options=list(self._named), description="trace", style=WIDE)
        self.n_ctx = widgets.Dropdown(options=[256, 512, 1024], description="n_ctx", style=WIDE)
        self.unified = widgets.Checkbox(value=True, description="kv_unified", indent=False)
        self.step = widgets.IntSlider(
            value=0, min=0, max=0, description="step", continuous_update=False, style=WIDE, readout=False
        )
        self.step.layout.width = "480px"
        self.n_ctx.layout.width = "140px"
        self.image = image()
        self.text = widgets.HTML(say("Run a trace to see its cells."))
        self.runner = Runner("Run the trace", self._run)
        self.step.observe(self._stepped, names="value")
        if self.snapshots:
            self._show()
        controls = widgets.HBox([self.trace, self.n_ctx, self.unified])
        self.view = widgets.VBox([controls, self.runner.row, self.step, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _run(self, progress: Progress, cancel: threading.Event) -> None:
        self.snapshots = cache_slots.slot_map(
            self._named[self.trace.value],
            n_ctx=self.n_ctx.value,
            kv_unified=self.unified.value,
            progress=progress,
            cancel=cancel,
        )
        self._show()
        self.runner.state.value = say(f"{len(self.snapshots)} steps ran")

    def _show(self) -> None:
        """Fit the slider to the trace, at its last step."""
        last = len(self.snapshots) - 1
        set_range(self.step, most=last, value=last, seen_by=self._stepped)
        self._draw()

    def _stepped(self, change: Any) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self.snapshots:
            return
        n = min(self.step.value, len(self.snapshots) - 1)
        shown = self.snapshots[n]
        self.image.value = figures.png(figures.slot_map(self.snapshots, selected=n))
        where = f"step {n + 1} of {len(self.snapshots)}, {shown.step}"
        self.text.value = say(f"{where}: {shown.note}. {shown.used} of {len(shown.cells)} cells are in use.")


class CacheQuality:
    """Choose a pair of cache types, compare it with f16 on a small model, and add it to the table.

    Args:
        rows: what is known already, as ``cache_quality`` gives it; a new measurement of the same pair takes its place.
        model: the one that ``rows`` are about.
        tokens: how many of the text's tokens to read.
    """

    def __init__(self, rows: Sequence[Measured] = (), *, model: str | Path = lookup.BUNDLED, tokens: int = 256) -> None:
        self._model, self._tokens = model, tokens
        self.rows = {(row.type_k, row.type_v, row.rotated): row for row in rows}
        types = [name for name in CACHE_TYPES if name != "f32"]
        self.type_k = widgets.Dropdown(options=types, value="q5_1", description="type_k", style=WIDE)
        self.type_v = widgets.Dropdown(options=types, value="q4_0", description="type_v", style=WIDE)
        for dropdown in (self.type_k, self.type_v):
            dropdown.layout.width = "190px"
        self.rotation = widgets.Checkbox(value=True, description="rotate what is quantized", indent=False)
        self.image = image()
        self.text = widgets.HTML("")
        self.runner = Runner("Run the comparison", self._compare)
        self._draw()
        controls = widgets.HBox([self.type_k, self.type_v, self.rotation])
        self.view = widgets.VBox([controls, self.runner.row, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

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
        self._draw()
        self.runner.state.value = say("compared")
        done = {(True, True): "K and V were rotated", (True, False): "K was rotated", (False, True): "V was rotated"}
        turned = done.get((row.k_rotated, row.v_rotated), "nothing was rotated")
        found = row.quality
        self.text.value = say(
            f"{row.type_k}/{row.type_v}, {turned}: divergence {found.kld_mean:.5f} ± {found.kld_mean_error:.5f} nats "
            f"over {found.n_tokens} tokens, the same likeliest token for {100 * found.top1:.1f} %."
        )

    def _draw(self) -> None:
        if self.rows:
            self.image.value = figures.png(figures.cache_quality(list(self.rows.values())))
