"""The learner's own prediction: what counts as one, and where its diamond is."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.gate import code_cells, read, tree
from support.paths import ROOT
from support.pictures import guess

from labkit.course import figures, offers
from labkit.course.figurekit import guesses

LABS = sorted((ROOT / "labs").glob("*.ipynb"))


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        (None, None),
        (0, 0.0),
        (2, 2.0),
        (np.float32(1.5), 1.5),
        (-1, None),
        (True, None),
        ("3", None),
        (float("inf"), None),
    ],
)
def test_only_a_number_from_0_up_is_a_prediction(typed: object, value: float | None) -> None:
    assert guesses.number(typed) == value


def test_a_scale_without_0_has_no_place_for_it() -> None:
    assert guesses.above_0(3, 2) == 6
    assert guesses.above_0(0) is guesses.above_0(3, None) is guesses.above_0(None) is None
    assert guesses.pair((90, 200)) == guesses.pair([90, 200]) == (90, 200)
    assert guesses.pair(90) is guesses.pair((90,)) is guesses.pair((90, None)) is None


def axes() -> Axes:
    ax = Figure().add_subplot()
    ax.set_xlim(0, 10)
    ax.set_ylim(10, 0)
    return ax


def test_the_diamond_is_at_its_place_and_says_its_value() -> None:
    ax = axes()
    assert guesses.draw(ax, 3, 4, "3 ms") == (3, 4, "you predicted 3 ms")
    assert guess(ax.figure) == (3, 4)


def test_a_diamond_beyond_the_axis_is_at_its_edge_and_stays_there() -> None:
    ax = axes()
    x, y, text = guesses.draw(ax, 30, -4, "30 ms")
    assert (x, y) == (10, 0) and "beyond this axis" in text
    ax.set_xlim(0, 20)
    (mark,) = ax.lines
    assert mark.get_transform().transform(mark.get_xydata()[0])[0] == pytest.approx(ax.get_window_extent().x1)


def test_an_axis_reaches_for_a_prediction_that_does_not_squeeze_the_rest() -> None:
    assert guesses.within(30, 10) == 30 and guesses.within(31, 10) == guesses.within(None, 10) == 0


# The labs

WORDS = "a word, which no axis shows"
NOT_DRAWN = {
    "my_guess_cached_mib": "the strip shows where pages are, not how many bytes they are together",
    "my_guess_times_slower": "the picture shows each layer, not the ratio of two tokens",
    "my_guess_bits": "the map shows bytes of one block, not bits per weight",
    "my_guess_mixture_bits": "the map shows the types of tensors, not their mean",
    "my_guess_7b_bytes": "the cache is printed, not drawn",
    **dict.fromkeys(("my_guess_half", "my_guess_place", "my_guess_leaving", "my_guess_locked"), WORDS),
}


def handed_to_pictures(path: Path) -> tuple[set[str], set[str]]:
    """Names that a notebook hands to ``lk.figures``, directly or in a variable of the same cell, and the parameters."""
    names: set[str] = set()
    parameters: set[str] = set()
    for cell in code_cells(read(path)):
        nodes = list(ast.walk(tree(cell)))
        made_of = {
            target.id: {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in nodes:
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("lk.figures."):
                own = {name.id for keyword in call.keywords for name in ast.walk(keyword) if isinstance(name, ast.Name)}
                names |= own.union(*(made_of.get(name, set()) for name in own))
                parameters |= {f"{ast.unparse(call.func)}.{keyword.arg}" for keyword in call.keywords}
    return names, parameters


def test_a_prediction_is_drawn_where_its_picture_shows_that_quantity() -> None:
    for path in LABS:
        predictions = {name for cell in code_cells(read(path)) for name in re.findall(r"^my_guess_\w+", cell.source)}
        drawn, _ = handed_to_pictures(path)
        assert predictions - set(NOT_DRAWN) == predictions & drawn, path.name


def test_no_picture_takes_a_prediction_that_no_lab_has() -> None:
    used = set().union(*(handed_to_pictures(path)[1] for path in LABS))
    for name in offers.names("figures"):
        picture = getattr(figures, name)
        if inspect.isfunction(picture):
            taken = {f"lk.figures.{name}.{each}" for each in inspect.signature(picture).parameters if "guess" in each}
            assert taken <= used, name
