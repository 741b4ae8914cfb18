"""Memory of a host and a device: for one split beside its layers, and for several as predicted and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from labkit.course.figurekit import sides, style, text_layout
from labkit.course.figurekit.memory_split import measured_split
from labkit.course.figurekit.style import INK, KINDS, LIMIT
from labkit.course.lab04.figures.layer_map import draw_layers, title_of
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.offload_sweep import OffloadPoint
    from labkit.experiments.run import Run
    from labkit.gguf import Header
    from labkit.predict import Split

_BAR = 0.36


@style.styled
def offload_plan(
    split: Split,
    header: Header,
    *,
    vram_bytes: int | None = None,
    ram_bytes: int | None = None,
    top_bytes: int | None = None,
    on_cpu: Sequence[str] = (),
    title: str | None = None,
) -> Figure:
    """The layers of one split on their sides, and below it the predicted memory of host and device with their limits.

    Args:
        split: what to show.
        header: the model's.
        vram_bytes: what the device can give.
        ram_bytes: what the host can give.
        top_bytes: end of the axis of memory, for pictures to be compared; without it, the axis fits the bars.
        on_cpu: the regular expressions that the split was made with.
        title: replaces the sentence computed from the split.
    """
    both = {"host": [split.host], "device": list(split.devices)}
    sizes = {name: sum(side.total_bytes for side in some) for name, some in both.items()}
    limits = {"host": ram_bytes, "device": vram_bytes}
    fig = style.new_figure(4.0, title=title or _plan_title(split, header, on_cpu, sizes["device"], vram_bytes))
    above, ax = fig.subplots(2, 1, height_ratios=[1, 1.25])
    draw_layers(above, [split], header, on_cpu=[on_cpu], names=[""])
    shown = [limit for limit in limits.values() if limit is not None and limit <= 2.5 * max(sizes.values())]
    top = top_bytes or max([*sizes.values(), *shown]) * 1.12 or 1
    unit, unit_name = style.axis_unit(top)
    ax.set_xlim(0, top / unit)
    beside = ax.get_yaxis_transform()
    for row, (name, some) in enumerate(both.items()):
        parts = [sides.predicted_side(side) for side in some]
        stack = {kind: sum(part[kind] for part in parts) for kind in KINDS}
        left = 0.0
        for kind, size in stack.items():
            if size:
                look = style.hatched(KINDS[kind].colour, KINDS[kind].hatch)
                ax.barh(row, size / unit, 0.5, left=left, label=f"{name} {kind}", **look)
                if name == "device":
                    ax.barh(row, size / unit, 0.5, left=left, label="_edge", **sides.device_edge())
                left += size / unit
        if left > top / unit:
            ax.annotate(
                "→", (1, row), (-3, 0), xycoords=beside, textcoords="offset points", ha="right", bbox=text_layout.BACKED
            )
        _limit(ax, row, name, limits[name], sizes[name], unit)
    ax.set_ylim(1.75, -0.45)
    ax.set_yticks([0, 1], [f"{name}\n{fmt_bytes(size) if size else 'nothing'}" for name, size in sizes.items()])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"memory, {unit_name}, predicted")
    used = [kind for kind in KINDS if any(sides.predicted_side(side)[kind] for some in both.values() for side in some)]
    text_layout.legend_below(
        fig, [style.swatch(KINDS[kind], predicted=True) for kind in used], [_LABELS[kind] for kind in used], ncols=4
    )
    return fig


_LABELS = {key: kind.label for key, kind in KINDS.items()} | {"heap": "weights, not file-backed"}


def _limit(ax: Axes, row: int, name: str, limit: int | None, size: int, unit: int) -> None:
    if limit is None:
        return
    short = f": {fmt_bytes(size - limit)} too little" if size > limit else ""
    what = "RAM" if name == "host" else "device's memory"
    top = ax.get_xlim()[1]
    look: dict[str, Any] = {"color": LIMIT, "fontsize": 8.5, "textcoords": "offset points", "va": "center"}
    y = row + 0.5
    if limit / unit > top:
        ax.annotate(f"{what} {fmt_bytes(limit)}{short} →", (top, y), (-3, 0), ha="right", **look)
        return
    ax.plot([limit / unit] * 2, [row - 0.36, row + 0.62], ":", color=LIMIT, linewidth=2, zorder=5, label=f"_{name}")
    right = limit / unit < 0.5 * top
    ax.annotate(
        f"{what} {fmt_bytes(limit)}{short}",
        (limit / unit, y),
        (5 if right else -5, 0),
        ha="left" if right else "right",
        **look,
    )


def _plan_title(split: Split, header: Header, on_cpu: Sequence[str], device_bytes: int, vram_bytes: int | None) -> str:
    said = title_of([split], header, [on_cpu])
    if vram_bytes is None or not device_bytes:
        return said
    fit = "this fits" if device_bytes <= vram_bytes else "this does not fit"
    return f"{said.partition(';')[0]}: {fit} in {fmt_bytes(vram_bytes)}"


@style.styled
def two_processes(points: Sequence[OffloadPoint], *, title: str | None = None) -> Figure:
    """Memory of the host's process (above) and the device's (below) against n_gpu_layers.

    Hatched is what is predicted to be reserved, solid what the kernel counted, the black line what llama.cpp says it
    reserved. A compute buffer is reserved whole and touched in part, so a solid bar may end below its line.

    Args:
        points: in any order; a later one with the same settings takes the place of an earlier one.
        title: replaces the sentence computed from the points.
    """
    found = {(p.n_gpu_layers, not sides.cache_moves(p)): (p, run) for p in points if (run := sides.shown_run(p))}
    rows = [found[at] for at in sorted(found)]
    fig = style.new_figure(5.4 if rows else 0.8, title=title or _processes_title(rows))
    if not rows:
        return fig
    panels = fig.subplots(2, 1, sharex=True)
    stacks = {
        "host": [(sides.predicted_side(p.split.host, process=True), measured_split(run)) for p, run in rows],
        "device": [(_devices(p.split), sides.measured_device(run)) for p, run in rows],
    }
    largest = max(sum(split.values()) for pairs in stacks.values() for pair in pairs for split in pair if split)
    unit, unit_name = style.axis_unit(largest)
    inner: list[tuple[Text, float, float]] = []
    for ax, (name, pairs) in zip(panels, stacks.items(), strict=True):
        device = name == "device"
        for x, ((_, run), (before, after)) in enumerate(zip(rows, pairs, strict=True)):
            inner.append(_stack(ax, x - 0.2, before, unit, solid=False, device=device))
            if after is not None:
                inner.append(_stack(ax, x + 0.2, after, unit, solid=True, device=device))
            size = sides.reported_bytes(run, device=device)
            if run.ok and size:
                at = [x + 0.2 - _BAR / 2, x + 0.2 + _BAR / 2]
                ax.plot(at, [size / unit] * 2, color=INK, linewidth=2, zorder=5, label="_reported")
            elif not run.ok and device:
                if after is not None:
                    inner.pop()[0].remove()
                high = sum((after or {}).values()) / unit + 0.05 * largest / unit
                ax.plot(x + 0.2, high, "X", color=INK, markersize=8, zorder=6, label="_failed")
                look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8}
                said = "killed" if run.outcome == "oom-killed" else run.outcome.replace("-", "\n")
                ax.annotate(said, (x + 0.2, high), (0, 6), textcoords="offset points", **look)
        ax.set_ylabel(f"{name}'s process, {unit_name}")
        ax.set_ylim(0, largest / unit * 1.13)
        ax.locator_params(axis="y", nbins=5)
        ax.tick_params(axis="x", length=0)
    panels[-1].set_xlim(-0.55, len(rows) - 0.45)
    names = [f"{p.n_gpu_layers}{'' if sides.cache_moves(p) else ', cache stays'}" for p, _ in rows]
    panels[-1].set_xticks(range(len(rows)), [text_layout.wrap(name, 7, lines=3) for name in names])
    panels[-1].set_xlabel("n_gpu_layers")
    fig.align_ylabels(panels)
    _processes_legend(fig, [split for pairs in stacks.values() for pair in pairs for split in pair if split])
    fig.draw_without_rendering()
    text_layout.hide_unfit(inner, pad_px=0)
    return fig


def _devices(split: Split) -> dict[str, int]:
    parts = [sides.predicted_side(side) for side in split.devices]
    return {kind: sum(part[kind] for part in parts) for kind in KINDS}


def _stack(
    ax: Axes, x: float, split: dict[str, int], unit: int, *, solid: bool, device: bool
) -> tuple[Text, float, float]:
    """Draw one bar; return the text of its total and the space that it may take."""
    bottom = 0.0
    for key, kind in KINDS.items():
        height = split[key] / unit
        if height <= 0:
            continue
        look = style.solid(kind.colour) if solid else style.hatched(kind.colour, kind.hatch)
        ax.bar(x, height, _BAR, bottom=bottom, label=f"{'measured' if solid else 'predicted'} {key}", **look)
        if device:
            ax.add_patch(Rectangle((x - _BAR / 2, bottom), _BAR, height, zorder=3, **sides.device_edge()))
        bottom += height
    total = sum(split.values())
    said = f"{total / unit:.2f}" if unit > 1 << 20 else f"{total / unit:.0f}"
    text = ax.annotate(
        said if total else "0", (x, bottom), (0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=7.5
    )
    return text, x - 0.22, x + 0.22


def _processes_legend(fig: Figure, splits: Sequence[dict[str, int]]) -> None:
    used = [key for key in KINDS if any(split[key] > 0 for split in splits)]
    handles: list[Any] = [(style.swatch(KINDS[key], predicted=True), style.swatch(KINDS[key])) for key in used]
    names = [_LABELS[key] for key in used]
    handles.append(Line2D([], [], color=INK, linewidth=2))
    names.append("reserved, says llama.cpp")
    text_layout.legend_below(
        fig,
        handles,
        names,
        ncols=3,
        title="hatched: predicted, solid: measured, dotted edge: on the device",
        title_fontsize=9,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )


def _processes_title(rows: Sequence[tuple[OffloadPoint, Run]]) -> str:
    ends = [
        (p.n_gpu_layers, run.measured.rss_file_bytes, run.device.rss_anon_bytes)
        for p, run in rows
        if run.ok and run.measured and run.device and sides.cache_moves(p)
    ]
    known = [(n, file, anon) for n, file, anon in ends if file is not None and anon is not None]
    if not rows:
        return "Nothing has been run on a device yet"
    if len(known) < 2:
        return "Memory of the host's process and of the device's, for each n_gpu_layers"
    (first, before, idle), (last, after, full) = known[0], known[-1]
    return (
        f"From n_gpu_layers {first} to {last} the host's file-backed memory goes from {fmt_bytes(before)} to "
        f"{fmt_bytes(after)}, the device's from {fmt_bytes(idle)} to {fmt_bytes(full)}"
    )
