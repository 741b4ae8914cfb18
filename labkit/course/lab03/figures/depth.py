"""Time per token against the tokens already in the cache."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from labkit.course.figurekit import guesses, style, text_layout
from labkit.course.figurekit.line_labels import look, name_ends
from labkit.units import fmt_ms

if TYPE_CHECKING:
    from labkit.experiments.depth import DepthSpeed


@style.styled
def speed_at_depth(
    rows: Sequence[DepthSpeed],
    *,
    guess_times: float | None = None,
) -> Figure:
    """Milliseconds per token against the tokens already in the cache, a line per type of cache.

    Args:
        rows: measurements; marks are medians, whiskers leave out a tenth of the tokens at each end.
        guess_times: the learner's own prediction of how many times as long a token takes at the greatest depth as at
            the least, for the first line's type of cache.
    """
    lines: dict[str, list[tuple[int, tuple[float, ...]]]] = {}
    several = len({row.flash_attn for row in rows}) > 1
    for row in sorted(rows, key=lambda row: row.n_past):
        if row.decode_ms:
            lines.setdefault(name(row, flash_attn=several), []).append((row.n_past, row.decode_ms))
    crowded = len(lines) > 6
    fig = style.new_figure(max(4.3, 1.4 + 0.18 * len(lines)), title=_title(lines))
    ax = fig.add_subplot()
    ends = []
    everything = [t for line in lines.values() for _, ms in line for t in middle_80(ms)]
    deepest = max([n for line in lines.values() for n, _ in line] + [1])
    top = max(everything, default=1) * 1.12 or 1
    first = next(iter(lines.values()), None)
    own = guesses.above_0(guess_times, statistics.median(first[0][1]) if first else None)
    ax.set_ylim(0, top if own is None else max(top, min(1.12 * own, 3 * top)))
    for number, (label, line) in enumerate(lines.items()):
        # A little beside each other, or the whiskers of several types would hide in one.
        aside = (number - (len(lines) - 1) / 2) * min(0.006, 0.03 / len(lines)) * deepest
        at = [n + aside for n, _ in line]
        medians = [statistics.median(ms) for _, ms in line]
        ends_of = [middle_80(ms) for _, ms in line]
        spread = [
            [middle - low for middle, (low, _) in zip(medians, ends_of, strict=True)],
            [high - middle for middle, (_, high) in zip(medians, ends_of, strict=True)],
        ]
        ax.errorbar(at, medians, yerr=spread, capsize=3, elinewidth=1, label=label, **look(number))
        slope = "" if crowded else _slope(line)
        ends.append((at[-1], medians[-1], f"{label}: {fmt_ms(medians[-1])}{slope}"))
    ax.set_xlim(-0.03 * deepest, deepest)
    if first and own is not None:
        ends.append(guesses.draw(ax, first[-1][0], own, f"{guess_times:g} times"))
    ax.set_xlabel("tokens already in the cache; whiskers: 8 of 10 tokens")
    ax.set_ylabel("ms per token, median")
    depths = sorted({n for line in lines.values() for n, _ in line})
    ticks = [n for i, n in enumerate(depths) if i == 0 or n - depths[i - 1] > 0.06 * deepest]
    name_ends(ax, ends, ticks=ticks)
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    return fig


def middle_80(ms: Sequence[float]) -> tuple[float, float]:
    """Where the middle eight of ten tokens lie; a single interruption must not set the scale."""
    low, high = np.percentile(ms, (10, 90))
    return float(low), float(high)


def name(row: DepthSpeed, *, flash_attn: bool = False) -> str:
    """What a line is called: ``q8_0``, or ``q8_0/f16`` where K and V differ."""
    types = row.type_k if row.type_k == row.type_v else f"{row.type_k}/{row.type_v}"
    return f"{types}, flash attention {row.flash_attn}" if flash_attn else types


def _slope(line: Sequence[tuple[int, tuple[float, ...]]]) -> str:
    """What each 1,000 tokens in the cache add, in words."""
    (first, before), (last, after) = line[0], line[-1]
    if last == first:
        return ""
    per_thousand = (statistics.median(after) - statistics.median(before)) / (last - first) * 1000
    sign = "+" if per_thousand >= 0 else "−"
    return f",\n{sign}{abs(per_thousand):.2g} ms per 1,000"


def _title(lines: Mapping[str, Sequence[tuple[int, tuple[float, ...]]]]) -> str:
    """How many times as long a token takes at the greatest depth, at most and at least, as a sentence."""
    ratios = {}
    for label, line in lines.items():
        before = statistics.median(line[0][1])
        if line[-1][0] > line[0][0] and before > 0:
            ratios[label] = statistics.median(line[-1][1]) / before
    if not ratios:
        return "There is only one depth here, so nothing to compare"
    least, most = min(ratios, key=lambda n: ratios[n]), max(ratios, key=lambda n: ratios[n])
    deepest = max(line[-1][0] for line in lines.values())
    said = f"With {deepest:,} tokens in the cache a token takes {text_layout.factor(ratios[most])} as long as with "
    said += f"{'none' if min(line[0][0] for line in lines.values()) == 0 else 'the fewest'} ({most})"
    return said if least == most else f"{said}, {text_layout.factor(ratios[least])} ({least})"
