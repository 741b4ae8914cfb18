"""Limits: a dotted vermilion line with its figure, or its name at the edge of an axis that ends before it."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from support.pictures import lines

from labkit.course.figurekit import limits
from labkit.course.figurekit.style import LIMIT


def axes() -> Axes:
    ax = Figure().add_subplot()
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 10)
    return ax


def test_a_limit_in_sight_is_a_line_with_its_name() -> None:
    ax = axes()
    assert limits.across(ax, 4, "limit 4 GiB")
    limits.upright(ax, 6, "limit 6 GiB", 5)
    level, upright = lines(ax.figure, "_limit")
    assert list(level.get_ydata()) == [4, 4] and list(upright.get_xdata()) == [6, 6]
    assert all(line.get_linestyle() == ":" and to_hex(line.get_color()).upper() == LIMIT for line in (level, upright))
    assert [text.get_text() for text in ax.texts] == ["limit 4 GiB", "limit 6 GiB"]


def test_a_limit_beyond_the_axis_is_named_at_its_edge() -> None:
    ax = axes()
    assert not limits.across(ax, 40, "limit 40 GiB")
    limits.upright(ax, 60, "limit 60 GiB", 5)
    assert not lines(ax.figure, "_limit")
    level, upright = (text.get_text() for text in ax.texts)
    assert "40 GiB, above this axis" in level and "60 GiB, beyond this axis" in upright
    assert all(text.get_window_extent().x1 <= ax.get_window_extent().x1 for text in ax.texts)


def test_a_short_limit_ends_where_its_row_does() -> None:
    ax = axes()
    limits.upright(ax, 6, "limit 6 GiB", 5, ends=(2, 3))
    (line,) = lines(ax.figure, "_limit")
    assert list(line.get_ydata()) == [2, 3]
