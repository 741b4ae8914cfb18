"""What a field of a quantized block is, how each part of a block looks, and the bits of single fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import FAINT, INK, KINDS

SCALES = "#F0E442"
"""The colour of scales; weights are blue as in every picture."""

_DARK = {"facecolor": INK, "hatch": "", "edgecolor": "white"}
_LOOKS: dict[str, Mapping[str, str]] = {
    "d": _DARK,
    "e": _DARK,
    "dmin": {"facecolor": "#8C8C8C", "hatch": "..", "edgecolor": "white"},
    "m": {"facecolor": "#8C8C8C", "hatch": "..", "edgecolor": "white"},
    "scales": {"facecolor": SCALES, "hatch": "", "edgecolor": "white"},
    "scales_l": {"facecolor": SCALES, "hatch": "", "edgecolor": "white"},
    "scales_h": {"facecolor": SCALES, "hatch": "//", "edgecolor": "#B5A800"},
    "qs": {"facecolor": KINDS["file"].colour, "hatch": "", "edgecolor": "white"},
    "ql": {"facecolor": KINDS["file"].colour, "hatch": "", "edgecolor": "white"},
    "qh": {"facecolor": KINDS["heap"].colour, "hatch": "//", "edgecolor": "white"},
    "hmask": {"facecolor": KINDS["heap"].colour, "hatch": "//", "edgecolor": "white"},
}
_OTHER = {"facecolor": KINDS["file"].colour, "hatch": "", "edgecolor": "white"}
SCALING = {"d", "e", "dmin", "m", "scales", "scales_l", "scales_h"}
"""The parts that say how to scale the weights."""


class BlockField(Protocol):
    """Some bits of a block; ``labkit.blocks.Field`` is one.

    ``part`` is the member of ggml's struct. The bits go from ``bit_start`` up to before ``bit_end``, counted from the
    lowest bit of the byte ``byte_start``. ``raw`` is those bits as an integer.
    """

    @property
    def name(self) -> str: ...
    @property
    def part(self) -> str: ...
    @property
    def byte_start(self) -> int: ...
    @property
    def byte_end(self) -> int: ...
    @property
    def bit_start(self) -> int: ...
    @property
    def bit_end(self) -> int: ...
    @property
    def raw(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def meaning(self) -> str: ...


def look_of(part: str) -> dict[str, Any]:
    """Patch settings of a part of a block."""
    return dict(_LOOKS.get(part, _OTHER if part else {"facecolor": "white", "hatch": "", "edgecolor": FAINT}))


def show_bits(ax: Axes, fields: Sequence[BlockField], more: int, bits: Mapping[int, int]) -> None:
    """Draw a line per field: its bytes bit by bit, highest first, its own bits dark, and what they mean."""
    ax.set_axis_off()
    wide = max(8 * min(f.byte_end - f.byte_start, 4) for f in fields)
    ax.set_ylim(len(fields) + bool(more), 0)
    ax.set_xlim(-12, 44)
    for y, field in enumerate(fields):
        stop = min(field.byte_end, field.byte_start + 4)
        ax.text(-0.4, y + 0.5, text_layout.shorten(field.name, 24), ha="right", va="center", fontsize=8.5)
        own = range(8 * field.byte_start + field.bit_start, 8 * field.byte_start + field.bit_end)
        for n, place in enumerate(reversed(range(8 * field.byte_start, 8 * stop))):
            mine = place in own
            face = look_of(field.part)["facecolor"] if mine else "white"
            box: dict[str, Any] = {"facecolor": face, "edgecolor": INK if mine else "#BBBBBB", "linewidth": 0.8}
            ax.add_patch(Rectangle((n, y + 0.1), 1, 0.8, label="own bit" if mine else "bit", **box))
            ax.text(
                n + 0.5,
                y + 0.52,
                str(bits.get(place, "·")),
                fontsize=7.5,
                ha="center",
                va="center",
                color=style.ink_on(face) if mine else "#999999",
            )
        said = _said(field) if stop == field.byte_end else f"{_said(field)} (first {stop - field.byte_start} bytes)"
        ax.text(wide + 0.6, y + 0.5, text_layout.shorten(said, 62 if wide <= 8 else 48), va="center", fontsize=8.5)
    if more:
        ax.text(0, len(fields) + 0.5, f"… and {more} more", va="center", fontsize=8.5)


def _said(field: BlockField) -> str:
    """A field's bits as a number, what it stands for, and why; nothing twice."""
    value = f"{'−' if field.value < 0 else ''}{abs(field.value):.4g}"
    raw = f"{field.raw}" if field.raw < 1 << 32 else "…"
    number = raw if field.value == field.raw or value in field.meaning else f"{raw} = {value}"
    return number if field.meaning in ("", raw) else f"{number}: {field.meaning}"
