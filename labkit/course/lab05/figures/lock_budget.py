"""What must stay in memory at each length of context, with the weights locked or not, against a limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from labkit.course.figurekit import limits, style, text_layout
from labkit.course.figurekit.style import INK, KINDS, Kind
from labkit.planning.context import CONTEXTS, longest_surviving_context, needed, pinned_bytes
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
) -> Figure:
    """Locked weights and all anonymous memory, stacked, against the length of the context, and a limit.

    Beyond the limit the kernel kills the process. A dashed line is the same without the lock: what is left when the
    kernel drops every page of the file.

    Args:
        header: the model's.
        settings: how it is run; its ``n_ctx`` does not count.
        limit_bytes: the cap, or what a machine can give.
        selected: a length whose need is written out.
        last: right end of the axis; without it, twice the longest context that fits locked.
        top_bytes: end of the axis of memory; without it, it fits the limit.
        cpu_features: what this build of ggml repacks for, if ``settings`` says so.
    """
    features = tuple(cpu_features)
    fits = longest_surviving_context(header, settings, limit_bytes, cpu_features=features)
    unlocked = _unlocked(settings)
    fits_unlocked = longest_surviving_context(header, unlocked, limit_bytes, cpu_features=features)
    is_locked = unlocked != settings
    last = last or max(2 * fits, 8192)
    at = np.unique(np.linspace(CELL_PADDING, last, _POINTS).astype(int))
    found = [needed(header, settings, int(n), cpu_features=features) for n in at]
    parts = {name: np.array([_part(p, name) for p in found], float) for name in LOCKED_PARTS}
    top = top_bytes or 1.35 * limit_bytes
    unit, unit_name = style.axis_unit(top)

    mapped = any(p.mapped_bytes for p in found)
    title = _title(limit_bytes, fits, fits_unlocked, is_locked=is_locked, mapped=mapped)
    fig = style.new_figure(4.5, title=title)
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
        floor = [pinned_bytes(needed(header, unlocked, int(n), cpu_features=features)) / unit for n in at]
        ax.plot(at, floor, "--", color=INK, linewidth=1.6, zorder=5, label="must stay if not locked")
    ax.set_xlabel("tokens of context, n_ctx")
    ax.set_ylabel(f"must stay in memory, {unit_name}")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    text_layout.legend_below(fig, *ax.get_legend_handles_labels(), ncols=3, title="predicted", title_fontsize=9)
    cross: dict[str, Any] = {"marker": "X", "color": INK, "zorder": 7}
    if at[0] <= fits <= last:
        ax.plot(fits, limit_bytes / unit, markersize=11, label="_killed", **cross)
    if is_locked and at[0] <= fits_unlocked <= last:
        cross |= {"markersize": 9, "markerfacecolor": "white", "label": "_killed unlocked"}
        ax.plot(fits_unlocked, limit_bytes / unit, **cross)
    named = [(fits, f"killed beyond {fits:,}")] if fits and fits <= last else []
    if selected is not None:
        size = pinned_bytes(needed(header, settings, selected, cpu_features=features))
        chosen = min(max(selected, int(at[0])), last)
        named.append((chosen, f"{selected:,}: {fmt_bytes(size)}"))
        ax.axvline(chosen, color=INK, linewidth=2.4, zorder=4, clip_on=False, label="_selected")
    if named:
        text_layout.names_above(ax, sorted(named), gap_px=30)
    limits.across(ax, limit_bytes / unit, f"limit {fmt_bytes(limit_bytes)}")
    return fig


def _unlocked(settings: Settings) -> Settings:
    """The same settings without the lock."""
    return replace(
        settings, load_mode={"mmap+mlock": "mmap", "mlock": "none"}.get(settings.load_mode, settings.load_mode)
    )


def _part(p: Predicted, name: str) -> int:
    """Bytes of one of ``LOCKED_PARTS``."""
    return {
        "weights": min(p.locked_bytes, p.mapped_bytes),
        "heap": p.heap_bytes,
        "repack": p.repack_bytes,
        "python": p.python_bytes,
        "compute": p.compute_bytes + p.output_bytes,
        "kv": p.kv_bytes + p.recurrent_bytes,
    }[name]


def _title(limit_bytes: int, fits: int, fits_unlocked: int, *, is_locked: bool, mapped: bool) -> str:
    """The longest contexts with which the kernel does not kill the model, as a sentence."""
    limit = fmt_bytes(limit_bytes)
    again = ", though it may have to read weights again" if mapped else ""
    if not is_locked:
        return f"In {limit} this model runs with up to {_most(fits)} of context{again}"
    if not fits:
        also = f"; not locked, it runs with up to {_most(fits_unlocked)}{again}" if fits_unlocked else ""
        return f"In {limit} the kernel kills this model at any context while its weights are locked{also}"
    if fits == fits_unlocked:
        return f"In {limit} this model runs with up to {_most(fits)} of context, locked or not"
    also = f"not locked, with {_most(fits_unlocked)}"
    return f"Locked in {limit}, this model runs with up to {_most(fits)} of context; {also}"


def _most(n: int) -> str:
    """A longest context as text; the last one that is tried may not be the longest."""
    return "no tokens" if not n else f"{n:,} tokens" if n < CONTEXTS[-1] else f"{n:,} tokens or more"
