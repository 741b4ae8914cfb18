"""The visual language: the course's colours and marks, whatever style a notebook has chosen."""

from __future__ import annotations

import subprocess
import sys

import matplotlib
import pytest

from labkit.course import figures
from labkit.course.figurekit import style
from labkit.course.figurekit.style import KINDS, LIMIT


def test_colours_are_those_of_the_course() -> None:
    assert {key: kind.colour for key, kind in KINDS.items()} == {
        "file": "#0072B2",
        "heap": "#56B4E9",
        "repack": "#CC79A7",
        "kv": "#009E73",
        "compute": "#E69F00",
        "python": "#999999",
    }
    assert LIMIT == "#D55E00"
    assert len({kind.hatch for kind in KINDS.values()}) == len(KINDS), "predicted parts must differ without colour"


def test_a_notebook_style_does_not_reach_the_pictures() -> None:
    plain = figures.png(figures.mechanisms())
    with matplotlib.rc_context(
        {"text.color": "white", "font.size": 20, "axes.facecolor": "black", "hatch.linewidth": 9}
    ):
        assert figures.png(figures.mechanisms()) == plain
        assert matplotlib.rcParams["font.size"] == 20


def test_pictures_do_not_need_pyplot() -> None:
    code = (
        "import sys\nfrom labkit import figures\nfigures.png(figures.mechanisms())\n"
        "print('matplotlib.pyplot' in sys.modules, 'IPython' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_a_long_title_is_wrapped_into_even_lines() -> None:
    lines = style.new_figure(2, title="word " * 40).get_suptitle().split("\n")
    assert len(lines) == 3 and max(map(len, lines)) <= 80 and min(map(len, lines)) > 40


@pytest.mark.parametrize(("largest_bytes", "name"), [(0, "MiB"), ((1 << 30) - 1, "MiB"), (1 << 30, "GiB")])
def test_a_memory_axis_is_in_mib_or_gib(largest_bytes: int, name: str) -> None:
    assert style.axis_unit(largest_bytes)[1] == name


def test_what_is_written_on_a_colour_stands_out() -> None:
    assert style.ink_on(KINDS["file"].colour) == style.ink_on("#000000") == "white"
    assert style.ink_on("#FFFFFF") == style.ink_on(KINDS["heap"].colour) == style.INK
