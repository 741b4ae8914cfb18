"""How the tuner finds the most layers that a device can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.course.figurekit import guesses, limits, point_labels, style, text_layout
from labkit.course.figurekit.memory_split import predicted_sides
from labkit.course.figurekit.style import INK, KINDS, LIMIT
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.planning.tuner import Tuned
    from labkit.predict import Split

_PARTS = ("heap", "kv", "compute")


@style.styled
def tuner_search(
    tuned: Tuned,
    *,
    vram_bytes: int,
    margin_bytes: int = 0,
    splits: Mapping[int, Split] | None = None,
    top_bytes: int | None = None,
    guess_layers: float | None = None,
) -> Figure:
    """Bytes on the device for each number of layers that was tried, against the budget.

    Args:
        tuned: what ``tune`` found. With ``n_cpu_moe`` tried, that is the axis, from all experts on the host to none.
        vram_bytes: the device's memory.
        margin_bytes: to leave free of it.
        splits: of every choice, by what is on the axis; drawn as areas of weights, cache and compute buffer.
        top_bytes: end of the axis of memory, for pictures to be compared; without it, the axis fits what is drawn.
        guess_layers: the learner's own prediction of the largest number that fits.
    """
    experts = bool(tuned.n_cpu_moe) or _counts_experts(tuned)
    best = tuned.n_cpu_moe if experts else tuned.n_gpu_layers
    room = vram_bytes - margin_bytes
    sizes = dict(tuned.tried)
    over = [n for n, size in sizes.items() if size > room]
    first_over = (max(over) if experts else min(over)) if over else None
    chosen = best if sizes.get(best, room + 1) <= room else None
    areas = dict(sorted((splits or {}).items()))
    highest = max([vram_bytes, *sizes.values(), *(s.devices[0].total_bytes for s in areas.values())])
    top = top_bytes or highest * 1.12
    unit, unit_name = style.axis_unit(top)

    fig = style.new_figure(4.3, title=_title(tuned, chosen, experts, room))
    ax = fig.add_subplot()
    if areas:
        low = [0.0] * len(areas)
        for key in _PARTS:
            sizes_of = [predicted_sides(split.devices[:1])[key] / unit for split in areas.values()]
            high = [below + size for below, size in zip(low, sizes_of, strict=True)]
            kind = KINDS[key]
            name = "weights" if key == "heap" else kind.label
            ax.fill_between(list(areas), low, high, label=name, **style.hatched(kind.colour, kind.hatch))
            low = high
        text_layout.legend_below(fig, *ax.get_legend_handles_labels(), ncols=3, title="predicted", title_fontsize=9)
    last = max([*sizes, *areas, len(tuned.split.layers_on) + (0 if experts else 1)])
    across = (last + 0.6, -0.6) if experts else (-0.6, last + 0.6)
    ax.set_xlim(*across)
    ax.set_ylim(0, top / unit)
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    counted = "n_cpu_moe: blocks whose experts stay on the host" if experts else "n_gpu_layers"
    ax.set_xlabel(f"{counted}; small marks: tried on the way")
    ax.set_ylabel(f"on the device, {unit_name}")
    _limit(ax, vram_bytes / unit, f"device's memory {fmt_bytes(vram_bytes)}", above=True)
    if margin_bytes and room <= top:
        said = f"less {fmt_bytes(margin_bytes)} left free"
        _limit(ax, room / unit, said, above=room < 0.07 * top < margin_bytes)

    marks = []
    look: dict[str, Any] = {"linestyle": "none", "zorder": 6, "clip_on": False, "markeredgecolor": INK}
    for n, size in sizes.items():
        within = size <= room
        said = ""
        if n == chosen:
            mark, said = {"marker": "o", "markersize": 11, "color": INK, "label": "_chosen"}, f"{n} fits"
        elif n == first_over:
            mark, said = {"marker": "X", "markersize": 11, "color": LIMIT, "label": "_first over"}, f"{n} does not"
        else:
            mark = {"marker": "o" if within else "X", "markersize": 6, "color": "white", "label": "_tried"}
        y = min(size, top) / unit
        ax.plot(n, y, **(look | mark))
        marks.append(point_labels.Mark(n, y, f"{said}:\n{fmt_bytes(size)}" if said else "", 9))
    if (own := guesses.number(guess_layers)) is not None:  # on the axis, where it covers no other mark
        marks.append(point_labels.Mark(*guesses.draw(ax, own, 0, f"{own:g}"), 9))
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    lines = [box for y in {vram_bytes, room} if y <= top for box in point_labels.along(ax, across, [y / unit] * 2)]
    before = len(ax.texts)
    point_labels.label(ax, marks, lines=lines)
    for text in ax.texts[before:]:
        text.set_bbox(text_layout.BACKED)
        text.set_zorder(5.5)
    return fig


def _counts_experts(tuned: Tuned) -> bool:
    """Whether ``tried`` counts blocks with experts on the host: then the bytes fall as it grows."""
    sizes = sorted(tuned.tried)
    return len(sizes) > 1 and sizes[0][1] > sizes[-1][1]


def _limit(ax: Axes, y: float, said: str, *, above: bool) -> None:
    """A limit of the device, named on the right if it is low: there the marks are on the left."""
    limits.across(ax, y, said, at_right=y < 0.45 * ax.get_ylim()[1], above=above)


def _title(tuned: Tuned, chosen: int | None, experts: bool, room: int) -> str:
    """How much fits, as a sentence."""
    there = f"in {fmt_bytes(room)}; the search took {len(tuned.tried)} tries"
    if chosen is None:
        return f"Not even the model without its experts fits {there}"
    if experts and not chosen:
        return f"The model with all its experts fits {there}"
    if experts:
        return f"With the experts of {chosen} blocks on the host, everything else fits {there}"
    if not chosen:
        return f"Not even the output layer fits {there}"
    return f"{chosen} of {len(tuned.split.layers_on) + 1} layers fit {there}"
