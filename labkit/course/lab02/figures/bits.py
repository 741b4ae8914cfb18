"""What each bit of a file's weights buys: size, quality and speed in one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import point_labels, style, text_layout
from labkit.course.figurekit.style import GUESS, MEASURED
from labkit.units import fmt_bytes

_LARGEST = 15.0  # points across the mark of the fastest
_SMALLEST = 5.0


@dataclass(frozen=True)
class BitRow:
    """One file type of one model.

    Attributes:
        label: its name.
        file_bytes: size of the file.
        kld: mean KL divergence from the reference, in nats; 0 for the reference itself.
        tokens_per_s: measured speed; None if not measured.
        kld_imatrix: the divergence when quantized with an importance matrix; None without one.
    """

    label: str
    file_bytes: int
    kld: float
    tokens_per_s: float | None = None
    kld_imatrix: float | None = None


@style.styled
def what_a_bit_buys(
    rows: Sequence[BitRow],
    *,
    reference: str | None = None,
    guess: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Figure:
    """KL divergence (log) against file size: the lower the better, the larger the mark the faster.

    Args:
        rows: one file type each; one without any divergence stands on the axis, since a logarithm has no 0.
        reference: what the divergence is measured from, said under the picture.
        guess: the learner's own prediction of the divergence, by label.
        title: replaces the sentence computed from the rows.
    """
    fig = style.new_figure(5.2 + 0.2 * bool(reference), title=title or _title(rows))
    ax = fig.add_subplot()
    unit, unit_name = style.axis_unit(max((row.file_bytes for row in rows), default=0))
    own = [(row.file_bytes / unit, guess[row.label]) for row in rows if guess and guess.get(row.label, 0) > 0]
    seen = [kld for row in rows for kld in (row.kld, row.kld_imatrix) if kld and kld > 0] + [kld for _, kld in own]
    exact = any(row.kld <= 0 for row in rows)
    low = _log_axis(ax, seen, below=3.5 if exact else 1.8)
    scale = _size_axis(ax, [row.file_bytes / unit for row in rows] or [1.0])
    note = f"\nreference: {text_layout.shorten(reference, 90)}" if reference else ""
    ax.set_xlabel(f"file size, {unit_name}{scale}{note}")
    ax.set_ylabel("mean KL divergence, nats (log)")

    fastest = max((row.tokens_per_s or 0 for row in rows), default=0)
    marks, lines = [], []
    for row in rows:
        x, y = row.file_bytes / unit, row.kld if row.kld > 0 else low * 1.3
        across = _draw(ax, x, y, row, fastest)
        marks.append(point_labels.Mark(x, y, _words(row), across * fig.dpi / 72 / 2 + 2))
        if row.kld_imatrix and row.kld_imatrix > 0 and row.kld > 0:
            lines.append((x, y, row.kld_imatrix))
            marks.append(point_labels.Mark(x, row.kld_imatrix, "", 6))
    for x, y, better in lines:
        arrow = {"arrowstyle": "-|>", "color": MEASURED, "linewidth": 1.3, "shrinkA": 4, "shrinkB": 3}
        ax.annotate("", (x, better), (x, y), arrowprops=arrow, zorder=3)
        ax.plot(x, better, "_", color=MEASURED, markersize=10, markeredgewidth=2, zorder=4, label="_imatrix")
    for x, y in own:
        ax.plot(x, y, "D", color=GUESS, markersize=7, zorder=6, label="_guess")
        marks.append(point_labels.Mark(x, y, f"you predicted {y:.2g}", 9))
    _legend(fig, fastest > 0, any(row.tokens_per_s is None for row in rows), bool(lines), bool(own), exact)
    fig.draw_without_rendering()
    covered = [box for x, y, better in lines for box in point_labels.along(ax, [x, x], [y, better])]
    point_labels.label(ax, marks, lines=covered)
    return fig


def _draw(ax: Axes, x: float, y: float, row: BitRow, fastest: float) -> float:
    """Draw one mark, its area in proportion to the speed; return how many points it is across."""
    if row.tokens_per_s is None:
        look = {"markerfacecolor": "white", "markeredgecolor": MEASURED, "markeredgewidth": 1.5}
        size = 7.0
    else:
        look = {"markerfacecolor": MEASURED, "markeredgecolor": "white", "markeredgewidth": 0.8}
        size = max(_LARGEST * math.sqrt(row.tokens_per_s / fastest), _SMALLEST) if fastest > 0 else _SMALLEST
    shape = "o" if row.kld > 0 else "v"
    ax.plot(x, y, shape, markersize=size, zorder=5, label=row.label, **look)  # type: ignore[arg-type]
    return size


def _log_axis(ax: Axes, figures: Sequence[float], *, below: float) -> float:
    ax.set_yscale("log")
    low, high = (min(figures) / below, max(figures) * 2.2) if figures else (0.001, 1.0)
    ax.set_ylim(low, high)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    short = math.log10(high / low) < 2
    ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if short and f"{value:e}"[0] in "25" else "")
    return low


def _size_axis(ax: Axes, sizes: Sequence[float]) -> str:
    """Set up the x axis, logarithmic if one file is much larger than the others; return what to say of it."""
    low, high = min(sizes), max(sizes)
    if low <= 0 or high <= 2.5 * low:
        margin = max(0.12 * (high - low), 0.03 * high)
        ax.set_xlim(low - margin, high + margin)
        return ""
    share = (high / low) ** 0.12
    ax.set_xscale("log")
    ax.set_xlim(low / share, high * share)
    leads = (1, 1.5, 2, 3, 4, 6, 8) if high < 20 * low else (1, 3) if high < 300 * low else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [
        lead * 10.0**power for power in powers for lead in leads if low / share < lead * 10.0**power < high * share
    ]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    return " (log)"


def _words(row: BitRow) -> str:
    speed = "" if row.tokens_per_s is None else f", {row.tokens_per_s:.{0 if row.tokens_per_s >= 9.95 else 1}f}/s"
    if row.kld <= 0:
        return f"{text_layout.shorten(row.label, 16)}\nno divergence{speed}"
    return f"{text_layout.shorten(row.label, 16)}\n{row.kld:.3g}{speed}"


def _legend(fig: Figure, timed: bool, untimed: bool, imatrix: bool, own: bool, exact: bool) -> None:
    handles, names = [], []
    if timed:
        handles.append(Line2D([], [], marker="o", linestyle="none", color=MEASURED, markersize=9))
        names.append("area and /s: tokens per second")
    if untimed:
        look = {"markerfacecolor": "white", "markeredgecolor": MEASURED, "markeredgewidth": 1.5}
        handles.append(Line2D([], [], marker="o", linestyle="none", markersize=7, **look))  # type: ignore[arg-type]
        names.append("speed not measured")
    if exact:
        handles.append(Line2D([], [], marker="v", linestyle="none", color=MEASURED, markersize=8))
        names.append("no divergence")
    if imatrix:
        handles.append(Line2D([], [], marker="_", linestyle="none", color=MEASURED, markersize=10, markeredgewidth=2))
        names.append("with an imatrix")
    if own:
        handles.append(Line2D([], [], marker="D", linestyle="none", color=GUESS, markersize=7))
        names.append("you predicted")
    if handles:
        text_layout.legend_below(fig, handles, names, ncols=4)


def _title(rows: Sequence[BitRow]) -> str:
    lossy = sorted((row for row in rows if row.kld > 0), key=lambda row: row.file_bytes)
    if not lossy:
        return "No file here differs from the reference" if rows else "There is no file to compare yet"
    small, large = lossy[0], lossy[-1]
    gains = [1 - row.kld_imatrix / row.kld for row in lossy if row.kld_imatrix is not None]
    best = f"; an imatrix takes back up to {text_layout.percent(max(gains))}" if gains and max(gains) > 0 else ""
    if small.file_bytes == large.file_bytes:
        return f"A file of {fmt_bytes(small.file_bytes)} is {small.kld:.2g} nats away from the reference{best}"
    share = text_layout.percent(small.file_bytes / large.file_bytes)
    factor = small.kld / large.kld
    grown = f"{factor:,.0f}" if factor >= 9.95 else f"{factor:.1f}"
    names = text_layout.shorten(small.label, 16), text_layout.shorten(large.label, 16)
    return f"{names[0]} has {share} of the size of {names[1]} and {grown} times its divergence{best}"
