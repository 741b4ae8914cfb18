"""The visual language every picture shares: one meaning, one colour, one mark."""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image as PILImage

from labkit.units import GiB, MiB

if TYPE_CHECKING:
    from IPython.display import Image

P = ParamSpec("P")

WIDTH_IN = 7.5
DPI = 144
SHOWN_PX = 760

INK = "#222222"
FAINT = "#E4E4E4"
LIMIT = "#D55E00"
GUESS = "#000000"
MEASURED = "#0072B2"

_RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.titlesize": 12,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "hatch.linewidth": 1.0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.4,
}
_LOOK: list[Any] = ["default", _RC]


@dataclass(frozen=True)
class Kind:
    """One kind of memory: its colour is the same in every lab, its hatch tells it apart in grey when predicted."""

    label: str
    colour: str
    hatch: str


KINDS: dict[str, Kind] = {
    "file": Kind("file-backed", "#0072B2", "////"),
    "heap": Kind("weights on the heap", "#56B4E9", "\\\\\\\\"),
    "repack": Kind("repack copy", "#CC79A7", "xxxx"),
    "kv": Kind("KV cache", "#009E73", "----"),
    "compute": Kind("compute + output", "#E69F00", "||||"),
    "python": Kind("Python and the rest", "#999999", "...."),
}
"""In the order in which they are stacked: file-backed first, then what is anonymous."""


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run a drawing function under the kit's own settings, whatever style the notebook has chosen."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context(_LOOK):
            return draw(*args, **kwargs)

    return wrapper


def new_figure(height_in: float, *, title: str) -> Figure:
    """An empty Figure of the common width whose title, a sentence, is wrapped to fit."""
    fig = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
    lines = textwrap.wrap(title, 80)
    # The narrowest wrap into as many lines leaves no single word on the last one.
    even = next(n for n in range(20, 81) if len(textwrap.wrap(title, n)) <= len(lines))
    fig.suptitle(textwrap.fill(title, even) if len(lines) > 1 else title, x=0.012, ha="left")
    return fig


def axis_unit(largest_bytes: float) -> tuple[int, str]:
    """The unit of a memory axis whose largest figure is this: GiB, or MiB when all is below 1 GiB."""
    return (GiB, "GiB") if largest_bytes >= GiB else (MiB, "MiB")


def solid(colour: str) -> dict[str, Any]:
    """Patch settings of something measured: filled, with a white edge so that neighbours part in grey."""
    return {"facecolor": colour, "edgecolor": "white", "linewidth": 0.6}


def hatched(colour: str, hatch: str = "////") -> dict[str, Any]:
    """Patch settings of something predicted: outlined and hatched in the colour of its kind."""
    return {"facecolor": "white", "edgecolor": colour, "hatch": hatch, "linewidth": 1.2}


def locked_edge() -> dict[str, Any]:
    """Patch settings of the dark edge drawn around memory that is locked."""
    return {"facecolor": "none", "edgecolor": INK, "linewidth": 2.2}


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a solid patch of this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 125 else INK


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


BACKED: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
"""The box behind a label that a line may pass under."""


def extent(text: Text) -> Bbox:
    """Where a text lies, in pixels, after the last layout."""
    return text.get_window_extent()


def make_room(ax: Axes, texts: Sequence[Text], *, pad_px: float = 6) -> None:
    """Widen the x axis until every text, anchored in data coordinates, ends inside the axes."""
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    for _ in range(4):
        fig.draw_without_rendering()
        inside = ax.get_window_extent()
        over = max((extent(text).x1 + pad_px - inside.x1 for text in texts), default=0.0)
        if over <= 0:
            return
        low, high = ax.get_xlim()
        # The text keeps its width in pixels, so the axis has to give the data a smaller share of them.
        kept = max(inside.width - over, inside.width * 0.3)
        ax.set_xlim(low, low + (high - low) * inside.width / kept)


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
    for (x, y, words), (at_x, at_y) in zip(anchors, marks, strict=True):
        text = ax.annotate(words, (x, y), (0, 0), textcoords="offset points", va="center", fontsize=8.5)
        placed.append(text)
        size = extent(text)
        for dx, dy in [(dx, dy) for dy in (0, 28, -28) for dx in (14, -14 - size.width)]:
            box = Bbox.from_bounds(at_x + dx, at_y + dy - size.height / 2, size.width, size.height)
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.padded(2).overlaps(other) for other in taken):
                text.set_position((dx * 72 / fig.dpi, dy * 72 / fig.dpi))
                taken.append(box)
                break
        else:
            for text in placed:
                text.remove()
            return False
    return True


def names_above(ax: Axes, names: Sequence[tuple[float, str]], *, colour: str = INK) -> None:
    """Name positions on the x axis in one row above the axes, spread so that no two names touch.

    Args:
        ax: the axes; its limits are final and nothing else stands above it.
        names: x in data coordinates and text, in order from left to right.
        colour: of the texts and of the lines that lead to them.
    """
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    above: dict[str, Any] = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
    above |= {"annotation_clip": False, "color": colour, "fontsize": 8.5}
    texts = [ax.annotate(name, (x, 1), (0, 15), **above) for x, name in names]
    for text in texts:
        text.set_in_layout(False)  # they may begin outside; their row is kept free by the blank title instead
    ax.set_title(" ", fontsize=8.5, pad=14)
    fig.draw_without_rendering()
    boxes = [extent(text) for text in texts]
    gap, edge = 10, fig.bbox.x1 - 4
    lefts: list[float] = []
    for n, box in enumerate(boxes):
        lefts.append(max(box.x0, lefts[n - 1] + boxes[n - 1].width + gap) if n else box.x0)
    for n in reversed(range(len(boxes))):
        lefts[n] = min(lefts[n], edge - boxes[n].width)
        edge = lefts[n] - gap
    for text, box, left, (x, _) in zip(texts, boxes, lefts, names, strict=True):
        shift = (left - box.x0) * 72 / fig.dpi
        text.set_position((shift, 15))
        line = {"arrowstyle": "-", "linewidth": 0.7, "color": colour, "shrinkA": 0, "shrinkB": 0}
        # The line starts below the part of the name that is nearest to its place.
        nearest = min(max(box.x0, left), left + box.width - 2)
        ax.annotate("", (x, 1), ((nearest - box.x0) * 72 / fig.dpi, 14), arrowprops=line, **above)


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


def swatch(kind: Kind, *, predicted: bool = False) -> Patch:
    """The legend's patch for a kind of memory."""
    return Patch(**(hatched(kind.colour, kind.hatch) if predicted else solid(kind.colour)))


def png(fig: Figure) -> bytes:
    """The figure as a PNG of 1080 pixels' width, in 256 colours so that a notebook with many stays small."""
    canvas = FigureCanvasAgg(fig)
    with matplotlib.style.context(_LOOK):
        canvas.draw()
    red, green, blue = np.asarray(canvas.buffer_rgba(), dtype=np.int64)[..., :3].transpose(2, 0, 1)
    codes, where, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    # The commonest colours are the flat ones, which stay exact; edges of letters and lines take the nearest of these.
    palette = colours[np.argsort(-counts, kind="stable")[:256]]
    nearest = ((colours[:, np.newaxis] - palette) ** 2).sum(axis=2).argmin(axis=1)
    picture = PILImage.fromarray(nearest[where].reshape(red.shape).astype(np.uint8))
    picture.putpalette(palette.astype(np.uint8).tobytes())
    out = io.BytesIO()
    picture.save(out, format="png", optimize=True)
    return out.getvalue()


def show(fig: Figure, alt: str) -> Image:
    """The figure for the end of a notebook cell: crisp at a fixed width, with a text for those who cannot see it.

    Args:
        fig: a figure of this package.
        alt: one sentence that says what the picture shows.
    """
    from IPython.display import Image  # a notebook has IPython; the library works without

    # Metadata rather than the `alt` argument: IPython 7, which Colab runs, does not know that argument.
    return Image(data=png(fig), format="png", width=SHOWN_PX, metadata={"alt": alt})
