"""Names at the right ends of lines: beside their ends, inside the picture, none over another."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.figure import Figure

from labkit.course.figurekit import style
from labkit.course.figurekit.line_labels import look, name_ends, tokens


def test_ticks_of_tokens_are_short() -> None:
    assert [tokens(n) for n in (0, 512, 1024, 3072, 131072)] == ["0", "512", "1k", "3k", "128k"]


def test_the_first_lines_differ_in_shade_and_mark() -> None:
    assert len({(look(n)["color"], look(n)["marker"]) for n in range(30)}) == 30
    assert look(0, solid=False)["markerfacecolor"] == "white" != look(0)["markerfacecolor"]


@pytest.mark.parametrize("heights", [(1, 2, 3, 4), (5, 5, 5, 5.1), (0, 0, 10, 10), tuple(range(20))])
def test_names_are_spread_and_inside(heights: tuple[float, ...]) -> None:
    fig = style.new_figure(4, title="Names at the ends of lines")
    ax = fig.add_subplot()
    ax.set_ylim(-1, 21)
    ends = [(1.0, float(y), f"the line that ends at {y}") for y in heights]
    for _, y, _ in ends:
        ax.plot([0, 1], [0, y])
    name_ends(ax, ends, ticks=[0, 1])
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts if text.get_text()}
    assert len(boxes) == len(set(heights))
    for a, b in itertools.combinations(boxes.values(), 2):
        assert not a.padded(-1).overlaps(b.padded(-1))
    assert all(box.x1 <= ax.get_window_extent().x1 for box in boxes.values())
    order = sorted(boxes, key=lambda name: boxes[name].y0)
    assert order == sorted(boxes, key=lambda name: float(name.split()[-1])), "in the order of their ends"


def test_a_name_with_room_stays_at_the_height_of_its_end() -> None:
    ax = Figure().add_subplot()
    ax.set_ylim(0, 10)
    ax.plot([0, 1], [0, 5])
    name_ends(ax, [(1, 5, "alone")])
    box = ax.texts[0].get_window_extent()
    assert (box.y0 + box.y1) / 2 == pytest.approx(ax.transData.transform((1, 5))[1], abs=1)
