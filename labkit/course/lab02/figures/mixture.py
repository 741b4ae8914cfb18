"""Which type each tensor of a file gets, as a table in shades of blue."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon, Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import BLUES, INK
from labkit.gguf.types import TYPES

KINDS_OF_TENSORS = ("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""Rows of the map, in this order; other matrices of a layer, such as experts, follow."""
_LONE = ("token_embd", "output")

_MOST_LAYERS = 40


class TypedTensor(Protocol):
    """A tensor and the type it gets, such as ``labkit.models.shapes.tensors(…)`` gives.

    An attribute ``wanted``, where there is one, names the type it would have got if its rows divided into such blocks.
    """

    @property
    def name(self) -> str: ...
    @property
    def dims(self) -> Sequence[int]: ...
    @property
    def type(self) -> str: ...


@dataclass(frozen=True)
class _Cell:
    """A matrix's type, and the one it would have got if its rows divided into such blocks."""

    type: str
    wanted: str | None


@style.styled
def mixture_map(tensors: Sequence[TypedTensor]) -> Figure:
    """The type of every matrix of a file: kinds of tensors down, layers across, the more bits the darker.

    Args:
        tensors: of one file; norms and biases, which are not quantized, count for the bits but have no cell.

    Raises:
        ValueError: a type that ggml does not know.
    """
    unknown = next((t for t in tensors if t.type not in TYPES), None)
    if unknown is not None:
        raise ValueError(f"{unknown.name} has the type {unknown.type!r}: give a type that ggml knows")
    cells: dict[tuple[str, int], _Cell] = {}
    for tensor in tensors:
        place = _place(tensor.name)
        if place and len(tensor.dims) > 1 and max(tensor.dims[1:]) > 1:
            cells[place] = _Cell(tensor.type, getattr(tensor, "wanted", None))
    # Routers and the like keep their F32.
    present = dict.fromkeys(kind for (kind, layer), cell in cells.items() if layer >= 0 and cell.type != "F32")
    rows = [kind for kind in KINDS_OF_TENSORS if kind in present]
    rows += [kind for kind in present if kind not in rows]
    cells = {at: cell for at, cell in cells.items() if at[0] in (rows if at[1] >= 0 else _LONE)}
    lone = [kind for kind in _LONE if (kind, -1) in cells]
    n_layers = max((layer for _, layer in cells), default=-1) + 1
    n_bands = max(-(-n_layers // _MOST_LAYERS), 1)
    per_band = max(-(-n_layers // n_bands), 1)
    bands = [range(start, min(start + per_band, n_layers)) for start in range(0, n_layers, per_band)]

    used = sorted({cell.type for cell in cells.values()}, key=lambda name: (TYPES[name].bpw, name))
    marks = _marks(used)
    height = len(bands) * (len(rows) + 1.5) + len(lone)
    n_legend = -(-(len(used) + 1) // 4)
    fig = style.new_figure(0.85 + 0.23 * height + 0.24 * n_legend, title=_title(tensors, cells))
    ax = fig.add_subplot()
    ax.set_axis_off()
    ax.set_xlim(-0.1, per_band + 0.1)
    ax.set_ylim(height + 0.1, -0.1)
    y = 0.0
    for band in bands:
        ax.text(-0.2, y + 0.5, "layer", ha="right", va="center", fontsize=7.5)
        step = next(n for n in (1, 2, 4, 5, 10) if n >= 40 / 1000 * per_band)
        for layer in band:
            if (layer - band.start) % step == 0:
                say(ax, layer - band.start + 0.5, y + 0.5, str(layer), 7.5)
        for kind in rows:
            y += 1
            ax.text(-0.2, y + 0.5, text_layout.shorten(kind, 18), ha="right", va="center", fontsize=9)
            for layer in band:
                if (kind, layer) in cells:
                    _cell(ax, layer - band.start, y, 1, cells[kind, layer], marks)
        y += 1.5
    wide = min(max(per_band / 8, 1), per_band)
    for kind in lone:
        ax.text(-0.2, y + 0.5, kind, ha="right", va="center", fontsize=9)
        _cell(ax, 0, y, wide, cells[kind, -1], marks)
        y += 1
    handles: list[Any] = [Patch(**style.solid(shade(TYPES[name].bpw))) for name in used]
    names = [f"{marks[name]} = {name}, {TYPES[name].bpw:.4g} bits" for name in used]
    if any(cell.wanted for cell in cells.values()):
        handles.append(Patch(facecolor=INK, edgecolor="white"))
        names.append("corner: did not fit the wanted type")
    text_layout.legend_below(fig, handles, names, ncols=3 if len(used) < 8 else 4)
    return fig


def shade(bpw: float) -> str:
    """The blue that stands for so many bits per weight, the same in every picture."""
    # Between the block types every bit shows; the plain floats share the dark end.
    share = 0.08 + 0.8 * (bpw - 1.5) / 7 if bpw <= 8.5 else 0.88 + 0.12 * math.log2(bpw / 8.5) / math.log2(32 / 8.5)
    return to_hex(BLUES(min(max(share, 0.0), 1.0)))


def _place(name: str) -> tuple[str, int] | None:
    """Kind and layer of a matrix; the layer is -1 outside the layers. None for biases."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    return (match[2], int(match[1]) if match[1] else -1) if match else None


def _marks(used: Sequence[str]) -> dict[str, str]:
    """A short mark for each type: its digit where no other type here has it, else two signs, as 5₀ would be: 50, 5K."""
    short = {name: (re.search(r"\d+", name) or [name])[0] for name in used}
    found: dict[str, str] = {}
    for name in used:
        alone = list(short.values()).count(short[name]) == 1
        # Q5_0 and Q5_K, IQ4_NL and IQ4_XS: the last word tells them apart.
        mark = short[name] if alone else f"{short[name]}{name.rpartition('_')[2][:1]}"
        found[name] = mark if mark not in found.values() else f"{short[name]}{name[:1].lower()}{name[-1:]}"
    return found


def _cell(ax: Axes, x: float, y: float, width: float, cell: _Cell, marks: Mapping[str, str]) -> None:
    """Draw one matrix: the shade and mark of its type, and a corner if it did not fit the wanted one."""
    colour = shade(TYPES[cell.type].bpw)
    ax.add_patch(Rectangle((x, y), width, 1, label=cell.type, **style.solid(colour)))
    if cell.wanted:
        corner = [(x + width, y), (x + width, y + 0.34), (x + width - min(0.34, width), y)]
        ax.add_patch(Polygon(corner, facecolor=INK, edgecolor="white", linewidth=0.5, label="fallback", zorder=3))
    say(ax, x + width / 2, y + 0.54, marks[cell.type], 7.5, style.ink_on(colour))


def say(ax: Axes, x: float, y: float, text: str, size: float, colour: str = INK) -> None:
    """Write into the middle of a cell."""
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, zorder=4, in_layout=False)


def _title(tensors: Sequence[TypedTensor], cells: Mapping[tuple[str, int], _Cell]) -> str:
    """How many types the file has, and how many bits per weight, as a sentence."""
    if not cells:
        return "This file has no matrix that could be shown here"
    elements = [math.prod(tensor.dims) for tensor in tensors]
    bits = sum(n * TYPES[tensor.type].bpw for n, tensor in zip(elements, tensors, strict=True)) / sum(elements)
    types = {cell.type for cell in cells.values()}
    fallen = sum(cell.wanted is not None for cell in cells.values())
    if len(types) == 1:
        said = f"Every matrix of this file is {types.pop()}: {bits:.2f} bits per weight"
    else:
        said = f"This file mixes {len(types)} types at {bits:.2f} bits per weight"
    return f"{said}; {fallen} of {len(cells)} matrices did not fit the wanted type" if fallen else said
