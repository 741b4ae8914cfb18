"""A figure as a picture for a notebook."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image as PILImage

from labkit.course.figurekit.style import LOOK

if TYPE_CHECKING:
    from IPython.display import Image

SHOWN_PX = 760
N_COLOURS = 24
FLAT_COLOURS = 10  # of them: those that fill areas, which stay exact


def png(fig: Figure) -> bytes:
    """The figure as a PNG of 1080 pixels' width, in few colours so that a notebook with many figures stays small."""
    canvas: Any = FigureCanvasAgg(fig)  # its methods carry no types
    with matplotlib.style.context(LOOK):
        canvas.draw()
    red, green, blue = np.asarray(canvas.buffer_rgba(), dtype=np.int64)[..., :3].transpose(2, 0, 1)
    codes, where, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    palette = _palette(colours, counts)
    nearest = _squares(colours[:, np.newaxis], palette).argmin(axis=1)
    picture = PILImage.fromarray(nearest[where].reshape(red.shape).astype(np.uint8))
    picture.putpalette(palette.astype(np.uint8).tobytes())
    out = io.BytesIO()
    picture.save(out, format="png", optimize=True)
    return out.getvalue()


def _palette(colours: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The most frequent colours, then one by one the colour with the largest error without it, times its pixels.

    Args:
        colours: shape (n, 3).
        counts: pixels of each, shape (n,).
    """
    chosen = list(np.argsort(-counts, kind="stable")[:FLAT_COLOURS])
    off = _squares(colours[:, np.newaxis], colours[chosen]).min(axis=1)
    while len(chosen) < min(N_COLOURS, len(colours)):
        chosen.append((off * off * counts).argmax())
        off = np.minimum(off, _squares(colours, colours[chosen[-1]]))
    return colours[chosen]


def _squares(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """The squared distances between colours."""
    squares: NDArray[np.int64] = ((a - b) ** 2).sum(axis=-1)
    return squares


def show(fig: Figure, alt: str) -> Image:
    """The figure for the end of a notebook cell: crisp at a fixed width, with a text for those who cannot see it.

    Args:
        fig: a figure of this package.
        alt: one sentence that says what the picture shows.
    """
    from IPython.display import Image  # a notebook has IPython; the library works without

    # Metadata rather than the `alt` argument: IPython 7, which Colab runs, does not know that argument.
    return Image(  # type: ignore[no-untyped-call]
        data=png(fig), format="png", width=SHOWN_PX, metadata={"alt": alt}
    )
