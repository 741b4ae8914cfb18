"""How long tokens take while memory is short: the whole distribution, and the first token after a pause."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import INK, LIMIT, MEASURED
from labkit.units import fmt_bytes, fmt_ms, times

if TYPE_CHECKING:
    from labkit.experiments.pressure import Pressured

_BEFORE, _DURING, _WORDS = 0.1, 0.3, -0.22  # lanes of a row, from its middle downwards
_PALE = "#9CCBE8"
TYPICAL, TAIL = 0.5, 0.95


@style.styled
def latency(
    rows: Sequence[Pressured],
    *,
    labels: Sequence[str] | None = None,
    range_ms: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """A mark for each token's time, on a log axis: before the pressure (pale) and under it, with median, p95 and worst.

    Args:
        rows: one each, from the top.
        labels: a name per row; without it, the load mode.
        range_ms: ends of the axis, for pictures to be compared; without it, the axis fits the tokens.
        title: replaces the sentence computed from the rows.
    """
    names = _names(rows, labels)
    fig = style.new_figure(1.6 + 0.82 * max(len(rows), 1), title=title or _latency_title(rows, names))
    ax = fig.add_subplot()
    _log_axis(ax, [ms for row in rows for ms in (*row.before_ms, *row.during_ms)], range_ms)
    for n, row in enumerate(rows):
        if n:
            ax.axhline(n - 0.5, color=style.FAINT, linewidth=1, zorder=0)
        _dots(ax, n + _BEFORE, row.before_ms, _PALE, "_before")
        _dots(ax, n + _DURING, row.during_ms, MEASURED, "_during")
        if row.during_ms:
            middle, tail, worst = spread(row.during_ms)
            look: dict[str, Any] = {"color": INK, "linestyle": "none", "zorder": 5}
            ax.plot(middle, n + _DURING, "|", markersize=17, markeredgewidth=2.6, label="_median", **look)
            ax.plot(tail, n + _DURING, "|", markersize=17, markeredgewidth=1.2, label="_p95", **look)
            ax.plot(worst, n + _DURING, "d", markersize=7, markerfacecolor="white", label="_worst", **look)
        _write(ax, n, _said(row))
    ax.set_ylim(max(len(rows), 1) - 0.45, -0.5)
    ax.set_yticks(range(len(rows)), [text_layout.wrap(name, 18, lines=3) for name in names])
    ax.tick_params(axis="y", length=0, pad=9)
    ax.set_xlabel(_where(rows), wrap=True)
    handles = [
        Line2D([], [], marker="o", linestyle="none", color=_PALE, markersize=5),
        Line2D([], [], marker="o", linestyle="none", color=MEASURED, markersize=5),
        Line2D([], [], marker="|", linestyle="none", color=INK, markersize=12, markeredgewidth=2.6),
        Line2D([], [], marker="|", linestyle="none", color=INK, markersize=12, markeredgewidth=1.2),
        Line2D([], [], marker="d", linestyle="none", color=INK, markerfacecolor="white", markersize=7),
    ]
    said = ["a token before", "a token under pressure", "median", "p95", "worst"]
    text_layout.legend_below(fig, handles, said, ncols=5, handlelength=1.2)
    return fig


@style.styled
def first_token(
    rows: Sequence[Pressured],
    *,
    labels: Sequence[str] | None = None,
    range_ms: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """After a pause in which others took memory: the first token beside the following ones, on a log axis.

    Args:
        rows: one each, from the top; those that never spoke again say why.
        labels: a name per row; without it, the load mode.
        range_ms: ends of the axis, for pictures to be compared; without it, the axis fits the tokens.
        title: replaces the sentence computed from the rows.
    """
    names = _names(rows, labels)
    fig = style.new_figure(1.6 + 0.72 * max(len(rows), 1), title=title or _first_title(rows, names))
    ax = fig.add_subplot()
    spoke = [row.first_token_ms for row in rows if row.first_token_ms is not None]
    _log_axis(ax, [*spoke, *(ms for row in rows for ms in (*row.before_ms, *following(row)))], range_ms)
    for n, row in enumerate(rows):
        if n:
            ax.axhline(n - 0.5, color=style.FAINT, linewidth=1, zorder=0)
        rest = following(row)
        _dots(ax, n + _DURING, row.before_ms, _PALE, "_before")
        _dots(ax, n + _DURING, rest, MEASURED, "_following")
        if row.first_token_ms is not None:
            typical = statistics.median(rest or row.before_ms or (row.first_token_ms,))
            ax.plot([typical, row.first_token_ms], [n + _DURING] * 2, color=LIMIT, linewidth=2, zorder=3, label="_wait")
            ax.plot(row.first_token_ms, n + _DURING, "D", color=LIMIT, markersize=8, zorder=6, label="_first")
        _write(ax, n, _first_said(row))
    ax.set_ylim(max(len(rows), 1) - 0.4, -0.5)
    ax.set_yticks(range(len(rows)), [text_layout.wrap(name, 18, lines=3) for name in names])
    ax.tick_params(axis="y", length=0, pad=9)
    ax.set_xlabel(_where(rows), wrap=True)
    handles = [
        Line2D([], [], marker="o", linestyle="none", color=_PALE, markersize=5),
        Line2D([], [], marker="D", linestyle="none", color=LIMIT, markersize=7),
        Line2D([], [], marker="o", linestyle="none", color=MEASURED, markersize=5),
    ]
    said = ["a token before the pause", "the first after it", "those that follow"]
    text_layout.legend_below(fig, handles, said, ncols=3, handlelength=1.2)
    return fig


def spread(ms: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th percentile (the smallest time that 95 % of the tokens keep) and worst."""
    ordered = sorted(ms)
    return statistics.median(ordered), ordered[math.ceil(TAIL * len(ordered)) - 1], ordered[-1]


def following(row: Pressured) -> tuple[float, ...]:
    """The tokens after the first one that followed a pause; none where there was no pause."""
    return tuple(row.after_ms[1:]) if row.first_token_ms is not None else ()


def _where(rows: Sequence[Pressured]) -> str:
    """Of an axis: whether runs come from elsewhere."""
    places = sorted({row.recorded for row in rows if row.recorded})
    return f"ms per token (log); {'; '.join(places)}" if places else "ms per token (log)"


def _names(rows: Sequence[Pressured], labels: Sequence[str] | None) -> list[str]:
    names = list(labels) if labels is not None else [row.run.settings.load_mode for row in rows]
    if len(names) != len(rows):
        raise ValueError(f"{len(names)} labels for {len(rows)} rows: give one label per row.")
    return names


def _log_axis(ax: Axes, ms: Sequence[float], range_ms: tuple[float, float] | None) -> None:
    above_0 = [value for value in ms if value > 0]
    low, high = range_ms or (min(above_0, default=1) / 1.35, max(above_0, default=100) * 1.5)
    if high < 4 * low:  # less than that, and every jitter looks like a cliff
        middle = math.sqrt(low * high)
        low, high = middle / 2.2, middle * 2.2
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ticks = [m * 10.0**e for e in range(-3, 8) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    step = -(-len(ticks) // 9)
    shown = [tick for tick in ticks if step == 1 or f"{tick:e}".startswith("1")]
    ax.set_xticks(shown, [f"{tick:,g}" for tick in shown])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="x", color=style.FAINT, linewidth=0.8)
    ax.set_axisbelow(True)


def _dots(ax: Axes, y: float, ms: Sequence[float], colour: str, label: str) -> None:
    """A mark per token; those that would fall on the same spot are lifted a little, so that many look like many."""
    if not ms:
        return
    lift = np.resize([0.0, 0.035, -0.035], len(ms))
    ax.plot(list(ms), y + lift, "o", color=colour, markersize=4.2, linestyle="none", alpha=0.8, zorder=4, label=label)


def _write(ax: Axes, n: int, said: str) -> Text:
    text = ax.annotate(
        said, (0.006, n + _WORDS), xycoords=ax.get_yaxis_transform(), va="center", fontsize=8.5, bbox=text_layout.BACKED
    )
    text.set_in_layout(False)
    return text


def _said(row: Pressured) -> str:
    if not row.during_ms:
        return text_layout.shorten(_ended(row), 84)
    middle, tail, worst = spread(row.during_ms)
    counted = row.major_faults
    said = f"median {fmt_ms(middle)}, p95 {fmt_ms(tail)}, worst {fmt_ms(worst)}"
    said += "" if counted is None else f"; {counted:,} major faults"
    said += "; the ballast did not stay" if row.ballast_ended else ""
    return said if row.outcome == "ok" else f"{said}; then {row.outcome}"


def _first_said(row: Pressured) -> str:
    if row.first_token_ms is None:
        return text_layout.shorten(_ended(row), 84)
    rest = following(row)
    said = f"first {fmt_ms(row.first_token_ms)}"
    if rest:
        typical = statistics.median(rest)
        said += f", then {fmt_ms(typical)}: {times(row.first_token_ms, typical)}"
    counted = row.major_faults
    return said + ("" if counted is None else f"; {counted:,} major faults")


def _ended(row: Pressured) -> str:
    if row.outcome == "ok":
        return "no token was timed"
    return f"{row.outcome}: {row.reason}".rstrip(": ")


def _latency_title(rows: Sequence[Pressured], names: Sequence[str]) -> str:
    timed = {
        text_layout.shorten(name, 32): spread(row.during_ms)
        for row, name in zip(rows, names, strict=True)
        if row.during_ms
    }
    if not timed:
        return "No run came through to be timed under this pressure"
    best, worst = (choose(timed, key=lambda name: timed[name][0]) for choose in (min, max))
    given = {row.ballast_bytes for row in rows}
    beside = f"Beside {fmt_bytes(given.pop())} of ballast" if len(given) == 1 else "Under pressure"
    if best == worst or timed[worst][0] < 1.5 * timed[best][0]:
        return f"{beside}, the median token takes at most {fmt_ms(timed[worst][0])}, whatever the load mode"
    return (
        f"{beside}, the median token takes {fmt_ms(timed[best][0])} with load mode {best} and "
        f"{fmt_ms(timed[worst][0])} with {worst}"
    )


def _first_title(rows: Sequence[Pressured], names: Sequence[str]) -> str:
    ratios = {
        text_layout.shorten(name, 32): row.first_token_ms / statistics.median(rest)
        for row, name in zip(rows, names, strict=True)
        if row.first_token_ms is not None and (rest := following(row) or tuple(row.before_ms))
    }
    if not ratios:
        return "Nobody spoke again after the pause"
    best, worst = (choose(ratios, key=lambda name: ratios[name]) for choose in (min, max))
    if ratios[worst] < 1.5:
        return f"After the pause the first token is no slower than the next ({times(ratios[worst], 1)} at most)"
    said = f"After a pause the first token takes {times(ratios[worst], 1)} as long as the next with {worst}"
    return said if best == worst else f"{said}, and {times(ratios[best], 1)} with {best}"
