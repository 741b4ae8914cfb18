"""The visual language every picture shares: one meaning, one colour, one mark."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

import matplotlib.style
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.units import GiB, MiB

P = ParamSpec("P")

WIDTH_IN = 7.5
DPI = 144

INK = "#222222"
FAINT = "#E4E4E4"
LIMIT = "#D55E00"
GUESS = "#000000"
MEASURED = "#0072B2"
BLUES = LinearSegmentedColormap.from_list(
    "blues", [(0, "#EAF4FB"), (0.45, "#7FC1EC"), (0.75, "#0072B2"), (1, "#00263D")]
)
"""Shades of a table: the darker the more, also in grey."""

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
LOOK: list[Any] = ["default", _RC]


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
        with matplotlib.style.context(LOOK):
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


def device_edge(*, linewidth: float = 1.2) -> dict[str, Any]:
    """Patch settings of the dotted edge drawn around what lies on a device."""
    return {"facecolor": "none", "edgecolor": INK, "linewidth": linewidth, "linestyle": (0, (1, 1.2))}


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a solid patch of this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 125 else INK


def look(kind: Kind, *, predicted: bool) -> dict[str, Any]:
    """Patch settings of a kind of memory: hatched if predicted, solid if measured."""
    return hatched(kind.colour, kind.hatch) if predicted else solid(kind.colour)


def swatch(kind: Kind, *, predicted: bool) -> Patch:
    """The legend's patch for a kind of memory."""
    return Patch(**look(kind, predicted=predicted))
