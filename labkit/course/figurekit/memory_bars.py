"""Stacked bars of memory by kind, and the legend that goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import KINDS
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.run import Run

THICKNESS = 0.36
PREDICTED, MEASURED = -0.2, 0.2
"""Where the two bars of a row lie, from its middle."""

Part = tuple[Text, float, float]
"""The text in one part of a bar, and the ends of the part along the x axis."""


def setting_name(run: Run) -> str:
    """How a run was loaded, in a few words."""
    return run.settings.load_mode if run.settings.repack else f"{run.settings.load_mode}, no repack"


def stack(
    ax: Axes,
    at: float,
    split: Mapping[str, int],
    unit: int,
    *,
    label: str,
    predicted: bool,
    upright: bool = False,
    sign: int = 1,
    thickness: float = THICKNESS,
    edge: Mapping[str, Any] | None = None,
    parts: list[Part] | None = None,
) -> float:
    """Draw one stacked bar; return where it ends, in units.

    Args:
        ax: the axes.
        at: the middle of the bar on the other axis.
        split: bytes by kind, keyed as in ``KINDS``, stacked in that order.
        unit: bytes of a unit of the axis.
        label: of its parts: ``measured`` makes ``measured kv``.
        predicted: hatched, instead of solid.
        upright: from the x axis up, instead of from the y axis to the right.
        sign: -1 draws to the left, or down.
        thickness: of the bar.
        edge: patch settings of an edge around every part, as ``style.device_edge`` gives.
        parts: gets the size of each part, written into it; ``text_layout.hide_unfit`` leaves those that fit.
    """
    end = 0.0
    for key, kind in KINDS.items():
        size = sign * split[key] / unit
        if not size:
            continue
        start: dict[str, Any] = {"bottom" if upright else "left": end}
        bar = ax.bar if upright else ax.barh
        bar(at, size, thickness, label=f"{label} {key}", **start, **style.look(kind, predicted=predicted))
        if edge:
            bar(at, size, thickness, label="_edge", zorder=3, **start, **edge)
        if parts is not None:
            middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
            text = ax.text(end + size / 2, at, fmt_bytes(split[key]), color=style.ink_on(kind.colour), **middle)
            parts.append((text, min(end, end + size), max(end, end + size)))
        end += size
    return end


def lock(ax: Axes, y: float, end: float) -> None:
    """Draw the dark edge around the first part of a lying bar, from 0 to ``end``: that much is locked."""
    if end:
        corner = (min(end, 0), y - THICKNESS / 2)
        ax.add_patch(Rectangle(corner, abs(end), THICKNESS, zorder=3, label="locked", **style.locked_edge()))


def legend(
    fig: Figure,
    splits: Iterable[Mapping[str, int] | None],
    *,
    measured: bool = True,
    ncols: int = 3,
    names: Mapping[str, str] | None = None,
    more: Sequence[tuple[Any, str]] = (),
    note: str = "",
) -> None:
    """The legend below of all kinds that these bars show.

    Args:
        fig: the picture.
        splits: of the bars; None for one that was not drawn.
        measured: whether measured bars stand beside the predicted ones.
        ncols: number of columns.
        names: of kinds that are called otherwise here.
        more: further handles and their names.
        note: follows what hatched and solid mean.
    """
    drawn = [split for split in splits if split]
    used = [key for key in KINDS if any(split[key] > 0 for split in drawn)]
    handles: list[Any] = [_swatches(key, measured=measured) for key in used] + [handle for handle, _ in more]
    said = [(names or {}).get(key, KINDS[key].label) for key in used] + [name for _, name in more]
    title = f"hatched: predicted{', solid: measured' if measured else ''}{note}"
    pairs = {tuple: HandlerTuple(ndivide=None, pad=0)}
    text_layout.legend_below(fig, handles, said, ncols=ncols, title=title, title_fontsize=9, handler_map=pairs)


def _swatches(key: str, *, measured: bool) -> Any:
    """The legend's patches for a kind: predicted, and measured where that is drawn too."""
    both = (style.swatch(KINDS[key], predicted=True), style.swatch(KINDS[key], predicted=False))
    return both if measured else both[0]


def locked_swatch() -> tuple[Patch, str]:
    """The legend's patch and name for what is locked."""
    return Patch(**style.locked_edge()), "locked"
