"""The bytes of one quantized block: which part of it each belongs to, and the bits of a chosen field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import INK
from labkit.course.lab02.figures.block_parts import SCALING, BlockField, look_of, show_bits

_ONE_ROW = 36
_PER_ROW = 32
_MOST_FIELDS = 8
_LANE = 0.62  # height of a row of names, where a row of bytes has 1


@style.styled
def block_map(
    fields: Sequence[BlockField],
    *,
    n_bytes: int,
    selected: str | Sequence[BlockField] | None = None,
    title: str | None = None,
) -> Figure:
    """The bytes of one block in hexadecimal, a shade for each part, and the bits of the selected fields below.

    Args:
        fields: of one block, as in ``labkit.blocks.explain(…).fields``.
        n_bytes: of the block.
        selected: a name ("d", "scale 4", "weight 17"), a part ("scales"), or fields, as those of one weight.
        title: replaces the sentence computed from the fields.

    Raises:
        ValueError: no field has the selected name, or a field ends outside the block.
    """
    if any(field.byte_start < 0 or field.byte_end > n_bytes for field in fields):
        raise ValueError(f"a field ends outside the block of {n_bytes} bytes: give the block's own size")
    chosen = _chosen(fields, selected)
    parts = _parts(fields, n_bytes)
    bits = _bits(fields)
    per_row = n_bytes if n_bytes <= _ONE_ROW else _PER_ROW
    tops, names, height = _rows(parts, per_row)

    shown = chosen[:_MOST_FIELDS]
    n_lines = len(shown) + (len(chosen) > len(shown))
    map_in, bits_in = 0.3 * height, 0.27 * n_lines
    legend_in = 0.24 * -(-len(set(parts)) // 5)
    fig = style.new_figure(
        0.8 + map_in + bits_in + legend_in + 0.2 * bool(chosen), title=title or _title(parts, chosen)
    )
    ratios = {"height_ratios": [map_in, bits_in]} if chosen else None
    panels = fig.subplots(2 if chosen else 1, 1, squeeze=False, gridspec_kw=ratios)[:, 0]
    ax = panels[0]
    ax.set_axis_off()
    ax.set_xlim(-1.4 if per_row < n_bytes else -0.1, max(per_row, 16) + 0.1)
    ax.set_ylim(height + 0.1, -0.1)
    for byte, part in enumerate(parts):
        _cell(ax, byte % per_row, tops[byte // per_row], part, _hex(bits, byte))
    for byte, name, y in names:
        ax.text(byte % per_row, y, name, fontsize=8.5, va="center")
    if per_row < n_bytes:
        for row, top in enumerate(tops):
            ax.text(-0.25, top + 0.5, f"{row * per_row}", fontsize=7.5, ha="right", va="center", color="#555555")
    _outline(ax, chosen, per_row, tops)
    counted = [(part, parts.count(part)) for part in dict.fromkeys(parts)]
    handles = [Patch(linewidth=0, **look_of(part)) for part, _ in counted]
    text_layout.legend_below(fig, handles, [_legend_name(part, count) for part, count in counted], ncols=5)
    if chosen:
        show_bits(panels[1], shown, len(chosen) - len(shown), bits)
    return fig


def _chosen(fields: Sequence[BlockField], selected: str | Sequence[BlockField] | None) -> list[BlockField]:
    """The fields that are selected by name or part, or handed over."""
    if selected is None:
        return []
    if not isinstance(selected, str):
        return list(selected)
    # An integer whose bits are split has a field for each piece: "scale 4, bits 0–3".
    found = [f for f in fields if selected in (f.name, f.part) or f.name.startswith(f"{selected},")]
    if not found:
        names = ", ".join(dict.fromkeys(f.part for f in fields))
        raise ValueError(f"no field is called {selected!r}: choose a part ({names}) or the name of a field in it")
    return found


def _parts(fields: Iterable[BlockField], n_bytes: int) -> list[str]:
    """The part that each byte belongs to, "" for one that no field covers."""
    parts = [""] * n_bytes
    for field in fields:
        parts[field.byte_start : field.byte_end] = [field.part] * (field.byte_end - field.byte_start)
    return parts


def _bits(fields: Iterable[BlockField]) -> dict[int, int]:
    """Every known bit of the block, by its place counted from the lowest bit of byte 0."""
    return {
        8 * field.byte_start + field.bit_start + n: field.raw >> n & 1
        for field in fields
        for n in range(field.bit_end - field.bit_start)
    }


def _hex(bits: Mapping[int, int], byte: int) -> str:
    """A byte as two digits; "" if one of its bits is not known."""
    known = [bits.get(8 * byte + n) for n in range(8)]
    return "" if None in known else f"{sum((bit or 0) << n for n, bit in enumerate(known)):02x}"


def _rows(parts: Sequence[str], per_row: int) -> tuple[list[float], list[tuple[int, str, float]], float]:
    """Where rows of bytes begin, the names above them with their byte and place, and the height of it all."""
    tops, names, y = [], [], 0.0
    cell_px = 1010 / max(per_row, 16)
    for start in range(0, len(parts), per_row):
        row = range(start, min(start + per_row, len(parts)))
        firsts = [n for n in row if parts[n] and (n == 0 or parts[n] != parts[n - 1])]
        lanes: dict[int, float] = {}
        levels = []
        for n in firsts:
            # A name that would run into its neighbour goes one lane higher.
            level = next(i for i in range(len(firsts)) if lanes.get(i, -1) <= (n - start) * cell_px)
            lanes[level] = (n - start) * cell_px + 11 * len(text_layout.shorten(parts[n], 24)) + 6
            levels.append(level)
        for n, level in zip(firsts, levels, strict=True):
            names.append((n, text_layout.shorten(parts[n], 24), y + _LANE * (len(lanes) - level - 0.5)))
        y += _LANE * len(lanes)
        tops.append(y)
        y += 1
    return tops, names, y


def _cell(ax: Axes, column: int, top: float, part: str, text: str) -> None:
    """Draw one byte in the shade of its part."""
    look = look_of(part)
    ax.add_patch(Rectangle((column, top), 1, 1, linewidth=0, label=part, zorder=1, **look))
    ax.add_patch(Rectangle((column, top), 1, 1, facecolor="none", edgecolor="white", linewidth=0.9, zorder=2))
    backed = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 0.6} if look["hatch"] else None
    ax.text(
        column + 0.5,
        top + 0.46,
        text,
        family="DejaVu Sans Mono",
        fontsize=7.5,
        ha="center",
        va="center",
        color=style.ink_on(look["facecolor"]) if part else INK,
        bbox=backed,
        zorder=3,
        in_layout=False,
    )


def _outline(ax: Axes, fields: Iterable[BlockField], per_row: int, tops: Sequence[float]) -> None:
    """Draw a dark edge around the bytes of these fields, and where only some bits are theirs, a bar under each."""
    own = {8 * f.byte_start + f.bit_start + n for f in fields for n in range(f.bit_end - f.bit_start)}
    runs: list[list[int]] = []
    for byte in sorted({place // 8 for place in own}):
        mine = [8 * byte + n in own for n in range(8)]
        if all(mine) and byte % per_row and runs and runs[-1][-1] == byte - 1:
            runs[-1].append(byte)
        else:
            runs.append([byte])
        column, top = byte % per_row, tops[byte // per_row]
        for n in range(8):
            if mine[n] and not all(mine):
                # The highest bit is at the left, as in the two digits.
                left = column + 0.14 + 0.72 * (7 - n) / 8
                bar: dict[str, Any] = {"facecolor": INK, "edgecolor": "white", "linewidth": 0.4}
                ax.add_patch(Rectangle((left, top + 0.67), 0.09, 0.17, label="own bit", zorder=6, **bar))
    for run in runs:
        at, width = (run[0] % per_row, tops[run[0] // per_row]), len(run)
        for line, colour in ((4.5, "white"), (2.2, INK)):
            edge: dict[str, Any] = {"edgecolor": colour, "linewidth": line, "facecolor": "none", "joinstyle": "miter"}
            label = "selected" if colour == INK else "_halo"
            ax.add_patch(Rectangle(at, width, 1, label=label, zorder=4 + (colour == INK), **edge))


def _legend_name(part: str, count: int) -> str:
    """A part and its size in words."""
    return f"{text_layout.shorten(part, 24) or 'no field'}: {count} byte{'s' * (count != 1)}"


def _title(parts: Sequence[str], chosen: Sequence[BlockField]) -> str:
    """What the chosen fields take of the block, or its scales, as a sentence."""
    n = len(parts)
    if chosen:
        taken = sum(field.bit_end - field.bit_start for field in chosen)
        name = chosen[0].name.split(",")[0]
        what = f"These {len(chosen)} fields take"
        if all(field.name.split(",")[0] == name for field in chosen):
            what = f"The field {text_layout.shorten(name, 30)} takes"
        elif len({field.part for field in chosen}) == 1:
            what = f"These {len(chosen)} fields in {text_layout.shorten(chosen[0].part, 30)} take"
        return f"{what} {taken} of the {8 * n} bits of this block"
    scaling = sum(part in SCALING for part in parts)
    if not scaling:
        return f"All {n} bytes of this block hold weights, none holds a scale"
    return f"{n - scaling} of this block's {n} bytes hold the weights, {scaling} hold what scales them"
