"""What crosses between host and device for one token, and how long that takes, beside what is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import MEASURED
from labkit.planning.device_curves import CrossingRow
from labkit.units import fmt_bytes

_LOOKS: dict[str, dict[str, Any]] = {
    "claimed": {"marker": "s", "color": "#767676", "linestyle": "-"},
    "predicted": {"marker": "o", "color": MEASURED, "markerfacecolor": "white", "linestyle": "--"},
    "measured": {"marker": "o", "color": MEASURED, "linestyle": "-"},
}


@style.styled
def crossing(rows: Sequence[CrossingRow], *, title: str | None = None) -> Figure:
    """Milliseconds of each row on a logarithmic axis, with the bytes that cross.

    Args:
        rows: from the top; claims are grey squares, predictions open circles, measurements filled ones.
        title: replaces the sentence computed from the rows.
    """
    fig = style.new_figure(1.25 + 0.37 * len(rows) if rows else 0.8, title=title or _title(rows))
    if not rows:
        return fig
    ax = fig.add_subplot()
    ax.set_xscale("log")
    shown = [max(row.ms, 1e-9) for row in rows]
    low = min(shown) / 3
    texts = []
    for y, (row, ms) in enumerate(zip(rows, shown, strict=True)):
        look = {"linewidth": 1.4, "markersize": 9, "markeredgewidth": 1.6, **_LOOKS[row.how]}
        ax.plot([low, ms], [y, y], markevery=[1], label=row.how, **look)
        size = "" if row.bytes is None else f", {fmt_bytes(row.bytes)}"
        texts.append(
            ax.annotate(
                f"{row.how}: {_time(row.ms)}{size}",
                (ms, y),
                (9, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        )
    ax.set_xlim(low, max(shown) * 1.6)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [text_layout.wrap(row.label, 30) for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("time (log)")
    ax.xaxis.set_major_formatter(lambda ms, _: _time(ms))
    ax.xaxis.set_minor_formatter("")
    ax.grid(axis="x", color=style.FAINT, zorder=0)
    ax.set_axisbelow(True)
    _make_room(fig, ax, texts)
    return fig


def _make_room(fig: Figure, ax: Any, texts: Sequence[Any]) -> None:
    """Widen a logarithmic axis until all texts, anchored at its points, end inside."""
    for text in texts:
        text.set_in_layout(False)
    for _ in range(4):
        fig.draw_without_rendering()
        inside = ax.get_window_extent()
        over = max(text_layout.extent(text).x1 + 6 - inside.x1 for text in texts)
        if over <= 0:
            return
        low, high = ax.get_xlim()
        ax.set_xlim(low, low * (high / low) ** (inside.width / max(inside.width - over, inside.width * 0.3)))


def _time(ms: float) -> str:
    """Milliseconds as text, down to nanoseconds."""
    for unit, name in ((1000.0, "s"), (1.0, "ms"), (1e-3, "µs")):
        if ms >= unit * 0.9995:
            return f"{ms / unit:.3g} {name}"
    return f"{ms / 1e-6:.3g} ns"


def _title(rows: Sequence[CrossingRow]) -> str:
    claims = [row for row in rows if row.how == "claimed"]
    others = [row for row in rows if row.how != "claimed" and row.ms > 0]
    if not claims or not others:
        return "What crosses between host and device for one token, and how long it takes"
    claim, other = claims[0], others[0]
    ratio = max(claim.ms / other.ms, other.ms / claim.ms)
    much = f"{ratio:,.0f}" if ratio >= 9.95 else f"{ratio:.1f}"
    side = "less" if claim.ms >= other.ms else "more"
    return f"{_time(claim.ms)} are claimed; {other.label} takes {_time(other.ms)}, {much} times {side}"
