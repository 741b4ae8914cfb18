"""Where the kill begins: caps tried one after the other, and the boundary that was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import FAINT, GUESS, INK, LIMIT, MEASURED
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
    guess: float | None = None,
    title: str | None = None,
) -> Figure:
    """The caps of a bisection, from the top in the order tried: survived or killed, beside the predicted boundary.

    Args:
        found: one search, or several, each in a block of its own.
        labels: a name per search; without it, how its runs were loaded.
        guess: the learner's own prediction of the boundary, in bytes.
        title: replaces the sentence computed from the searches.
    """
    all_found = list(found) if isinstance(found, Sequence) else [found]
    names = list(labels) if labels is not None else [_name(one) for one in all_found]
    if len(names) != len(all_found):
        raise ValueError(f"{len(names)} labels for {len(all_found)} searches: give one label per search.")
    n_rows = sum(len(one.runs) for one in all_found)
    fig = style.new_figure(2.0 + 0.24 * n_rows + 0.42 * len(all_found), title=title or _title(all_found))
    ax = fig.add_subplot()
    _limits(ax, all_found, guess)
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for one, name in zip(all_found, names, strict=True):
        start, y = y, y + 1.3
        _say(ax, start + 0.45, name, one)
        for n, run in enumerate(one.runs):
            _try(ax, y, run)
            ticks.append((y, f"{n + 1}"))
            y += 1
        if one.dies_bytes and one.survives_bytes:
            low, high = one.dies_bytes / MiB, one.survives_bytes / MiB
            ax.fill_betweenx([start + 0.8, y - 0.4], low, high, color=FAINT, zorder=1, label="_between", linewidth=0)
        at = [one.predicted_bytes / MiB] * 2
        ax.plot(at, [start + 0.8, y - 0.4], ":", color=LIMIT, linewidth=2, zorder=3, label="_predicted")
    ax.set_ylim(max(y, 1) - 0.3, 0)
    if guess is not None:
        ax.axvline(guess / MiB, color=GUESS, linewidth=1, zorder=2, label="_guess line")
        ax.plot(guess / MiB, max(y, 1) - 0.3, "D", color=GUESS, markersize=8, clip_on=False, zorder=7, label="_guess")
    ax.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    ax.set_ylabel("cap tried")
    places = sorted({one.recorded for one in all_found if one.recorded})
    ax.set_xlabel(f"cap, MiB; {'; '.join(places)}" if places else "cap, MiB", wrap=True)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    handles: list[Any] = [
        Line2D([], [], marker="o", linestyle="none", color=MEASURED, markersize=8),
        Line2D([], [], marker="X", linestyle="none", color=INK, markersize=9),
        Patch(facecolor=FAINT),
        Line2D([], [], linestyle=":", color=LIMIT, linewidth=2),
    ]
    said = ["survived", "killed", "the boundary lies here", "predicted"]
    if guess is not None:
        handles.append(Line2D([], [], marker="D", linestyle="none", color=GUESS, markersize=7))
        said.append(f"you predicted {fmt_bytes(guess)}")
    text_layout.legend_below(fig, handles, said, ncols=4 if guess is None else 3)
    return fig


def _limits(ax: Axes, all_found: Sequence[Boundary], guess: float | None) -> None:
    at = [run.cap_bytes / MiB for one in all_found for run in one.runs if run.cap_bytes]
    at += [one.predicted_bytes / MiB for one in all_found] + ([guess / MiB] if guess else [])
    margin = max(0.06 * (max(at) - min(at)), 0.01 * max(at), 1)
    ax.set_xlim(min(at) - margin, max(at) + margin)


def _try(ax: Axes, y: float, run: Run) -> None:
    if not run.cap_bytes:
        return
    look: dict[str, Any] = {"linestyle": "none", "zorder": 5}
    if run.ok:
        ax.plot(run.cap_bytes / MiB, y, "o", color=MEASURED, markersize=8, label="_survived", **look)
    elif run.outcome == _KILLED:
        ax.plot(run.cap_bytes / MiB, y, "X", color=INK, markersize=9, label="_killed", **look)
    else:
        ax.plot(run.cap_bytes / MiB, y, "X", color=INK, markerfacecolor="white", markersize=9, label="_other", **look)
        left = run.cap_bytes / MiB < sum(ax.get_xlim()) / 2
        text = ax.annotate(
            run.outcome,
            (run.cap_bytes / MiB, y),
            (8 if left else -8, 0),
            textcoords="offset points",
            ha="left" if left else "right",
            va="center",
            fontsize=8.5,
            bbox=text_layout.BACKED,
            zorder=6,
        )
        text.set_in_layout(False)


def _say(ax: Axes, y: float, name: str, one: Boundary) -> None:
    said = f"{text_layout.shorten(name, 34)}: predicted {fmt_bytes(one.predicted_bytes)}"
    off = one.error
    if off is not None:
        said += f", found {_range(one)}, {_signed(off)}"
    text = ax.text(
        0.006, y, said, transform=ax.get_yaxis_transform(), va="center", fontsize=8.5, bbox=text_layout.BACKED
    )
    text.set_in_layout(False)


def _range(one: Boundary) -> str:
    """``812 to 818 MiB``."""
    dies, survives = one.dies_bytes or 0, one.survives_bytes or 0
    low, high = fmt_bytes(dies), fmt_bytes(survives)
    (less, unit), (more, other) = low.split(" "), high.split(" ")
    if unit != other or less == more:  # a finer unit tells them apart
        return f"{dies / MiB:,.1f} to {survives / MiB:,.1f} MiB"
    return f"{less} to {more} {unit}"


def _signed(off: float) -> str:
    return f"off by {100 * off:+.1f}\u00a0%".replace("-", "\u2212")


def _name(one: Boundary) -> str:
    if not one.runs:
        return "no run"
    settings = one.runs[0].settings
    kind = settings.type_k if settings.type_k == settings.type_v else f"{settings.type_k}/{settings.type_v}"
    return f"{settings.load_mode}, n_ctx {settings.n_ctx:,}, {kind}"


def _title(all_found: Sequence[Boundary]) -> str:
    off = [abs(each) for one in all_found if (each := one.error) is not None]
    if not off:
        return "These caps found no boundary between surviving and being killed"
    worst = f"{100 * max(off):.1f}\u00a0%"
    if len(all_found) == 1:
        return f"Killed below a cap of {_range(all_found[0])}: the prediction is off by {worst}"
    return f"In {len(off)} searches the predicted boundary is off by {worst} at most"
