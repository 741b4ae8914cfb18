"""Which layers are on which side: a row for each n_gpu_layers, with the device's layers one lane lower."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import KINDS
from labkit.models.tensor_types import layer_of
from labkit.predict import EXPERTS
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.gguf import Header
    from labkit.predict import Split

_LANE, _STEP, _KV = 0.40, 0.47, 0.09  # of a row: height of a lane, from the host's lane to the device's, of a cache
_GAP = 0.012  # of the width, between embedding, blocks and output


@dataclass(frozen=True)
class _Layer:
    """A column of the map. ``layer``: number of the block, -1 for the embedding, n_layer for the output."""

    layer: int
    left: float
    width: float


@style.styled
def layer_map(
    splits: Split | Sequence[Split],
    header: Header,
    *,
    on_cpu: Sequence[Sequence[str]] = (),
    labels: Sequence[str] | None = None,
) -> Figure:
    """Token embedding, blocks and output in a row for each split: the upper lane is the host, the lower the device.

    Widths are bytes. A thin strip under a block is its cache, in the lane of the side that holds it.

    Args:
        splits: one row each, from the top.
        header: the model's.
        on_cpu: for each row, the regular expressions that its split was made with.
        labels: what the rows are called; without it, their n_gpu_layers.
    """
    rows = list(splits) if isinstance(splits, Sequence) else [splits]
    names = text_layout.row_names(rows, labels, lambda split: str(split.n_gpu_layers))
    fig = style.new_figure(1.35 + 0.56 * len(rows), title=title_of(rows, header, on_cpu))
    ax = fig.add_subplot()
    draw_layers(ax, rows, header, on_cpu=on_cpu, names=names)
    ax.set_ylabel("n_gpu_layers" if labels is None else "")
    text_layout.legend_below(
        fig, *_key(rows, header, on_cpu), ncols=4, handler_map={tuple: HandlerTuple(ndivide=1, pad=0)}
    )
    return fig


def draw_layers(
    ax: Axes, rows: Sequence[Split], header: Header, *, on_cpu: Sequence[Sequence[str]] = (), names: Sequence[str]
) -> None:
    """Draw the map into axes of their own."""
    columns = _columns(header)
    end = columns[-1].left + columns[-1].width
    for n, (split, kept) in enumerate(zip(rows, _kept(header, rows, on_cpu), strict=True)):
        for lane in (0, _STEP):
            ax.add_patch(Rectangle((0, n + lane), end, _LANE, facecolor="#F4F4F4", edgecolor="none", zorder=0))
        for column in columns:
            _cell(ax, n, column, split, kept, tied=_is_tied(header))
        sizes = [split.host.weights_bytes, sum(side.weights_bytes for side in split.devices)]
        there = "device" if len(split.devices) == 1 else f"{len(split.devices)} devices"
        for lane, side, size in zip((0, _STEP), ("host", there), sizes, strict=True):
            said = f"{side} {fmt_bytes(size)}" if size else f"{side}: nothing"
            text_layout.beside(ax, end, n + lane + _LANE / 2, said, fontsize=8)
    ax.set_xlim(0, end)
    ax.set_ylim(max(len(rows), 1) - 0.08, -0.06)
    ax.set_yticks([n + (_STEP + _LANE) / 2 for n in range(len(rows))], list(names))
    ax.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    _number(ax, columns, end)


def _columns(header: Header) -> list[_Layer]:
    """The columns of a model, as wide as their bytes: embedding, blocks, output."""
    sizes = [0] * (header.n_layer + 2)
    for tensor in header.tensors:
        n = layer_of(tensor.name)
        if n < 0:
            n = header.n_layer if tensor.name.startswith("output") else -1
        sizes[n + 1] += tensor.nbytes
    if _is_tied(header):  # the same bytes serve twice
        sizes[-1] += header.tensor("token_embd.weight").nbytes
    total = sum(sizes)
    columns, left = [], 0.0
    for i, size in enumerate(sizes):
        left += _GAP * total if i in (1, header.n_layer + 1) else 0
        columns.append(_Layer(i - 1, left, size))
        left += size
    return columns


def _cell(ax: Axes, n: int, column: _Layer, split: Split, kept: frozenset[int], *, tied: bool) -> None:
    """Draw one column of row ``n``: in the lane of its side, its experts in the host's lane if they are kept there."""
    i, n_layer = column.layer, len(split.layers_on)
    on = 0 if i < 0 else split.output_on if i == n_layer else split.layers_on[i]
    if i == n_layer and on == 0 and tied:
        _box(ax, n, column, 0, 0, 1, facecolor="white", edgecolor=KINDS["file"].colour, linewidth=1, label="tied")
        return
    stay = on and i in kept
    for side, low, high in [(0, 0.3, 1), (on, 0, 0.3)] if stay else [(on, 0, 1)]:
        colour = KINDS["heap" if side else "file"].colour
        kind = "experts kept" if stay and not side else "device" if side else "host"
        _box(ax, n, column, side, low, high, facecolor=colour, edgecolor="white", linewidth=0.5, label=kind)
        if side:
            _box(ax, n, column, side, low, high, **style.device_edge(), label="_edge")
        elif stay:
            middle = column.left + column.width / 2
            ax.plot(middle, n + _LANE * 0.3, ".", color="white", markersize=4, zorder=4, label="_kept")
    if 0 <= i < n_layer and _any_cache(split):
        side = on if _cache_follows(split) else 0
        y = n + (_STEP if side else 0) + _LANE - _KV
        look: dict[str, Any] = {"facecolor": KINDS["kv"].colour, "edgecolor": "white", "linewidth": 0.5}
        ax.add_patch(Rectangle((column.left, y), column.width, _KV, zorder=3, label="kv", **look))


def _box(ax: Axes, n: int, column: _Layer, side: int, low: float, high: float, **look: Any) -> None:
    """Part of a lane, from ``low`` to ``high`` above its strip of caches."""
    tall = _LANE - _KV
    y = n + (_STEP if side else 0) + tall * (1 - high)
    ax.add_patch(Rectangle((column.left, y), column.width, tall * (high - low), zorder=2, **look))


def _number(ax: Axes, columns: Sequence[_Layer], end: float) -> None:
    """Name the columns above: as many block numbers as there is room for."""
    blocks = columns[1:-1]
    narrowest = min((block.width for block in blocks), default=end) / end
    every = next((step for step in (1, 2, 4, 8, 16, 32) if step * narrowest > 0.036), 64)
    ticks = {block.left + block.width / 2: str(block.layer) for block in blocks[::every]}
    ax.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    middle = blocks[0].left + sum(block.width for block in blocks) / 2 if blocks else 0.0
    for x, name, ha in ((0.0, "token embedding", "left"), (middle, "blocks", "center"), (end, "output", "right")):
        ax.annotate(
            name, (x, 1), (0, 14), xycoords=ax.get_xaxis_transform(), textcoords="offset points", ha=ha, fontsize=8
        )
    ax.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, length=2, pad=1)


def _kept(header: Header, rows: Sequence[Split], on_cpu: Sequence[Sequence[str]]) -> list[frozenset[int]]:
    """For each row, the blocks on a device whose experts stay on the host."""
    if on_cpu and len(on_cpu) != len(rows):
        raise ValueError(f"{len(on_cpu)} groups of on_cpu for {len(rows)} rows: give one per row")
    experts = [(layer_of(t.name), t.name) for t in header.tensors if re.search(EXPERTS, t.name)]
    return [
        frozenset(i for i, name in experts if split.layers_on[i] and any(re.search(p, name) for p in patterns))
        for split, patterns in zip(rows, on_cpu or [()] * len(rows), strict=True)
    ]


def _is_tied(header: Header) -> bool:
    """Whether the token embedding serves as the output layer too."""
    return not any(tensor.name == "output.weight" for tensor in header.tensors)


def _any_cache(split: Split) -> bool:
    """Whether anything is cached on either side."""
    return any(side.kv_bytes or side.recurrent_bytes for side in (split.host, *split.devices))


def _cache_follows(split: Split) -> bool:
    """Whether the cache lies where its layer is; with ``offload_kqv`` off, devices hold none."""
    return any(side.kv_bytes or side.recurrent_bytes for side in split.devices)


def _key(rows: Sequence[Split], header: Header, on_cpu: Sequence[Sequence[str]] = ()) -> tuple[list[Any], list[str]]:
    """Handles and names of the map's legend, which goes with ``HandlerTuple``."""
    found: dict[str, Any] = {
        "on the host": Patch(**style.solid(KINDS["file"].colour)),
        "on the device": (Patch(**style.solid(KINDS["heap"].colour)), Patch(**style.device_edge())),
    }
    if any(_any_cache(split) for split in rows):
        found["a block's cache"] = Patch(**style.solid(KINDS["kv"].colour))
    if _is_tied(header) and any(split.output_on == 0 for split in rows):
        found["output = embedding"] = Patch(facecolor="white", edgecolor=KINDS["file"].colour)
    if any(_kept(header, rows, on_cpu)):
        look: dict[str, Any] = {"color": KINDS["file"].colour, "linestyle": "none", "marker": "s", "markersize": 9}
        found["experts that stay on the host"] = (Line2D([], [], **look), Line2D([], [], **look | _DOT))
    return list(found.values()), list(found)


_DOT: dict[str, Any] = {"color": "white", "marker": ".", "markersize": 4}


def _on_device(split: Split) -> str:
    """What is on a device, in words: ``the output layer and blocks 13 to 15``."""
    gone = [i for i, side in enumerate(split.layers_on) if side]
    said = ["the output layer"] if split.output_on else []
    if gone:
        said.append(f"block {gone[0]}" if len(gone) == 1 else f"blocks {gone[0]} to {gone[-1]}")
    return " and ".join(said)


def title_of(rows: Sequence[Split], header: Header, on_cpu: Sequence[Sequence[str]] = ()) -> str:
    """What the map shows, as a sentence."""
    if len({split.n_gpu_layers for split in rows}) > 1:
        return (
            "With more n_gpu_layers, first the output layer moves to the device, then the blocks from the last to the "
            "first; the token embedding stays"
        )
    if len(rows) != 1:
        return "Each layer is on the host (upper lane) or on the device (lower lane)"
    [split], [kept] = rows, _kept(header, rows, on_cpu)
    gone = _on_device(split)
    if not gone:
        return "With n_gpu_layers 0 every layer stays on the host"
    if split.output_on and all(split.layers_on):
        gone = "the output layer and every block"
    verb = "are" if "and" in gone else "is"
    stays = "the token embedding stays"
    if kept:
        stays = f"the token embedding and the experts of {len(kept)} blocks stay"
    return f"With n_gpu_layers {split.n_gpu_layers}, {gone} {verb} on the device; {stays}"
