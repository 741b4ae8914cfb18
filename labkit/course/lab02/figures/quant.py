"""What quantizing costs: error against bits per weight, and against the size of a block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import point_labels, style, text_layout
from labkit.course.figurekit.style import GUESS, INK, MEASURED

BLOCK_MARKS: dict[int, str] = {32: "32: ggml", 128: "128: articles", 256: "256: ggml's K"}
"""Block sizes worth naming: ggml's two (blocks, and super-blocks of K-quants), and the one articles recommend."""


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


@dataclass(frozen=True)
class BlockSizeRow:
    """A quantizer with one scale per block of this many weights, on the same weights as its fellows.

    Attributes:
        block_elems: weights that share a scale.
        bpw: bits per weight, scales included.
        rmse: root mean square error, in units of the weights.
    """

    block_elems: int
    bpw: float
    rmse: float


@style.styled
def error_by_type(
    rows: Sequence[ErrorRow], *, guess: Mapping[str, float] | None = None, title: str | None = None
) -> Figure:
    """Root mean square error (log) against bits per weight: solid over all weights, open in the worst block.

    Args:
        rows: one tensor type each; a type without any error stands on the axis, since a logarithm has no 0.
        guess: the learner's own prediction of the error, by type.
        title: replaces the sentence computed from the rows.
    """
    fig = style.new_figure(4.7, title=title or _error_title(rows))
    ax = fig.add_subplot()
    lossy = [row for row in rows if row.rmse > 0]
    worst = [(row.bpw, row.rmse, row.worst_block_rmse) for row in rows if row.worst_block_rmse]
    own = [(row.bpw, guess[row.type]) for row in rows if guess and guess.get(row.type, 0) > 0]
    errors = [row.rmse for row in lossy] + [high for *_, high in worst] + [error for _, error in own]
    low = _log_limits(ax, errors, below=3.0 if len(lossy) < len(rows) else 1.6)
    left, right = _bits_axis(ax, [row.bpw for row in rows])
    ax.set_ylabel("root mean square error (log)")

    fit = _fit(lossy)
    at, line = [], []
    if fit:
        at = np.geomspace(left, right, 60).tolist()
        line = [fit[0] * fit[1] ** -x for x in at]
        ax.plot(
            at,
            line,
            "--",
            color=INK,
            linewidth=1,
            zorder=1,
            label=f"error ÷ {fit[1]:.1f} per bit",
        )
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
    if own:
        ax.plot(*zip(*own, strict=True), "D", color=GUESS, markersize=7, zorder=5, label="you predicted")

    text_layout.legend_below(fig, *ax.get_legend_handles_labels(), ncols=5)
    fig.draw_without_rendering()
    lines = [box for bpw, mean, error in worst for box in point_labels.along(ax, [bpw] * 2, [max(mean, low), error])]
    lines += point_labels.along(ax, at, line)
    marks = [
        point_labels.Mark(r.bpw, r.rmse if r.rmse > 0 else low * 1.25, text_layout.shorten(r.type, 12)) for r in rows
    ]
    marks += [point_labels.Mark(bpw, error, "", 5) for bpw, _, error in worst]
    marks += [point_labels.Mark(bpw, error, f"you predicted {error:.2g}", 9) for bpw, error in own]
    point_labels.label(ax, marks, lines=lines)
    return fig


def _log_limits(ax: Axes, figures: Sequence[float], *, below: float = 1.6, above: float = 1.8) -> float:
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


def _error_title(rows: Sequence[ErrorRow]) -> str:
    lossy = sorted((row for row in rows if row.rmse > 0), key=lambda row: row.rmse)
    if not rows:
        return "There is no error to show yet"
    if not lossy:
        return "No type here changes these weights at all"
    fit = _fit(lossy)
    worst = [row.worst_block_rmse / row.rmse for row in lossy if row.worst_block_rmse]
    far = f"; the worst block is up to {_times(max(worst))} as far off as all together" if worst else ""
    if fit and fit[1] > 1:
        return f"One more bit per weight divides the error by about {fit[1]:.1f}{far}"
    if len(lossy) == 1:
        return f"{text_layout.shorten(lossy[0].type, 24)} is {lossy[0].rmse:.2g} off its weights on average{far}"
    least, most = lossy[0], lossy[-1]
    if most.rmse < 1.05 * least.rmse:
        return f"All {len(lossy)} types here change these weights equally{far}"
    return f"{least.type} changes these weights least, {most.type} {_times(most.rmse / least.rmse)} as much{far}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 9.95 else f"{ratio:.1f} times"


@style.styled
def block_size(
    rows: Sequence[BlockSizeRow],
    *,
    bits: int = 4,
    marks: Mapping[int, str] | None = None,
    guess: Mapping[int, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Error above, bits per weight below, against the number of weights that share one scale (log).

    Args:
        rows: one block size each, in any order.
        bits: of each weight without its share of a scale.
        marks: block sizes to name; ``BLOCK_MARKS`` without it.
        guess: the learner's own prediction of the error, by block size.
        title: replaces the sentence computed from the rows.
    """
    ordered = sorted(rows, key=lambda row: row.block_elems)
    fig = style.new_figure(4.9, title=title or _block_title(ordered, bits))
    error, size = fig.subplots(2, 1, sharex=True)
    at = [row.block_elems for row in ordered]
    named = {n: name for n, name in (BLOCK_MARKS if marks is None else marks).items() if at and at[0] <= n <= at[-1]}
    own = {n: value for n, value in (guess or {}).items() if at and at[0] <= n <= at[-1]}
    panels = [
        (error, "root mean square error", [row.rmse for row in ordered], list(own.values())),
        (size, f"bits per weight\n(dashed: without\nthe scales, {bits})", [row.bpw for row in ordered], [float(bits)]),
    ]
    for ax, name, figures, others in panels:
        ax.set_xscale("log", base=2)
        for n in named:
            ax.axvline(n, linestyle="-", color=style.FAINT, linewidth=5, zorder=0)
        ax.plot(at, figures, "o-", color=MEASURED, markersize=6.5, linewidth=1.8, label=name, zorder=3)
        ax.set_ylim(0, max([*figures, *others], default=0) * 1.25 or 1)
        ax.set_ylabel(name)
        ax.locator_params(axis="y", nbins=5)
    size.axhline(bits, linestyle="--", color=INK, linewidth=1, zorder=1)
    if own:
        error.plot(list(own), list(own.values()), "D", color=GUESS, markersize=7, zorder=5)
    if at:
        size.set_xlim(at[0] / 1.25, at[-1] * 1.25)
    ticks = [n for n in at if n in named or not any(0.7 < n / other < 1.45 and n != other for other in at)]
    size.set_xticks(ticks, [str(n) for n in ticks])
    size.xaxis.set_minor_locator(NullLocator())
    size.set_xlabel("weights in a block, one scale each (log)")
    if named:
        text_layout.names_above(error, sorted(named.items()))
    fig.draw_without_rendering()
    for ax, digits, figures in ((error, ".2g", [row.rmse for row in ordered]), (size, ".4g", [r.bpw for r in ordered])):
        points = [
            point_labels.Mark(n, y, f"{y:{digits}}" if n in (named or at) else "", 5)
            for n, y in zip(at, figures, strict=True)
        ]
        if ax is error:
            points += [point_labels.Mark(n, y, f"you predicted {y:.2g}", 9) for n, y in own.items()]
        point_labels.label(ax, points, lines=point_labels.along(ax, at, figures))
    return fig


def _block_title(rows: Sequence[BlockSizeRow], bits: int) -> str:
    if len(rows) < 2:
        return f"One block size says nothing yet about {bits}-bit weights"
    by_size = {row.block_elems: row for row in rows}
    # The claim to be settled is about 32 against 128; without these two, the smallest against the largest.
    small, large = (by_size[32], by_size[128]) if {32, 128} <= set(by_size) else (rows[0], rows[-1])
    saved = small.bpw - large.bpw
    change = large.rmse / small.rmse - 1 if small.rmse > 0 else math.inf
    grown = f"the error is {text_layout.percent(abs(change))} {'larger' if change > 0 else 'smaller'}"
    if not math.isfinite(change):
        grown = "the error is no longer 0" if large.rmse > 0 else "there is no error either way"
    elif change >= 1:
        grown = f"the error is {_times(change + 1)} as large"
    return f"Blocks of {large.block_elems} instead of {small.block_elems} save {saved:.2g} bits per weight, and {grown}"
