"""What each layer of one token costs: time, bytes read and faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import INK, MEASURED
from labkit.units import MiB, fmt_bytes, fmt_ms

if TYPE_CHECKING:
    from labkit.experiments.run import LayerStep


UNCOUNTED = "not counted on this system"


@style.styled
def layer_faults(
    steps: Sequence[LayerStep],
    *,
    compare: Sequence[LayerStep] | None = None,
    labels: tuple[str, str] = ("cold", "warm"),
) -> Figure:
    """Milliseconds, MiB read and major faults of each layer; bars for ``steps``, open circles for ``compare``.

    Args:
        steps: the layers of a token; of several tokens, the mean per layer is drawn.
        compare: another token, or another set of them, to see beside it.
        labels: what the two are called.
    """
    panels: tuple[tuple[str, Callable[[LayerStep], float | None], Callable[[float], str]], ...] = (
        ("ms", lambda step: step.ms, fmt_ms),
        (
            "MiB read",
            lambda step: None if step.read_bytes is None else step.read_bytes / MiB,
            lambda mib: fmt_bytes(mib * MiB) if mib else "none",
        ),
        ("major faults", lambda step: step.major_faults, lambda n: f"{n:,.0f}" if n else "none"),
    )
    fig = style.new_figure(5.2 if steps or compare else 0.6, title=_title(steps, compare, labels))
    layers = [step.layer for step in [*steps, *(compare or [])]]
    if not layers:
        return fig
    axes = fig.subplots(3, 1, sharex=True)
    handles = []
    for ax, (name, figure_of, fmt) in zip(axes, panels, strict=True):
        bars = _per_layer(steps, figure_of)
        handles = [ax.bar(list(bars), list(bars.values()), 0.8, label=labels[0], **style.solid(MEASURED))]
        said = f"{labels[0]}: {fmt(sum(bars.values())) if bars else UNCOUNTED}"
        highest = max(bars.values(), default=0)
        if compare is not None:
            dots = _per_layer(compare, figure_of)
            handles += ax.plot(
                list(dots),
                list(dots.values()),
                "o-",
                color=INK,
                markerfacecolor="white",
                markersize=4.5,
                linewidth=1.1,
                label=labels[1],
                clip_on=False,
                zorder=3,
            )
            said += f"; {labels[1]}: {fmt(sum(dots.values())) if dots else UNCOUNTED}"
            highest = max([highest, *dots.values()])
        ax.set_ylim(0, highest * 1.08 if highest > 0 else 1)
        ax.set_ylabel(name)
        ax.set_title(f"all layers together, {said}", fontsize=9)
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=name == "major faults"))
    axes[-1].xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes[-1].set_xlabel("layer")
    axes[-1].set_xlim(min(layers) - 0.7, max(layers) + 0.7)
    fig.align_ylabels(axes)
    text_layout.legend_below(fig, handles, [handle.get_label() for handle in handles])
    return fig


def _per_layer(steps: Sequence[LayerStep], figure_of: Callable[[LayerStep], float | None]) -> dict[int, float]:
    """The mean over tokens, by layer in ascending order; steps without the figure are left out."""
    found: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        figure = figure_of(step)
        if figure is not None:
            found[step.layer].append(figure)
    return {layer: sum(found[layer]) / len(found[layer]) for layer in sorted(found)}


def _title(steps: Sequence[LayerStep], compare: Sequence[LayerStep] | None, labels: tuple[str, str]) -> str:
    """How long all layers of a token take, as a sentence."""
    if not steps and not compare:
        return "No layer was timed in this run"
    said = [
        f"{fmt_ms(sum(_per_layer(token, lambda step: step.ms).values()))} ({label})"
        for token, label in zip([steps, compare], labels, strict=True)
        if token
    ]
    return f"The layers of a token take {' and '.join(said)}"
