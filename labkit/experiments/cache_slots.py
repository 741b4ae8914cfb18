"""Run a trace of steps through llama.cpp's KV cache, and map its cells after each step.

A cell holds one token's keys and values in every layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.engine.internals.slot_maps import EMPTY, SHARED
from labkit.experiments.cache_trace import (
    SlotsError,
    Step,
    add,
    check,
    clear,
    context_shift,
    copy,
    demo_trace,
    keep,
    remove,
    shift,
)
from labkit.experiments.child import task
from labkit.experiments.child.tokens import made_up_tokens
from labkit.models import lookup
from labkit.progress import Progress, bar

__all__ = [
    "SlotsError",
    "Snapshot",
    "Step",
    "add",
    "clear",
    "context_shift",
    "copy",
    "demo_trace",
    "keep",
    "remove",
    "shift",
    "slot_map",
]

N_CTX_MAX = 4096  # more cells cannot be distinguished in a picture


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The cache after one step, as llama.cpp reports it.

    ``cells`` has for each cell the number of its sequence, -1 if it is empty, -2 if several share it; ``positions``
    the position of its token, or -1. Both have shape (n_streams × cells of a stream,). ``heads`` is for each stream the
    cell at which the next search for room starts, and ``spans`` for each sequence its first and last position.
    ``status`` is llama_decode's: 0, or 1 when a batch found no room, and then nothing was placed.
    """

    step: Step
    status: int
    cells: NDArray[np.int64]
    positions: NDArray[np.int64]
    used: int
    heads: tuple[int, ...]
    spans: dict[int, tuple[int, int]]
    note: str

    @property
    def head(self) -> int:
        """Of the first stream, which is the only one with ``kv_unified``."""
        return self.heads[0]

    @property
    def n_streams(self) -> int:
        """How many caches are kept apart: one, or one for each sequence."""
        return len(self.heads)


def slot_map(
    trace: Sequence[Step],
    *,
    n_ctx: int = 256,
    n_seq_max: int = 4,
    kv_unified: bool = True,
    model: str | Path = lookup.BUNDLED,
    threads: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[Snapshot, ...]:
    """Run a trace in llama.cpp and read the cells after each step. The tokens are made up.

    How the cells are read without disturbing them: see ``engine.Context.slot_maps``.

    Args:
        n_ctx: cells, rounded up by llama.cpp to a multiple of 256. Without ``kv_unified`` each sequence has a stream of
            ``n_ctx / n_seq_max`` cells, rounded likewise.
        threads: by default one less than there are cores.

    Raises:
        SlotsError: a step is impossible or a size cannot be shown.
        ModelError: there is no such model.
        TaskError: a sequence to copy to is not empty, the model has no such cache, or llama.cpp failed.
        Cancelled: ``cancel`` was set.
    """
    check(trace, n_seq_max=n_seq_max)
    if not 1 <= n_ctx <= N_CTX_MAX:
        raise SlotsError(f"n_ctx is {n_ctx:,}: a picture of cells needs 1 to {N_CTX_MAX:,} of them.")
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("filling cells"))
        job = {
            "model": str(lookup.find(model).path),
            "trace": [asdict(step) for step in trace],
            "n_ctx": n_ctx,
            "n_seq_max": n_seq_max,
            "kv_unified": kv_unified,
            "threads": threads or task.default_threads(),
        }
        found: list[Snapshot] = []

        def on_step(event: dict[str, Any]) -> None:
            found.append(_snapshot(trace[len(found)], event, found[-1] if found else None))
            report(len(found) / len(trace), str(found[-1].step))

        task.run(
            "labkit.experiments.cache_slots:in_child", job, what="running the trace", on_step=on_step, cancel=cancel
        )
        return tuple(found)


def runs(wanted: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last index of each unbroken run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False])).astype(np.int8)))
    return [(int(start), int(end) - 1) for start, end in edges.reshape(-1, 2)]


def _snapshot(step: Step, event: dict[str, Any], before: Snapshot | None) -> Snapshot:
    """The cache after a step, from the child's event and the snapshot before it."""
    streams = event["streams"]
    cells = np.concatenate([np.array(stream["owners"], np.int64) for stream in streams])
    positions = np.concatenate([np.array(stream["positions"], np.int64) for stream in streams])
    found = Snapshot(
        step=step,
        status=event["status"],
        cells=cells,
        positions=positions,
        used=sum(stream["used"] for stream in streams),
        heads=tuple(stream["head"] for stream in streams),
        spans={seq: (first, last) for seq, first, last in event["spans"]},
        note="",
    )
    empty = np.full_like(cells, EMPTY)
    return replace(found, note=_note(found, before or replace(found, cells=empty, positions=empty)))


def _note(now: Snapshot, before: Snapshot) -> str:
    """What the step did to the cells, from the maps before and after it."""
    if now.status:
        return f"no room for {now.step.n} tokens: nothing was placed"
    parts = []
    old, new = before.cells, now.cells
    taken, freed = (old == EMPTY) & (new != EMPTY), (old != EMPTY) & (new == EMPTY)
    if taken.any():
        parts.append("into cells " + " and ".join(f"{first}–{last}" for first, last in runs(taken)))
    if freed.any():
        parts.append(f"{freed.sum()} cells freed")
    shared = int((new == SHARED).sum() - (old == SHARED).sum())
    if now.step.op == "copy" and not taken.any() and now.step.to in now.spans:
        first, last = now.spans[now.step.to]
        parts.append(f"{last - first + 1} cells shared, none copied")
    elif shared < 0 and not freed.any():
        parts.append(f"{-shared} cells no longer shared")
    moved = ~taken & ~freed & (before.positions != now.positions)
    if moved.any():
        parts.append(f"{moved.sum()} positions changed by {now.step.delta}, cells stay")
        if (moved & (new == SHARED)).any():
            parts.append("for all who share them")
    return "; ".join(parts) or "no cell changed"


def in_child(
    *,
    model: str,
    trace: Sequence[Mapping[str, Any]],
    n_ctx: int,
    n_seq_max: int,
    kv_unified: bool,
    threads: int,
    send: Callable[..., None],
) -> dict[str, Any]:
    """The child's part of ``slot_map``: sends an event after each step."""
    from labkit import engine
    from labkit.settings import Settings

    steps = [Step(**values) for values in trace]
    settings = Settings(
        n_ctx=max(n_ctx, n_seq_max),
        n_batch=max(2048, *(step.n or 0 for step in steps)),  # one step is one batch: placed whole, or not at all
        n_seq_max=n_seq_max,
        kv_unified=kv_unified,
        n_threads=threads,
        n_outputs_max=n_seq_max,
    )
    with (
        engine.Model(Path(model), settings) as opened,
        engine.Context(opened, settings, map_cells=True) as context,
    ):
        for step in steps:
            status = _do(step, context, opened.n_vocab)
            spans = [(seq, *span) for seq in range(n_seq_max) if (span := context.positions(seq))]
            send("step", status=status, spans=spans, streams=[asdict(one) for one in context.slot_maps()])
    return {}


def _do(step: Step, context: Any, n_vocab: int) -> int:
    """Do one step; llama_decode's status, 0 for a step that decodes nothing."""
    from labkit import engine

    if step.op == "add":
        try:
            context.decode(made_up_tokens(step.n or 0, n_vocab), seq=step.seq)
        except engine.CacheFull:
            return 1
    elif step.op == "copy":
        if context.positions(step.to) is not None:
            raise ValueError(f"{step}: sequence {step.to} is not empty, remove it first.")
        context.copy(step.seq, step.to)
    elif step.op == "remove":
        context.remove(step.seq, step.p0, step.p1)
    elif step.op == "shift":
        context.shift(step.seq, step.p0, step.p1, step.delta)
    elif step.op == "keep":
        context.keep(step.seq)
    else:
        context.clear()
    return 0
