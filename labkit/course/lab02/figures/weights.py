"""The weights of one block: what they became, and what one outlier does to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import FAINT, INK, MEASURED
from labkit.course.lab02.figures.block_parts import SCALES

Numbers = Sequence[float] | npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class BlockFit:
    """One block before and after quantizing.

    Attributes:
        original: its weights.
        decoded: what they became.
        levels: all values that the block could hold, such as scale · (q − 8) for q from 0 to 15.
    """

    original: Numbers
    decoded: Numbers
    levels: Numbers


@style.styled
def block_weights(
    decoded: Numbers,
    *,
    scales: Numbers | None = None,
    minima: Numbers | None = None,
    original: Numbers | None = None,
    sub_block: int | None = None,
) -> Figure:
    """The weights of one block as bars, what they were as open dots, and below them the scale of each sub-block.

    Args:
        decoded: one value per weight.
        scales: one per sub-block: the distance of neighbouring values.
        minima: one per sub-block: the value of the integer 0, which is −dmin · m or m.
        original: the weights before quantizing, as many as ``decoded``.
        sub_block: weights that share a scale; without it, what the number of scales says, or 32.

    Raises:
        ValueError: lengths that do not fit each other, or a value that is no finite number.
    """
    values = _numbers("decoded", decoded)
    steps = None if scales is None else _numbers("scales", scales)
    width = sub_block or (len(values) // len(steps) if steps is not None and len(steps) else 32)
    n_sub = -(-len(values) // width)
    zeros = None if minima is None else _numbers("minima", minima, n_sub)
    were = None if original is None else _numbers("original", original, len(values))
    if steps is not None and len(steps) != n_sub:
        raise ValueError(f"{len(steps)} scales for {n_sub} sub-blocks of {width}: give one each")

    stepped = steps is not None and n_sub > 1
    fig = style.new_figure(4.9 if stepped else 3.9, title=_weights_title(values, were, steps, width))
    ratio = {"height_ratios": [3, 1]} if stepped else None
    panels = fig.subplots(2 if stepped else 1, 1, sharex=True, squeeze=False, gridspec_kw=ratio)[:, 0]
    ax = panels[0]
    edges = np.minimum(np.arange(n_sub + 1) * width, len(values)) - 0.5
    for panel in panels:
        panel.yaxis.set_major_formatter(lambda value, _: _text(value, "g"))
        for left, right in zip(edges[:-1:2], edges[1::2], strict=False) if n_sub > 1 else ():
            panel.axvspan(left, right, facecolor=FAINT, alpha=0.55, linewidth=0, zorder=0)
    ax.bar(range(len(values)), values, 0.8, color=MEASURED, label="after", linewidth=0, zorder=2)
    if zeros is not None:
        ax.stairs(zeros, edges, baseline=None, color=INK, linestyle="--", linewidth=1.1, label="minimum", zorder=3)
    if were is not None:
        size = 4.5 if len(values) <= 64 else 2.4
        dots: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": INK, "markersize": size, "zorder": 4}
        ax.plot(were, "o", label="before", markeredgewidth=0.8, **dots)
    ax.axhline(0, color=INK, linewidth=0.8, zorder=1)
    ax.set_ylabel("weight")
    if steps is not None and n_sub > 1:
        low = panels[1]
        low.stairs(steps, edges, fill=True, facecolor=SCALES, edgecolor=INK, linewidth=1.1, label="scale")
        low.axhline(0, color=INK, linewidth=0.8)
        low.set_ylabel("scale")
        low.locator_params(axis="y", nbins=3)
    panels[-1].set_xlim(-0.5, max(len(values) - 0.5, 0.5))
    panels[-1].set_xticks(edges[: -1 : max(n_sub // 8, 1)] + 0.5 if n_sub > 1 else range(0, len(values), 4))
    shared = (
        f" (a shade for each {width})" if n_sub > 1 else f" (one scale: {_text(steps[0])})" if steps is not None else ""
    )
    panels[-1].set_xlabel(f"weight in the block{shared}")
    if len(ax.get_legend_handles_labels()[0]) > 1:
        text_layout.legend_below(fig, *ax.get_legend_handles_labels())
    if were is not None and len(values):
        worst = int(np.abs(were - values).argmax())
        error = abs(float(were[worst] - values[worst]))
        if error:
            text_layout.names_above(ax, [(worst, f"largest error: {error:.2g}")])
    return fig


def _weights_title(
    values: npt.NDArray[np.float64],
    were: npt.NDArray[np.float64] | None,
    steps: npt.NDArray[np.float64] | None,
    width: int,
) -> str:
    """How many values the weights take, or how far they are off, as a sentence."""
    n = len(values)
    if were is None or not n:
        different = len(np.unique(values))
        only = "only " if 2 * different <= n else ""
        return f"The {n} weights of this block take {only}{different} different value{'s' * (different != 1)}"
    errors = np.abs(were - values)
    if not errors.any():
        return f"The {n} weights of this block have no error at all"
    worst = int(errors.argmax())
    step = abs(float(steps[worst // width])) if steps is not None else 0.0
    share = f", {errors[worst] / step:.2g} of its step" if step else ""
    mean = float(np.sqrt((errors**2).mean()))
    most = f"the worst by {errors[worst]:.2g}{share}"
    return f"The {n} weights of this block are off by {mean:.2g} (root mean square), {most}"


@style.styled
def outlier(before: BlockFit, after: BlockFit) -> Figure:
    """One block without and with one large weight, side by side: the values it can hold as lines, coarser on the right.

    Args:
        before: the block as it is.
        after: the same block with one weight made large; the weight that differs most between the two is taken for it.

    Raises:
        ValueError: blocks of different lengths, or a value that is no finite number.
    """
    n = len(before.original)
    if not n:
        raise ValueError("the block is empty: give its weights")
    fits = [
        (_numbers("original", fit.original, n), _numbers("decoded", fit.decoded, n), _numbers("levels", fit.levels))
        for fit in (before, after)
    ]
    at = int(np.abs(fits[1][0] - fits[0][0]).argmax())
    others = np.arange(n) != at
    errors = [float(np.sqrt(((were - values)[others] ** 2).mean())) if n > 1 else 0.0 for were, values, _ in fits]
    fig = style.new_figure(4.3, title=_outlier_title(fits[0][0], fits[1][0], at, errors))
    panels = fig.subplots(1, 2, sharey=True)
    shown = np.concatenate([part[others] for were, values, _ in fits for part in (were, values)] + [np.zeros(1)])
    margin = 0.14 * float(np.ptp(shown)) or 1.0
    panels[0].set_ylim(float(shown.min()) - margin, float(shown.max()) + 2 * margin)
    for ax, (were, values, levels), name, error in zip(
        panels, fits, ("as it is", "with one large weight"), errors, strict=True
    ):
        _levels(ax, levels)
        ax.bar(range(n), values, 0.7, color=MEASURED, label="after", linewidth=0, zorder=2)
        dots: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": INK, "zorder": 4}
        ax.plot(were, "o", label="before", markersize=4.5 if n <= 64 else 2.4, markeredgewidth=0.8, **dots)
        ax.axhline(0, color=INK, linewidth=0.8, zorder=1)
        ax.set_xlim(-0.8, n - 0.2)
        ax.yaxis.set_major_formatter(lambda value, _: _text(value, "g"))
        ax.set_xlabel(f"weight in the block\n{_step(levels)}\nroot mean square error of the others: {error:.2g}")
        ax.set_title(name)
        _beyond(ax, at, float(were[at]), n)
    panels[0].set_ylabel("weight")
    handles, names = panels[0].get_legend_handles_labels()
    text_layout.legend_below(fig, handles, names)
    return fig


def _levels(ax: Axes, levels: npt.NDArray[np.float64]) -> None:
    """Draw the values that the block can hold, as far as they are in sight."""
    low, high = ax.get_ylim()
    seen = np.unique(levels[(levels >= low) & (levels <= high)])
    ax.hlines(
        seen, -0.8, ax.get_xlim()[1] + 1000, color="#AFAFAF", linewidth=0.7, zorder=0, label="a value it can hold"
    )


def _step(levels: npt.NDArray[np.float64]) -> str:
    """The usual distance between two values that the block can hold, in words."""
    gaps = np.diff(np.unique(levels))
    return f"steps of {float(np.median(gaps)):.2g}" if len(gaps) else "no steps"


def _beyond(ax: Axes, at: int, weight: float, n: int) -> None:
    """Mark an outlier that is out of sight at the edge, with its size."""
    low, high = ax.get_ylim()
    if low <= weight <= high:
        return
    edge, mark = (high, "^") if weight > high else (low, "v")
    ax.plot([at], [edge], mark, color=INK, markersize=8, clip_on=False, zorder=5, label="_beyond")
    side = 1 if at < n / 2 else -1
    ax.annotate(
        _text(weight),
        (at, edge),
        (9 * side, -3 if weight > high else 3),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="top" if weight > high else "bottom",
        fontsize=8.5,
        bbox=text_layout.BACKED,
        zorder=5,
    )


def _outlier_title(was: npt.NDArray[np.float64], now: npt.NDArray[np.float64], at: int, errors: Sequence[float]) -> str:
    """What one large weight does to the error of the others, as a sentence."""
    others = np.delete(np.abs(now), at)
    if now[at] == was[at]:
        return "These two blocks have the same weights, so there is no outlier to see"
    size = abs(float(now[at])) / float(others.max()) if others.max(initial=0) > 0 else 0.0
    large = f"One weight {text_layout.factor(size)} as large as the next" if size else "One large weight"
    if errors[0] <= 0:
        return f"{large} {'gives the others an error' if errors[1] > 0 else 'leaves the others without error'}"
    factor = errors[1] / errors[0]
    if factor < 1.05:
        return f"{large} does not make the error of the others grow"
    return f"{large} makes the error of all others {text_layout.factor(factor)} as large"


def _text(value: float, form: str = ".2g") -> str:
    """A number with a minus sign that is no hyphen."""
    return f"{'−' if value < 0 else ''}{abs(value):{form}}"


def _numbers(name: str, figures: Numbers, length: int | None = None) -> npt.NDArray[np.float64]:
    """The figures as one row, all finite and as many as ``length``."""
    found = np.asarray(figures, dtype=np.float64).reshape(-1)
    if length is not None and len(found) != length:
        raise ValueError(f"{name} has {len(found)} values: give {length}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has a value that is no finite number: check the scales it was computed with")
    return found
