"""What is locked and what is not: memory of runs on both sides of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.text import Text

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.memory_split import measured_split, predicted_split
from labkit.course.figurekit.style import INK, KINDS
from labkit.course.lab01.figures.memory import setting_name
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.run import Run

_BAR = 0.36
_PREDICTED, _MEASURED = -0.2, 0.2
_FAILED = 0.9  # of what was to be locked: less, and the lock did not succeed


@style.styled
def what_is_locked(runs: Sequence[Run], *, labels: Sequence[str] | None = None, title: str | None = None) -> Figure:
    """Bars to both sides of a line for each run: what is locked to the left, what is not to the right.

    Predicted (hatched) over measured (solid), split by kind of memory; locked memory has a dark edge.

    Args:
        runs: one row each, from the top.
        labels: a name per run; without it, the load mode and whether weights are repacked.
        title: replaces the sentence computed from the runs.
    """
    names = list(labels) if labels is not None else [setting_name(run) for run in runs]
    if len(names) != len(runs):
        raise ValueError(f"{len(names)} labels for {len(runs)} runs: give one label per run.")
    rows = [(_sides(run, measured=False), _sides(run, measured=True)) for run in runs]
    totals = [sum(side.values()) for row in rows for both in row if both for side in both]
    unit, unit_name = style.axis_unit(max(totals, default=0))

    fig = style.new_figure(1.75 + 0.78 * len(runs), title=title or _title(runs))
    ax = fig.add_subplot()
    left: list[Text] = []
    right: list[Text] = []
    inner: list[tuple[Text, float, float]] = []
    for n, (run, (before, after)) in enumerate(zip(runs, rows, strict=True)):
        for at, both, solid in ((n + _PREDICTED, before, False), (n + _MEASURED, after, True)):
            if both is None:
                why = f"{run.outcome}: {run.reason}".rstrip(": ") if run.outcome != "ok" else "not measured"
                right.append(_beside(ax, 0, at, text_layout.shorten(why, 60)))
                continue
            for side, sign in ((0, -1), (1, 1)):
                end = _stack(ax, at, both[side], sign, unit, solid=solid, inner=inner)
                said = _said(run, sum(both[side].values()), sign, solid=solid)
                (left if sign < 0 else right).append(_beside(ax, end, at, said, sign=sign))
    ax.axvline(0, color=INK, linewidth=1, zorder=4)
    ax.set_ylim(len(runs) - 0.45, -0.95)
    ax.text(-0.01, -0.72, "← locked", ha="right", va="center", fontsize=9, fontweight="bold")
    ax.text(0, -0.72, "  not locked →", ha="left", va="center", fontsize=9, fontweight="bold")
    ax.set_yticks(range(len(runs)), [text_layout.wrap(name, 20, lines=3) for name in names])
    ax.tick_params(axis="y", length=0, pad=9)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"resident memory, {unit_name}")
    ax.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    reach = [max((sum(both[s].values()) for row in rows for both in row if both), default=0) for s in (0, 1)]
    ax.set_xlim(-max(reach[0], 0.02 * max(*reach, 1)) / unit, max(reach[1], 0.02 * max(*reach, 1)) / unit)
    _legend(fig, [both for row in rows for both in row if both])
    _make_room(fig, ax, left, right)
    text_layout.hide_unfit(inner)
    return fig


Sides = tuple[dict[str, int], dict[str, int]]  # bytes by kind: locked, not locked


def _sides(run: Run, *, measured: bool) -> Sides | None:
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


def _stack(
    ax: Axes,
    y: float,
    parts: dict[str, int],
    sign: int,
    unit: int,
    *,
    solid: bool,
    inner: list[tuple[Text, float, float]],
) -> float:
    """Draw one stacked bar away from the line; return where it ends."""
    at = 0.0
    for key, kind in KINDS.items():
        width = sign * parts[key] / unit
        if not width:
            continue
        look = style.solid(kind.colour) if solid else style.hatched(kind.colour, kind.hatch)
        state = f"{'measured' if solid else 'predicted'} {'locked' if sign < 0 else 'loose'} {key}"
        ax.barh(y, width, _BAR, left=at, label=state, **look)
        if solid:
            part = ax.text(at + width / 2, y, fmt_bytes(parts[key]), ha="center", va="center", fontsize=8.5)
            part.set_color(style.ink_on(kind.colour))
            inner.append((part, min(at, at + width), max(at, at + width)))
        at += width
    if sign < 0 and at:
        ax.barh(y, at, _BAR, zorder=3, label="_edge", **style.locked_edge())
    return at


def _said(run: Run, size: int, sign: int, *, solid: bool) -> str:
    if not solid:
        return f"{fmt_bytes(size)} predicted"
    if sign > 0:
        return fmt_bytes(size)
    asked = run.predicted.locked_bytes
    return f"{fmt_bytes(size)} of {fmt_bytes(asked)}" if size < _FAILED * asked else fmt_bytes(size)


def _beside(ax: Axes, x: float, y: float, text: str, *, sign: int = 1) -> Text:
    return ax.annotate(
        text,
        (x, y),
        (6 * sign, 0),
        textcoords="offset points",
        ha="left" if sign > 0 else "right",
        va="center",
        fontsize=8.5,
        zorder=6,
        annotation_clip=False,
        bbox=text_layout.BACKED,
    )


def _make_room(fig: Figure, ax: Axes, left: Sequence[Text], right: Sequence[Text], *, pad_px: float = 6) -> None:
    """Widen the x axis to both sides until all texts end inside."""
    for text in (*left, *right):
        text.set_in_layout(False)
    for _ in range(6):
        fig.draw_without_rendering()
        inside = ax.get_window_extent()
        before = max((inside.x0 - text_layout.extent(text).x0 + pad_px for text in left), default=0.0)
        after = max((text_layout.extent(text).x1 + pad_px - inside.x1 for text in right), default=0.0)
        if before <= 0 and after <= 0:
            return
        low, high = ax.get_xlim()
        per_px = (high - low) / max(inside.width - max(before, 0) - max(after, 0), 0.3 * inside.width)
        ax.set_xlim(low - max(before, 0) * per_px, high + max(after, 0) * per_px)


def _legend(fig: Figure, drawn: Sequence[Sides]) -> None:
    used = [key for key in KINDS if any(side[key] > 0 for both in drawn for side in both)]
    handles: list[Any] = [(style.swatch(KINDS[key], predicted=True), style.swatch(KINDS[key])) for key in used]
    names = [KINDS[key].label for key in used]
    if any(sum(both[0].values()) for both in drawn):
        handles.append(Patch(**style.locked_edge()))
        names.append("locked")
    text_layout.legend_below(
        fig,
        handles,
        names,
        ncols=3,
        title="hatched: predicted, solid: measured",
        title_fontsize=9,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )


def _title(runs: Sequence[Run]) -> str:
    asked = [run for run in runs if run.predicted.locked_bytes and run.measured and run.ok]
    locked = {id(run): run.measured.locked_bytes or 0 for run in asked if run.measured}
    failed = [run for run in asked if locked[id(run)] < _FAILED * run.predicted.locked_bytes]
    if not asked:
        some = any(run.predicted.locked_bytes for run in runs)
        return "No run that was to lock came through" if some else "Nothing was to be locked in these runs"
    if len(failed) == len(asked):
        return f"Asked to lock {fmt_bytes(failed[0].predicted.locked_bytes)}, it locked {_least(failed)} and ran on"
    worked = [run for run in asked if run not in failed]
    error = max(abs(locked[id(run)] / run.predicted.locked_bytes - 1) for run in worked)
    as_said = (
        "exactly what was predicted" if error < 0.0005 else f"what was predicted within {text_layout.percent(error)}"
    )
    also = f"; {len(failed)} of {len(asked)} did not get it and ran on all the same" if failed else ""
    return f"The lock covers the weights, {as_said}, and nothing that was copied or computed{also}"


def _least(runs: Sequence[Run]) -> str:
    size = min(run.measured.locked_bytes or 0 for run in runs if run.measured)
    return fmt_bytes(size) if size else "nothing"
