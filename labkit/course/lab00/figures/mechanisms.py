"""The map of the course: where the mechanisms act on a model's way from disk to processor."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from labkit.course.figurekit import style
from labkit.course.figurekit.style import INK, KINDS

_MECHANISMS = (
    ("01", "mmap and demand paging:\nwhen a page of the file is in memory"),
    ("02", "K-quant blocks:\nfewer bits per weight, so fewer bytes everywhere"),
    ("03", "KV cache:\nits size follows the context you ask for"),
    ("04", "layer offload:\nsome layers, and their KV, move to the device"),
    ("05", "mlock:\nthe kernel cannot drop what is locked"),
)


@style.styled
def mechanisms() -> Figure:
    """Disk, page cache, process memory, CPU and GPU as boxes, with a numbered badge where each lab's mechanism acts."""
    fig = style.new_figure(5.3, title="Five mechanisms act on a model's bytes on their way from disk to processor")
    ax = fig.add_subplot()
    ax.set_xlim(0, 150)
    ax.set_ylim(0, 100)
    ax.set_axis_off()

    _place(ax, 1, 57, 22, 42, "disk")
    _part(ax, 4, 61, 16, 30, "model\n.gguf", KINDS["file"].colour)
    _place(ax, 39, 57, 24, 42, "page cache")
    _pages(ax, 42, 61, width=18, height=30)
    _place(ax, 79, 4, 38, 95, "llama.cpp's process")
    for y, key, name in (
        (76, "file", "mapped weights"),
        (50, "repack", "repack copy,\nmade at load"),
        (30, "kv", "KV cache"),
        (10, "compute", "compute + output"),
    ):
        _part(ax, 83, y, 30, 15, name, KINDS[key].colour)
    ax.add_patch(Rectangle((83, 76), 30, 15, zorder=4, **style.locked_edge()))
    ax.text(83, 67, "anonymous:", va="bottom", fontsize=9)
    _place(ax, 130, 61, 19, 38, "GPU")
    _part(ax, 132, 79, 15, 12, "weights", KINDS["file"].colour, linestyle=":")
    _part(ax, 132, 64, 15, 12, "KV", KINDS["kv"].colour, linestyle=":")
    _place(ax, 130, 4, 19, 50, "CPU")
    ax.text(139.5, 13, "reads the\nweights once\nper token", ha="center", va="center", fontsize=8.5)

    _arrow(ax, (20.5, 83.5), (41.5, 83.5), "read, with\nreadahead")
    _arrow(ax, (60.5, 83.5), (82.2, 83.5), "mapped,\nnot copied")
    _arrow(ax, (107, 75.2), (107, 65.8))
    _arrow(ax, (113.8, 86), (131.5, 86))
    _arrow(ax, (113.8, 79), (129.6, 50))
    _arrow(ax, (113.5, 57.5), (129.6, 42))
    _arrow(ax, (113.5, 37.5), (129.6, 34), both=True)
    _arrow(ax, (113.5, 17.5), (129.6, 25), both=True)
    for number, x, y in (("01", 71, 78), ("02", 20, 61), ("03", 83, 45), ("04", 123, 86), ("05", 83, 91)):
        _badge(ax, x, y, number)
    for n, (number, said) in enumerate(_MECHANISMS):
        level = 45 - 9.4 * n
        _badge(ax, 3, level, number)
        ax.text(8, level, said, va="center", fontsize=9)
    ax.text(1, 52, "Each number is the lab that measures it.", va="center", fontsize=9)
    return fig


def _place(ax: Axes, x: float, y: float, w: float, h: float, name: str) -> None:
    """Draw a place where bytes can be: a light box with its name at the top."""
    shape = FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0,rounding_size=1.5", facecolor="#F6F6F6", edgecolor=INK)
    ax.add_patch(shape)
    ax.text(x + w / 2, y + h - 1.6, name, ha="center", va="top", fontsize=9)


def _part(ax: Axes, x: float, y: float, w: float, h: float, name: str, colour: str, *, linestyle: str = "-") -> None:
    """Draw what lies in a place, in the colour of its kind; a dotted edge means that it is on a device."""
    edge = INK if linestyle == ":" else "white"
    ax.add_patch(
        Rectangle((x, y), w, h, facecolor=colour, edgecolor=edge, linewidth=1.4, linestyle=linestyle, zorder=2)
    )
    ax.text(x + w / 2, y + h / 2, name, ha="center", va="center", fontsize=9, color=style.ink_on(colour), zorder=5)


def _pages(ax: Axes, x: float, y: float, *, width: float, height: float) -> None:
    """Draw the file's pages, of which some are in memory."""
    missing = {2, 5, 11, 12, 17, 22}
    w, h = width / 4, height / 6
    for n in range(24):
        row, column = divmod(n, 4)
        ax.add_patch(
            Rectangle(
                (x + w * column, y + h * row),
                w,
                h,
                edgecolor=INK,
                linewidth=0.7,
                zorder=2,
                facecolor="white" if n in missing else KINDS["file"].colour,
            )
        )


def _arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "", *, both: bool = False
) -> None:
    """Draw an arrow, with a text above its middle."""
    look: dict[str, Any] = {"arrowstyle": "<|-|>" if both else "-|>", "mutation_scale": 11, "linewidth": 1.4}
    ax.add_patch(FancyArrowPatch(start, end, color=INK, shrinkA=0, shrinkB=0, zorder=3, **look))
    if text:
        ax.text((start[0] + end[0]) / 2, start[1] + 1.5, text, ha="center", va="bottom", fontsize=8.5)


def _badge(ax: Axes, x: float, y: float, number: str) -> None:
    """Draw a lab's number on a dark disc."""
    disc = {"boxstyle": "circle,pad=0.25", "facecolor": INK, "edgecolor": "white"}
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "color": "white", "weight": "bold"}
    ax.text(x, y, number, zorder=6, bbox=disc, **look)
