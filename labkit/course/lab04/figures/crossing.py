"""What crosses between host and device for one token, and how long that takes, beside what articles claim."""

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
def crossing(rows: Sequence[CrossingRow]) -> Figure:
    """Milliseconds of each row on a logarithmic axis, with the bytes that cross.

    Args:
        rows: from the top; claims are grey squares, predictions open circles, measurements filled ones.
    """
    fig = style.new_figure(1.25 + 0.37 * len(rows) if rows else 0.8, title=_title(rows))
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
        texts.append(text_layout.beside(ax, ms, y, f"{row.how}: {_time(row.ms)}{size}", gap=9))
    ax.set_xlim(low, max(shown) * 1.6)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [text_layout.wrap(row.label, 30) for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("time (log)")
    ax.xaxis.set_major_formatter(lambda ms, _: _time(ms))
    ax.xaxis.set_minor_formatter("")
    ax.grid(axis="x", color=style.FAINT, zorder=0)
    ax.set_axisbelow(True)
    text_layout.make_room(fig, {ax: texts})
    return fig


def _time(ms: float) -> str:
    """Milliseconds as text, down to nanoseconds."""
    for unit, name in ((1000.0, "s"), (1.0, "ms"), (1e-3, "µs")):
        if ms >= unit * 0.9995:
            return f"{ms / unit:.3g} {name}"
    return f"{ms / 1e-6:.3g} ns"


def _title(rows: Sequence[CrossingRow]) -> str:
    """How the first claim compares with the first figure that is none, as a sentence."""
    claims = [row for row in rows if row.how == "claimed"]
    others = [row for row in rows if row.how != "claimed" and row.ms > 0]
    if not claims or not others:
        return "There is no claimed time here to compare with another one"
    claim, other = claims[0], others[0]
    known = "was measured" if other.how == "measured" else "is predicted"
    takes = f"{_time(other.ms)} {known} for {other.label}"
    if claim.ms >= other.ms:
        return f"{takes}; the {_time(claim.ms)} claimed are {text_layout.factor(claim.ms / other.ms)} as long"
    return f"{takes}; that is {text_layout.factor(other.ms / claim.ms)} as long as the {_time(claim.ms)} claimed"
