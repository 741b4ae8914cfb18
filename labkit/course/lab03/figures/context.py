"""What a context costs: weights, KV cache and compute buffer against its length, and against a limit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import limits, style, text_layout
from labkit.course.figurekit.line_labels import tokens
from labkit.course.figurekit.style import INK, KINDS, LIMIT, Kind
from labkit.planning.context import BudgetRow
from labkit.settings import CELL_PADDING
from labkit.units import fmt_bytes

PARTS: dict[str, Kind] = {
    "weights_bytes": Kind("weights", KINDS["file"].colour, KINDS["file"].hatch),
    "kv_bytes": KINDS["kv"],
    "compute_bytes": KINDS["compute"],
}


@style.styled
def context_budget(
    rows: Sequence[BudgetRow],
    *,
    limit_bytes: int | None = None,
    selected: int | None = None,
    top_bytes: int | None = None,
) -> Figure:
    """Weights, KV cache and compute buffer, stacked, against the length of the context, and where they stop fitting.

    Between two rows everything is taken to grow evenly with ``n_ctx``, as full layers do.

    Args:
        rows: of one model and one kind of cache, at two lengths or more, in any order.
        limit_bytes: what the machine can give, drawn as a line.
        selected: the length whose parts are written out; without it, the longest that fits.
        top_bytes: end of the axis of memory; without it, the axis fits limit and weights.

    Raises:
        ValueError: all rows are of one length.
    """
    if len({row.n_ctx for row in rows}) < 2:
        raise ValueError("a picture against the context needs two lengths or more: give one row for each")
    rows = sorted(rows, key=lambda row: row.n_ctx)
    first, last = rows[0], rows[-1]
    fits, passes = _longest(rows, limit_bytes), _passing(rows)
    top = top_bytes or _top(rows, limit_bytes)
    unit, unit_name = style.axis_unit(top)

    fig = style.new_figure(4.6, title=_title(rows, limit_bytes, fits, passes))
    ax = fig.add_subplot()
    ax.set_xscale("log", base=2)
    at = np.unique(np.r_[np.geomspace(first.n_ctx, last.n_ctx, 240), [row.n_ctx for row in rows]])
    parts = {name: _between(rows, name, at) / unit for name in PARTS}
    low = np.zeros(len(at))
    for name, kind in PARTS.items():
        ax.fill_between(at, low, low + parts[name], label=kind.label, **style.hatched(kind.colour, kind.hatch))
        low = low + parts[name]
    ax.set_xlim(first.n_ctx, last.n_ctx)
    ax.set_ylim(0, top / unit)
    _tick_tokens(ax)
    ax.set_xlabel("tokens of context, n_ctx (log, 1k = 1,024)")
    ax.set_ylabel(unit_name)
    text_layout.legend_below(fig, *ax.get_legend_handles_labels(), ncols=3, title="predicted", title_fontsize=9)

    above: list[tuple[float, str]] = []
    if selected is not None:
        selected = min(max(selected, first.n_ctx), last.n_ctx)
        needed = sum(float(_between(rows, name, selected)) for name in PARTS)
        above.append((selected, f"{selected:,} tokens: {fmt_bytes(needed)}"))
        ax.axvline(selected, color=INK, linewidth=2.4, zorder=3, clip_on=False, label="_selected")
    if passes:
        ax.axvline(passes, color=INK, linewidth=1, zorder=3, label="_passes")
        above.append((passes, f"cache = weights at {passes:,} tokens"))
    if above:
        text_layout.names_above(ax, sorted(above), gap_px=40)
    more = " and more" if fits == last.n_ctx else ""
    if limit_bytes is not None:
        fit = f": {fits:,} tokens{more} fit" if fits else ""
        limits.across(ax, limit_bytes / unit, f"limit {fmt_bytes(limit_bytes)}{fit}")
    if limit_bytes is not None and fits and not more and limit_bytes <= top:
        ax.plot(fits, limit_bytes / unit, "o", color=LIMIT, markersize=8, zorder=6, clip_on=False, label="_fits")
    end = low[-1] * unit
    if end > top:
        at_end: dict[str, Any] = {"ha": "right", "va": "center", "bbox": text_layout.BACKED, "in_layout": False}
        said = f"{fmt_bytes(end)} at {last.n_ctx:,} ↑"
        ax.text(0.985, 0.95, said, transform=ax.transAxes, fontsize=8.5, zorder=6, **at_end)
    _parts(ax, rows, selected or fits or last.n_ctx, unit)
    return fig


def _between(rows: Sequence[BudgetRow], name: str, at: Any) -> Any:
    """Bytes of one part at these lengths, even growth taken for granted between two rows."""
    return np.interp(at, [row.n_ctx for row in rows], [float(getattr(row, name)) for row in rows])


def _top(rows: Sequence[BudgetRow], limit_bytes: int | None) -> float:
    """Where the axis of memory ends, in bytes."""
    everything = rows[-1].bytes * 1.08
    if limit_bytes is None:
        return everything or 1
    # Beyond about twice the limit nothing is decided any more, and the rest would be squeezed.
    return min(max(everything, limit_bytes * 1.25), max(limit_bytes * 2.0, rows[0].bytes * 1.6)) or 1


def _longest(rows: Sequence[BudgetRow], limit_bytes: int | None) -> int | None:
    """The longest context within the limit, as llama.cpp would pad it; 0 if even the shortest is too long."""
    if limit_bytes is None:
        return None
    if rows[0].bytes > limit_bytes:
        return 0
    for before, after in itertools.pairwise(rows):
        if after.bytes > limit_bytes:
            share = (limit_bytes - before.bytes) / (after.bytes - before.bytes)
            n = int(before.n_ctx + share * (after.n_ctx - before.n_ctx))
            return max(n // CELL_PADDING * CELL_PADDING, before.n_ctx)
    return rows[-1].n_ctx


def _passing(rows: Sequence[BudgetRow]) -> int | None:
    """The context at which the cache has grown as large as the weights; None if it never does, or always was."""
    for before, after in itertools.pairwise(rows):
        less, more = before.weights_bytes - before.kv_bytes, after.kv_bytes - after.weights_bytes
        if less >= 0 and more > 0:
            return int(before.n_ctx + less / (less + more) * (after.n_ctx - before.n_ctx))
    return None


def _tick_tokens(ax: Axes) -> None:
    """Put ticks at powers of two, at most twelve."""
    low, high = ax.get_xlim()
    ticks = [1 << n for n in range(31) if low <= 1 << n <= high]
    step = -(-len(ticks) // 12)
    ax.set_xticks(ticks[::step], [tokens(n) for n in ticks[::step]])
    ax.xaxis.set_minor_locator(NullLocator())


def _parts(ax: Axes, rows: Sequence[BudgetRow], n: int, unit: int) -> None:
    """Write out the parts at one length, each in its own band if that is tall enough."""
    low, high = ax.get_xlim()
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    sizes = {name: float(_between(rows, name, n)) for name in PARTS}
    fig.draw_without_rendering()
    taken = [text_layout.extent(text) for text in ax.texts]
    left = n > low**0.3 * high**0.7
    start = 0.0
    top = ax.get_ylim()[1]
    for name, size in sizes.items():
        end = start + size / unit
        y = (start + min(end, top)) / 2
        said = f"{PARTS[name].label} {fmt_bytes(size)}" + (f" at {n:,}" if name == "kv_bytes" else "")
        text = text_layout.beside(ax, n, y, said, gap=-7 if left else 7)
        text.set_in_layout(False)
        box = text_layout.extent(text)
        bottom_px, top_px = (ax.transData.transform((n, edge))[1] for edge in (start, min(end, top)))
        if start >= top or top_px - bottom_px < box.height + 2 or any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)
        start = end


def _title(rows: Sequence[BudgetRow], limit_bytes: int | None, fits: int | None, passes: int | None) -> str:
    """How long a context fits, and where the cache outgrows the weights, as a sentence."""
    first, last = rows[0], rows[-1]
    size = "stays smaller" if first.kv_bytes < first.weights_bytes else "is always larger"
    outweighs = f"its cache {size} than its weights"
    if passes:
        outweighs = f"at {passes:,} tokens its cache is as large as its weights"
    if limit_bytes is None or fits is None:
        low, high = fmt_bytes(first.bytes), fmt_bytes(last.bytes)
        return f"This model needs {low} at {first.n_ctx:,} tokens and {high} at {last.n_ctx:,}; {outweighs}"
    limit = fmt_bytes(limit_bytes)
    if fits == 0:
        heavy = first.weights_bytes > limit_bytes
        why = (
            f"its weights alone are {fmt_bytes(first.weights_bytes)}"
            if heavy
            else f"{first.n_ctx:,} tokens are too many"
        )
        return f"This model does not fit in {limit} with any context here: {why}"
    room = f"In {limit} this model has room for {fits:,} tokens{'' if fits < last.n_ctx else ' and more'}"
    return f"{room}; {outweighs}"
