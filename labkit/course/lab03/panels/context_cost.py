"""A panel that shows what a context costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.panelkit import Panel, axis_end, choice, less_or_more, steps, sum_of
from labkit.models import lookup
from labkit.planning.context import CONTEXTS, budget, context_curve, longest_context
from labkit.settings import CACHE_TYPES, Settings
from labkit.units import GiB, fmt_bytes

MODELS = (
    "llama-2-13b:Q4_K_M",
    "llama-2-7b:Q4_K_M",
    "llama-3.1-8b:Q4_K_M",
    "gemma-3-12b:Q4_K_M",
    "qwen3-30b-a3b:Q4_K_M",
    "llama-3.2-1b:Q4_K_M",
)
SIZES_GIB = (8, 16, 24, 32, 64, 128)
SYSTEM_GIB = 2  # kept by the system and other programs
FURTHER_TOKENS = 8192  # over which the cost of one is averaged: cells come in padded numbers, and windows fill up


class ContextCost(Panel):
    """Choose a model, types of cache and a context, and see whether they fit in a machine's RAM. Nothing is run.

    Args:
        models: names such as ``llama-2-13b:Q4_K_M``, for which no file is needed; see ``lookup.find`` for others.
        machine_gib: RAM of the machine shown first, of which the system keeps 2 GiB.

    Raises:
        ValueError: ``machine_gib`` leaves nothing.
    """

    def __init__(self, models: Sequence[str] = MODELS, *, machine_gib: int = 16) -> None:
        if machine_gib <= SYSTEM_GIB:
            raise ValueError(f"machine_gib is {machine_gib}: the system keeps {SYSTEM_GIB} of it, so write more.")
        machines = [
            (f"{n} GiB, {SYSTEM_GIB} for the system", n - SYSTEM_GIB) for n in sorted({*SIZES_GIB, machine_gib})
        ]
        self.model = choice("model", models)
        self.limit = choice("RAM", machines, value=machine_gib - SYSTEM_GIB, width="220px")
        self.type_k = choice("type_k", CACHE_TYPES, value="f16", width="130px")
        self.type_v = choice("type_v", CACHE_TYPES, value="f16", width="130px")
        self.n_ctx = steps("n_ctx", CONTEXTS, value=8192, width="360px")
        self.n_seq = steps("n_seq_max", [1, 2, 4, 8, 16], width="360px")
        rows = [self.model, self.limit, self.type_k, self.type_v], [self.n_ctx, self.n_seq]
        super().__init__(*rows)
        self.on_change(self.redraw, *rows[0], *rows[1])
        self.redraw()

    def draw(self) -> None:
        header, limit = _header(self.model.value), self.limit.value * GiB
        chosen = Settings(
            n_ctx=self.n_ctx.value, n_seq_max=self.n_seq.value, type_k=self.type_k.value, type_v=self.type_v.value
        )
        predict.check(header, chosen)
        curve = context_curve(header, chosen, limit_bytes=limit)
        # The axis depends on the model and the machine alone, so that the picture shows what the other controls change.
        top = axis_end(1.6 * max(limit, header.tensor_bytes))
        self.show(figures.context_budget(curve, limit_bytes=limit, selected=chosen.n_ctx, top_bytes=top))
        self.write(self._needed(header, chosen, limit), self._most(header, chosen, limit))

    def _needed(self, header: gguf.Header, chosen: Settings, limit: int) -> str:
        """What the settings need, part by part, and how far that is from the limit."""
        row = budget(header, chosen)
        _, exact = predict.compute_bytes(header, chosen)
        types = chosen.type_k if chosen.type_k == chosen.type_v else f"{chosen.type_k}/{chosen.type_v}"
        sequences = f" for {chosen.n_seq_max} sequences" if chosen.n_seq_max > 1 else ""
        parts = {
            "weights": row.weights_bytes,
            "cache": row.kv_bytes,
            "buffers" if exact else "buffers (estimated)": row.compute_bytes,
        }
        return (
            f"{self.model.value}, {chosen.n_ctx:,} tokens of context{sequences}, {types}: {sum_of(parts)} = "
            f"{fmt_bytes(row.bytes)}, {less_or_more(row.bytes, limit)} than the limit of {fmt_bytes(limit)}."
        )

    def _most(self, header: gguf.Header, chosen: Settings, limit: int) -> str:
        """What a further token takes, and how many tokens fit."""
        further = replace(chosen, n_ctx=chosen.n_ctx + FURTHER_TOKENS * chosen.n_seq_max)
        grown = predict.kv_bytes(header, further) - predict.kv_bytes(header, chosen)
        each = fmt_bytes(grown / (FURTHER_TOKENS * chosen.n_seq_max))
        longest = longest_context(header, chosen, limit)
        if not longest:
            most = "No context fits"
        elif longest < CONTEXTS[-1]:
            most = f"The longest context that fits has {longest:,} tokens"
        else:
            most = f"A context of {longest:,} tokens fits, and a longer one may"
        return f"A further token of context takes {each}. {most}."


def _header(model: str) -> gguf.Header:
    """That of a shape and a mixture, or of a model's file."""
    return lookup.header(model) if ":" in model else gguf.read_header(lookup.find(model).path)
