"""A limit in a picture: a dotted line with its figure. One that lies beyond the axis is named at its edge."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Text

from labkit.course.figurekit import text_layout
from labkit.course.figurekit.style import LIMIT

LINE: dict[str, Any] = {"linestyle": ":", "color": LIMIT, "linewidth": 2, "zorder": 5}
_NAME: dict[str, Any] = {"color": LIMIT, "fontsize": 9, "bbox": text_layout.BACKED, "zorder": 6}


def across(ax: Axes, y: float, name: str, *, at_right: bool = False, above: bool | None = None) -> bool:
    """A limit on the y axis, whose limits are final, with its name at one end of the line.

    Args:
        ax: the axes.
        y: where the limit lies.
        name: with its figure.
        at_right: put the name at the right end, where the left one is taken.
        above: the line; without it, wherever there is room.

    Returns:
        Whether the limit lies in sight.
    """
    top = ax.get_ylim()[1]
    in_sight = y <= top
    if in_sight:
        ax.axhline(y, label="_limit", **LINE)
        above = y < 0.9 * top if above is None else above
    else:
        name, y, above = f"{name}, above this axis ↑", top, False
    side, across_px = ("right", 0.988) if at_right else ("left", 0.012)
    text = ax.annotate(
        name,
        (across_px, y),
        (0, 5 if above else -5),
        xycoords=ax.get_yaxis_transform(),
        textcoords="offset points",
        ha=side,
        va="bottom" if above else "top",
        **_NAME,
    )
    text.set_in_layout(False)
    return in_sight


def upright(ax: Axes, x: float, name: str, y: float, *, ends: tuple[float, float] | None = None) -> Text:
    """A limit on the x axis, whose limits are final, with its name beside the line at a height.

    Args:
        ax: the axes.
        x: where the limit lies.
        name: with its figure.
        y: height of the name, in data coordinates.
        ends: of a line that is shorter than the axes, in data coordinates.
    """
    right = ax.get_xlim()[1]
    if x > right:
        return text_layout.beside(ax, right, y, f"{name}, beyond this axis →", gap=-4, **_NAME)
    if ends:
        ax.plot([x, x], ends, label="_limit", **LINE)
    else:
        ax.axvline(x, label="_limit", **LINE)
    return text_layout.beside(ax, x, y, name, gap=5 if x < right / 2 else -5, **_NAME)
