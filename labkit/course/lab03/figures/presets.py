"""Models and kinds of cache at one length of context, beside a limit."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.text import Text

from labkit.course.figurekit import limits, style, text_layout
from labkit.course.figurekit.style import INK, LIMIT
from labkit.course.lab03.figures.context import PARTS
from labkit.planning.context import BudgetRow
from labkit.units import fmt_bytes


@style.styled
def context_presets(rows: Sequence[BudgetRow], *, limit_bytes: int | None = None) -> Figure:
    """One stacked bar per row: presets and kinds of cache at one length of context, beside a limit.

    Args:
        rows: each with a label, from the top.
        limit_bytes: what the machine can give, drawn as a line; what a row needs beyond it is written at its end.
    """
    largest = max((row.bytes for row in rows), default=0)
    unit, unit_name = style.axis_unit(largest)
    fig = style.new_figure(1.75 + 0.31 * len(rows), title=_title(rows, limit_bytes))
    ax = fig.add_subplot()
    ends: list[Text] = []
    for y, row in enumerate(rows):
        left = 0.0
        for name, kind in PARTS.items():
            width = getattr(row, name) / unit
            if width > 0:
                ax.barh(y, width, 0.7, left=left, label=name, **style.hatched(kind.colour, kind.hatch))
            left += width
        over = row.bytes - limit_bytes if limit_bytes is not None else 0
        said = f"{fmt_bytes(row.bytes)}, cache {fmt_bytes(row.kv_bytes)}"
        said += f", {fmt_bytes(over)} over" if over > 0 else ""
        ends.append(text_layout.beside(ax, left, y, said, color=LIMIT if over > 0 else INK))
    ax.set_ylim(len(rows) - 0.45, -0.55 if limit_bytes is None else -1.3)
    ax.set_yticks(range(len(rows)), [text_layout.wrap(row.label or f"{row.n_ctx:,} tokens", 30) for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(unit_name)
    shown = limit_bytes is not None and limit_bytes <= 3 * largest
    ax.set_xlim(0, max(largest, limit_bytes if shown and limit_bytes else 0, 1) * 1.02 / unit)
    if limit_bytes is not None:
        ends.append(limits.upright(ax, limit_bytes / unit, f"limit {fmt_bytes(limit_bytes)}", -0.95))
    handles = [style.swatch(kind, predicted=True) for kind in PARTS.values()]
    text_layout.legend_below(fig, handles, [k.label for k in PARTS.values()], title="predicted", title_fontsize=9)
    text_layout.make_room(fig, {ax: ends})
    return fig


def _title(rows: Sequence[BudgetRow], limit_bytes: int | None) -> str:
    """How many of the settings fit, as a sentence."""
    if not rows:
        return "There is no model to compare here yet"
    lengths = {row.n_ctx for row in rows}
    where = f"With {lengths.pop():,} tokens of context" if len(lengths) == 1 else "With these contexts"
    if limit_bytes is None:
        low, high = min(row.bytes for row in rows), max(row.bytes for row in rows)
        return f"{where} these settings need {fmt_bytes(low)} to {fmt_bytes(high)}"
    fit = sum(row.bytes <= limit_bytes for row in rows)
    return f"{where}, {fit} of {len(rows)} settings fit in {fmt_bytes(limit_bytes)}"
