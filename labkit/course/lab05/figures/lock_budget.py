"""The room that locked weights leave: what must stay in memory at each length of context, against a limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import GUESS, INK, KINDS, LIMIT, Kind
from labkit.planning.context import longest_surviving_context, needed, pinned_bytes
from labkit.settings import CELL_PADDING
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.gguf import Header
    from labkit.predict import Predicted
    from labkit.settings import Settings

_POINTS = 9

LOCKED_PARTS: dict[str, Kind] = {
    "weights": Kind("weights, mapped", KINDS["file"].colour, KINDS["file"].hatch),
    "heap": KINDS["heap"],
    "repack": KINDS["repack"],
    "python": KINDS["python"],
    "compute": KINDS["compute"],
    "kv": KINDS["kv"],
}
"""From the bottom: what does not change with the context first, so that the cache is the wedge on top."""


@style.styled
def lock_budget(
    header: Header,
    settings: Settings,
    *,
    limit_bytes: int,
    selected: int | None = None,
    last: int | None = None,
    top_bytes: int | None = None,
    cpu_features: Iterable[str] = (),
    guess: float | None = None,
    title: str | None = None,
) -> Figure:
    """Locked weights and all anonymous memory, stacked, against the length of the context, and where a limit kills.

    A dashed line is the same without the lock: what is left when the kernel takes back every page of the file.

    Args:
        header: the model's.
        settings: how it is run; its ``n_ctx`` does not count.
        limit_bytes: the cap, or what a machine can give.
        selected: a length whose need is written out.
        last: right end of the axis; without it, twice the longest context that survives locked.
        top_bytes: end of the axis of memory; without it, it fits the limit.
        cpu_features: what this build of ggml repacks for, if ``settings`` says so.
        guess: the learner's own prediction of the longest context that survives.
        title: replaces the sentence computed from the figures.
    """
    features = tuple(cpu_features)
    fits = longest_surviving_context(header, settings, limit_bytes, cpu_features=features)
    loose = _unlocked(settings)
    may_give = longest_surviving_context(header, loose, limit_bytes, cpu_features=features)
    is_locked = loose != settings
    last = last or max(2 * fits, 8192)
    at = np.unique(np.linspace(CELL_PADDING, last, _POINTS).astype(int))
    found = [needed(header, settings, int(n), cpu_features=features) for n in at]
    parts = {name: np.array([_part(p, name) for p in found], float) for name in LOCKED_PARTS}
    top = top_bytes or 1.35 * limit_bytes
    unit, unit_name = style.axis_unit(top)

    fig = style.new_figure(4.5, title=title or _budget_title(limit_bytes, fits, may_give, is_locked=is_locked))
    ax = fig.add_subplot()
    low = np.zeros(len(at))
    for name, kind in LOCKED_PARTS.items():
        if not parts[name].any():
            continue
        high = low + parts[name] / unit
        ax.fill_between(at, low, high, label=kind.label, **style.hatched(kind.colour, kind.hatch))
        if is_locked and name == ("weights" if parts["weights"].any() else "heap"):
            edge = style.locked_edge() | {"label": "locked", "zorder": 3}
            ax.fill_between(at, low, high, **edge)
        low = high
    ax.set_xlim(at[0], last)
    ax.set_ylim(0, top / unit)
    if is_locked:
        floor = [pinned_bytes(needed(header, loose, int(n), cpu_features=features)) / unit for n in at]
        ax.plot(at, floor, "--", color=INK, linewidth=1.6, zorder=5, label="the same, not locked: only this must stay")
    ax.axhline(limit_bytes / unit, linestyle=":", color=LIMIT, linewidth=2, zorder=5, label="_limit")
    ax.set_xlabel("tokens of context, n_ctx")
    ax.set_ylabel(f"must stay in memory, {unit_name}")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    text_layout.legend_below(fig, *ax.get_legend_handles_labels(), ncols=3, title="predicted", title_fontsize=9)
    _marks(ax, fits, may_give if is_locked else 0, limit_bytes / unit, guess)
    named = [(fits, f"killed beyond {fits:,}")] if fits and fits <= last else []
    if selected is not None:
        size = pinned_bytes(needed(header, settings, selected, cpu_features=features))
        chosen = min(max(selected, int(at[0])), last)
        named.append((chosen, f"{selected:,}: {fmt_bytes(size)}"))
        ax.axvline(chosen, color=INK, linewidth=2.4, zorder=4, clip_on=False, label="_selected")
    if named:
        text_layout.names_above(ax, sorted(named), gap_px=30)
    _name_limit(ax, limit_bytes, unit)
    return fig


def _unlocked(settings: Settings) -> Settings:
    return replace(
        settings, load_mode={"mmap+mlock": "mmap", "mlock": "none"}.get(settings.load_mode, settings.load_mode)
    )


def _part(p: Predicted, name: str) -> int:
    return {
        "weights": min(p.locked_bytes, p.mapped_bytes),
        "heap": p.heap_bytes,
        "repack": p.repack_bytes,
        "python": p.python_bytes,
        "compute": p.compute_bytes + p.output_bytes,
        "kv": p.kv_bytes + p.recurrent_bytes,
    }[name]


def _marks(ax: Axes, fits: int, may_give: int, limit: float, guess: float | None) -> None:
    low, high = ax.get_xlim()
    if low <= fits <= high:
        ax.plot(fits, limit, "X", color=INK, markersize=11, zorder=7, label="_killed")
    if low <= may_give <= high:
        ax.plot(may_give, limit, "X", color=INK, markerfacecolor="white", markersize=9, zorder=7, label="_killed loose")
    if guess is None:
        return
    x = min(max(guess, low), high)
    ax.plot(x, limit, "D", color=GUESS, markersize=8, zorder=8, clip_on=False, label="_guess")
    beyond = "" if x == guess else ", beyond this axis"
    right = x < (low + high) / 2
    ax.annotate(
        f"you predicted {guess:,.0f} tokens{beyond}",
        (x, limit),
        (10 if right else -10, -10),
        textcoords="offset points",
        ha="left" if right else "right",
        va="top",
        fontsize=8.5,
        bbox=text_layout.BACKED,
        zorder=8,
    ).set_in_layout(False)


def _name_limit(ax: Axes, limit_bytes: int, unit: int) -> None:
    look: dict[str, Any] = {"color": LIMIT, "fontsize": 9, "bbox": text_layout.BACKED, "zorder": 6}
    high = ax.get_ylim()[1]
    if limit_bytes / unit > high:
        text = f"limit {fmt_bytes(limit_bytes)}, above this axis ↑"
        ax.text(0.012, 0.95, text, transform=ax.transAxes, va="center", **look).set_in_layout(False)
        return
    above = limit_bytes / unit < 0.9 * high
    ax.annotate(
        f"limit {fmt_bytes(limit_bytes)}",
        (0.012, limit_bytes / unit),
        (0, 6 if above else -6),
        xycoords=ax.get_yaxis_transform(),
        textcoords="offset points",
        va="bottom" if above else "top",
        **look,
    ).set_in_layout(False)


def _budget_title(limit_bytes: int, fits: int, may_give: int, *, is_locked: bool) -> str:
    limit = fmt_bytes(limit_bytes)
    if not is_locked:
        return f"In {limit} this model survives with {_most(fits)} of context, though it may have to page"
    if not fits:
        also = f"; without the lock it survives, paging, up to {_most(may_give)}" if may_give else ""
        return f"In {limit} this model cannot live with its weights locked{also}"
    if fits == may_give:
        return f"In {limit} this model survives with {_most(fits)} of context, locked or not"
    return (
        f"Locked in {limit}, this model survives with {_most(fits)} of context; without the lock with {_most(may_give)}"
    )


def _most(n: int) -> str:
    return "no tokens" if not n else f"{n:,} tokens" if n < 131_072 else f"{n:,} tokens and more"
