"""What a simple quantizer costs against the number of weights that share a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from labkit.course.figurekit import point_labels, style, text_layout
from labkit.course.figurekit.style import INK, MEASURED

BLOCK_MARKS: dict[int, str] = {32: "32: ggml", 128: "128: articles", 256: "256: ggml's K"}
"""Block sizes worth naming: ggml's two (blocks, and super-blocks of K-quants), and the one articles recommend."""


_BITS = 4  # of each weight, without its share of a scale


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
def block_size(rows: Sequence[BlockSizeRow]) -> Figure:
    """Error above, bits per weight below, against the number of weights that share one scale (log).

    Args:
        rows: one block size each, in any order, all with 4 bits for each weight besides its share of a scale.
    """
    ordered = sorted(rows, key=lambda row: row.block_elems)
    fig = style.new_figure(4.9, title=_title(ordered))
    error, size = fig.subplots(2, 1, sharex=True)
    at = [row.block_elems for row in ordered]
    named = {n: name for n, name in BLOCK_MARKS.items() if at and at[0] <= n <= at[-1]}
    panels = [
        (error, ".2g", [row.rmse for row in ordered], "root mean square error"),
        (size, ".4g", [row.bpw for row in ordered], f"bits per weight\n(dashed: without\nthe scales, {_BITS})"),
    ]
    for ax, _, figures, name in panels:
        ax.set_xscale("log", base=2)
        for n in named:
            ax.axvline(n, linestyle="-", color=style.FAINT, linewidth=5, zorder=0)
        ax.plot(at, figures, "o-", color=MEASURED, markersize=6.5, linewidth=1.8, label=name, zorder=3)
        ax.set_ylim(0, max([*figures, *([_BITS] if ax is size else [])], default=0) * 1.25 or 1)
        ax.set_ylabel(name)
        ax.locator_params(axis="y", nbins=5)
    size.axhline(_BITS, linestyle="--", color=INK, linewidth=1, zorder=1)
    if at:
        size.set_xlim(at[0] / 1.25, at[-1] * 1.25)
    ticks = [n for n in at if n in named or not any(0.7 < n / other < 1.45 and n != other for other in at)]
    size.set_xticks(ticks, [str(n) for n in ticks])
    size.xaxis.set_minor_locator(NullLocator())
    size.set_xlabel("weights in a block, one scale each (log)")
    if named:
        text_layout.names_above(error, sorted(named.items()))
    fig.draw_without_rendering()
    for ax, digits, figures, _ in panels:
        points = [
            point_labels.Mark(n, y, f"{y:{digits}}" if n in (named or at) else "", 5)
            for n, y in zip(at, figures, strict=True)
        ]
        point_labels.label(ax, points, lines=point_labels.along(ax, at, figures))
    return fig


def _title(rows: Sequence[BlockSizeRow]) -> str:
    """What larger blocks save and cost, as a sentence."""
    if len(rows) < 2:
        return "There are no two block sizes here to compare"
    by_size = {row.block_elems: row for row in rows}
    # The claim to be settled is about 32 against 128; without these two, the smallest against the largest.
    small, large = (by_size[32], by_size[128]) if {32, 128} <= set(by_size) else (rows[0], rows[-1])
    saved = small.bpw - large.bpw
    change = large.rmse / small.rmse - 1 if small.rmse > 0 else math.inf
    grown = f"the error is {text_layout.percent(abs(change))} {'larger' if change > 0 else 'smaller'}"
    if not math.isfinite(change):
        grown = "the error is no longer 0" if large.rmse > 0 else "there is no error either way"
    elif abs(change) < 0.005:
        grown = "the error stays the same"
    elif change >= 1:
        grown = f"the error is {text_layout.factor(change + 1)} as large"
    return f"Blocks of {large.block_elems} instead of {small.block_elems} save {saved:.2g} bits per weight, and {grown}"
