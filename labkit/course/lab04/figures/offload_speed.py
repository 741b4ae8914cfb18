"""Time per token against n_gpu_layers: measured here, and predicted for devices that are elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.course.figurekit import guesses, line_labels, point_labels, style, text_layout
from labkit.course.figurekit.style import FAINT, INK, LIMIT
from labkit.course.lab04.figures.offload import cache_moves
from labkit.planning.device_curves import DeviceCurve
from labkit.units import fmt_ms

if TYPE_CHECKING:
    from labkit.experiments.offload_sweep import OffloadPoint

_SERIES = {True: "cache moves too", False: "cache stays on host\n(offload_kqv off)"}


@style.styled
def offload_speed(
    points: Sequence[OffloadPoint],
    *,
    predicted: Mapping[bool, Mapping[int, float]] | None = None,
    guess_times: float | None = None,
    top_ms: float | None = None,
) -> Figure:
    """Milliseconds per token against n_gpu_layers; marks are ``typical_ms``, whiskers hold the middle 80 % of tokens.

    Args:
        points: measurements of one model; those that the prediction was computed from get a ring.
        predicted: ms by n_gpu_layers, with ``offload_kqv`` on (True) and off (False), drawn dashed; without it, what
            the points carry.
        guess_times: the learner's own prediction of how many times as long a token takes with the most layers measured
            as with the fewest.
        top_ms: end of the axis, for pictures to be compared; without it, the axis fits the points.
    """
    timed = {kqv: _timed(points, kqv) for kqv in _SERIES}
    if predicted is None:
        predicted = {
            kqv: {p.n_gpu_layers: p.predicted_ms for p, _ in mine if p.predicted_ms is not None}
            for kqv, mine in timed.items()
        }
    fig = style.new_figure(4.2, title=_speed_title(timed, predicted))
    ax = fig.add_subplot()
    n_layer = max((len(p.split.layers_on) for p in points), default=0)
    everything = [ms for mine in timed.values() for _, ms in mine]
    everything += [ms for line in predicted.values() for ms in line.values()]
    highest = max(everything, default=1) or 1
    # What disturbed a few tokens must not squeeze the rest: long whiskers are cut, and say where they end.
    slowest = max((_spread(p)[1] for mine in timed.values() for p, _ in mine), default=0)
    ax.set_ylim(0, top_ms or max(1.15 * highest, min(1.05 * slowest, 1.5 * highest)))
    own = guesses.above_0(guess_times, timed[True][0][1] if timed[True] else None)
    if own is not None and top_ms is None:
        ax.set_ylim(0, max(ax.get_ylim()[1], min(1.15 * own, 3 * highest)))
    ax.set_xlim(-0.03 * (n_layer + 1) - 0.2, n_layer + 1)
    ends: list[tuple[float, float, str]] = []
    for number, (kqv, name) in enumerate(_SERIES.items()):
        line, mine = predicted.get(kqv) or {}, timed[kqv]
        if line:
            dashed: dict[str, Any] = {"linestyle": "--", "linewidth": 1.4, "color": INK, "zorder": 3}
            ax.plot(sorted(line), [line[n] for n in sorted(line)], label=f"predicted {kqv}", **dashed)
        if mine:
            _measured(ax, mine, number, name)
            n, ms = mine[-1][0].n_gpu_layers, mine[-1][1]
            ends.append((n, ms, f"{name}:\n{fmt_ms(ms)} at {n}"))
        elif line:
            ends.append((max(line), line[max(line)], f"predicted:\n{fmt_ms(line[max(line)])}"))
    if own is not None:
        ends.append(guesses.draw(ax, timed[True][-1][0].n_gpu_layers, own, f"{guess_times:g} times"))
    if n_layer:
        ax.axvspan(n_layer, n_layer + 1, color=FAINT, zorder=0, linewidth=0, label="_plus one")
        text_layout.names_above(ax, [(n_layer + 0.5, f"from {n_layer} to {n_layer + 1}, block 0 moves too")])
    ax.set_ylabel("ms per token")
    said = "n_gpu_layers; whiskers: 80 % of the tokens"
    said += "; dashed: predicted" if any(predicted.values()) else ""
    said += " from the ringed points" if any(p.calibrates for mine in timed.values() for p, _ in mine) else ""
    ax.set_xlabel(said)
    found = {0, n_layer + 1, *(p.n_gpu_layers for mine in timed.values() for p, _ in mine)}
    line_labels.name_ends(ax, ends, ticks=sorted(found))
    return fig


def _timed(points: Sequence[OffloadPoint], kqv: bool) -> list[tuple[OffloadPoint, float]]:
    """The points of one series that decoded, with their time per token, in order."""
    mine = [(p, p.typical_ms) for p in points if cache_moves(p) is kqv]
    return sorted(((p, ms) for p, ms in mine if ms is not None), key=lambda pair: pair[0].n_gpu_layers)


def _spread(point: OffloadPoint) -> tuple[float, float]:
    """The times between which the middle 80 % of a point's tokens lie."""
    times = sorted(point.decode_ms)
    return times[int(0.1 * len(times))], times[min(int(0.9 * len(times)), len(times) - 1)]


def _measured(ax: Axes, mine: Sequence[tuple[OffloadPoint, float]], number: int, name: str) -> None:
    """Draw one series: marks with whiskers, and rings around the points that the prediction was computed from."""
    at = [p.n_gpu_layers for p, _ in mine]
    typical = [ms for _, ms in mine]
    whiskers = [
        [max(ms - _spread(p)[0], 0) for p, ms in mine],
        [max(_spread(p)[1] - ms, 0) for p, ms in mine],
    ]
    look = line_labels.look(number, solid=number == 0) | {"linestyle": "none"}
    ax.errorbar(at, typical, yerr=whiskers, capsize=3, elinewidth=1, label=name, **look)
    ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 13, "linestyle": "none"}
    where: dict[str, Any] = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points", "va": "top"}
    for n, (p, _) in zip(at, mine, strict=True):
        if _spread(p)[1] > ax.get_ylim()[1]:
            down = -12 * len(ax.texts)  # each on a line of its own
            said = f"↑ {_spread(p)[1]:.0f}"
            ax.annotate(said, (n, 0.99), (-4, down), ha="right", fontsize=8, bbox=text_layout.BACKED, zorder=6, **where)
    fitted = [(p.n_gpu_layers, ms) for p, ms in mine if p.calibrates]
    if fitted:
        ax.plot([n for n, _ in fitted], [ms for _, ms in fitted], "o", label="_fitted", zorder=5, **ring)


def _speed_title(
    timed: Mapping[bool, Sequence[tuple[OffloadPoint, float]]], predicted: Mapping[bool, Mapping[int, float]]
) -> str:
    """The times at both ends and how far the predictions are off, as a sentence."""
    along = timed[True] or timed[False]
    if not along:
        return "Nothing has been timed with layers on a device yet"
    ends = [along[0]] if len(along) == 1 else [along[0], along[-1]]
    said = " and ".join(f"{fmt_ms(ms)} with n_gpu_layers {p.n_gpu_layers}" for p, ms in ends)
    off = [
        abs(expected / ms - 1)
        for kqv, mine in timed.items()
        for p, ms in mine
        if not p.calibrates and (expected := predicted.get(kqv, {}).get(p.n_gpu_layers)) is not None
    ]
    error = f"; the median error of the predictions is {text_layout.percent(statistics.median(off))}" if off else ""
    return f"A token takes {said}{error}"


@style.styled
def what_if_devices(rows: Sequence[DeviceCurve], *, top_ms: float | None = None) -> Figure:
    """Predicted milliseconds per token against n_gpu_layers, a line per device; it ends where the memory does.

    Args:
        rows: of one model.
        top_ms: end of the axis, for pictures to be compared; without it, the axis fits the lines.
    """
    drawn = [row for row in rows if row.ms]
    none = [row.label for row in rows if not row.ms]
    fig = style.new_figure(4.4, title=_what_if_title(rows))
    ax = fig.add_subplot()
    highest = max((ms for row in drawn for ms in row.ms.values()), default=1)
    top = top_ms or highest * 1.15
    ax.set_ylim(0, top)
    last = max((row.n_layer + 1 for row in rows), default=1)
    ax.set_xlim(0, last * 1.02)
    marks, ends = [], []
    for number, row in enumerate(drawn):
        at = sorted(row.ms)
        ms = [row.ms[n] for n in at]
        look = line_labels.look(number)
        ax.plot(at, ms, "--", color=look["color"], linewidth=1.8, zorder=3, label=row.label)
        end: dict[str, Any] = {"zorder": 5, "clip_on": False, "markeredgecolor": "white"}
        if row.whole:
            ax.plot(at[-1], ms[-1], look["marker"], color=look["color"], markersize=8, label="_whole", **end)
        else:
            ax.plot(at[-1], ms[-1], "X", color=LIMIT, markersize=9, label="_full", **end)
        said = f"{fmt_ms(ms[-1])}, {text_layout.rate(ms[-1])}"
        if row.whole:
            ends.append((at[-1], ms[-1], f"{row.label}\n{said}"))
        marks.append(
            point_labels.Mark(at[-1], ms[-1], "" if row.whole else f"{row.label}, full at {row.most}:\n{said}", 9)
        )
    ax.set_ylabel("ms per token, predicted")
    below = f"n_gpu_layers ({last} is everything); ✕: the device's memory is full"
    ax.set_xlabel("\n".join([below, *([f"no room at all: {'; '.join(none)}"] if none else [])]), wrap=True)
    line_labels.name_ends(
        ax, ends, ticks=[n for n in MaxNLocator(8, integer=True).tick_values(0, last) if n < 0.96 * last] + [last]
    )
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    boxes = [
        box for row in drawn for box in point_labels.along(ax, sorted(row.ms), [row.ms[n] for n in sorted(row.ms)])
    ]
    point_labels.label(ax, marks, lines=boxes)
    return fig


def _what_if_title(rows: Sequence[DeviceCurve]) -> str:
    """The fastest device and the slowest that is full before the end, as a sentence."""
    some = [row for row in rows if row.most is not None]
    if not some:
        return "No device here has room for any layer of this model (predicted)"
    best = min(some, key=lambda row: row.ms[row.most or 0])
    partly = [row for row in some if not row.whole and row is not best]
    said = f"Predicted, not measured: a token takes at least {fmt_ms(best.ms[best.most or 0])}, on {best.label}"
    said += "" if best.whole else f", full at {best.most} of {best.n_layer + 1} layers"
    if partly:
        worst = max(partly, key=lambda row: row.ms[row.most or 0])
        takes = fmt_ms(worst.ms[worst.most or 0])
        said += f", and {takes} on {worst.label}, full at {worst.most} of {worst.n_layer + 1}"
    return said
