"""The error of quantizing against bits per weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import guesses, point_labels, style, text_layout
from labkit.course.figurekit.style import GUESS, INK, MEASURED


@dataclass(frozen=True)
class ErrorRow:
    """What one tensor type does to the same weights.

    Attributes:
        type: ggml's name of it.
        bpw: bits per weight, scales included.
        rmse: root mean square error over all weights, in units of the weights.
        worst_block_rmse: the same over the block where it is largest; None if not looked at.
    """

    type: str
    bpw: float
    rmse: float
    worst_block_rmse: float | None = None


@style.styled
def error_by_type(rows: Sequence[ErrorRow], *, guess_factor: float | None = None) -> Figure:
    """Root mean square error (log) against bits per weight: solid over all weights, open in the worst block.

    Args:
        rows: one tensor type each; a type without any error stands on the axis, since a logarithm has no 0.
        guess_factor: the learner's own prediction of how many times smaller one more bit makes the error.
    """
    fig = style.new_figure(4.7, title=_title(rows))
    ax = fig.add_subplot()
    lossy = [row for row in rows if row.rmse > 0]
    worst = [(row.bpw, row.rmse, row.worst_block_rmse) for row in rows if row.worst_block_rmse]
    errors = [row.rmse for row in lossy] + [high for *_, high in worst]
    low = log_y(ax, errors, below=3.0 if len(lossy) < len(rows) else 1.6)
    left, right = _bits_axis(ax, [row.bpw for row in rows])
    ax.set_ylabel("root mean square error (log)")

    fit = _fit(lossy)
    at, line = [], []
    if fit:
        at = np.geomspace(left, right, 60).tolist()
        line = [fit[0] * fit[1] ** -x for x in at]
        ax.plot(at, line, "--", color=INK, linewidth=1, zorder=1, label=f"error ÷ {fit[1]:.1f} per bit")
    for bpw, mean, error in worst:
        ax.plot([bpw] * 2, [max(mean, low), error], "-", color=MEASURED, linewidth=0.8, zorder=2, label="_range")
    if lossy:
        look: dict[str, Any] = {"color": MEASURED, "markeredgecolor": "white", "markersize": 8, "zorder": 4}
        ax.plot([r.bpw for r in lossy], [r.rmse for r in lossy], "o", label="all weights", **look)
    if worst:
        look = {"markerfacecolor": "white", "markeredgecolor": MEASURED, "markersize": 6, "zorder": 3}
        ax.plot([bpw for bpw, *_ in worst], [error for *_, error in worst], "o", label="worst block", **look)
    exact = [row for row in rows if row.rmse <= 0]
    if exact:
        look = {"color": MEASURED, "markersize": 8, "zorder": 4, "clip_on": False}
        ax.plot([r.bpw for r in exact], [low * 1.25] * len(exact), "v", label="no error", **look)
    text_layout.legend_below(fig, *ax.get_legend_handles_labels(), ncols=5)
    fig.draw_without_rendering()
    lines = [box for bpw, mean, error in worst for box in point_labels.along(ax, [bpw] * 2, [max(mean, low), error])]
    lines += point_labels.along(ax, at, line)
    marks = [
        point_labels.Mark(r.bpw, r.rmse if r.rmse > 0 else low * 1.25, text_layout.shorten(r.type, 12)) for r in rows
    ]
    marks += [point_labels.Mark(bpw, error, "", 5) for bpw, _, error in worst]
    if fit and (own := guesses.above_0(guess_factor)) is not None:
        ends = min(row.bpw for row in lossy), max(row.bpw for row in lossy if row.bpw < 10)
        at, line = _draw_guess(ax, own, fit, *ends)
        lines += point_labels.along(ax, at, line)
        marks.append(point_labels.Mark(*guesses.draw(ax, at[-1], line[-1], f"÷ {own:g} per bit"), 9))
    point_labels.label(ax, marks, lines=lines)
    return fig


def _draw_guess(
    ax: Axes, factor: float, fit: tuple[float, float], first: float, last: float
) -> tuple[list[float], list[float]]:
    """Draw the line that the learner predicted, from the first type on as far as it is in sight; return its points."""
    start, (low, high) = fit[0] * fit[1] ** -first, ax.get_ylim()
    at = np.linspace(first, last, 200)
    line = start * factor ** -(at - first)
    end = np.flatnonzero((line >= low * 1.15) & (line <= high / 1.15))[-1] + 1
    ax.plot(at[:end], line[:end], ":", color=GUESS, linewidth=1.4, zorder=2, label="_guess line")
    return at[:end].tolist(), line[:end].tolist()


def log_y(ax: Axes, figures: Sequence[float], *, below: float = 1.6, above: float = 1.8) -> float:
    """Make the y axis logarithmic around these figures; return its lower end."""
    ax.set_yscale("log")
    low, high = (min(figures) / below, max(figures) * above) if figures else (0.1, 1.0)
    ax.set_ylim(low, high)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    # A short axis has one power of ten or none: then 2 and 5 get a figure too.
    if math.log10(high / low) < 2:
        ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    else:
        ax.yaxis.set_minor_formatter("")
    return low


def _bits_axis(ax: Axes, bpw: Sequence[float]) -> tuple[float, float]:
    """Make an x axis of bits per weight, logarithmic if plain floats would squeeze the blocks; return its ends."""
    low, high = (min(bpw), max(bpw)) if bpw else (2.0, 8.0)
    if high > 10 > low:
        low, high = low / 1.15, high * 1.15
        ax.set_xscale("log")
        ticks = [n for n in (1, 2, 3, 4, 5, 6, 8, 12, 16, 32) if low <= n <= high]
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        margin = max(0.1 * (high - low), 0.5)
        low, high = low - margin, high + margin
    ax.set_xlim(low, high)
    ax.set_xlabel(f"bits per weight, scales included{' (log)' if ax.get_xscale() == 'log' else ''}")
    return low, high


def _fit(rows: Sequence[ErrorRow]) -> tuple[float, float] | None:
    """a and b of rmse = a / b ** bpw, by least squares of the logarithms; None without three different widths."""
    # A 16-bit float spends its bits on range as well, so it follows another rule.
    rows = [row for row in rows if row.bpw < 10]
    if len({row.bpw for row in rows}) < 3:
        return None
    slope, start = np.polyfit([row.bpw for row in rows], [math.log(row.rmse) for row in rows], 1)
    return math.exp(start), math.exp(-slope)


def _title(rows: Sequence[ErrorRow]) -> str:
    """How fast the error falls with each bit, as a sentence."""
    lossy = sorted((row for row in rows if row.rmse > 0), key=lambda row: row.rmse)
    if not rows:
        return "There is no error to show yet"
    if not lossy:
        return "No type here changes these weights at all"
    fit = _fit(lossy)
    worst = [row.worst_block_rmse / row.rmse for row in lossy if row.worst_block_rmse]
    far = f"; the worst block's error is up to {text_layout.factor(max(worst))} that of all weights" if worst else ""
    if fit and fit[1] > 1:
        return f"One more bit per weight divides the error by about {fit[1]:.1f}{far}"
    if len(lossy) == 1:
        name = text_layout.shorten(lossy[0].type, 24)
        return f"{name} changes these weights by {lossy[0].rmse:.2g} (root mean square){far}"
    least, most = lossy[0], lossy[-1]
    if most.rmse < 1.05 * least.rmse:
        return f"All {len(lossy)} types here change these weights equally{far}"
    much = text_layout.factor(most.rmse / least.rmse)
    return f"{least.type} changes these weights least, {most.type} {much} as much{far}"
