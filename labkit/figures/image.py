"""A figure as a picture for a notebook."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image as PILImage

from labkit.figures.style import LOOK

if TYPE_CHECKING:
    from IPython.display import Image

SHOWN_PX = 760


def png(fig: Figure) -> bytes:
    """The figure as a PNG of 1080 pixels' width, in 64 colours so that a notebook with many stays small."""
    canvas: Any = FigureCanvasAgg(fig)  # its methods carry no types
    with matplotlib.style.context(LOOK):
        canvas.draw()
    red, green, blue = np.asarray(canvas.buffer_rgba(), dtype=np.int64)[..., :3].transpose(2, 0, 1)
    codes, where, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    # The commonest colours are the flat ones, which stay exact; edges of letters and lines take the nearest of these.
    palette = colours[np.argsort(-counts, kind="stable")[:64]]
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
    return Image(  # type: ignore[no-untyped-call]
        data=png(fig), format="png", width=SHOWN_PX, metadata={"alt": alt}
    )
