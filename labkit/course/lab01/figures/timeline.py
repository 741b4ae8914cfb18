"""The memory of one run over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import INK, KINDS, LIMIT
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.run import Run

_ANON = "#CFCFCF"


@style.styled
def timeline(run: Run, *, title: str | None = None) -> Figure:
    """Anonymous and file-backed memory of a run, stacked over time, with its phases, its cap and its death if it died.

    Args:
        run: a run with samples; without any, the picture says so.
        title: replaces the sentence computed from the run.
    """
    fig = style.new_figure(3.7, title=title or _title(run))
    ax = fig.add_subplot()
    seen = _readable(run)
    if not seen:
        ax.text(0.5, 0.5, "no samples of memory in this run", transform=ax.transAxes, ha="center", va="center")
        ax.set_axis_off()
        return fig

    peak = _peak(run)
    unit, unit_name = style.axis_unit(peak)
    times = [t_s for t_s, _, _, _ in seen]
    anon = [anon_bytes / unit for _, anon_bytes, _, _ in seen]
    top = [(anon_bytes + file_bytes) / unit for _, anon_bytes, file_bytes, _ in seen]
    ax.fill_between(times, 0, anon, facecolor=_ANON, edgecolor=INK, linewidth=0.9, label="anonymous")
    ax.fill_between(times, anon, top, facecolor=KINDS["file"].colour, edgecolor="none", label="file-backed")
    if any(locked_bytes for *_, locked_bytes in seen):
        edge = [(anon_bytes + min(locked, file_bytes)) / unit for _, anon_bytes, file_bytes, locked in seen]
        ax.plot(times, edge, color=INK, linewidth=2.2, label="locked, up to this line")

    reach = peak
    if run.cap_bytes is not None and run.cap_bytes <= 2 * peak:
        reach = max(peak, run.cap_bytes)
        ax.axhline(run.cap_bytes / unit, linestyle=":", color=LIMIT, linewidth=2, zorder=4)
    ax.set_ylim(0, reach / unit * 1.28)
    end = max([times[-1], *(phase.end_s for phase in run.phases)])
    start = min([times[0], *(phase.start_s for phase in run.phases)])
    ax.set_xlim(start, end if end > start else start + 1)
    ax.set_xlabel("time, s")
    ax.set_ylabel(f"resident memory, {unit_name}")
    handles, names = ax.get_legend_handles_labels()
    text_layout.legend_below(fig, handles, names)
    if run.cap_bytes is not None:
        early = run.outcome == "oom-killed" and times[-1] < sum(ax.get_xlim()) / 2
        _name_cap(ax, run.cap_bytes, unit, inside=run.cap_bytes <= reach, at_right=early)
    if run.outcome == "oom-killed":
        _name_death(ax, times[-1], top[-1], fmt_bytes(top[-1] * unit))
    _bands(ax, run)
    return fig


def _name_cap(ax: Axes, cap_bytes: int, unit: int, *, inside: bool, at_right: bool) -> None:
    look: dict[str, Any] = {
        "ha": "right" if at_right or not inside else "left",
        "color": LIMIT,
        "fontsize": 9,
        "bbox": text_layout.BACKED,
        "zorder": 6,
    }
    if inside:
        side = (1, -4) if at_right else (0, 4)
        ax.annotate(
            f"cap {fmt_bytes(cap_bytes)}",
            (side[0], cap_bytes / unit),
            (side[1], 5),
            va="bottom",
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            **look,
        )
    else:
        ax.text(0.995, 0.97, f"cap {fmt_bytes(cap_bytes)}, above this axis ↑", va="top", transform=ax.transAxes, **look)


def _name_death(ax: Axes, t_s: float, y: float, size: str) -> None:
    """Mark the last sample; the text sits below the line, where the filled area gives it room."""
    ax.plot(t_s, y, "X", color=INK, markeredgecolor="white", markersize=11, clip_on=False, zorder=7)
    low, high = ax.get_xlim()
    late = t_s > (low + high) / 2
    ax.annotate(
        f"killed after {t_s:.2f} s, last seen at {size}",
        (t_s, y / 2),
        (-10 if late else 10, 0),
        va="center",
        textcoords="offset points",
        ha="right" if late else "left",
        bbox=text_layout.BACKED,
        zorder=6,
    )


def _bands(ax: Axes, run: Run) -> None:
    phases = [phase for phase in run.phases if phase.end_s > phase.start_s]
    for n, phase in enumerate(phases):
        if n % 2 == 0:
            ax.axvspan(phase.start_s, phase.end_s, color=INK, alpha=0.06, linewidth=0, zorder=0)
        ax.axvline(phase.start_s, color=INK, linewidth=0.6, alpha=0.5, zorder=3)
    text_layout.names_above(ax, [(phase.start_s, phase.name) for phase in phases])


def _readable(run: Run) -> list[tuple[float, int, int, int]]:
    """Time, anonymous, file-backed and locked bytes of each sample that has the first three."""
    return [
        (s.t_s, s.rss_anon_bytes, s.rss_file_bytes, s.locked_bytes or 0)
        for s in run.samples
        if s.rss_anon_bytes is not None and s.rss_file_bytes is not None
    ]


def _peak(run: Run) -> int:
    return max((anon_bytes + file_bytes for _, anon_bytes, file_bytes, _ in _readable(run)), default=0)


def _title(run: Run) -> str:
    name, peak = text_layout.shorten(run.model.name, 40), fmt_bytes(_peak(run))
    if not run.samples:
        return f"{name} left no samples ({run.outcome})"
    if run.outcome == "oom-killed":
        return f"{name} grew to {peak} and was killed for memory"
    return f"{name} holds {peak} at its peak"
