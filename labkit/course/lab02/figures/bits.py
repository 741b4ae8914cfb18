"""Size, divergence and speed of a model's file types in one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import guesses, point_labels, style, text_layout
from labkit.course.figurekit.style import MEASURED
from labkit.course.lab02.figures.errors import log_y
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
    guess_times: tuple[str, str, float | None] | None = None,
) -> Figure:
    """KL divergence (log) against file size: the lower the better, the larger the mark the faster.

    Args:
        rows: one file type each; one without any divergence stands on the axis, since a logarithm has no 0.
        reference: what the divergence is measured from, said under the picture.
        guess_times: the learner's own prediction, as (label, other label, how many times the other's divergence).
    """
    fig = style.new_figure(5.2 + 0.2 * bool(reference), title=_title(rows))
    ax = fig.add_subplot()
    unit, unit_name = style.axis_unit(max((row.file_bytes for row in rows), default=0))
    seen = [kld for row in rows for kld in (row.kld, row.kld_imatrix) if kld and kld > 0]
    own = _guess_of(rows, guess_times)
    seen += [min(max(kld, min(seen) / 10), max(seen) * 10) for _, kld, _ in own]
    exact = any(row.kld <= 0 for row in rows)
    low = log_y(ax, seen, below=3.5 if exact else 1.8, above=2.2)
    scale = _size_axis(ax, [row.file_bytes / unit for row in rows] or [1.0])
    note = f"\nreference: {text_layout.shorten(reference, 90)}" if reference else ""
    ax.set_xlabel(f"file size, {unit_name}{scale}{note}")
    ax.set_ylabel("mean KL divergence, nats (log)")

    fastest = max((row.tokens_per_s or 0 for row in rows), default=0)
    marks, lines = [], []
    for row in rows:
        x, y = row.file_bytes / unit, row.kld if row.kld > 0 else low * 1.3
        across = _draw(ax, x, y, row, fastest)
        marks.append(point_labels.Mark(x, y, _said(row), across * fig.dpi / 72 / 2 + 2))
        if row.kld_imatrix and row.kld_imatrix > 0 and row.kld > 0:
            lines.append((x, y, row.kld_imatrix))
            marks.append(point_labels.Mark(x, row.kld_imatrix, "", 6))
    for x, y, better in lines:
        arrow = {"arrowstyle": "-|>", "color": MEASURED, "linewidth": 1.3, "shrinkA": 4, "shrinkB": 3}
        ax.annotate("", (x, better), (x, y), arrowprops=arrow, zorder=3)
        ax.plot(x, better, "_", color=MEASURED, markersize=10, markeredgewidth=2, zorder=4, label="_imatrix")
    for size_bytes, kld, said in own:
        marks.append(point_labels.Mark(*guesses.draw(ax, size_bytes / unit, kld, said), 9))
    _legend(fig, fastest > 0, any(row.tokens_per_s is None for row in rows), bool(lines), bool(own), exact)
    fig.draw_without_rendering()
    covered = [box for x, y, better in lines for box in point_labels.along(ax, [x, x], [y, better])]
    point_labels.label(ax, marks, lines=covered)
    return fig


def _guess_of(rows: Sequence[BitRow], guess: tuple[str, str, float | None] | None) -> list[tuple[int, float, str]]:
    """File size and divergence of the learner's prediction, and what it says; empty without one."""
    if guess is None:
        return []
    found = {row.label: row for row in rows}
    row, other = found.get(guess[0]), found.get(guess[1])
    kld = guesses.above_0(guess[2], other.kld if other else None)
    return [(row.file_bytes, kld, f"{guess[2]:g} × {guess[1]} = {kld:.2g}")] if row and kld else []


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


def _said(row: BitRow) -> str:
    """A mark's label: file type, divergence and speed."""
    speed = "" if row.tokens_per_s is None else f", {row.tokens_per_s:.{0 if row.tokens_per_s >= 9.95 else 1}f}/s"
    if row.kld <= 0:
        return f"{text_layout.shorten(row.label, 16)}\nno divergence{speed}"
    return f"{text_layout.shorten(row.label, 16)}\n{row.kld:.3g}{speed}"


def _legend(fig: Figure, timed: bool, untimed: bool, imatrix: bool, own: bool, exact: bool) -> None:
    """The legend below, of the marks that are drawn."""
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
        handles.append(guesses.swatch())
        names.append("you predicted")
    if handles:
        text_layout.legend_below(fig, handles, names, ncols=4)


def _title(rows: Sequence[BitRow]) -> str:
    """Size and divergence of the smallest file beside the largest, as a sentence."""
    lossy = sorted((row for row in rows if row.kld > 0), key=lambda row: row.file_bytes)
    if not lossy:
        return "No file here differs from the reference" if rows else "There is no file to compare yet"
    small, large = lossy[0], lossy[-1]
    gains = [1 - row.kld_imatrix / row.kld for row in lossy if row.kld_imatrix is not None]
    gain = f"; an imatrix lowers a divergence by up to {text_layout.percent(max(gains, default=0))}"
    best = gain if gains and max(gains) > 0 else ""
    if small.file_bytes == large.file_bytes:
        return f"A file of {fmt_bytes(small.file_bytes)} is {small.kld:.2g} nats away from the reference{best}"
    share = text_layout.percent(small.file_bytes / large.file_bytes)
    grown = text_layout.factor(small.kld / large.kld)
    names = text_layout.shorten(small.label, 16), text_layout.shorten(large.label, 16)
    return f"{names[0]} has {share} of the size of {names[1]} and {grown} its divergence{best}"
