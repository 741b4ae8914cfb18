"""How long tokens take while memory is short: each token's time, and the first token after a pause."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import guesses, style, text_layout
from labkit.course.figurekit.style import INK, MEASURED
from labkit.units import fmt_bytes, fmt_ms, times

if TYPE_CHECKING:
    from labkit.experiments.pressure import Pressured

_BEFORE, _DURING, _SAID = 0.1, 0.3, -0.22  # lanes of a row, from its middle downwards
_PALE = "#9CCBE8"
_TAIL = 0.95


@style.styled
def latency(
    rows: Sequence[Pressured],
    *,
    labels: Sequence[str] | None = None,
    range_ms: tuple[float, float] | None = None,
    guess_times: Mapping[str, float | None] | None = None,
) -> Figure:
    """A mark for each token's time, on a log axis: before the pressure (pale) and under it, with median, p95 and worst.

    Args:
        rows: one each, from the top.
        labels: a name per row; without it, the load mode.
        range_ms: ends of the axis, for pictures to be compared; without it, the axis fits the tokens.
        guess_times: the learner's own prediction of how many times as long the median token takes under pressure as
            before, by the row's name.
    """
    names = text_layout.row_names(rows, labels, _load_mode)
    ms = [ms for row in rows for ms in (*row.before_ms, *row.during_ms)]
    fig, ax = _rows(rows, names, ms, range_ms, row_in=0.82, title=_latency_title(rows, names))
    handles = [_dot(_PALE), _dot(MEASURED), *(Line2D([], [], **look) for look in (_MEDIAN, _P95, _WORST))]
    said = ["a token before", "a token under pressure", "median", "p95", "worst"]
    for n, (row, name) in enumerate(zip(rows, names, strict=True)):
        _dots(ax, n + _BEFORE, row.before_ms, _PALE, "_before")
        _dots(ax, n + _DURING, row.during_ms, MEASURED, "_during")
        if row.during_ms:
            for at, look in zip(spread(row.during_ms), (_MEDIAN, _P95, _WORST), strict=True):
                ax.plot(at, n + _DURING, **look)
        _write(ax, n, _said(row))
        own = (guess_times or {}).get(name)
        if row.before_ms and (own_ms := guesses.above_0(own, statistics.median(row.before_ms))) is not None:
            handles.append(guesses.swatch())
            said.append(guesses.draw(ax, own_ms, n + _DURING, f"{own:g} times, {fmt_ms(own_ms)}")[2])
    text_layout.legend_below(fig, handles, said, ncols=5 if len(said) == 5 else 3, handlelength=1.2)
    return fig


@style.styled
def first_token(
    rows: Sequence[Pressured],
    *,
    labels: Sequence[str] | None = None,
    range_ms: tuple[float, float] | None = None,
) -> Figure:
    """After a pause in which others took memory: the first token beside the following ones, on a log axis.

    Args:
        rows: one each, from the top; those that produced no token after the pause say why.
        labels: a name per row; without it, the load mode.
        range_ms: ends of the axis, for pictures to be compared; without it, the axis fits the tokens.
    """
    names = text_layout.row_names(rows, labels, _load_mode)
    ms = [row.first_token_ms for row in rows if row.first_token_ms is not None]
    ms += [ms for row in rows for ms in (*row.before_ms, *following(row))]
    fig, ax = _rows(rows, names, ms, range_ms, row_in=0.72, title=_first_title(rows, names))
    for n, row in enumerate(rows):
        rest = following(row)
        _dots(ax, n + _DURING, row.before_ms, _PALE, "_before")
        _dots(ax, n + _DURING, rest, MEASURED, "_following")
        if row.first_token_ms is not None:
            typical = statistics.median(rest or row.before_ms or (row.first_token_ms,))
            ax.plot([typical, row.first_token_ms], [n + _DURING] * 2, color=INK, linewidth=2, zorder=3, label="_wait")
            ax.plot(row.first_token_ms, n + _DURING, **_FIRST)
        _write(ax, n, _first_said(row))
    said = ["a token before the pause", "the first after it", "those that follow"]
    handles = [_dot(_PALE), Line2D([], [], **_FIRST), _dot(MEASURED)]
    text_layout.legend_below(fig, handles, said, ncols=3, handlelength=1.2)
    return fig


_ALONE: dict[str, Any] = {"linestyle": "none", "color": INK, "zorder": 5}
_MEDIAN = _ALONE | {"marker": "|", "markersize": 17, "markeredgewidth": 2.6, "label": "_median"}
_P95 = _ALONE | {"marker": "|", "markersize": 17, "markeredgewidth": 1.2, "label": "_p95"}
_WORST = _ALONE | {"marker": ">", "markersize": 7, "markerfacecolor": "white", "label": "_worst"}
_FIRST = _ALONE | {"marker": "s", "markersize": 8, "markerfacecolor": MEASURED, "zorder": 6, "label": "_first"}


def _rows(
    rows: Sequence[Pressured],
    names: Sequence[str],
    ms: Sequence[float],
    range_ms: tuple[float, float] | None,
    *,
    row_in: float,
    title: str,
) -> tuple[Figure, Axes]:
    """A picture with a named lane for each row, as high as ``row_in`` inches, and a log axis for these times."""
    fig = style.new_figure(1.6 + row_in * max(len(rows), 1), title=title)
    ax = fig.add_subplot()
    _log_axis(ax, ms, range_ms)
    for n in range(1, len(rows)):
        ax.axhline(n - 0.5, color=style.FAINT, linewidth=1, zorder=0)
    ax.set_ylim(max(len(rows), 1) - 0.45, -0.5)
    ax.set_yticks(range(len(rows)), [text_layout.wrap(name, 18, lines=3) for name in names])
    ax.tick_params(axis="y", length=0, pad=9)
    places = sorted({row.recorded for row in rows if row.recorded})
    ax.set_xlabel("; ".join(["ms per token (log)", *places]), wrap=True)
    return fig, ax


def _load_mode(row: Pressured) -> str:
    """What a row is called without a label."""
    return row.run.settings.load_mode


def _dot(colour: str) -> Line2D:
    """The legend's mark for a token."""
    return Line2D([], [], marker="o", linestyle="none", color=colour, markersize=5)


def spread(ms: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th percentile (95 % of the tokens take no longer) and worst."""
    ordered = sorted(ms)
    return statistics.median(ordered), ordered[math.ceil(_TAIL * len(ordered)) - 1], ordered[-1]


def following(row: Pressured) -> tuple[float, ...]:
    """The tokens after the first one that followed a pause; none where there was no pause."""
    return tuple(row.after_ms[1:]) if row.first_token_ms is not None else ()


def _log_axis(ax: Axes, ms: Sequence[float], range_ms: tuple[float, float] | None) -> None:
    """Make the x axis logarithmic, around these times or from end to end of ``range_ms``."""
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


def _write(ax: Axes, n: int, said: str) -> None:
    """Write a line above the marks of row ``n``."""
    look: dict[str, Any] = {"va": "center", "fontsize": 8.5, "bbox": text_layout.BACKED, "in_layout": False}
    ax.text(0.006, n + _SAID, said, transform=ax.get_yaxis_transform(), **look)


def _said(row: Pressured) -> str:
    """What is written above a row's tokens: their spread, or why there are none."""
    if not row.during_ms:
        return text_layout.shorten(_ended(row), 84)
    middle, tail, worst = spread(row.during_ms)
    counted = row.major_faults
    said = f"median {fmt_ms(middle)}, p95 {fmt_ms(tail)}, worst {fmt_ms(worst)}"
    said += "" if counted is None else f"; {counted:,} major faults"
    said += "; the ballast ended early" if row.ballast_ended else ""
    return said if row.outcome == "ok" else f"{said}; then {row.outcome}"


def _first_said(row: Pressured) -> str:
    """What is written above a row's first token after the pause, or why there is none."""
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
    """Why a row has no tokens."""
    if row.outcome == "ok":
        return "no token was timed"
    return f"{row.outcome}: {row.reason}".rstrip(": ")


def _latency_title(rows: Sequence[Pressured], names: Sequence[str]) -> str:
    """The shortest and the longest median under pressure, as a sentence."""
    timed = {
        text_layout.shorten(name, 32): spread(row.during_ms)
        for row, name in zip(rows, names, strict=True)
        if row.during_ms
    }
    if not timed:
        return "No run produced a token under this pressure"
    best, worst = (choose(timed, key=lambda name: timed[name][0]) for choose in (min, max))
    given = {row.ballast_bytes for row in rows}
    beside = f"Beside {fmt_bytes(given.pop())} of ballast" if len(given) == 1 else "Under pressure"
    if len(timed) == 1:
        return f"{beside}, the median token takes {fmt_ms(timed[worst][0])} ({worst})"
    if timed[worst][0] < 1.5 * timed[best][0]:
        return f"{beside}, the median token takes at most {fmt_ms(timed[worst][0])}, whatever the load mode"
    return f"{beside}, the median token takes {fmt_ms(timed[best][0])} ({best}) and {fmt_ms(timed[worst][0])} ({worst})"


def _first_title(rows: Sequence[Pressured], names: Sequence[str]) -> str:
    """How much longer the first token after the pause takes, at most and at least, as a sentence."""
    ratios = {
        text_layout.shorten(name, 32): row.first_token_ms / statistics.median(rest)
        for row, name in zip(rows, names, strict=True)
        if row.first_token_ms is not None and (rest := following(row) or tuple(row.before_ms))
    }
    if not ratios:
        return "No run produced a token after the pause"
    best, worst = (choose(ratios, key=lambda name: ratios[name]) for choose in (min, max))
    if ratios[worst] < 1.5:
        most = text_layout.factor(ratios[worst])
        return f"After the pause the first token takes at most {most} as long as those that follow"
    said = f"the first token takes {text_layout.factor(ratios[worst])} as long as those that follow ({worst})"
    return f"After the pause {said}" + (f", {text_layout.factor(ratios[best])} ({best})" if best != worst else "")
