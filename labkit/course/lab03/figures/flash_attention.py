"""The compute buffer against the length of the context, with and without flash attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from matplotlib.figure import Figure

from labkit.course.figurekit import guesses, point_labels, style, text_layout
from labkit.course.figurekit.line_labels import name_ends, tokens
from labkit.course.figurekit.style import INK, KINDS
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.settings import Settings


class Planned(Protocol):
    """What llama.cpp plans for one setting, such as ``dry_runs`` gives; None where it refused."""

    @property
    def settings(self) -> Settings: ...
    @property
    def compute_bytes(self) -> int | None: ...


@style.styled
def flash_attention(rows: Sequence[Planned], *, guess_bytes: float | None = None) -> Figure:
    """The compute buffer against the length of the context, a line for each setting of flash attention.

    Args:
        rows: settings that differ in ``n_ctx`` and ``flash_attn``; a refused one is left out.
        guess_bytes: the learner's own prediction of the buffer at the longest context without flash attention.
    """
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        if row.compute_bytes is not None:
            found.setdefault(row.settings.flash_attn, {})[row.settings.n_ctx] = row.compute_bytes
    fig = style.new_figure(3.9, title=_title(found))
    ax = fig.add_subplot()
    largest = max((size for line in found.values() for size in line.values()), default=0)
    unit, unit_name = style.axis_unit(largest)
    ax.set_ylim(0, largest * 1.1 / unit or 1)
    ax.set_xlabel("tokens of context, n_ctx")
    ax.set_ylabel(f"compute buffer, {unit_name}")
    colour = KINDS["compute"].colour
    ends: list[tuple[float, float, str]] = []
    marks, drawn = [], []
    for (name, line), mark in zip(sorted(found.items()), "osv", strict=False):
        at = sorted(line)
        figures = [line[n] / unit for n in at]
        ax.plot(at, figures, f"{mark}-", color=colour, markeredgecolor=INK, markersize=7, linewidth=2, label=name)
        ends.append((at[-1], figures[-1], f"flash attention {name}:\n{fmt_bytes(line[at[-1]])}"))
        # Where the lines lie close together and to the axis, figures would only hide them.
        marks += [point_labels.Mark(n, line[n] / unit, fmt_bytes(line[n]) * (line[n] > largest / 6)) for n in at[:-1]]
        drawn.append((at, figures))
    contexts = sorted({n for line in found.values() for n in line})
    ax.set_xlim(0, (contexts or [1])[-1])
    if "off" in found and (own := guesses.number(guess_bytes)) is not None:
        ax.set_ylim(0, max(ax.get_ylim()[1], min(own * 1.1, 3 * largest) / unit))
        ends.append(guesses.draw(ax, max(found["off"]), own / unit, fmt_bytes(own)))
    shown = [n for n in contexts if n >= contexts[-1] / 10]
    name_ends(ax, ends, ticks=[0, *shown])
    ax.set_xticks([0, *shown], ["0", *(tokens(n) for n in shown)])
    fig.draw_without_rendering()
    point_labels.label(ax, marks, lines=[box for line in drawn for box in point_labels.along(ax, *line)])
    return fig


def _title(found: Mapping[str, Mapping[int, int]]) -> str:
    """What flash attention saves at the longest context, as a sentence."""
    off = found.get("off", {})
    on = found.get("on") or found.get("auto") or {}
    both = sorted(set(off) & set(on))
    if not both:
        return "No context here has a buffer both with and without flash attention"
    n = both[-1]
    if off[n] <= on[n]:
        return f"At {n:,} tokens flash attention saves nothing of the compute buffer"
    return (
        f"At {n:,} tokens the compute buffer is {text_layout.factor(off[n] / on[n])} as large without flash attention"
    )
