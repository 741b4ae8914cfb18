"""Text in a picture: cut to length, and placed so that none is clipped or runs into another."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from labkit.course.figurekit.style import INK

T = TypeVar("T")

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


def row_names(rows: Sequence[T], labels: Sequence[str] | None, name_of: Callable[[T], str]) -> list[str]:
    """What the rows of a picture are called: the given labels, or without them what ``name_of`` says of each.

    Raises:
        ValueError: not one label per row.
    """
    names = [name_of(row) for row in rows] if labels is None else list(labels)
    if len(names) != len(rows):
        raise ValueError(f"{len(names)} labels for {len(rows)} rows: give one label per row")
    return names


def extent(text: Text) -> Bbox:
    """Where a text lies, in pixels, after the last layout."""
    return text.get_window_extent()


def beside(ax: Axes, x: float, y: float, text: str, *, gap: float = 6, **look: Any) -> Text:
    """Write beside a point, on its right; on its left if ``gap``, in points, is below 0."""
    where: dict[str, Any] = {"textcoords": "offset points", "ha": "left" if gap >= 0 else "right", "va": "center"}
    usual: dict[str, Any] = {"fontsize": 8.5, "bbox": BACKED, "zorder": 6, "annotation_clip": False}
    return ax.annotate(text, (x, y), (gap, 0), **where, **(usual | look))


def make_room(fig: Figure, texts: Mapping[Axes, Sequence[Text]], *, pad_px: float = 6) -> None:
    """Widen the x axis of each axes until all its texts, anchored in data coordinates, end inside.

    Texts on the left of their points widen the axis to the left, the others to the right.
    """
    for text in itertools.chain(*texts.values()):
        text.set_in_layout(False)  # or the layout would make room by shrinking the axes
    for _ in range(6):
        fig.draw_without_rendering()
        if not any([_widen(ax, own, pad_px) for ax, own in texts.items()]):
            return


def _widen(ax: Axes, texts: Sequence[Text], pad_px: float) -> bool:
    """Whether some text ended outside; then the x axis has been widened for the texts as they lie now."""
    inside = ax.get_window_extent()
    before = max(
        [0.0, *(inside.x0 - extent(text).x0 + pad_px for text in texts if text.get_horizontalalignment() == "right")]
    )
    after = max(
        [0.0, *(extent(text).x1 + pad_px - inside.x1 for text in texts if text.get_horizontalalignment() != "right")]
    )
    if before <= 0 and after <= 0:
        return False
    log = ax.get_xscale() == "log"
    low, high = (math.log(end) if log else end for end in ax.get_xlim())
    # A text keeps its width in pixels, so the axis has to give the data a smaller share of them.
    per_px = (high - low) / max(inside.width - before - after, inside.width * 0.3)
    ends = low - before * per_px, high + after * per_px
    ax.set_xlim(*(math.exp(end) if log else end for end in ends))
    return True


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


def factor(ratio: float) -> str:
    """A ratio as text for a sentence: ``1.07 times``, ``2.4 times``, ``21 times``."""
    return f"{ratio:,.{2 if ratio < 1.995 else 1 if ratio < 9.95 else 0}f} times"


def rate(ms: float) -> str:
    """How many tokens a second that is: ``24 tokens/s``."""
    per_s = 1000 / ms if ms > 0 else math.inf
    return f"{per_s:.0f} tokens/s" if per_s >= 9.95 else f"{per_s:.2g} tokens/s"


def legend_below(fig: Figure, handles: Sequence[Any], labels: Sequence[str], *, ncols: int = 3, **options: Any) -> None:
    """A legend under the axes, where it can cover no data."""
    fig.legend(handles, labels, loc="outside lower center", ncols=ncols, **options)
