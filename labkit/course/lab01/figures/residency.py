"""Which parts of a file are in memory, as a strip from its first byte to its last."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import FAINT, INK, KINDS
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.gguf import Tensor
    from labkit.system.mapping import MappedFile

MAX_CELLS = 512
_SHADES = LinearSegmentedColormap.from_list("resident", ["#FFFFFF", KINDS["file"].colour])


@style.styled
def residency_strip(
    fractions_page_cache: Sequence[float] | None,
    fractions_process: Sequence[float] | None = None,
    *,
    file_bytes: int | None = None,
    tensors: Sequence[Tensor] | None = None,
) -> Figure:
    """The file from byte 0 to its end: dark cells are in memory. Page cache above, this process's mapping below.

    Args:
        fractions_page_cache: how much of each equal stretch of the file is resident, 0 to 1 (pages as booleans
            will do); None leaves the row out, where the system does not say.
        fractions_process: the same for the pages mapped into this process.
        file_bytes: the file's size, which puts bytes on the axis instead of %. Needed with ``tensors``.
        tensors: marks where they lie, blocks of a layer joined.

    Raises:
        ValueError: tensors without the file's size.
    """
    if tensors and not file_bytes:
        raise ValueError("tensors have byte offsets: give file_bytes too, so that they can be placed")
    rows = [
        (name, np.asarray(fractions, dtype=float))
        for name, fractions in (("page cache", fractions_page_cache), ("this process", fractions_process))
        if fractions is not None
    ]
    shares = {name: float(cells.mean()) if cells.size else 0.0 for name, cells in rows}
    fig = style.new_figure(1.15 + 0.62 * len(rows) + (0.62 if tensors else 0), title=_title(shares))
    ax = fig.add_subplot()
    unit, unit_name = style.axis_unit(file_bytes) if file_bytes else (1, "")
    end = file_bytes / unit if file_bytes else 100.0
    for y, (_, cells) in enumerate(rows):
        _row(ax, y, binned(cells), end)
    sizes = [f", {fmt_bytes(shares[name] * file_bytes)}" if file_bytes and shares[name] else "" for name, _ in rows]
    ax.set_yticks(
        range(len(rows)),
        [f"{name}\n{text_layout.percent(shares[name])}{size}" for (name, _), size in zip(rows, sizes, strict=True)],
    )
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_xlim(0, end)
    ax.set_ylim(len(rows) + (0.35 if tensors else -0.45), -0.45)
    ax.set_xlabel(
        f"{f'position in the file, {unit_name}' if file_bytes else 'position in the file, %'}"
        " (dark: resident, white: not)"
    )
    if tensors:
        _tensors(fig, ax, len(rows) - 0.3, tensors, unit)
    return fig


def binned(cells: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Averages of at most ``MAX_CELLS`` stretches as equal as they can be."""
    if cells.size <= MAX_CELLS:
        return cells
    edges = np.arange(MAX_CELLS + 1) * cells.size // MAX_CELLS
    sums: npt.NDArray[np.float64] = np.add.reduceat(cells, edges[:-1])
    return sums / np.diff(edges)


def _row(ax: Axes, y: int, cells: npt.NDArray[np.float64], end: float) -> None:
    """Draw one strip: the darker a cell, the more of it is resident."""
    # A few resident pages among thousands would be too pale to see, so the shade of anything begins at a third.
    shade = np.where(cells > 0, 0.33 + 0.67 * cells, 0.0)
    if cells.size:
        ax.imshow(
            shade[np.newaxis, :],
            cmap=_SHADES,
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
            extent=(0, end, y + 0.38, y - 0.38),
            zorder=1,
        )
    ax.add_patch(Rectangle((0, y - 0.38), end, 0.76, fill=False, edgecolor=INK, linewidth=0.9, clip_on=False, zorder=2))


def _tensors(fig: Figure, ax: Axes, y: float, tensors: Sequence[Tensor], unit: int) -> None:
    """Draw a lane of alternating shades, one per layer or lone tensor, named where a name has room."""
    ordered = sorted(tensors, key=lambda t: t.offset)
    spans = []
    for name, members in itertools.groupby(ordered, key=lambda t: _group(t.name)):
        inside = list(members)
        start, stop = inside[0].offset / unit, (inside[-1].offset + inside[-1].nbytes) / unit
        # A norm's few KiB between two large tensors is too thin to see.
        if name.startswith("blk.") or stop - start > ax.get_xlim()[1] / 200:
            spans.append((name, start, stop))
    for n, (_, start, stop) in enumerate(spans):
        ax.add_patch(Rectangle((start, y), stop - start, 0.22, facecolor=FAINT if n % 2 else "#8C8C8C", zorder=1))
    fig.draw_without_rendering()
    # Lone tensors and the first and last layer orient the reader; the other layers are named if room is left.
    layers = [n for n, (name, *_) in enumerate(spans) if name.startswith("blk.")]
    lone = [n for n in range(len(spans)) if n not in layers]
    taken: list[tuple[float, float]] = []
    for n in dict.fromkeys([*lone, *layers[:1], *layers[-1:], *layers]):
        name, start, _ = spans[n]
        text = ax.annotate(name, (start, y + 0.22), (0, -3), textcoords="offset points", va="top", fontsize=8)
        box = text_layout.extent(text)
        if box.x1 > ax.get_window_extent().x1:
            text.set_horizontalalignment("right")
            text.xy = (spans[n][2], y + 0.22)
            box = text_layout.extent(text)
        if any(box.x0 < right + 8 and left < box.x1 + 8 for left, right in taken):
            text.remove()
        else:
            taken.append((box.x0, box.x1))


def _group(name: str) -> str:
    """What a tensor is joined with: its layer, or itself."""
    layer = re.match(r"blk\.\d+", name)
    return layer.group() if layer else name.removesuffix(".weight")


def _title(shares: dict[str, float]) -> str:
    """How much of the file is in memory, as a sentence."""
    parts = [
        f"{text_layout.percent(share)} of the file is in {'the ' * (name == 'page cache')}{name}"
        for name, share in shares.items()
    ]
    if not parts:
        return "This system does not say which pages are in memory"
    sentence = ", ".join([parts[0], *(part.replace("of the file is ", "") for part in parts[1:])])
    return sentence[0].upper() + sentence[1:]


def resident_pages(mapped: MappedFile, tensors: Sequence[Tensor] = ()) -> Figure:
    """A mapped file as a strip: which parts are in the page cache, and which in this process's page tables."""
    cached, mine = mapped.cached(), mapped.resident()
    return residency_strip(
        None if cached.pages is None else cached.fractions(MAX_CELLS),
        None if mine.pages is None else mine.fractions(MAX_CELLS),
        file_bytes=mapped.file_bytes,
        tensors=tensors,
    )
