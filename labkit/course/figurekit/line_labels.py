"""Lines that carry their names at their right ends, so that no key has to be matched by colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.course.figurekit import text_layout
from labkit.course.figurekit.style import INK

SHADES = ("#0072B2", "#56B4E9", "#00395A", "#3D96CF", "#00263D", "#7FC1EC")
MARKS = "osv^Ph<>p*"  # a diamond is the learner's own prediction, a cross a run that was killed
_GAP_PX = 3


def look(n: int, *, solid: bool = True) -> dict[str, Any]:
    """Shade and mark of the n-th measured line of a picture; open marks set a second kind of line apart."""
    shade = SHADES[n % len(SHADES)]
    face = {"markerfacecolor": shade if solid else "white", "markeredgecolor": shade}
    return {"color": shade, "marker": MARKS[n % len(MARKS)], "markersize": 6, "linewidth": 1.6, "zorder": 4, **face}


def tokens(n: float) -> str:
    """A number of tokens as a tick: ``512``, ``1k``, ``128k``."""
    return f"{n / 1024:g}k" if n >= 1024 and n % 1024 == 0 else f"{n:g}"


def name_ends(ax: Axes, ends: Sequence[tuple[float, float, str]], *, ticks: Sequence[float] = ()) -> None:
    """Write the name of each line beside its right end, spread so that no two names touch.

    Args:
        ax: the axes, whose y limits are final; its x axis is widened until the names end inside.
        ends: x, y and name of each line's last point.
        ticks: of the x axis, which would otherwise go on under the names.
    """
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    if ticks:
        ax.set_xticks(list(ticks))
    names = [
        ax.annotate(name, (x, y), (16, 0), textcoords="offset points", va="center", fontsize=8.5, zorder=6)
        for x, y, name in ends
    ]
    text_layout.make_room(fig, {ax: names})
    fig.draw_without_rendering()
    inside = ax.get_window_extent()
    order = sorted(range(len(ends)), key=lambda n: ends[n][1])
    heights = [text_layout.extent(names[n]).height + _GAP_PX for n in order]
    wanted = [float(ax.transData.transform((ends[n][0], ends[n][1]))[1]) for n in order]
    for n, centre in zip(order, _spread(wanted, heights, inside.y0 + 2, inside.y1 + 8), strict=True):
        x, y, _ = ends[n]
        shift = (centre - float(ax.transData.transform((x, y))[1])) * 72 / fig.dpi
        names[n].set_position((16, shift))
        lead = {"arrowstyle": "-", "linewidth": 0.7, "color": INK, "shrinkA": 0, "shrinkB": 4}
        if abs(shift) > 2:
            ax.annotate("", (x, y), (15, shift), textcoords="offset points", arrowprops=lead, zorder=3)


def _spread(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Centres nearest to the wanted ones, from below, so that boxes of these heights do not overlap."""
    groups: list[tuple[list[int], float, float]] = []  # members, bottom, height
    for n, (centre, height) in enumerate(zip(wanted, heights, strict=True)):
        members, bottom = [n], _within(centre - height / 2, height, low, high)
        while groups and groups[-1][1] + groups[-1][2] > bottom:
            before, start, size = groups.pop()
            # Together they lie around the mean of where each would like to be.
            middle = (len(before) * (start + size / 2) + len(members) * (bottom + height / 2)) / (
                len(before) + len(members)
            )
            members, height = before + members, size + height
            bottom = _within(middle - height / 2, height, low, high)
        groups.append((members, bottom, height))
    centres: list[float] = []
    for members, bottom, _ in groups:
        for n in members:
            centres.append(bottom + heights[n] / 2)
            bottom += heights[n]
    return centres


def _within(bottom: float, height: float, low: float, high: float) -> float:
    """The bottom nearest to this one at which a box of this height lies between ``low`` and ``high``."""
    return max(min(bottom, high - height), low)
