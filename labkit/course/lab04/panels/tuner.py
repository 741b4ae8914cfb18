"""A panel that shows how many layers fit into a device's memory."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from labkit import predict
from labkit.course import figures
from labkit.course.lab04.panels.models import CONTEXTS, MODELS, most_bytes
from labkit.course.panelkit import CACHES, Panel, check, choice, paragraph, slider
from labkit.models import lookup
from labkit.planning.flags import flags
from labkit.planning.tuner import experts_regex, tune
from labkit.predict import Split
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes


class Tuner(Panel):
    """Set a device's memory, and see how many layers fit into it and which flags say so. Nothing is run.

    Args:
        models: names such as ``llama-2-13b:Q4_K_M``; no file is needed.
        vram_gib: the device's memory at first.
    """

    def __init__(self, models: Sequence[str] = MODELS, *, vram_gib: float = 10) -> None:
        self.model = choice("model", models)
        self.vram = slider("VRAM, GiB", least=0.5, most=48, step=0.5, value=vram_gib, readout_format=".1f")
        self.n_ctx = choice("n_ctx", CONTEXTS, value=4096, width="130px")
        self.cache = choice("cache", CACHES, width="120px")
        margins = [(fmt_bytes(n) if n else "0", n) for n in (0, GiB // 2, GiB)]
        self.margin = choice("kept free", margins, value=GiB, width="170px")
        self.experts = check("experts on the CPU", value=False)
        rows = [self.model, self.vram], [self.n_ctx, self.cache, self.margin, self.experts]
        super().__init__(*rows)
        self.on_change(self.redraw, *rows[0], *rows[1])
        self.redraw()

    def draw(self) -> None:
        model, known = self.model.value, lookup.header(self.model.value)
        chosen = Settings(n_ctx=self.n_ctx.value, type_k=self.cache.value, type_v=self.cache.value)
        self.experts.disabled = not known.key("expert_count")
        vram, experts = int(self.vram.value * GiB), self.experts.value and not self.experts.disabled
        predict.check(known, chosen)
        how = {"margin": self.margin.value, "experts_on_cpu": experts, "pinned_host": True}
        tuned = tune(known, vram=vram, settings=chosen, **how)
        figure = figures.tuner_search(
            tuned,
            vram_bytes=vram,
            margin_bytes=self.margin.value,
            splits=_splits(model, chosen, experts),
            top_bytes=int(1.25 * most_bytes(model)),
        )
        self.show(figure)
        first = f"n_gpu_layers {tuned.n_gpu_layers} of {known.n_layer + 1}: {tuned.reason}"
        start = flags(
            f"{model.replace(':', '-')}.gguf",
            replace(chosen, n_gpu_layers=tuned.n_gpu_layers),
            n_layer=known.n_layer,
            n_cpu_moe=tuned.n_cpu_moe,
        )
        self.text.value = paragraph(first) + (_code(start) if tuned.fits else "")


@lru_cache
def _splits(model: str, settings: Settings, experts: bool) -> dict[int, Split]:
    """Every choice of a tuner: by ``n_gpu_layers``, or with everything on the device by ``n_cpu_moe``."""
    known = lookup.header(model)
    every = known.n_layer + 1
    if experts:
        whole = replace(settings, n_gpu_layers=every)
        return {n: predict.offload(known, whole, on_cpu=experts_regex(n), pinned_host=True) for n in range(every)}
    return {n: predict.offload(known, replace(settings, n_gpu_layers=n), pinned_host=True) for n in range(every + 1)}


def _code(texts: Mapping[str, str]) -> str:
    """Commands and files to copy, each below the program's name, as HTML."""
    lines = "\n".join(f"{program}:\n{text}" for program, text in texts.items())
    return f'<pre style="white-space:pre-wrap;line-height:1.3">{html.escape(lines)}</pre>'
