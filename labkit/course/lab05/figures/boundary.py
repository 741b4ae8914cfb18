"""The smallest cap under which a run finishes: caps tried one after the other, and the boundary that was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.course.figurekit import guesses, limits, style, text_layout
from labkit.course.figurekit.style import FAINT, GUESS, INK, MEASURED
from labkit.units import MiB, fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.boundary import Boundary
    from labkit.experiments.run import Run

_KILLED = "oom-killed"


@style.styled
def boundary(
    found: Boundary | Sequence[Boundary],
    *,
    labels: Sequence[str] | None = None,
    guess_bytes: float | None = None,
) -> Figure:
    """The caps of a bisection, from the top in the order tried: finished or killed, beside the predicted boundary.

    Args:
        found: one search, or several, each in a block of its own.
        labels: a name per search; without it, how its runs were loaded.
        guess_bytes: the learner's own prediction of the first search's boundary.
    """
    all_found = list(found) if isinstance(found, Sequence) else [found]
    names = text_layout.row_names(all_found, labels, _name)
    own = guesses.above_0(guess_bytes, 1 / MiB)
    n_rows = sum(len(one.runs) for one in all_found)
    fig = style.new_figure(2.0 + 0.24 * n_rows + 0.42 * len(all_found), title=_title(all_found))
    ax = fig.add_subplot()
    _set_x(ax, all_found, own)
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for number, (one, name) in enumerate(zip(all_found, names, strict=True)):
        start, y = y, y + 1.3
        _say(ax, start + 0.45, name, one)
        for n, run in enumerate(one.runs):
            _try(ax, y, run)
            ticks.append((y, f"{n + 1}"))
            y += 1
        if one.killed_bytes and one.survived_bytes:
            low, high = one.killed_bytes / MiB, one.survived_bytes / MiB
            ax.fill_betweenx([start + 0.8, y - 0.4], low, high, color=FAINT, zorder=1, label="_between", linewidth=0)
        at = [one.predicted_bytes / MiB] * 2
        ax.plot(at, [start + 0.8, y - 0.4], label="_predicted", **limits.LINE | {"zorder": 3})
        if own is not None and number == 0:
            ax.plot([own, own], [start + 0.8, y - 0.4], color=GUESS, linewidth=1, zorder=2, label="_guess line")
            guess_y = y - 0.4
    ax.set_ylim(max(y, 1) - 0.3, 0)
    ax.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    ax.set_ylabel("cap tried")
    places = sorted({one.recorded for one in all_found if one.recorded})
    ax.set_xlabel(f"cap, MiB; {'; '.join(places)}" if places else "cap, MiB", wrap=True)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    handles: list[Any] = [
        Line2D([], [], marker="o", linestyle="none", color=MEASURED, markersize=8),
        Line2D([], [], marker="X", linestyle="none", color=INK, markersize=9),
        Patch(facecolor=FAINT),
        Line2D([], [], **limits.LINE),
    ]
    said = ["the run finished", "killed", "the boundary lies here", "predicted"]
    if own is not None and all_found:
        handles.append(guesses.swatch())
        said.append(guesses.draw(ax, own, guess_y, fmt_bytes(own * MiB))[2])
    text_layout.legend_below(fig, handles, said, ncols=4 if own is None else 3)
    return fig


def _set_x(ax: Axes, all_found: Sequence[Boundary], own: float | None) -> None:
    """Set the x axis to all caps and predictions; one of the learner's that is far away would squeeze the rest."""
    at = [run.cap_bytes / MiB for one in all_found for run in one.runs if run.cap_bytes]
    at += [one.predicted_bytes / MiB for one in all_found]
    if own is not None and min(at) - 2 * (max(at) - min(at)) <= own <= max(at) + 2 * (max(at) - min(at)):
        at.append(own)
    margin = max(0.06 * (max(at) - min(at)), 0.01 * max(at), 1)
    ax.set_xlim(min(at) - margin, max(at) + margin)


def _try(ax: Axes, y: float, run: Run) -> None:
    """Mark one cap that was tried by how the run ended."""
    if not run.cap_bytes:
        return
    look: dict[str, Any] = {"linestyle": "none", "zorder": 5}
    if run.ok:
        ax.plot(run.cap_bytes / MiB, y, "o", color=MEASURED, markersize=8, label="_finished", **look)
    elif run.outcome == _KILLED:
        ax.plot(run.cap_bytes / MiB, y, "X", color=INK, markersize=9, label="_killed", **look)
    else:
        ax.plot(run.cap_bytes / MiB, y, "X", color=INK, markerfacecolor="white", markersize=9, label="_other", **look)
        left = run.cap_bytes / MiB < sum(ax.get_xlim()) / 2
        text_layout.beside(ax, run.cap_bytes / MiB, y, run.outcome, gap=8 if left else -8).set_in_layout(False)


def _say(ax: Axes, y: float, name: str, one: Boundary) -> None:
    """Write above a search what was predicted and what was found."""
    said = f"{text_layout.shorten(name, 34)}: predicted {fmt_bytes(one.predicted_bytes)}"
    off = one.error
    if off is not None:
        said += f", found {_range(one)}, {_signed(off)}"
    text = ax.text(
        0.006, y, said, transform=ax.get_yaxis_transform(), va="center", fontsize=8.5, bbox=text_layout.BACKED
    )
    text.set_in_layout(False)


def _range(one: Boundary) -> str:
    """The caps between which the boundary lies, as text: ``812 to 818 MiB``."""
    killed, survived = one.killed_bytes or 0, one.survived_bytes or 0
    low, high = fmt_bytes(killed), fmt_bytes(survived)
    (less, unit), (more, other) = low.split(" "), high.split(" ")
    if unit != other or less == more:  # a finer unit tells them apart
        return f"{killed / MiB:,.1f} to {survived / MiB:,.1f} MiB"
    return f"{less} to {more} {unit}"


def _signed(off: float) -> str:
    """How far a prediction is off, as text: ``off by +0.7 %``."""
    return f"off by {100 * off:+.1f}\u00a0%".replace("-", "\u2212")


def _name(one: Boundary) -> str:
    """How the runs of a search were loaded: ``mmap+mlock, n_ctx 4,096, f16``."""
    if not one.runs:
        return "no run"
    settings = one.runs[0].settings
    kind = settings.type_k if settings.type_k == settings.type_v else f"{settings.type_k}/{settings.type_v}"
    return f"{settings.load_mode}, n_ctx {settings.n_ctx:,}, {kind}"


def _title(all_found: Sequence[Boundary]) -> str:
    """How far the predictions are off, as a sentence."""
    off = [abs(each) for one in all_found if (each := one.error) is not None]
    if not off:
        return "Between these caps no boundary was found where the kernel begins to kill the run"
    worst = f"{100 * max(off):.1f}\u00a0%"
    if len(all_found) == 1:
        return f"Below a cap of {_range(all_found[0])} the kernel kills the run; the prediction is off by {worst}"
    return f"In {len(off)} searches for the smallest cap that suffices, the prediction is off by {worst} at most"
