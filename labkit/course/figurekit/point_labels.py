"""Labels of points that may lie close together: each beside its mark, with a thin line where it has to move away.

The library adjustText pushes labels apart step by step. In at least 6 of 38 pictures it left a label over a mark or a
line, took three times as long, and does not tell which label found no place; it also needs scipy and pyplot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from labkit.course.figurekit import text_layout
from labkit.course.figurekit.style import INK

_GAPS_PX = (3, 8, 16, 26, 38, 52, 70, 95, 125, 160, 200, 260)
_TURNS = (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11)  # sixteenths: right, left, above, below, between
_NEAR_PX = 4
Point = tuple[float, float]


@dataclass(frozen=True)
class Mark:
    """A point to be named.

    Attributes:
        x, y: where it is, in data coordinates.
        text: its label; "" for a mark that only has to stay in sight.
        radius_px: of the drawn mark, which no label may cover.
    """

    x: float
    y: float
    text: str
    radius_px: float = 7


def label(ax: Axes, marks: Sequence[Mark], *, lines: Sequence[Bbox] = ()) -> bool:
    """Write each mark's label in the nearest free spot inside the axes. Marks in one place share a label.

    Args:
        ax: the axes; its limits and its place in the figure are final.
        marks: the points; those with the closest neighbours choose first.
        lines: boxes in pixels along drawn lines, which labels keep clear of while there is room elsewhere.

    Returns:
        Whether every label found a spot.
    """
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    fig.draw_without_rendering()
    at: list[Point] = [_point(ax, mark.x, mark.y) for mark in marks]
    taken = [_around(point, mark.radius_px) for point, mark in zip(at, marks, strict=True)]
    taken += [text_layout.extent(text) for text in ax.texts]
    groups = [(at[n], marks[n].radius_px, text) for n, text in _joined(at, marks)]
    groups.sort(key=lambda group: sorted(math.dist(group[0], other) for other in [*at, group[0]])[2:3])
    # First choice: clear of the lines. Then across them, and at last with a lead that crosses other marks.
    tries: list[tuple[Sequence[Bbox], bool]] = [(lines, True), ((), True), ((), False)]
    return all([any(_place(ax, *group, taken, *each) for each in tries) for group in groups])


def along(ax: Axes, x: Sequence[float], y: Sequence[float]) -> list[Bbox]:
    """Boxes in pixels that cover a drawn line; the axes must have been laid out."""
    boxes = []
    for a, b in itertools.pairwise(_point(ax, *point) for point in zip(x, y, strict=True)):
        steps = max(int(math.dist(a, b) / 6), 1)
        boxes += [_around(_between(a, b, n / steps), 3) for n in range(steps + 1)]
    return boxes


def _joined(at: Sequence[Point], marks: Sequence[Mark]) -> list[tuple[int, str]]:
    """Index of the first mark in each place, and the labels of all that lie there."""
    found: dict[int, list[str]] = {}
    for n, mark in enumerate(marks):
        if mark.text:
            first = next((m for m in found if math.dist(at[m], at[n]) < _NEAR_PX), n)
            found.setdefault(first, []).append(mark.text)
    return [(n, _list(texts)) for n, texts in found.items()]


def _list(texts: Sequence[str]) -> str:
    """The label of several marks: three to a line, or a line for each if one has several lines itself."""
    if len(texts) == 1:
        return texts[0]
    if any("\n" in text for text in texts):
        return "\n".join(text.replace("\n", " ") for text in texts)
    return ",\n".join(", ".join(texts[i : i + 3]) for i in range(0, len(texts), 3))


def _place(
    ax: Axes, at: Point, radius: float, line: str, taken: list[Bbox], lines: Sequence[Bbox], strict: bool
) -> bool:
    """Write one label and add what it covers to ``taken``; False if there is no room for it."""
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    inside = ax.get_window_extent()
    data = ax.transData.inverted().transform(at)
    text = ax.annotate(
        line, (data[0], data[1]), (0, 0), textcoords="offset points", ha="center", va="center", fontsize=8.5
    )
    text.set_in_layout(False)
    size = text_layout.extent(text)
    for spot, far in _spots(at, radius, size.width, size.height):
        box = Bbox.from_bounds(spot[0] - size.width / 2, spot[1] - size.height / 2, size.width, size.height)
        if not _within(box, inside) or any(box.padded(2).overlaps(other) for other in [*taken, *lines]):
            continue
        lead = _lead(at, radius, box) if far else []
        if strict and any(other.overlaps(piece) and not other.contains(*at) for piece in lead for other in taken):
            continue
        text.set_position(((spot[0] - at[0]) * 72 / fig.dpi, (spot[1] - at[1]) * 72 / fig.dpi))
        if far:
            ends = ax.transData.inverted().transform(
                [(piece.x0 + 0.5, piece.y0 + 0.5) for piece in (lead[0], lead[-1])]
            )
            ax.plot(ends[:, 0], ends[:, 1], "-", color=INK, linewidth=0.6, zorder=1.5, label="_lead")
        taken += [box, *lead]
        return True
    text.remove()
    return False


def _point(ax: Axes, x: float, y: float) -> Point:
    """A place in pixels."""
    across, up = ax.transData.transform((x, y))
    return float(across), float(up)


def _around(at: Point, radius: float) -> Bbox:
    """The square around a point."""
    return Bbox.from_extents(at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius)


def _between(a: Point, b: Point, share: float) -> Point:
    """The point at this share of the way from one to the other."""
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def _within(box: Bbox, inside: Bbox) -> bool:
    """Whether a box lies wholly in another."""
    return bool(inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1)


def _spots(at: Point, radius: float, width: float, height: float) -> Iterator[tuple[Point, bool]]:
    """Centres for a label of this size around a mark, nearest first, and whether it is far enough to need a line."""
    for gap in _GAPS_PX:
        for turn in _TURNS:
            across, up = math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)
            reach = radius + gap
            # Between the four sides a label slides along the corner of its box.
            slide_x, slide_y = max(min(across * 1.42, 1), -1), max(min(up * 1.42, 1), -1)
            yield (at[0] + across * reach + slide_x * width / 2, at[1] + up * reach + slide_y * height / 2), gap > 12


def _lead(at: Point, radius: float, box: Bbox) -> list[Bbox]:
    """Small boxes along the line from a mark's edge to the nearest point of its label."""
    end = (min(max(at[0], box.x0), box.x1), min(max(at[1], box.y0), box.y1))
    length = math.dist(at, end)
    first, steps = min(radius / length, 1.0), max(int(length / 3), 2)
    return [_around(_between(at, end, first + (1 - first) * n / steps), 0.5) for n in range(steps + 1)]
