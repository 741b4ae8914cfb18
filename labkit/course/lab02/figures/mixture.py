"""Tables in shades of blue: which type each tensor of a file gets, and how large files are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon, Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import BLUES, FAINT, INK
from labkit.gguf.types import TYPES

KINDS_OF_TENSORS = ("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""Rows of the map, in this order; other matrices of a layer, such as experts, follow."""
_LONE = ("token_embd", "output")

Unit = Literal["GiB", "bits per weight", "% of F16"]

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
    type: str
    wanted: str | None


@style.styled
def mixture_map(
    tensors: Sequence[TypedTensor], *, kinds: Sequence[str] | None = None, title: str | None = None
) -> Figure:
    """The type of every matrix of a file: kinds of tensors down, layers across, the more bits the darker.

    Args:
        tensors: of one file; norms and biases, which are not quantized, count for the bits but have no cell.
        kinds: rows of the map, as in ``blk.0.<kind>.weight``; without it, all that are quantized.
        title: replaces the sentence computed from the tensors.

    Raises:
        ValueError: a type that ggml does not know.
    """
    unknown = next((t for t in tensors if t.type not in TYPES), None)
    if unknown is not None:
        raise ValueError(f"{unknown.name} has the type {unknown.type!r}, which ggml does not know.")
    cells: dict[tuple[str, int], _Cell] = {}
    for tensor in tensors:
        place = _place(tensor.name)
        if place and len(tensor.dims) > 1 and max(tensor.dims[1:]) > 1:
            cells[place] = _Cell(tensor.type, getattr(tensor, "wanted", None))
    # Routers and the like keep their F32.
    present = dict.fromkeys(kind for (kind, layer), cell in cells.items() if layer >= 0 and cell.type != "F32")
    rows = list(kinds) if kinds is not None else [k for k in KINDS_OF_TENSORS if k in present]
    rows += [k for k in present if kinds is None and k not in rows]
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
    fig = style.new_figure(0.85 + 0.23 * height + 0.24 * n_legend, title=title or _map_title(tensors, cells))
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
                _say(ax, layer - band.start + 0.5, y + 0.5, str(layer), 7.5)
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
    colour = shade(TYPES[cell.type].bpw)
    ax.add_patch(Rectangle((x, y), width, 1, label=cell.type, **style.solid(colour)))
    if cell.wanted:
        corner = [(x + width, y), (x + width, y + 0.34), (x + width - min(0.34, width), y)]
        ax.add_patch(Polygon(corner, facecolor=INK, edgecolor="white", linewidth=0.5, label="fallback", zorder=3))
    _say(ax, x + width / 2, y + 0.54, marks[cell.type], 7.5, style.ink_on(colour))


def _say(ax: Axes, x: float, y: float, text: str, size: float, colour: str = INK) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, zorder=4, in_layout=False)


def _map_title(tensors: Sequence[TypedTensor], cells: Mapping[tuple[str, int], _Cell]) -> str:
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


@style.styled
def size_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    unit: Unit,
    title: str | None = None,
) -> Figure:
    """A table of shapes by file types, the larger the darker, with the number in each cell.

    Args:
        rows: names of the shapes.
        columns: names of the file types.
        values: one list per row with a figure per column, in ``unit``; None where there is none.
        unit: what the figures are.
        title: replaces the sentence computed from the figures.

    Raises:
        ValueError: not one figure per cell.
    """
    if len(values) != len(rows) or any(len(line) != len(columns) for line in values):
        raise ValueError(f"The values do not fill {len(rows)} rows of {len(columns)} columns: give one for each cell.")
    known = [value for line in values for value in line if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    upright = any(len(name) * 10.5 > 900 / max(len(columns), 1) - 6 for name in columns)
    fig = style.new_figure(
        1.0
        + 0.27 * len(rows)
        + (0.09 * max((len(text_layout.shorten(c, 18)) for c in columns), default=0) if upright else 0.2),
        title=title or _grid_title(rows, columns, values, unit),
    )
    ax = fig.add_subplot()
    ax.set_xlim(0, max(len(columns), 1))
    ax.set_ylim(max(len(rows), 1), 0)
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            colour = "#FFFFFF" if value is None else _grid_shade(value, low, high, unit)
            look: dict[str, Any] = {"hatch": "////", "facecolor": "white", "edgecolor": FAINT, "linewidth": 0}
            ax.add_patch(Rectangle((x, y), 1, 1, **(look if value is None else style.solid(colour))))
            if value is not None:
                _say(ax, x + 0.5, y + 0.52, _figure(value, unit), 8 if len(columns) < 15 else 7, style.ink_on(colour))
    ax.xaxis.tick_top()
    ax.set_xticks([n + 0.5 for n in range(len(columns))], [text_layout.shorten(c, 18) for c in columns])
    ax.tick_params(axis="x", length=0, labelrotation=90 if upright else 0)
    ax.set_yticks([n + 0.5 for n in range(len(rows))], [text_layout.shorten(row, 24) for row in rows])
    ax.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    missing = ", hatched: not to be had" if len(known) < len(rows) * len(columns) else ""
    ax.set_xlabel(f"{unit} (the darker the more{missing})")
    return fig


def _grid_shade(value: float, low: float, high: float, unit: Unit) -> str:
    """Bits have their own shades; sizes differ a thousandfold, so these are compared by their logarithms."""
    if unit != "GiB":
        return shade(value if unit == "bits per weight" else value * 16 / 100)
    return to_hex(BLUES(0.9 * math.log(value / low) / math.log(high / low) if high > low > 0 else 0.3))


def _figure(value: float, unit: Unit) -> str:
    if unit == "% of F16":
        return f"{value:.0f}"
    digits = 3 if value < 0.0995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def _grid_title(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], unit: Unit
) -> str:
    by_row = [[v for v in line if v] for line in values]
    spread = [max(line) / min(line) for line in by_row if line]
    if not spread:
        return "There is no file size to show yet"
    if unit == "GiB":
        return f"The type of a file's weights makes it up to {max(spread):.2g} times as small"
    by_column = {name: [line[x] for line in values if line[x]] for x, name in enumerate(columns)}
    ranges = {n: (min(v for v in found if v), max(v for v in found if v)) for n, found in by_column.items() if found}
    name = max(ranges, key=lambda n: ranges[n][1] / ranges[n][0])
    low, high = (_figure(end, unit) for end in ranges[name])
    if low == high:
        return f"Each file type takes the same {unit} in all of these shapes"
    what = "bits per weight" if unit == "bits per weight" else "% of the F16 file"
    return f"{text_layout.shorten(name, 18)} means {low} to {high} {what}, depending on the model"
