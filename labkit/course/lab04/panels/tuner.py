"""A panel around the tuner: how many layers a device can hold."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ipywidgets as widgets

from labkit import predict
from labkit.course import figures
from labkit.course.lab04.panels.offload import CACHES, CONTEXTS, MODELS, header, most_bytes, wide
from labkit.course.panelkit import WIDE, draw, image, refuse, say
from labkit.planning.flags import flags
from labkit.planning.tuner import experts_regex, tune
from labkit.predict import Split
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes


@lru_cache
def _splits(model: str, settings: Settings, experts: bool) -> dict[int, Split]:
    """Every choice of a tuner: by ``n_gpu_layers``, or with everything on the device by ``n_cpu_moe``."""
    known = header(model)
    every = known.n_layer + 1
    if experts:
        whole = replace(settings, n_gpu_layers=every)
        return {n: predict.offload(known, whole, on_cpu=experts_regex(n), pinned_host=True) for n in range(every)}
    return {n: predict.offload(known, replace(settings, n_gpu_layers=n), pinned_host=True) for n in range(every + 1)}


class Tuner:
    """Set a device's memory, and see how many layers it can hold and how to say so. Nothing is run.

    Args:
        models: names such as ``llama-2-13b:Q4_K_M``; no file is needed.
        vram_gib: the device's memory at first.
    """

    def __init__(self, models: Sequence[str] = MODELS, *, vram_gib: float = 10) -> None:
        self.model = widgets.Dropdown(options=list(models), description="model", style=WIDE)
        self.vram = wide(
            widgets.FloatSlider(
                value=vram_gib,
                min=0.5,
                max=48,
                step=0.5,
                readout_format=".1f",
                description="VRAM, GiB",
                continuous_update=False,
                style=WIDE,
            ),
            "480px",
        )
        self.margin = widgets.Dropdown(
            options=[(fmt_bytes(n) if n else "0", n) for n in (0, GiB // 2, GiB)],
            value=GiB,
            description="margin",
            style=WIDE,
        )
        self.n_ctx = widgets.Dropdown(
            options=[(f"{n:,}", n) for n in CONTEXTS], value=4096, description="n_ctx", style=WIDE
        )
        self.cache = widgets.Dropdown(options=list(CACHES), description="cache", style=WIDE)
        self.experts = widgets.Checkbox(value=False, description="experts on the CPU", indent=False)
        for control, width in ((self.margin, "150px"), (self.n_ctx, "130px"), (self.cache, "120px")):
            wide(control, width)
        self.image = image()
        self.text = widgets.HTML("")
        for control in (self.model, self.vram, self.margin, self.n_ctx, self.cache, self.experts):
            control.observe(lambda change: self._draw(), names="value")
        self._draw()
        rows = [[self.model, self.vram], [self.n_ctx, self.cache, self.margin, self.experts]]
        self.view = widgets.VBox([*(widgets.HBox(row) for row in rows), self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _draw(self) -> None:
        model, known = self.model.value, header(self.model.value)
        chosen = Settings(n_ctx=self.n_ctx.value, type_k=self.cache.value, type_v=self.cache.value)
        self.experts.disabled = not known.key("expert_count")
        vram, experts = int(self.vram.value * GiB), self.experts.value and not self.experts.disabled
        try:
            predict.check(known, chosen)
            tuned = tune(
                known,
                vram=vram,
                settings=chosen,
                margin=self.margin.value,
                experts_on_cpu=experts,
                pinned_host=True,
            )
        except ValueError as error:
            refuse(self.image, self.text, error)
            return
        shown = figures.tuner_search(
            tuned,
            vram_bytes=vram,
            margin_bytes=self.margin.value,
            splits=_splits(model, chosen, experts),
            top_bytes=int(1.25 * most_bytes(model)),
        )
        draw(self.image, figures.png(shown))
        start = flags(
            f"{model.replace(':', '-')}.gguf",
            replace(chosen, n_gpu_layers=tuned.n_gpu_layers),
            n_layer=known.n_layer,
            n_cpu_moe=tuned.n_cpu_moe,
        )
        first = f"n_gpu_layers {tuned.n_gpu_layers} of {known.n_layer + 1}: {tuned.reason}"
        self.text.value = say(first) + (_code(start) if tuned.fits else "")


def _code(texts: Mapping[str, str]) -> str:
    """Commands and files to copy, by the program's name, as HTML."""
    lines = "\n".join(f"{program}:\n{text}" for program, text in texts.items())
    return f'<pre style="white-space:pre-wrap;line-height:1.3">{html.escape(lines)}</pre>'
