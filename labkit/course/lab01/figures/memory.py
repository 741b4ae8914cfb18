"""Where a process keeps a model: stacked bars per run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from labkit.course.figurekit import guesses, limits, memory_bars, style, text_layout
from labkit.course.figurekit.memory_bars import MEASURED, PREDICTED, Part
from labkit.course.figurekit.memory_split import Split, measured_split, predicted_split
from labkit.course.figurekit.style import INK
from labkit.units import GiB, fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.run import Run


@style.styled
def where_the_model_is(
    runs: Sequence[Run],
    *,
    labels: Sequence[str] | None = None,
    limit_bytes: int | None = None,
    guess_gib: float | None = None,
) -> Figure:
    """Two stacked bars per run: predicted (hatched) over measured (solid), split by kind of memory.

    Args:
        runs: one row each, from the top.
        labels: a name per run; without it, the load mode and whether weights are repacked.
        limit_bytes: a limit that holds for all runs, drawn as a line. A run's own cap is drawn in its own row.
        guess_gib: the learner's own prediction of all memory of the first run.
    """
    names = text_layout.row_names(runs, labels, memory_bars.setting_name)
    predicted = [predicted_split(run) for run in runs]
    measured = [measured_split(run) for run in runs]
    largest = max((sum(split.values()) for split in [*predicted, *measured] if split), default=0)
    unit, unit_name = style.axis_unit(largest)

    fig = style.new_figure(1.75 + 0.78 * len(runs), title=_title(runs, measured))
    ax = fig.add_subplot()
    ends: list[Text] = []
    parts: list[Part] = []
    for row, (run, before, after) in enumerate(zip(runs, predicted, measured, strict=True)):
        end = memory_bars.stack(ax, row + PREDICTED, before, unit, label="predicted", predicted=True)
        _lock(ax, row + PREDICTED, before, run.predicted.locked_bytes, unit)
        ends.append(text_layout.beside(ax, end, row + PREDICTED, f"{fmt_bytes(sum(before.values()))} predicted"))
        if run.cap_bytes is not None and run.cap_bytes <= 1.5 * largest:
            ax.plot([run.cap_bytes / unit] * 2, [row - 0.46, row + 0.46], label="_cap", **limits.LINE)
        end = 0.0
        if after is not None:
            end = memory_bars.stack(ax, row + MEASURED, after, unit, label="measured", predicted=False, parts=parts)
            _lock(ax, row + MEASURED, after, run.measured.locked_bytes if run.measured else None, unit)
        if run.outcome == "oom-killed":
            # Killed means that the cap was reached, even where the last sample was taken a little before.
            end = max(end, (run.cap_bytes or 0) / unit)
            ax.plot(end, row + MEASURED, "X", color=INK, markersize=8, clip_on=False, zorder=7, label="_killed")
        ends.append(text_layout.beside(ax, end, row + MEASURED, _said(run, after)))

    ax.set_ylim(len(runs) - 0.45, -0.55 if limit_bytes is None else -1.0)
    ax.set_yticks(range(len(runs)), [_row_label(name, run) for name, run in zip(names, runs, strict=True)])
    ax.tick_params(axis="y", length=0, pad=9)
    ax.set_xlabel(f"resident memory, {unit_name}")
    own = guesses.number(guess_gib)
    reach = max(largest, guesses.within(limit_bytes, largest), guesses.within(own and own * GiB, largest))
    ax.set_xlim(0, max(reach * 1.02, 1) / unit)
    if limit_bytes is not None:
        limits.upright(ax, limit_bytes / unit, f"limit {fmt_bytes(limit_bytes)}", -0.78)
    if runs and own is not None:
        *_, said = guesses.draw(ax, own * GiB / unit, 0, fmt_bytes(own * GiB))
        ends[0].set_text(f"{ends[0].get_text()}; {said}")
    more: list[tuple[Any, str]] = []
    if any(run.predicted.locked_bytes for run in runs):
        more.append(memory_bars.locked_swatch())
    if any(run.cap_bytes for run in runs):
        more.append((Line2D([], [], **limits.LINE), "cap of the run"))
    memory_bars.legend(fig, [*predicted, *measured], more=more)
    text_layout.make_room(fig, {ax: ends})
    text_layout.hide_unfit(parts)
    return fig


def _lock(ax: Axes, y: float, split: Split, locked_bytes: int | None, unit: int) -> None:
    """Draw the dark edge; what llama.cpp locks is the mapped file or, without mmap, the weights on the heap."""
    memory_bars.lock(ax, y, min(locked_bytes or 0, split["file"] + split["heap"]) / unit)


def _said(run: Run, measured: Split | None) -> str:
    """What is written beside a run's measured bar, or in its place."""
    if run.outcome == "oom-killed":
        at = "" if run.cap_bytes is None else f" at {fmt_bytes(run.cap_bytes)}"
        return f"  killed for memory{at}"
    if measured is None:
        reason = "not measured" if run.outcome == "ok" else f"{run.outcome}: {run.reason}".rstrip(": ")
        return "\n".join(textwrap.wrap(reason, 72, max_lines=2, placeholder=" …"))
    total = fmt_bytes(sum(measured.values()))
    if run.outcome != "ok":
        return f"{run.outcome} at {total}"
    locked = run.measured.locked_bytes if run.measured else None
    return f"{total} measured, {fmt_bytes(locked)} locked" if locked else f"{total} measured"


def _row_label(name: str, run: Run) -> str:
    """A row's name, with the cap of the run if it had one."""
    label = text_layout.wrap(name, 22)
    return label if run.cap_bytes is None else f"{label}\n(cap {fmt_bytes(run.cap_bytes)})"


def _title(runs: Sequence[Run], measured: Sequence[Split | None]) -> str:
    """What the bars show, as a sentence."""
    files = {run.model.file_bytes for run in runs}
    model = f"A {fmt_bytes(files.pop())} model" if len(files) == 1 else "A model"
    killed = sum(run.outcome == "oom-killed" for run in runs)
    if killed:
        return f"{model} is killed for memory in {killed} of {len(runs)} runs"
    totals = [sum(split.values()) for run, split in zip(runs, measured, strict=True) if split and run.outcome == "ok"]
    if not totals:
        return f"The memory of {model[0].lower()}{model[1:]} was not measured here"
    low, high = fmt_bytes(min(totals)), fmt_bytes(max(totals))
    if low != high:
        return f"{model} takes {low} to {high} of memory, depending on how it is loaded"
    return f"{model} takes {low} of memory{', however it is loaded' if len(totals) > 1 else ', once loaded'}"
