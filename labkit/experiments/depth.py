"""Decode speed against depth: how much slower a token becomes as the cache before it fills.

A token reads the weights once and the cache up to where it stands: ``predict.bytes_per_token(header, settings,
n_past=…)`` bytes. Over a bandwidth, that is the least time it can take, a straight line. The measured line is steeper
where the processor sets the speed. The CPU's attention goes through the cache once for each query head, not once for
each K/V head, and makes f32 of all V but f16 each time (ggml_compute_forward_flash_attn_ext_f16_one_chunk in
ggml/src/ggml-cpu/ops.cpp): a quantized cache has fewer bytes, and may well be slower.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.experiments.child import task
from labkit.experiments.child.tokens import made_up_tokens
from labkit.models import lookup
from labkit.progress import Progress, bar
from labkit.settings import Settings

Row = str | tuple[str, str] | tuple[str, str, str]
"""A kind of cache: one type for K and V, a pair, or a pair and flash_attn (``("f16", "f16", "off")``)."""


@dataclass(frozen=True)
class DepthSpeed:
    """Times of single tokens in one kind of cache at one depth.

    Attributes:
        n_past: tokens in the cache before the first of the timed ones. Each of these stays, so the last was decoded
            with ``len(decode_ms) - 1`` more.
        decode_ms: time of each timed token, in order.
        fill_tokens: tokens decoded in batches to come here from the depth before.
        fill_s: time they took; 0 where there were none.
    """

    type_k: str
    type_v: str
    flash_attn: str
    n_past: int
    decode_ms: tuple[float, ...]
    fill_tokens: int
    fill_s: float

    @property
    def median_ms(self) -> float:
        """Median of ``decode_ms``."""
        return statistics.median(self.decode_ms)

    @property
    def fastest_ms(self) -> float:
        """Least of ``decode_ms``: on a computer busy with other work, the one that was disturbed least."""
        return min(self.decode_ms)


def speed_at_depth(
    model: str | Path = "smollm2",
    *,
    types: Sequence[Row] = ("f16", "q8_0", "q4_0"),
    depths: Sequence[int] = (0, 512, 1024),
    repeats: int = 16,
    flash_attn: str = "on",
    threads: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[DepthSpeed, ...]:
    """Time single tokens at several depths of the cache, in a child process with one model and one context per type.

    All contexts are filled to a depth in batches; then they take turns, a token each, so that background load slows
    all of them alike. Compare rows at one depth, not of two calls. Filling takes most of the time, and its time grows
    with the square of the depth.

    Args:
        model: a path, ``smollm2``, or ``SHAPE:QUANT``.
        types: kinds of cache, see ``Row``.
        depths: tokens in the cache when timing begins; at least ``repeats`` apart.
        repeats: tokens timed at each depth, in each context.
        flash_attn: ``on``, ``off`` or ``auto``, for rows that do not say.
        threads: by default one less than there are cores.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, timing ends.

    Returns:
        For each depth, from shallow to deep, one entry for each of ``types`` in order.

    Raises:
        SettingsError: a type or ``flash_attn`` is unknown, or they contradict each other.
        GGUFError, ModelError: there is no such model, or it cannot be read.
        TaskError: depths or repeats make no sense, or llama.cpp refused, for instance for want of memory.
        Cancelled: ``cancel`` was set.
    """
    deep = sorted(set(depths))
    if repeats < 1 or not types or not deep or deep[0] < 0:
        raise task.TaskError("give at least one type, one repeat and one depth, which may be 0.")
    for depth, next_depth in itertools.pairwise(deep):
        if next_depth - depth < repeats:
            raise task.TaskError(f"depths {depth} and {next_depth} are less than {repeats} repeats apart: spread them.")
    threads = threads or task.default_threads()
    rows = [_settings(row, flash_attn, n_ctx=deep[-1] + repeats, threads=threads) for row in types]
    found = lookup.find(model)
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("timing"))
        job = {
            "model": str(found.path),
            "settings": [row.to_dict() for row in rows],
            "depths": deep,
            "repeats": repeats,
        }
        result = task.run(
            "labkit.experiments.depth:in_child",
            job,
            what=f"timing {found.name}",
            on_step=lambda event: report(event["share"], f"depth {event['depth']:,}"),
            cancel=cancel,
        )
    return tuple(DepthSpeed(**{**one, "decode_ms": tuple(one["decode_ms"])}) for one in result["speeds"])


def _settings(row: Row, flash_attn: str, *, n_ctx: int, threads: int) -> Settings:
    type_k, type_v, *fa = (row, row) if isinstance(row, str) else row
    return Settings(
        n_ctx=n_ctx,
        type_k=type_k,
        type_v=type_v,
        flash_attn=fa[0] if fa else flash_attn,
        n_threads=threads,
        n_batch=512,
        n_outputs_max=1,  # only the last token's logits are wanted
    )


def in_child(
    *,
    model: str,
    settings: Sequence[Mapping[str, Any]],
    depths: Sequence[int],
    repeats: int,
    send: Callable[..., None],
) -> dict[str, Any]:
    """The child's part of ``speed_at_depth``."""
    from labkit import engine

    rows = [Settings.of(one) for one in settings]
    with ExitStack() as stack:
        opened = stack.enter_context(engine.Model(Path(model), rows[0]))
        contexts = [stack.enter_context(engine.Context(opened, row)) for row in rows]

        def timed(context: engine.Context, n: int) -> float:
            if not n:
                return 0.0
            tokens = made_up_tokens(n, opened.n_vocab, first=context.n_past)
            start = time.perf_counter()
            context.decode(tokens)
            return time.perf_counter() - start

        for context in contexts:
            timed(context, 1)  # the first token takes longer, since its memory was never touched
            context.clear()
        speeds: list[dict[str, Any]] = []
        for depth in depths:
            here: list[dict[str, Any]] = []
            for one, context in zip(rows, contexts, strict=True):
                send("filling", depth=depth, share=context.n_past / one.n_ctx)
                fill = depth - context.n_past
                here.append(
                    {
                        "type_k": one.type_k,
                        "type_v": one.type_v,
                        "flash_attn": one.flash_attn,
                        "n_past": depth,
                        "decode_ms": [],
                        "fill_tokens": fill,
                        "fill_s": timed(context, fill),
                    }
                )
            for _ in range(repeats):
                for speed, context in zip(here, contexts, strict=True):
                    speed["decode_ms"].append(timed(context, 1) * 1000)
            speeds += here
        return {"speeds": speeds}
