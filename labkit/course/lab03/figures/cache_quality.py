"""How far a quantized cache changes a model's predictions: for each pair of types, and along the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.line_labels import look, name_ends
from labkit.course.figurekit.style import BLUES, FAINT
from labkit.settings import CACHE_TYPES

if TYPE_CHECKING:
    from labkit.quant.cache_quality import CacheQuality

_LIGHTEST, _DARKEST = 1e-4, 1.0  # nats; fixed, so that a shade means the same in every picture


@style.styled
def cache_quality(rows: Sequence[CacheQuality]) -> Figure:
    """Mean KL divergence for each pair of cache types: K down, V across, rotated on the left, not rotated on the right.

    Args:
        rows: one measurement each; of two of the same pair the last counts. A pair that was not measured stays empty.
    """
    found = {(row.rotated, row.type_k, row.type_v): row for row in rows}
    order = list(CACHE_TYPES)
    k_types = sorted({row.type_k for row in rows}, key=order.index)
    v_types = sorted({row.type_v for row in rows}, key=order.index)
    sides = [side for side in (True, False) if any(row.rotated == side for row in rows)] or [True]
    beside = len(v_types) * len(sides) <= 10
    across, down = (len(sides), 1) if beside else (1, len(sides))
    fig = style.new_figure(0.95 + down * (0.5 + 0.46 * max(len(k_types), 1)), title=_title(rows))
    panels = fig.subplots(down, across, squeeze=False).ravel()
    small = len(v_types) * across > 7
    for ax, side in zip(panels, sides, strict=True):
        ax.set_title("rotated, llama.cpp's default" if side else "not rotated")
        for y, type_k in enumerate(k_types):
            for x, type_v in enumerate(v_types):
                _cell(ax, x, y, found.get((side, type_k, type_v)), small=small)
        ax.set_xticks([n + 0.5 for n in range(len(v_types))], v_types, fontsize=8 if small else 9.5)
        ax.set_xlabel("type of V")
    for ax in panels:
        ax.set_xlim(0, max(len(v_types), 1))
        ax.set_ylim(max(len(k_types), 1), 0)
        ax.set_yticks([n + 0.5 for n in range(len(k_types))], k_types if ax is panels[0] or not beside else [])
        if ax is panels[0] or not beside:
            ax.set_ylabel("type of K")
        ax.tick_params(length=0)
        for edge in ("left", "bottom"):
            ax.spines[edge].set_visible(False)
    note = "mean KL divergence from an f16 cache, nats, ± its standard error (the darker the more)"
    fig.supxlabel(note, fontsize=9)
    return fig


def _cell(ax: Axes, x: int, y: int, row: CacheQuality | None, *, small: bool) -> None:
    """Draw one pair: its divergence and standard error, the darker the more."""
    if row is None:
        empty: dict[str, Any] = {"hatch": "////", "facecolor": "white", "edgecolor": FAINT, "linewidth": 0}
        ax.add_patch(Rectangle((x, y), 1, 1, label="empty", **empty))
        return
    kld, error = row.quality.kld_mean, row.quality.kld_mean_error
    colour = shade(kld)
    edge = {} if kld > 0 else {"edgecolor": FAINT, "linewidth": 1.5}
    ax.add_patch(Rectangle((x, y), 1, 1, label="cell", **(style.solid(colour) | edge)))
    centre: dict[str, Any] = {"ha": "center", "va": "center", "color": style.ink_on(colour), "in_layout": False}
    known = kld > 0 and math.isfinite(error)
    ax.text(x + 0.5, y + (0.36 if known else 0.5), nats(kld), fontsize=8 if small else 9.5, **centre)
    if known:
        ax.text(x + 0.5, y + 0.72, f"±{nats(error)}", fontsize=6.5 if small else 7.5, **centre)


def shade(kld: float) -> str:
    """The blue that stands for a divergence, by its logarithm."""
    if kld <= 0:
        return "#FFFFFF"
    share = math.log(min(max(kld, _LIGHTEST), _DARKEST) / _LIGHTEST) / math.log(_DARKEST / _LIGHTEST)
    return to_hex(BLUES(0.02 + 0.95 * share))


def nats(kld: float) -> str:
    """A divergence as text with two figures: ``0.0072``, ``0.31``, ``0``."""
    if kld <= 0:
        return "0" if kld == 0 else f"−{abs(kld):.1g}"
    if kld < 0.000095:
        return f"{kld:.0e}".replace("e-0", "e−").replace("e-", "e−")
    return f"{kld:.{max(1 - math.floor(math.log10(kld)), 1) if kld < 9.5 else 0}f}"


def _title(rows: Sequence[CacheQuality]) -> str:
    """Which half is sensitive, and what rotation gains, as a sentence."""
    if not rows:
        return "No pair of cache types has been compared yet"
    rotated = {(r.type_k, r.type_v): r.quality.kld_mean for r in rows if r.rotated}
    plain = {(r.type_k, r.type_v): r.quality.kld_mean for r in rows if not r.rotated}
    both = [(plain[pair], rotated[pair], pair) for pair in plain if rotated.get(pair, 0) > 0]
    said = _sensitive(rotated or plain)
    if both:
        most = max(both)  # where it matters most
        ratio, pair = most[0] / most[1], "/".join(most[2])
        rotation = "rotation gains nothing here"
        if ratio > 1.05:
            rotation = f"without rotation {pair} diverges {text_layout.factor(ratio)} as much"
        return f"{said}; {rotation}" if said else f"{rotation[0].upper()}{rotation[1:]}"
    if said:
        return said
    worst = max(rows, key=lambda row: row.quality.kld_mean)
    if worst.quality.kld_mean <= 0:
        return "These caches change nothing in what the model predicts"
    pair = f"{worst.type_k}/{worst.type_v}"
    return f"With a cache in {pair} predictions diverge by {nats(worst.quality.kld_mean)} nats from those with f16"


def _sensitive(klds: dict[tuple[str, str], float]) -> str:
    """Which of K and V is more sensitive, as a sentence, from the worst pair and its mirror image; "" without one."""
    mirrored = [(klds[k, v], klds[v, k], k, v) for k, v in klds if k != v and klds.get((v, k), 0) > 0]
    if not mirrored:
        return ""
    # Beside the finest type, so that one half alone is coarse.
    finest = min((name for pair in klds for name in pair), key=lambda name: klds.get((name, name), math.inf))
    beside = [item for item in mirrored if finest in item[2:]]
    high, low, k, v = max(beside or mirrored, key=lambda item: item[0])
    coarse = max(k, v, key=lambda name: klds.get((name, name), 0))
    half, other = ("K", "V") if coarse == k else ("V", "K")
    if high < 1.2 * low:
        return "K and V are equally sensitive to a coarse type"
    return f"{coarse} costs {nats(high)} nats if only {half} is stored in it, and {nats(low)} if only {other} is"


@style.styled
def kld_by_position(rows: Sequence[CacheQuality]) -> Figure:
    """KL divergence along the text (log), a line per pair of types; the mean of each bin stands at its middle.

    Args:
        rows: measurements with ``kld_by_position``; a bin without divergence is drawn just above the axis. Whiskers
            are standard errors, left out where there are more than four lines.
    """
    fig = style.new_figure(max(4.0, 1.6 + 0.19 * len(rows)), title=_position_title(rows))
    ax = fig.add_subplot()
    seen = [kld for row in rows for kld in row.kld_by_position if kld > 0]
    low, high = (min(seen), max(seen)) if seen else (1e-4, 1.0)
    ax.set_yscale("log")
    ax.set_ylim(low / 3, high * 2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter("")
    ends = []
    longest = 0.0
    for n, row in enumerate(rows):
        if not row.kld_by_position:
            continue
        at = [(bin + 0.5) * row.bin_tokens for bin in range(len(row.kld_by_position))]
        figures = [max(kld, low / 2) for kld in row.kld_by_position]
        name = f"{row.type_k}/{row.type_v}{'' if row.rotated else ', not rotated'}"
        errors = row.kld_by_position_error if len(rows) <= 4 else None
        ax.errorbar(at, figures, yerr=errors, capsize=3, elinewidth=1, label=name, **look(n, solid=row.rotated))
        ends.append((at[-1], figures[-1], f"{name} {nats(row.kld_by_position[-1])}"))
        longest = max(longest, len(at) * row.bin_tokens)
    ax.set_xlim(0, longest or 1)
    ax.set_xlabel("position in the text, tokens")
    ax.set_ylabel("mean KL divergence, nats (log)")
    step = longest / 4
    name_ends(ax, ends, ticks=[round(n * step) for n in range(5)] if longest else [])
    return fig


def _position_title(rows: Sequence[CacheQuality]) -> str:
    """How the divergence changes from the first to the last tokens, as a sentence."""
    grown = [(row.kld_by_position[0], row.kld_by_position[-1], row) for row in rows if len(row.kld_by_position) > 1]
    grown = [item for item in grown if item[0] > 0 and item[1] > 0]
    if not grown:
        return "There is no divergence along the text to show yet"
    first, last, row = max(grown, key=lambda item: item[1])
    ratio, pair = last / first, f"{row.type_k}/{row.type_v}"
    if 0.8 <= ratio <= 1.25:
        return f"The divergence of {pair} is about as large at the end of the text as at its beginning"
    size = text_layout.factor(ratio) if ratio > 1 else f"{text_layout.percent(ratio)} of"
    return f"At the end of the text the divergence of {pair} is {size} that at its beginning"
