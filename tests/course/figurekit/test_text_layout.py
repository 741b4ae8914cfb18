"""Text in pictures: cut to length, as text with units, and with room made for it."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.text_layout import factor, percent, rate, row_names, shorten, wrap


def axes() -> Axes:
    return style.new_figure(3, title="A picture with texts that need room").add_subplot()


def test_a_text_is_cut_in_the_middle() -> None:
    assert shorten("abcdefgh", 8) == "abcdefgh"
    assert shorten("abcdefgh", 5) == "ab…gh"
    assert wrap("one two three four", 9) == "one two\n…ree four"
    assert wrap("one two three four", 9, lines=3) == "one two\nthree\nfour"


def test_shares_are_never_rounded_to_nothing_or_all() -> None:
    texts = [percent(share).replace("\u00a0", " ") for share in (0, 0.001, 0.37, 0.999, 1, 90)]
    assert texts == ["0 %", "under 1 %", "37 %", "over 99 %", "100 %", "9000 %"]


def test_ratios_and_rates_have_few_digits() -> None:
    assert [factor(ratio) for ratio in (1.07, 2.36, 21.4)] == ["1.07 times", "2.4 times", "21 times"]
    assert factor(12345) == "12,345 times"
    assert [rate(ms) for ms in (41.0, 400.0, 0.0)] == ["24 tokens/s", "2.5 tokens/s", "inf tokens/s"]


def test_rows_are_named_one_by_one() -> None:
    assert row_names([1, 2], None, str) == ["1", "2"]
    assert row_names([1, 2], ["a", "b"], str) == ["a", "b"]
    with pytest.raises(ValueError, match="1 labels for 2 rows"):
        row_names([1, 2], ["a"], str)


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("gap", [6, -6])
def test_room_is_made_on_the_side_of_the_text(scale: str, gap: int) -> None:
    ax = axes()
    ax.set_xscale(scale)
    ax.set_xlim(1, 10)
    text = text_layout.beside(ax, 10 if gap > 0 else 1, 0.5, "a text that does not fit here", gap=gap)
    text_layout.make_room(ax.figure, {ax: [text]})
    ax.figure.draw_without_rendering()
    inside, box = ax.get_window_extent(), text.get_window_extent()
    assert inside.x0 <= box.x0 and box.x1 <= inside.x1
    low, high = ax.get_xlim()
    assert (low, high > 10) == (1, True) if gap > 0 else (low < 1, high) == (True, pytest.approx(10))


def test_texts_on_a_fixed_axis_move_inside() -> None:
    ax = axes()
    text = text_layout.beside(ax, 1, 0.5, "a text that does not fit here")
    text_layout.keep_inside(ax.figure, {ax: [text]})
    assert ax.get_xlim() == (0, 1) and text.get_window_extent().x1 <= ax.get_window_extent().x1


def test_a_text_wider_than_its_space_is_hidden() -> None:
    ax = axes()
    texts = [ax.text(0.5, 0.5, "wide"), ax.text(0.5, 0.5, "wide")]
    ax.figure.draw_without_rendering()
    text_layout.hide_unfit([(texts[0], 0.0, 1.0), (texts[1], 0.5, 0.501)])
    assert [text.get_visible() for text in texts] == [True, False]


def test_names_above_lie_in_one_row_and_do_not_touch() -> None:
    ax = axes()
    text_layout.names_above(ax, [(0.5, "the first of two long names"), (0.55, "the second of two long names")])
    first, second = (text.get_window_extent() for text in ax.texts if text.get_text())
    assert first.y0 == second.y0 > ax.get_window_extent().y1 and first.x1 < second.x0
    assert second.x1 <= ax.figure.bbox.x1
