"""What is locked and what is not: memory of runs on both sides of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.text import Text

from labkit.course.figurekit import memory_bars, style, text_layout
from labkit.course.figurekit.memory_bars import MEASURED, PREDICTED, Part
from labkit.course.figurekit.memory_split import Split, measured_split, predicted_split
from labkit.course.figurekit.style import INK, KINDS
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.run import Run

_FAILED = 0.9  # of what was to be locked: less, and the lock did not succeed


@style.styled
def what_is_locked(runs: Sequence[Run], *, labels: Sequence[str] | None = None) -> Figure:
    """Bars to both sides of a line for each run: what is locked to the left, what is not to the right.

    Predicted (hatched) over measured (solid), split by kind of memory; locked memory has a dark edge.

    Args:
        runs: one row each, from the top.
        labels: a name per run; without it, the load mode and whether weights are repacked.
    """
    names = text_layout.row_names(runs, labels, memory_bars.setting_name)
    rows = [(_sides(run, measured=False), _sides(run, measured=True)) for run in runs]
    totals = [sum(side.values()) for row in rows for both in row if both for side in both]
    unit, unit_name = style.axis_unit(max(totals, default=0))

    fig = style.new_figure(1.75 + 0.78 * len(runs), title=_title(runs))
    ax = fig.add_subplot()
    ends: list[Text] = []
    parts: list[Part] = []
    for n, (run, (before, after)) in enumerate(zip(runs, rows, strict=True)):
        for y, both, solid in ((n + PREDICTED, before, False), (n + MEASURED, after, True)):
            if both is None:
                why = f"{run.outcome}: {run.reason}".rstrip(": ") if run.outcome != "ok" else "not measured"
                ends.append(text_layout.beside(ax, 0, y, text_layout.shorten(why, 60)))
                continue
            for side, sign in zip(both, (-1, 1), strict=True):
                state = f"{'measured' if solid else 'predicted'} {'locked' if sign < 0 else 'not locked'}"
                inner = parts if solid else None
                end = memory_bars.stack(ax, y, side, unit, label=state, predicted=not solid, sign=sign, parts=inner)
                if sign < 0:
                    memory_bars.lock(ax, y, end)
                said = _said(run, sum(side.values()), locked=sign < 0, measured=solid)
                ends.append(text_layout.beside(ax, end, y, said, gap=6 * sign))
    ax.axvline(0, color=INK, linewidth=1, zorder=4)
    ax.set_ylim(len(runs) - 0.45, -0.95)
    ax.text(-0.01, -0.72, "← locked", ha="right", va="center", fontsize=9, fontweight="bold")
    ax.text(0, -0.72, "  not locked →", ha="left", va="center", fontsize=9, fontweight="bold")
    ax.set_yticks(range(len(runs)), [text_layout.wrap(name, 20, lines=3) for name in names])
    ax.tick_params(axis="y", length=0, pad=9)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"resident memory, {unit_name}")
    ax.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    drawn = [both for row in rows for both in row if both]
    reach = [max((sum(both[side].values()) for both in drawn), default=0) for side in (0, 1)]
    least = 0.02 * max(*reach, 1)
    ax.set_xlim(-max(reach[0], least) / unit, max(reach[1], least) / unit)
    more = [memory_bars.locked_swatch()] if reach[0] else []
    memory_bars.legend(fig, [side for both in drawn for side in both], more=more)
    text_layout.make_room(fig, {ax: ends})
    text_layout.hide_unfit(parts)
    return fig


def _sides(run: Run, *, measured: bool) -> tuple[Split, Split] | None:
    """Bytes by kind that are locked, and that are not; None when nothing was measured."""
    split = measured_split(run) if measured else predicted_split(run)
    if split is None:
        return None
    locked = (run.measured.locked_bytes or 0 if run.measured else 0) if measured else run.predicted.locked_bytes
    inside = dict.fromkeys(KINDS, 0)
    # llama.cpp locks the mapping of the file or, without mmap, the weights on the heap; nothing else.
    for kind in ("heap", "file") if run.settings.load_mode == "mlock" else ("file", "heap"):
        inside[kind] = min(locked, split[kind])
        locked -= inside[kind]
    return inside, {kind: split[kind] - inside[kind] for kind in KINDS}


def _said(run: Run, size: int, *, locked: bool, measured: bool) -> str:
    """What is written at the end of a bar: its size, and what it should have been where a lock got less."""
    if not measured:
        return f"{fmt_bytes(size)} predicted"
    asked = run.predicted.locked_bytes
    return f"{fmt_bytes(size)} of {fmt_bytes(asked)}" if locked and size < _FAILED * asked else fmt_bytes(size)


def _title(runs: Sequence[Run]) -> str:
    """What the bars show, as a sentence."""
    asked = [run for run in runs if run.predicted.locked_bytes and run.measured and run.ok]
    locked = {id(run): run.measured.locked_bytes or 0 for run in asked if run.measured}
    failed = [run for run in asked if locked[id(run)] < _FAILED * run.predicted.locked_bytes]
    if not asked:
        some = any(run.predicted.locked_bytes for run in runs)
        return "No run that was to lock memory finished" if some else "Nothing was to be locked in these runs"
    if len(failed) == len(asked):
        least = min(locked[id(run)] for run in failed)
        got = fmt_bytes(least) if least else "nothing"
        return f"Asked to lock {fmt_bytes(failed[0].predicted.locked_bytes)}, llama.cpp locked {got} and went on"
    worked = [run for run in asked if run not in failed]
    error = max(abs(locked[id(run)] / run.predicted.locked_bytes - 1) for run in worked)
    close = "exactly as predicted" if error < 0.0005 else f"within {text_layout.percent(error)} of the prediction"
    also = f"; in {len(failed)} of {len(asked)} runs the lock failed and the run went on" if failed else ""
    return f"mlock locks the weights, {close}, and no copies, cache or buffers{also}"
