"""Time per token against a cap on memory: the cliff."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.course.figurekit import guesses, limits, style, text_layout
from labkit.course.figurekit.style import INK, LIMIT, MEASURED
from labkit.experiments.cap_sweep import CliffPoint
from labkit.units import fmt_bytes, fmt_ms


@style.styled
def cliff(
    points: Sequence[CliffPoint],
    *,
    needed_bytes: int,
    predicted: tuple[float, float],
    floor_bytes: int | None = None,
    guess: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Milliseconds per token against the memory cap, which shrinks from left to right.

    Args:
        points: one run each, in any order.
        needed_bytes: what the process needs in all, file plus anonymous: 100 % of the x axis.
        predicted: ms per token while everything fits, and below that.
        floor_bytes: the anonymous memory below which the process must be killed; drawn as a second limit.
        guess: the learner's own prediction, as (cap in % of what is needed, ms per token).
        title: replaces the sentence computed from the points, as for a recorded run.
    """
    fig = style.new_figure(4.4, title=title or _title(points, needed_bytes))
    ax = fig.add_subplot()
    ordered = sorted(points, key=lambda p: -p.cap_bytes)
    measured = [(100 * p.cap_bytes / needed_bytes, p.ms) for p in ordered if p.ms and p.outcome == "ok"]
    ended = [(100 * p.cap_bytes / needed_bytes, _short(p.outcome)) for p in ordered if not p.ms or p.outcome != "ok"]

    own = guesses.pair(guess)
    everything = [100.0, *(at for at, _ in measured), *(at for at, _ in ended)]
    everything += [min(own[0], 1.2 * max(everything))] if own else []
    everything += [100 * floor_bytes / needed_bytes] if floor_bytes is not None else []
    margin = max(0.06 * (max(everything) - min(everything)), 3)
    left, right = max(everything) + margin, min(everything) - margin
    ax.set_xlim(left, right)
    times = [*predicted, *(t for _, ms in measured for t in ms)]
    _set_y(ax, [*times, min(own[1], 2 * max(times))] if own else times)

    ax.plot(
        [left, 100, 100, right],
        [predicted[0]] * 2 + [predicted[1]] * 2,
        "--",
        color=INK,
        linewidth=1.3,
        label=f"predicted: {fmt_ms(predicted[0])} while all fits, then {fmt_ms(predicted[1])}",
    )
    if measured:
        _measured(ax, measured)
    marked = [(100.0, f"cap = all it needs, {fmt_bytes(needed_bytes)}")]
    if floor_bytes is not None:
        marked.append((100 * floor_bytes / needed_bytes, f"cap = its anonymous memory, {fmt_bytes(floor_bytes)}"))
    for x, _ in marked:
        ax.axvline(x, **limits.LINE | {"zorder": 2})
    _ended(ax, ended)
    ax.set_xlabel("memory cap, % of what the process needs")
    ax.set_ylabel(f"ms per token{' (log)' if ax.get_yscale() == 'log' else ''}")
    handles, said = ax.get_legend_handles_labels()
    if own:
        handles.append(guesses.swatch())
        said.append(guesses.draw(ax, *own, f"{fmt_ms(own[1])} at {own[0]:.0f}\u00a0%")[2])
    text_layout.legend_below(fig, handles, said, ncols=2)
    text_layout.names_above(ax, sorted(marked, reverse=True), colour=LIMIT)
    return fig


def _measured(ax: Axes, measured: Sequence[tuple[float, tuple[float, ...]]]) -> None:
    """Draw medians joined by a line, whiskers from lowest to highest, and figures at the first and the slowest."""
    at = [x for x, _ in measured]
    medians = [statistics.median(ms) for _, ms in measured]
    spread = [
        [mid - min(ms) for mid, (_, ms) in zip(medians, measured, strict=True)],
        [max(ms) - mid for mid, (_, ms) in zip(medians, measured, strict=True)],
    ]
    counts = sorted({len(ms) for _, ms in measured})
    repeats = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    several = "" if counts == [1] else f", median of {repeats} (whiskers: min to max)"
    ax.errorbar(
        at,
        medians,
        yerr=spread,
        fmt="o-",
        color=MEASURED,
        ecolor=MEASURED,
        elinewidth=1.4,
        capsize=4,
        linewidth=1.8,
        markersize=6.5,
        zorder=4,
        label=f"measured{several}",
    )
    for n in {0, medians.index(max(medians))}:
        ax.annotate(
            fmt_ms(medians[n]),
            (at[n], medians[n]),
            (7, 3),
            textcoords="offset points",
            va="bottom",
            fontsize=8.5,
            bbox=text_layout.BACKED,
            zorder=5,
        )


def _set_y(ax: Axes, figures: Sequence[float]) -> None:
    """Set the y axis, with the upper fifth left to runs without a figure; logarithmic if one would hide the others."""
    low, high = min(figures), max(figures)
    if high > 60 * low > 0:
        ax.set_yscale("log")
        ax.set_ylim(low / 2, low / 2 * (2 * high / low) ** 1.25)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        ax.set_ylim(0, high * 1.25 or 1)


def _ended(ax: Axes, ended: Sequence[tuple[float, str]]) -> None:
    """Mark runs that gave no figure by an x at the top; neighbours with one outcome share one word."""
    groups = [list(group) for _, group in itertools.groupby(ended, key=lambda item: item[1])]
    for n, group in enumerate(groups):
        at = [x for x, _ in group]
        top = ax.get_xaxis_transform()
        ax.plot(at, [0.91] * len(at), "X", color=INK, markersize=9, zorder=5, transform=top, linestyle="none")
        # Every second word goes below its marks, so that two close outcomes do not run into each other.
        ax.annotate(
            group[0][1],
            (statistics.mean(at), 0.91),
            (0, 8 if n % 2 == 0 else -8),
            xycoords=top,
            ha="center",
            va="bottom" if n % 2 == 0 else "top",
            textcoords="offset points",
            fontsize=8.5,
            bbox=text_layout.BACKED,
            zorder=5,
        )


def _short(outcome: str) -> str:
    """An outcome as a word at a mark."""
    return "killed" if outcome == "oom-killed" else "not measured" if outcome == "ok" else outcome


def _title(points: Sequence[CliffPoint], needed_bytes: int) -> str:
    """How much longer a token takes under the cap that slows it most, as a sentence."""
    ended = [(p.cap_bytes, statistics.median(p.ms)) for p in points if p.ms and p.outcome == "ok"]
    fits = [ms for cap_bytes, ms in ended if cap_bytes >= needed_bytes]
    pages = [(ms, cap_bytes) for cap_bytes, ms in ended if cap_bytes < needed_bytes]
    if fits and pages:
        slowest, cap_bytes = max(pages)
        ratio, share = slowest / statistics.median(fits), text_layout.percent(cap_bytes / needed_bytes)
        if ratio < 2:
            return f"A cap below what it needs costs little here: a token takes at most {ratio:.1f} times as long"
        return f"With a cap of {share} of what it needs, a token takes {text_layout.factor(ratio)} as long"
    if not ended:
        return "No run under these caps finished"
    return "While everything fits, a cap costs no time" if fits else "Every cap here is smaller than what it needs"
