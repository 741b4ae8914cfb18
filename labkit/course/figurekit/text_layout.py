"""Words on a picture: cut to length, and placed so that none is clipped or runs into another."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from labkit.course.figurekit.style import INK

BACKED: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
"""The box behind a label that a line may pass under."""


def shorten(text: str, width: int) -> str:
    """Cut the middle out of a text that is longer than ``width`` characters."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def wrap(text: str, width: int, *, lines: int = 2) -> str:
    """Wrap a text to at most ``lines`` lines of ``width`` characters, cutting out the middle if it is longer."""
    for n in range(len(text), width - 1, -1):
        found = textwrap.wrap(shorten(text, n), width, break_on_hyphens=True)
        if len(found) <= lines:
            return "\n".join(found)
    return shorten(text, width)


def extent(text: Text) -> Bbox:
    """Where a text lies, in pixels, after the last layout."""
    return text.get_window_extent()


def make_room(fig: Figure, texts: Mapping[Axes, Sequence[Text]], *, pad_px: float = 6) -> None:
    """Widen the x axis of each axes until all its texts, anchored in data coordinates, end inside."""
    for text in itertools.chain(*texts.values()):
        text.set_in_layout(False)  # or the layout would make room by shrinking the axes
    for _ in range(4):
        fig.draw_without_rendering()
        done = True
        for ax, own in texts.items():
            inside = ax.get_window_extent()
            over = max((extent(text).x1 + pad_px - inside.x1 for text in own), default=0.0)
            if over > 0:
                done = False
                low, high = ax.get_xlim()
                # A text keeps its width in pixels, so the axis has to give the data a smaller share of them.
                kept = max(inside.width - over, inside.width * 0.3)
                ax.set_xlim(low, low + (high - low) * inside.width / kept)
        if done:
            return


def keep_inside(fig: Figure, texts: Mapping[Axes, Sequence[Text]], *, pad_px: float = 6) -> None:
    """Move texts that start beside a bar to the left until they end inside their axes, which stay as they are."""
    for text in itertools.chain(*texts.values()):
        text.set_in_layout(False)
    fig.draw_without_rendering()
    for ax, own in texts.items():
        for text in own:
            over = extent(text).x1 + pad_px - ax.get_window_extent().x1
            if over > 0:
                x, y = text.get_position()
                text.set_position((x - over * 72 / fig.dpi, y))
                text.set_bbox(BACKED)


def hide_unfit(texts: Iterable[tuple[Text, float, float]], *, pad_px: float = 3) -> None:
    """Hide each text that is wider than its own space; the space is (left, right) in data coordinates."""
    for text, left, right in texts:
        ax = text.axes
        assert ax is not None
        x0, x1 = sorted(ax.transData.transform([(left, 0), (right, 0)])[:, 0])
        text.set_visible(extent(text).width + 2 * pad_px <= x1 - x0)


def place_labels(ax: Axes, anchors: Sequence[tuple[float, float, str]], *, clear_of: Sequence[Bbox] = ()) -> bool:
    """Label points beside their marks, each in the nearest free spot inside the axes.

    Args:
        ax: the axes; its limits are final.
        anchors: x, y and text of each label, in data coordinates.
        clear_of: boxes in pixels that no label may cover.

    Returns:
        Whether every label found a spot; when one did not, none is left in the picture.
    """
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    fig.draw_without_rendering()
    inside = ax.get_window_extent()
    marks = [ax.transData.transform((x, y)) for x, y, _ in anchors]
    taken = [Bbox.from_extents(x - 9, y - 9, x + 9, y + 9) for x, y in marks]
    taken += [*clear_of, *(extent(text) for text in ax.texts)]
    placed: list[Text] = []
    for (x, y, line), (at_x, at_y) in zip(anchors, marks, strict=True):
        label = ax.annotate(line, (x, y), (0, 0), textcoords="offset points", va="center", fontsize=8.5)
        placed.append(label)
        size = extent(label)
        for dx, dy in [(dx, dy) for dy in (0, 28, -28) for dx in (14, -14 - size.width)]:
            box = Bbox.from_bounds(at_x + dx, at_y + dy - size.height / 2, size.width, size.height)
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.padded(2).overlaps(other) for other in taken):
                label.set_position((dx * 72 / fig.dpi, dy * 72 / fig.dpi))
                taken.append(box)
                break
        else:
            for unplaced in placed:
                unplaced.remove()
            return False
    return True


def names_above(ax: Axes, names: Sequence[tuple[float, str]], *, colour: str = INK, gap_px: int = 10) -> None:
    """Name positions on the x axis in one row above the axes, spread so that no two names touch.

    Args:
        ax: the axes; its limits are final and nothing else stands above it.
        names: x in data coordinates and text, in order from left to right.
        colour: of the texts and of the lines that lead to them.
        gap_px: at least so far apart.
    """
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    above: dict[str, Any] = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
    above |= {"annotation_clip": False, "color": colour, "fontsize": 8.5}
    texts: list[Text] = [ax.annotate(name, (x, 1), (0, 15), **above) for x, name in names]
    for text in texts:
        text.set_in_layout(False)  # they may begin outside; their row is kept free by the blank title instead
    ax.set_title(" ", fontsize=8.5, pad=14)
    fig.draw_without_rendering()
    boxes = [extent(text) for text in texts]
    edge = fig.bbox.x1 - 4
    lefts: list[float] = []
    for n, box in enumerate(boxes):
        lefts.append(max(box.x0, lefts[n - 1] + boxes[n - 1].width + gap_px) if n else box.x0)
    for n in reversed(range(len(boxes))):
        lefts[n] = min(lefts[n], edge - boxes[n].width)
        edge = lefts[n] - gap_px
    for text, box, left, (x, _) in zip(texts, boxes, lefts, names, strict=True):
        shift = (left - box.x0) * 72 / fig.dpi
        text.set_position((shift, 15))
        lead = {"arrowstyle": "-", "linewidth": 0.7, "color": colour, "shrinkA": 0, "shrinkB": 0}
        # The line starts below the part of the name that is nearest to its place.
        nearest = min(max(box.x0, left), left + box.width - 2)
        ax.annotate("", (x, 1), ((nearest - box.x0) * 72 / fig.dpi, 14), arrowprops=lead, **above)


def percent(share: float) -> str:
    """A share as text: ``93 %``, with a space that does not break; never 0 for something or 100 for less than all."""
    if 0 < share < 0.005:
        return "under\u00a01\u00a0%"
    if 0.995 <= share < 1:
        return "over\u00a099\u00a0%"
    return f"{100 * share:.0f}\u00a0%"


def legend_below(fig: Figure, handles: Sequence[Any], labels: Sequence[str], *, ncols: int = 3, **options: Any) -> None:
    """A legend under the axes, where it can cover no data."""
    fig.legend(handles, labels, loc="outside lower center", ncols=ncols, **options)
