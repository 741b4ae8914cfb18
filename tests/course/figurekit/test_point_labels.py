"""Labels of points: each beside its mark, clear of marks, lines and other labels, and none lost."""

from __future__ import annotations

import itertools
import math

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.course.figurekit import point_labels
from labkit.course.figurekit.point_labels import Mark


def axes(size: tuple[float, float] = (6.4, 4.8)) -> Axes:
    ax = Figure(figsize=size).add_subplot()
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    return ax


def test_labels_keep_clear_of_marks_and_say_when_there_is_no_room() -> None:
    ax = axes()
    marks = [Mark(0.5 + 0.02 * n, 0.5, f"mark {n}") for n in range(12)]
    assert point_labels.label(ax, marks)
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) == 12
    for mark in marks:
        x, y = ax.transData.transform((mark.x, mark.y))
        assert not any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for box in boxes)
    assert not point_labels.label(axes((0.4, 0.4)), [Mark(0.5, 0.5, "much too long for this")])


def test_a_label_stays_beside_its_mark_where_there_is_room() -> None:
    ax = axes()
    assert point_labels.label(ax, [Mark(0.5, 0.5, "a")])
    (text,) = ax.texts
    x, y = ax.transData.transform((0.5, 0.5))
    box = text.get_window_extent()
    assert box.y0 < y < box.y1 and box.x0 == pytest.approx(x + 7 + 3, abs=1), "on its right, as near as it may"
    assert not ax.lines, "near its mark a label needs no line"


def test_marks_in_one_place_share_a_label() -> None:
    ax = axes()
    assert point_labels.label(ax, [Mark(0.5, 0.5, name) for name in ("a", "b", "c", "d")])
    assert [text.get_text() for text in ax.texts] == ["a, b, c,\nd"]


def test_labels_keep_clear_of_lines_while_there_is_room() -> None:
    ax = axes()
    ax.plot([0, 1], [0.5, 0.5])
    boxes = point_labels.along(ax, [0, 1], [0.5, 0.5])
    assert point_labels.label(ax, [Mark(0.5, 0.5, "a label")], lines=boxes)
    box = ax.texts[0].get_window_extent()
    assert not any(box.overlaps(piece) for piece in boxes)


def test_boxes_along_a_line_leave_no_gap() -> None:
    ax = axes()
    boxes = point_labels.along(ax, [0, 1], [0, 1])
    ends = [ax.transData.transform(end) for end in ((0, 0), (1, 1))]
    assert len(boxes) >= math.dist(*ends) / 6
    assert boxes[0].contains(*ends[0]) and boxes[-1].contains(*ends[1])
    assert all(a.overlaps(b) for a, b in itertools.pairwise(boxes))
