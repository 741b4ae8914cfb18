"""The same requests under several policies of handing out cells: cells used and wasted, and what still has room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import INK, KINDS, LIMIT

if TYPE_CHECKING:
    from labkit.course.lab03.cachesim import Usage

_USED = style.solid(KINDS["kv"].colour)
_WASTED: dict[str, Any] = {"facecolor": "white", "edgecolor": "#767676", "hatch": "////", "linewidth": 0.8}


@style.styled
def cache_policies(usages: Mapping[str, Sequence[Usage]]) -> Figure:
    """One row per policy: on the left cells used and wasted after each step, on the right the longest request admitted.

    Args:
        usages: of one trace, by the policy's name.
    """
    steps = max((len(usage) for usage in usages.values()), default=0)
    texts = [text_layout.shorten(str(u.step), 18) for u in max(usages.values(), key=len, default=())]
    below = 0.08 * max((len(text) for text in texts), default=0)
    fig = style.new_figure(1.1 + 1.12 * max(len(usages), 1) + below, title=_title(usages))
    grid = fig.subplots(max(len(usages), 1), 2, sharex=True, squeeze=False, width_ratios=[3, 2])
    size = max((len(u.cells) for usage in usages.values() for u in usage), default=1)
    for (left, right), (name, usage) in zip(grid, usages.items(), strict=False):
        how = "simulated" if any(u.simulated for u in usage) else "ran in llama.cpp"
        lost = f", {usage[-1].lost} tokens overwritten" if usage and usage[-1].lost else ""
        left.set_title(f"{text_layout.shorten(name, 26)} ({how}){lost}", fontsize=9)
        left.set_ylabel("cells")
        _occupancy(left, usage)
        _longest(right, usage)
    grid[0, 1].set_title("longest request still admitted", fontsize=9)
    for ax in grid.flat:
        ax.set_ylim(0, size * 1.2)
        ax.set_yticks(sorted({0, size // 2, size}))
        ax.set_xlim(-0.6, max(steps, 1) - 0.4)
        ax.tick_params(axis="x", length=0)
    for ax, room in zip(grid[-1], (36, 22), strict=True):
        every = -(-steps // room) or 1
        ax.set_xticks(range(0, steps, every), texts[::every], rotation=90, fontsize=8)
    everything = [u for usage in usages.values() for u in usage]
    handles: dict[str, Any] = {"used": Patch(**_USED), "reserved or padded, unused": Patch(**_WASTED)}
    mark: dict[str, Any] = {"linestyle": "none", "markersize": 8, "color": LIMIT}
    if any(not u.admitted for u in everything):
        handles["not admitted"] = Line2D([], [], marker="X", **mark)
    if any(u.lost for u in everything):
        handles["tokens overwritten"] = Line2D([], [], marker="v", **mark)
    text_layout.legend_below(fig, list(handles.values()), list(handles), ncols=4)
    return fig


def _occupancy(ax: Axes, usage: Sequence[Usage]) -> None:
    """Draw the cells used and wasted after each step, with marks where a step was refused or tokens were lost."""
    at = range(len(usage))
    used, wasted = [u.used for u in usage], [u.wasted for u in usage]
    ax.bar(at, used, 0.86, label="used", **_USED)
    if any(wasted):
        ax.bar(at, wasted, 0.86, bottom=used, label="wasted", **_WASTED)
    if usage:
        ax.axhline(len(usage[0].cells), color=INK, linewidth=0.7, zorder=1)
    lost = 0
    for x, u in enumerate(usage):
        look: dict[str, Any] = {"color": LIMIT, "markersize": 8, "zorder": 5, "clip_on": False, "linestyle": "none"}
        high = len(u.cells) * 1.08
        if not u.admitted:
            ax.plot(x, high, "X", label="_refused", **look)
        if u.lost > lost:
            ax.plot(x, high, "v", label="_lost", **look)
        lost = u.lost
    if usage:
        worst = max(range(len(usage)), key=lambda n: wasted[n])
        if wasted[worst]:
            tall = wasted[worst] > len(usage[worst].cells) / 5
            y = used[worst] + wasted[worst] * (0.5 if tall else 1)
            where: dict[str, Any] = {"ha": "center", "va": "center" if tall else "bottom", "bbox": text_layout.BACKED}
            ax.text(worst, y, str(wasted[worst]), fontsize=8, zorder=6, **where)


def _longest(ax: Axes, usage: Sequence[Usage]) -> None:
    """Draw the longest request that each step leaves room for."""
    longest = [u.longest_admitted for u in usage]
    ax.step(range(len(usage)), longest, where="mid", color=INK, linewidth=1.6, label="longest")
    if not usage:
        return
    least = longest.index(min(longest))
    last = len(longest) - 1
    for n in {least, last} if longest[least] < longest[last] else {last}:
        ax.plot(n, longest[n], "o", color=INK, markersize=4, label="_end")
        ha = "right" if n > last / 2 else "left"
        ax.annotate(f"{longest[n]}", (n, longest[n]), (0, 4), textcoords="offset points", ha=ha, fontsize=8.5)


def _title(usages: Mapping[str, Sequence[Usage]]) -> str:
    """Which policy wastes the most cells, as a sentence."""
    ends = {name: usage for name, usage in usages.items() if usage}
    if not ends:
        return "No policy has been tried yet"
    refused = {name: sum(not u.admitted for u in usage) for name, usage in ends.items()}
    wasted = {name: max(u.wasted for u in usage) for name, usage in ends.items()}
    most = max(ends, key=lambda name: (wasted[name], refused[name]))
    size = len(ends[most][0].cells)
    simulated = sum(any(u.simulated for u in usage) for usage in ends.values())
    how = f"{len(ends) - simulated} ran, {simulated} simulated"
    if wasted[most]:
        share = text_layout.percent(wasted[most] / size)
        denied = f" and has no room for {refused[most]} of {len(ends[most])} steps" if refused[most] else ""
        name = text_layout.shorten(most, 26)
        return f"Given the same requests, {name} wastes up to {share} of the cells{denied} ({how})"
    return f"No policy wastes a cell on these requests ({how})"
