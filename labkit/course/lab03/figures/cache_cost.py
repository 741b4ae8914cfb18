"""Bytes of a KV cache: by type, and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from labkit.course.figurekit import guesses, style, text_layout
from labkit.course.figurekit.style import INK, KINDS
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.predict.kv import Cache

_KV = KINDS["kv"]


@dataclass(frozen=True)
class SizeRow:
    """The cache of one setting.

    Attributes:
        label: such as ``q8_0/q4_0``, K before V.
        predicted_bytes: by the formula.
        measured_bytes: what llama.cpp allocated or the process grew by; None if not measured.
    """

    label: str
    predicted_bytes: int
    measured_bytes: int | None = None


@style.styled
def cache_sizes(rows: Sequence[SizeRow], *, guess_share: Mapping[str, float | None] | None = None) -> Figure:
    """Two bars per row: predicted (hatched) over measured (solid), with their share of the first row.

    Args:
        rows: one type of cache each, from the top; the first is what the others are compared with.
        guess_share: the learner's own prediction of the first row's share that another needs, 0 to 1, by label.
    """
    sizes = [size for row in rows for size in (row.predicted_bytes, row.measured_bytes) if size is not None]
    largest = max(sizes, default=0)
    unit, unit_name = style.axis_unit(largest)
    fig = style.new_figure(1.6 + 0.62 * len(rows), title=_sizes_title(rows))
    ax = fig.add_subplot()
    ends: list[Text] = []
    own: dict[int, float] = {}
    for y, row in enumerate(rows):
        share = (
            f", {text_layout.percent(row.predicted_bytes / rows[0].predicted_bytes)}" if rows[0].predicted_bytes else ""
        )
        said = f"{fmt_bytes(row.predicted_bytes)} predicted{share if y else ''}"
        ends.append(_bar(ax, y - 0.19, row.predicted_bytes / unit, said, style.hatched(_KV.colour, _KV.hatch)))
        if row.measured_bytes is None:
            ends.append(_bar(ax, y + 0.19, 0, "not measured", {}))
        else:
            said = f"{fmt_bytes(row.measured_bytes)} measured"
            ends.append(_bar(ax, y + 0.19, row.measured_bytes / unit, said, style.solid(_KV.colour)))
        if (share_of := guesses.number((guess_share or {}).get(row.label))) is not None:
            own[y] = share_of * rows[0].predicted_bytes
    ax.set_xlim(0, max([largest, 1, *(guesses.within(size, largest) for size in own.values())]) * 1.02 / unit)
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [text_layout.wrap(row.label, 24) for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"KV cache, {unit_name}")
    for y, size in own.items():
        *_, said = guesses.draw(ax, size / unit, y, text_layout.percent(size / max(rows[0].predicted_bytes, 1)))
        ends[2 * y].set_text(f"{ends[2 * y].get_text()}; {said}")
    handles = [style.swatch(_KV, predicted=True), style.swatch(_KV, predicted=False)]
    text_layout.legend_below(fig, handles, ["predicted", "measured"])
    text_layout.make_room(fig, {ax: ends})
    return fig


def _bar(ax: Axes, y: float, width: float, said: str, look: Mapping[str, Any]) -> Text:
    """Draw one bar, if it has any length; return its text."""
    if width > 0:
        ax.barh(y, width, 0.36, **look)
    return text_layout.beside(ax, width, y, said)


def _sizes_title(rows: Sequence[SizeRow]) -> str:
    """The smallest cache beside the first, and how far the predictions are off, as a sentence."""
    if not rows:
        return "There is no cache to compare here yet"
    small = min(rows, key=lambda row: row.predicted_bytes)
    off = [abs(row.measured_bytes - row.predicted_bytes) for row in rows if row.measured_bytes is not None]
    if off:
        known = [row for row in rows if row.measured_bytes is not None]
        worst = max(known, key=lambda row: abs((row.measured_bytes or 0) - row.predicted_bytes))
        exact = max(off) <= 0.01 * worst.predicted_bytes
        agree = ", as predicted" if exact else f"; the prediction is off by up to {fmt_bytes(max(off))}"
    else:
        agree = ""
    if small is rows[0]:
        return f"A cache in {text_layout.shorten(small.label, 24)} takes {fmt_bytes(small.predicted_bytes)}{agree}"
    share = text_layout.percent(small.predicted_bytes / rows[0].predicted_bytes)
    names = text_layout.shorten(small.label, 20), text_layout.shorten(rows[0].label, 20)
    return f"A cache in {names[0]} takes {share} of one in {names[1]}{agree}"


_KINDS = {
    "full": ("full context", "----"),
    "window": ("sliding window", "...."),
    "recurrent": ("recurrent state", "xxxx"),
}
_NOTHING = {"shared": ("uses an earlier layer's cache", "<"), "none": ("keeps no cache", "x")}


@style.styled
def cache_layers(cache: Cache) -> Figure:
    """Bytes of the cache layer by layer, hatched by what is kept; a layer that keeps nothing has a mark on the axis.

    Args:
        cache: as ``predict.cache`` gives it. A layer may keep tokens and a recurrent state, one above the other.
    """
    layers = cache.layers
    parts = {kind: {x.layer: x.k_bytes + x.v_bytes for x in layers if x.kind == kind} for kind in ("full", "window")}
    parts["recurrent"] = {x.layer: x.recurrent_bytes for x in layers if x.recurrent_bytes}
    largest = max((x.bytes for x in layers), default=0)
    unit, unit_name = style.axis_unit(largest)
    fig = style.new_figure(3.9, title=_layers_title(cache, parts))
    ax = fig.add_subplot()
    handles: list[Any] = []
    names = []
    for kind, sizes in parts.items():
        if not sizes:
            continue
        meaning, hatch = _KINDS[kind]
        look = style.hatched(_KV.colour, hatch) | ({"linewidth": 0.6} if len(layers) > 60 else {})
        below = [x.bytes - x.recurrent_bytes if kind == "recurrent" else 0 for x in layers if x.layer in sizes]
        heights = [size / unit for size in sizes.values()]
        ax.bar(list(sizes), heights, 0.82, bottom=[size / unit for size in below], label=kind, **look)
        handles.append(Patch(**look))
        names.append(f"{meaning}, {_sum(list(sizes.values()))}")
    for kind, (meaning, mark) in _NOTHING.items():
        if own := [x.layer for x in layers if x.kind == kind and not x.bytes]:
            flat: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "linestyle": "none", "color": INK}
            handles += ax.plot(own, [0.025] * len(own), mark, label=kind, markersize=5, markeredgewidth=1.4, **flat)
            names.append(f"{meaning}, {len(own)} layer{'s' * (len(own) != 1)}")
    ax.set_xlim(-0.6, max(len(layers), 1) - 0.4)
    ax.set_ylim(0, largest * 1.12 / unit or 1)
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_ylabel(f"predicted, {unit_name}")
    text_layout.legend_below(fig, handles, names, ncols=2)
    return fig


def _sum(sizes: Sequence[int]) -> str:
    """The layers of one kind and their bytes, in words."""
    if len(sizes) == 1:
        return f"1 layer: {fmt_bytes(sizes[0])}"
    total = fmt_bytes(sum(sizes))
    if len(set(sizes)) == 1:
        return f"{len(sizes)} layers × {fmt_bytes(sizes[0])} = {total}"
    return f"{len(sizes)} layers: {total}"


def _layers_title(cache: Cache, parts: Mapping[str, Mapping[int, int]]) -> str:
    """What most of the bytes are kept for, as a sentence."""
    n, total = len(cache.layers), cache.bytes
    if not total:
        return "No layer of this model keeps anything in a cache"
    most = max(parts, key=lambda kind: sum(parts[kind].values()))
    own = parts[most]
    what = {"full": "the whole context", "window": "a sliding window", "recurrent": "a recurrent state"}[most]
    if len(own) == n and sum(own.values()) == total:
        if n == 1:
            return f"The only layer keeps {what}: {fmt_bytes(total)}"
        alike = ", each the same" if len(set(own.values())) == 1 else ""
        return f"All {n} layers keep {what}{alike}: {fmt_bytes(total)} together"
    share = text_layout.percent(sum(own.values()) / total)
    return f"{len(own)} of {n} layers keep {what}: {share} of the cache's {fmt_bytes(total)}"
