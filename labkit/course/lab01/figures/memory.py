"""Where a process keeps a model: stacked bars per run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.memory_split import measured_split, predicted_split
from labkit.course.figurekit.style import INK, KINDS, LIMIT
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.run import Run

_BAR = 0.36
_PREDICTED, _MEASURED = -0.2, 0.2


@style.styled
def where_the_model_is(
    runs: Sequence[Run],
    *,
    labels: Sequence[str] | None = None,
    limit_bytes: int | None = None,
    title: str | None = None,
) -> Figure:
    """Two stacked bars per run: predicted (hatched) over measured (solid), split by kind of memory.

    Args:
        runs: one row each, from the top.
        labels: a name per run; without it, the load mode and whether weights are repacked.
        limit_bytes: a limit that holds for all runs, drawn as a line. A run's own cap is drawn in its own row.
        title: replaces the sentence computed from the runs.
    """
    names = list(labels) if labels is not None else [setting_name(run) for run in runs]
    if len(names) != len(runs):
        raise ValueError(f"{len(names)} labels for {len(runs)} runs: give one label per run.")
    predicted = [predicted_split(run) for run in runs]
    measured = [measured_split(run) for run in runs]
    largest = max((sum(split.values()) for split in [*predicted, *measured] if split), default=0)
    unit, unit_name = style.axis_unit(largest)

    fig = style.new_figure(1.75 + 0.78 * len(runs), title=title or _title(runs, measured))
    ax = fig.add_subplot()
    ends: list[Text] = []
    inner: list[tuple[Text, float, float]] = []
    for row, (run, before, after) in enumerate(zip(runs, predicted, measured, strict=True)):
        ends.append(_stack(ax, row + _PREDICTED, before, unit, solid=False, inner=inner))
        locked = run.measured.locked_bytes if run.measured else None
        _lock(ax, row + _PREDICTED, before, run.predicted.locked_bytes, unit)
        if run.cap_bytes is not None and run.cap_bytes <= 1.5 * largest:
            ax.plot([run.cap_bytes / unit] * 2, [row - 0.46, row + 0.46], ":", color=LIMIT, linewidth=2, zorder=4)
        total = 0
        if after is not None:
            total = sum(after.values())
            ends.append(_stack(ax, row + _MEASURED, after, unit, solid=True, inner=inner))
            _lock(ax, row + _MEASURED, after, locked, unit)
        if run.outcome == "oom-killed":
            # Killed means that the cap was reached, even where the last sample was taken a little before.
            death = max(total, run.cap_bytes or 0) / unit
            ax.plot(death, row + _MEASURED, "X", color=INK, markersize=8, clip_on=False, zorder=7)
            label = _say(ax, death, row + _MEASURED, "  killed for memory")
            if run.cap_bytes is not None:
                label.set_text(f"{label.get_text()} at {fmt_bytes(run.cap_bytes)}")
            if after is not None:
                ends.pop().remove()
            ends.append(label)
        elif after is None:
            reason = "not measured" if run.outcome == "ok" else f"{run.outcome}: {run.reason}".rstrip(": ")
            wrapped = "\n".join(textwrap.wrap(reason, 72, max_lines=2, placeholder=" …"))
            ends.append(_say(ax, 0, row + _MEASURED, wrapped))
        elif run.outcome != "ok":
            ends[-1].set_text(f"{run.outcome} at {fmt_bytes(total)}")
        elif locked:
            ends[-1].set_text(f"{ends[-1].get_text()}, {fmt_bytes(locked)} locked")

    ax.set_ylim(len(runs) - 0.45, -0.55 if limit_bytes is None else -1.0)
    ax.set_yticks(range(len(runs)), [_row_label(name, run) for name, run in zip(names, runs, strict=True)])
    ax.tick_params(axis="y", length=0, pad=9)
    ax.set_xlabel(f"resident memory, {unit_name}")
    reach = max(largest, limit_bytes if limit_bytes is not None and limit_bytes <= 3 * largest else 0)
    ax.set_xlim(0, max(reach * 1.02, 1) / unit)
    _limit(ax, limit_bytes, reach, unit)
    _legend(fig, predicted, measured, any(r.predicted.locked_bytes for r in runs), any(r.cap_bytes for r in runs))
    text_layout.make_room(fig, {ax: ends})
    text_layout.hide_unfit(inner)
    return fig


def _stack(
    ax: Axes, y: float, split: dict[str, int], unit: int, *, solid: bool, inner: list[tuple[Text, float, float]]
) -> Text:
    """Draw one stacked bar; return the label of its total, and add the labels of its parts to ``inner``."""
    left = 0.0
    for key, kind in KINDS.items():
        width = split[key] / unit
        if width <= 0:
            continue
        look = style.solid(kind.colour) if solid else style.hatched(kind.colour, kind.hatch)
        ax.barh(y, width, _BAR, left=left, label=f"{'measured' if solid else 'predicted'} {key}", **look)
        if solid:
            part = ax.text(left + width / 2, y, fmt_bytes(split[key]), ha="center", va="center", fontsize=8.5)
            part.set_color(style.ink_on(kind.colour))
            inner.append((part, left, left + width))
        left += width
    return _say(ax, left, y, f"{fmt_bytes(sum(split.values()))} {'measured' if solid else 'predicted'}")


def _say(ax: Axes, x: float, y: float, text: str) -> Text:
    return ax.annotate(
        text,
        (x, y),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        zorder=6,
        annotation_clip=False,
        bbox=text_layout.BACKED,
    )


def _lock(ax: Axes, y: float, split: dict[str, int], locked_bytes: int | None, unit: int) -> None:
    """Draw the dark edge; what llama.cpp locks is the mapped file or, without mmap, the weights on the heap."""
    width = min(locked_bytes or 0, split["file"] + split["heap"]) / unit
    if width > 0:
        ax.add_patch(Rectangle((0, y - _BAR / 2), width, _BAR, zorder=3, label="locked", **style.locked_edge()))


def _limit(ax: Axes, limit_bytes: int | None, reach: float, unit: int) -> None:
    if limit_bytes is None:
        return
    name = f"limit {fmt_bytes(limit_bytes)}"
    if limit_bytes > reach:
        ax.text(
            0.995,
            -0.78,
            f"{name}, beyond this axis →",
            transform=ax.get_yaxis_transform(),
            ha="right",
            va="center",
            color=LIMIT,
            fontsize=9,
        )
        return
    ax.axvline(limit_bytes / unit, linestyle=":", color=LIMIT, linewidth=2, zorder=4)
    left_half = limit_bytes < reach / 2
    ax.annotate(
        name,
        (limit_bytes / unit, -0.78),
        (5 if left_half else -5, 0),
        textcoords="offset points",
        ha="left" if left_half else "right",
        va="center",
        color=LIMIT,
        fontsize=9,
    )


def _legend(
    fig: Figure, predicted: Sequence[dict[str, int]], measured: Sequence[dict[str, int] | None], locked: bool, cap: bool
) -> None:
    used = [key for key in KINDS if any(split and split[key] > 0 for split in [*predicted, *measured])]
    handles: list[object] = [(style.swatch(KINDS[key], predicted=True), style.swatch(KINDS[key])) for key in used]
    names = [KINDS[key].label for key in used]
    if locked:
        handles.append(Patch(**style.locked_edge()))
        names.append("locked")
    if cap:
        handles.append(Line2D([], [], linestyle=":", color=LIMIT, linewidth=2))
        names.append("cap of the run")
    text_layout.legend_below(
        fig,
        handles,
        names,
        ncols=3,
        title="hatched: predicted, solid: measured",
        title_fontsize=9,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )


def setting_name(run: Run) -> str:
    """How a run was loaded, in a few words."""
    return run.settings.load_mode if run.settings.repack else f"{run.settings.load_mode}, no repack"


def _row_label(name: str, run: Run) -> str:
    label = text_layout.wrap(name, 22)
    return label if run.cap_bytes is None else f"{label}\n(cap {fmt_bytes(run.cap_bytes)})"


def _title(runs: Sequence[Run], measured: Sequence[dict[str, int] | None]) -> str:
    files = {run.model.file_bytes for run in runs}
    model = f"A {fmt_bytes(files.pop())} model" if len(files) == 1 else "A model"
    killed = sum(run.outcome == "oom-killed" for run in runs)
    if killed:
        return f"{model} is killed for memory in {killed} of {len(runs)} runs"
    totals = [sum(split.values()) for run, split in zip(runs, measured, strict=True) if split and run.outcome == "ok"]
    if not totals:
        return f"{model} was not measured in memory here"
    low, high = fmt_bytes(min(totals)), fmt_bytes(max(totals))
    if low != high:
        return f"{model} takes {low} to {high} of memory, once loaded"
    return f"{model} takes {low} of memory{', however it is loaded' if len(totals) > 1 else ''}"
