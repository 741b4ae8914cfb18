"""Memory of a host and a device: for one split beside its layers, and for several as predicted and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from labkit.course.figurekit import limits, memory_bars, style, text_layout
from labkit.course.figurekit.memory_bars import MEASURED, PREDICTED, THICKNESS
from labkit.course.figurekit.memory_split import Split as Sizes
from labkit.course.figurekit.memory_split import measured_device, measured_split, predicted_sides
from labkit.course.figurekit.style import INK
from labkit.course.lab04.figures.layer_map import draw_layers, title_of
from labkit.units import MiB, fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.offload_sweep import OffloadPoint
    from labkit.experiments.run import Run
    from labkit.gguf import Header
    from labkit.predict import Split

_NAMES = {"heap": "weights, not file-backed"}


@style.styled
def offload_plan(
    split: Split,
    header: Header,
    *,
    vram_bytes: int | None = None,
    ram_bytes: int | None = None,
    top_bytes: int | None = None,
    on_cpu: Sequence[str] = (),
) -> Figure:
    """The layers of one split on their sides, and below it the predicted memory of host and device with their limits.

    Args:
        split: what to show.
        header: the model's.
        vram_bytes: what the device can give.
        ram_bytes: what the host can give.
        top_bytes: end of the axis of memory, for pictures to be compared; without it, the axis fits the bars.
        on_cpu: the regular expressions that the split was made with.
    """
    sizes = {"host": predicted_sides([split.host]), "device": predicted_sides(split.devices)}
    totals = {name: sum(side.values()) for name, side in sizes.items()}
    limited = {"host": ram_bytes, "device": vram_bytes}
    fig = style.new_figure(4.0, title=_plan_title(split, header, on_cpu, totals["device"], vram_bytes))
    above, ax = fig.subplots(2, 1, height_ratios=[1, 1.25])
    draw_layers(above, [split], header, on_cpu=[on_cpu], names=[""])
    shown = [limit for limit in limited.values() if limit is not None and limit <= 2.5 * max(totals.values())]
    top = top_bytes or max([*totals.values(), *shown]) * 1.12 or 1
    unit, unit_name = style.axis_unit(top)
    ax.set_xlim(0, top / unit)
    for row, (name, side) in enumerate(sizes.items()):
        edge = style.device_edge() if name == "device" else None
        end = memory_bars.stack(ax, row, side, unit, label=name, predicted=True, thickness=0.5, edge=edge)
        if end > top / unit:
            text_layout.beside(ax, top / unit, row, "→", gap=-3)
        if (limit := limited[name]) is not None:
            what = "RAM" if name == "host" else "device's memory"
            short = f": {fmt_bytes(totals[name] - limit)} too little" if totals[name] > limit else ""
            said = f"{what} {fmt_bytes(limit)}{short}"
            limits.upright(ax, limit / unit, said, row + 0.5, ends=(row - 0.36, row + 0.62))
    ax.set_ylim(1.75, -0.45)
    ax.set_yticks([0, 1], [f"{name}\n{fmt_bytes(size) if size else 'nothing'}" for name, size in totals.items()])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"memory, {unit_name}, predicted")
    note = ", dotted edge: on the device"
    memory_bars.legend(fig, sizes.values(), measured=False, ncols=4, names=_NAMES, note=note)
    return fig


def _plan_title(split: Split, header: Header, on_cpu: Sequence[str], device_bytes: int, vram_bytes: int | None) -> str:
    """Which layers are on the device, and whether that fits, as a sentence."""
    said = title_of([split], header, [on_cpu])
    if vram_bytes is None or not device_bytes:
        return said
    fit = "this fits" if device_bytes <= vram_bytes else "this does not fit"
    return f"{said.partition(';')[0]}: {fit} in {fmt_bytes(vram_bytes)}"


@style.styled
def two_processes(points: Sequence[OffloadPoint]) -> Figure:
    """Memory of the host's process (above) and the device's (below) against n_gpu_layers.

    Hatched is what is predicted to be reserved, solid what the kernel counted, the black line what llama.cpp reports
    to have reserved. A compute buffer is reserved whole and touched in part, so a solid bar may end below its line.

    Args:
        points: in any order; a later one with the same settings takes the place of an earlier one.
    """
    found = {(p.n_gpu_layers, not cache_moves(p)): (p, run) for p in points if (run := _shown_run(p))}
    rows = [found[at] for at in sorted(found)]
    fig = style.new_figure(5.4 if rows else 0.8, title=_processes_title(rows))
    if not rows:
        return fig
    panels = fig.subplots(2, 1, sharex=True)
    stacks = {
        "host": [(predicted_sides([p.split.host], process=True), measured_split(run)) for p, run in rows],
        "device": [(predicted_sides(p.split.devices), measured_device(run)) for p, run in rows],
    }
    drawn = [split for pairs in stacks.values() for pair in pairs for split in pair if split]
    largest = max(sum(split.values()) for split in drawn)
    unit, unit_name = style.axis_unit(largest)
    totals: list[tuple[Text, float, float]] = []
    for ax, (name, pairs) in zip(panels, stacks.items(), strict=True):
        device = name == "device"
        for x, ((_, run), (before, after)) in enumerate(zip(rows, pairs, strict=True)):
            totals.append(_bar(ax, x + PREDICTED, before, unit, predicted=True, device=device))
            failed = device and not run.ok
            if after is not None:
                total = _bar(ax, x + MEASURED, after, unit, predicted=False, device=device)
                if failed:
                    total[0].remove()
                else:
                    totals.append(total)
            size = _reported_bytes(run, device=device)
            if run.ok and size:
                at = [x + MEASURED - THICKNESS / 2, x + MEASURED + THICKNESS / 2]
                ax.plot(at, [size / unit] * 2, color=INK, linewidth=2, zorder=5, label="_reported")
            elif failed:
                high = sum((after or {}).values()) / unit + 0.05 * largest / unit
                ax.plot(x + MEASURED, high, "X", color=INK, markersize=8, zorder=6, label="_failed")
                said = "killed" if run.outcome == "oom-killed" else run.outcome.replace("-", "\n")
                _above(ax, x + MEASURED, high, said, gap=6, fontsize=8)
        ax.set_ylabel(f"{name}'s process, {unit_name}")
        ax.set_ylim(0, largest / unit * 1.13)
        ax.locator_params(axis="y", nbins=5)
        ax.tick_params(axis="x", length=0)
    panels[-1].set_xlim(-0.55, len(rows) - 0.45)
    names = [f"{p.n_gpu_layers}{'' if cache_moves(p) else ', cache stays'}" for p, _ in rows]
    panels[-1].set_xticks(range(len(rows)), [text_layout.wrap(name, 7, lines=3) for name in names])
    panels[-1].set_xlabel("n_gpu_layers")
    fig.align_ylabels(panels)
    reserved = Line2D([], [], color=INK, linewidth=2), "reserved, as llama.cpp reports"
    memory_bars.legend(fig, drawn, names=_NAMES, more=[reserved], note=", dotted edge: on the device")
    fig.draw_without_rendering()
    text_layout.hide_unfit(totals, pad_px=0)
    return fig


def cache_moves(point: OffloadPoint) -> bool:
    """Whether a point's cache lies where its layers are (``offload_kqv``)."""
    return all(run.settings.offload_kqv for run in point.runs)


def _shown_run(point: OffloadPoint) -> Run | None:
    """The last run of a point that ended well, else its last; None if it was not run."""
    return next((run for run in reversed(point.runs) if run.ok), point.runs[-1] if point.runs else None)


def _reported_bytes(run: Run, *, device: bool) -> int | None:
    """What the engine reports to have reserved on one side, all buffers together; None when it reported none."""
    name = run.device.name if run.device else None
    sizes = [buffer.bytes for buffer in run.buffers if (buffer.device == name) is device]
    return sum(sizes) if run.buffers else None


def _bar(ax: Any, x: float, split: Sizes, unit: int, *, predicted: bool, device: bool) -> tuple[Text, float, float]:
    """Draw one bar; return the text of its total and the space that it may take."""
    label = "predicted" if predicted else "measured"
    edge = style.device_edge() if device else None
    end = memory_bars.stack(ax, x, split, unit, label=label, predicted=predicted, upright=True, edge=edge)
    said = f"{end:.{2 if unit > MiB else 0}f}" if end else "0"
    return _above(ax, x, end, said, gap=3, fontsize=7.5), x - 0.22, x + 0.22


def _above(ax: Any, x: float, y: float, said: str, *, gap: float, fontsize: float) -> Text:
    """The text written over a bar."""
    where: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
    text: Text = ax.annotate(said, (x, y), (0, gap), fontsize=fontsize, **where)
    return text


def _processes_title(rows: Sequence[tuple[OffloadPoint, Run]]) -> str:
    """From which figure to which both processes' memory goes, as a sentence."""
    ends = [
        (p.n_gpu_layers, run.measured.rss_file_bytes, run.device.rss_anon_bytes)
        for p, run in rows
        if run.ok and run.measured and run.device and cache_moves(p)
    ]
    known = [(n, file, anon) for n, file, anon in ends if file is not None and anon is not None]
    if not rows:
        return "Nothing has been run on a device yet"
    if len(known) < 2:
        return "Fewer than two of these runs have figures for both the host's process and the device's"
    (first, before, idle), (last, after, full) = known[0], known[-1]
    return (
        f"From n_gpu_layers {first} to {last} the host's file-backed memory goes from {fmt_bytes(before)} to "
        f"{fmt_bytes(after)}, the device's memory from {fmt_bytes(idle)} to {fmt_bytes(full)}"
    )
