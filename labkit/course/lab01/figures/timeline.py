"""The memory of one run over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.course.figurekit import guesses, limits, style, text_layout
from labkit.course.figurekit.style import INK, KINDS
from labkit.units import MiB, fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.run import Run

_ANON = "#CFCFCF"


@style.styled
def timeline(run: Run, *, guess_growth_mib: float | None = None, title: str | None = None) -> Figure:
    """Anonymous and file-backed memory of a run, stacked over time, with its phases, its cap, and where it was killed.

    Args:
        run: a run with samples; without any, the picture says so.
        guess_growth_mib: the learner's own prediction of the anonymous memory that decoding adds.
        title: replaces the sentence computed from the run, as for a recorded one.
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
        at_right = early or run.cap_bytes > reach
        limits.across(ax, run.cap_bytes / unit, f"cap {fmt_bytes(run.cap_bytes)}", at_right=at_right, above=True)
    if run.outcome == "oom-killed":
        _name_kill(ax, times[-1], top[-1], fmt_bytes(top[-1] * unit))
    if (growth := guesses.number(guess_growth_mib)) is not None:
        _draw_guess(ax, run, growth * MiB, unit)
    _bands(ax, run)
    return fig


def _name_kill(ax: Axes, t_s: float, y: float, size: str) -> None:
    """Mark the last sample; the text is below the line, where the filled area gives it room."""
    ax.plot(t_s, y, "X", color=INK, markeredgecolor="white", markersize=11, clip_on=False, zorder=7)
    low, high = ax.get_xlim()
    late = t_s > (low + high) / 2
    said = f"killed after {t_s:.2f} s, last seen at {size}"
    text_layout.beside(ax, t_s, y / 2, said, gap=-10 if late else 10, fontsize=9.5)


def _draw_guess(ax: Axes, run: Run, growth_bytes: float, unit: int) -> None:
    """Draw the learner's prediction at the end of decoding: what was anonymous before it, and what it was to add."""
    ends = {phase.name: n for n, phase in enumerate(run.phases)}
    n = ends.get("decode", 0)
    before_bytes = run.phases[n - 1].rss_anon_bytes if n else None
    if before_bytes is None:
        return
    drawn = guesses.draw(
        ax, run.phases[n].end_s, (before_bytes + growth_bytes) / unit, f"{fmt_bytes(growth_bytes)} more"
    )
    text_layout.beside(ax, *drawn, gap=-10).set_in_layout(False)


def _bands(ax: Axes, run: Run) -> None:
    """Shade every second phase and name all of them above the axes."""
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
    """The most resident memory that a sample has, in bytes."""
    return max((anon_bytes + file_bytes for _, anon_bytes, file_bytes, _ in _readable(run)), default=0)


def _title(run: Run) -> str:
    """The most memory the run had, and whether it was killed, as a sentence."""
    name, peak = text_layout.shorten(run.model.name, 40), fmt_bytes(_peak(run))
    if not _readable(run):
        return f"The run of {name} has no samples of its memory ({run.outcome})"
    if run.outcome == "oom-killed":
        return f"{name} grew to {peak} and was killed for memory"
    return f"{name} takes {peak} of memory at its peak"
