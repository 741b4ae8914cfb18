"""The learner's own prediction in a picture: a black diamond with its value.

A notebook passes what was typed. An unset prediction is None and draws nothing. What is not a number draws nothing
either; ``lk.compare`` tells the learner so.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from labkit.course.figurekit.style import GUESS

_MARK: dict[str, Any] = {
    "marker": "D",
    "color": GUESS,
    "markeredgecolor": "white",
    "markersize": 8,
    "linestyle": "none",
    "zorder": 8,
    "clip_on": False,
    "label": "_guess",
}


def number(typed: object) -> float | None:
    """The prediction as a number from 0 up; None for one that is unset or no such number."""
    if not isinstance(typed, Real) or isinstance(typed, bool):
        return None
    value = float(typed)
    return value if math.isfinite(value) and value >= 0 else None


def above_0(typed: object, factor: float | None = 1) -> float | None:
    """The prediction times ``factor``, for a scale that has no 0; None where there is no such figure."""
    value = number(typed)
    return value * factor if value and factor else None


def pair(typed: object) -> tuple[float, float] | None:
    """The prediction as two numbers above 0; None if it is unset or something else."""
    values = [above_0(value) for value in typed] if isinstance(typed, tuple | list) else []
    first, second = values if len(values) == 2 else (None, None)
    return None if first is None or second is None else (first, second)


def within(own: float | None, largest: float) -> float:
    """How far an axis from 0 has to reach for a prediction; 0 if it would squeeze what else is drawn."""
    return own if own is not None and own <= 3 * largest else 0.0


def draw(ax: Axes, x: float, y: float, said: str) -> tuple[float, float, str]:
    """Draw the diamond at a place, or at the edge of the axes if the place is beyond its limits.

    Args:
        ax: the axes. At an edge the diamond stays when they are widened later.
        x, y: the place, in data coordinates.
        said: the prediction in words, such as ``8.00 ms``.

    Returns:
        Where the diamond is, and its label, which the picture has to write.
    """
    at_x, at_y = _nearest(x, *ax.get_xlim()), _nearest(y, *ax.get_ylim())
    if at_x == x:
        ax.plot(x, at_y, **_MARK)
    else:
        ax.plot(float(at_x == ax.get_xlim()[1]), at_y, transform=ax.get_yaxis_transform(), **_MARK)
    beyond = "" if (at_x, at_y) == (x, y) else ", beyond this axis"
    return at_x, at_y, f"you predicted {said}{beyond}"


def _nearest(value: float, *limits: float) -> float:
    """The figure between the limits that is nearest to this one."""
    return min(max(value, min(limits)), max(limits))


def swatch() -> Line2D:
    """The legend's mark for the learner's prediction."""
    return Line2D([], [], **_MARK | {"markersize": 7})
