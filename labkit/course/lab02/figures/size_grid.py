"""How large files are, as a table in shades of blue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import BLUES, FAINT
from labkit.course.lab02.figures.mixture import say, shade

Unit = Literal["GiB", "bits per weight", "% of F16"]


@style.styled
def size_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    unit: Unit,
) -> Figure:
    """A table of shapes by file types, the larger the darker, with the number in each cell.

    Args:
        rows: names of the shapes.
        columns: names of the file types.
        values: one list per row with a figure per column, in ``unit``; None where there is none.
        unit: what the figures are.

    Raises:
        ValueError: not one figure per cell.
    """
    if len(values) != len(rows) or any(len(line) != len(columns) for line in values):
        raise ValueError(f"the values do not fill {len(rows)} rows of {len(columns)} columns: give one for each cell")
    known = [value for line in values for value in line if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    upright = any(len(name) * 10.5 > 900 / max(len(columns), 1) - 6 for name in columns)
    fig = style.new_figure(
        1.0
        + 0.27 * len(rows)
        + (0.09 * max((len(text_layout.shorten(c, 18)) for c in columns), default=0) if upright else 0.2),
        title=_title(columns, values, unit),
    )
    ax = fig.add_subplot()
    ax.set_xlim(0, max(len(columns), 1))
    ax.set_ylim(max(len(rows), 1), 0)
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            colour = "#FFFFFF" if value is None else _grid_shade(value, low, high, unit)
            look: dict[str, Any] = {"hatch": "////", "facecolor": "white", "edgecolor": FAINT, "linewidth": 0}
            ax.add_patch(Rectangle((x, y), 1, 1, **(look if value is None else style.solid(colour))))
            if value is not None:
                say(ax, x + 0.5, y + 0.52, _figure(value, unit), 8 if len(columns) < 15 else 7, style.ink_on(colour))
    ax.xaxis.tick_top()
    ax.set_xticks([n + 0.5 for n in range(len(columns))], [text_layout.shorten(c, 18) for c in columns])
    ax.tick_params(axis="x", length=0, labelrotation=90 if upright else 0)
    ax.set_yticks([n + 0.5 for n in range(len(rows))], [text_layout.shorten(row, 24) for row in rows])
    ax.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    missing = ", hatched: not available" if len(known) < len(rows) * len(columns) else ""
    ax.set_xlabel(f"{unit} (the darker the more{missing})")
    return fig


def _grid_shade(value: float, low: float, high: float, unit: Unit) -> str:
    """The blue of a figure: of bits, the one they have in every picture; of sizes, by their logarithm."""
    if unit != "GiB":
        return shade(value if unit == "bits per weight" else value * 16 / 100)
    return to_hex(BLUES(0.9 * math.log(value / low) / math.log(high / low) if high > low > 0 else 0.3))


def _figure(value: float, unit: Unit) -> str:
    """A cell's figure as text."""
    if unit == "% of F16":
        return f"{value:.0f}"
    digits = 3 if value < 0.0995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def _title(columns: Sequence[str], values: Sequence[Sequence[float | None]], unit: Unit) -> str:
    """What varies most in the table, as a sentence."""
    by_row = [[v for v in line if v] for line in values]
    spread = [max(line) / min(line) for line in by_row if line]
    if not spread:
        return "There is no file size to show yet"
    if unit == "GiB":
        return f"A model's largest file here is up to {text_layout.factor(max(spread))} as large as its smallest"
    by_column = {name: [line[x] for line in values if line[x]] for x, name in enumerate(columns)}
    ranges = {n: (min(v for v in found if v), max(v for v in found if v)) for n, found in by_column.items() if found}
    name = max(ranges, key=lambda n: ranges[n][1] / ranges[n][0])
    low, high = (_figure(end, unit) for end in ranges[name])
    if low == high:
        return f"Each file type takes the same {unit} in all of these shapes"
    what = "bits per weight" if unit == "bits per weight" else "% of the F16 file"
    return f"A {text_layout.shorten(name, 18)} file has {low} to {high} {what}, depending on the model"
