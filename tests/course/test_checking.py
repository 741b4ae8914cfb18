"""How answers are judged, whatever the exercise; and predictions beside what was found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from labkit.course.checking import (
    Verdict,
    byte_slips,
    check_function,
    check_number,
    check_values,
    compare,
    is_number,
    near,
)
from labkit.units import GiB


def test_the_first_slip_that_leads_to_the_answer_is_named() -> None:
    slips = {"halved": 50.0, "rounded": near(33.0, 0.1), "negative": lambda n: n < 0, "also halved": 50.0}

    def text(answer: float) -> str:
        return check_number(answer, right=100.0, unit="tokens", slips=slips).text

    assert "; halved." in text(50) and "; rounded." in text(31) and "; negative." in text(-7)
    assert text(29) == "yours is 29 tokens, expected 100 tokens."


@pytest.mark.parametrize(("answer", "state"), [(100, "right"), (101.9, "right"), (98.1, "right"), (102.1, "wrong")])
def test_a_number_may_be_off_by_a_share(answer: float, state: str) -> None:
    assert check_number(answer, right=100.0, unit="ms", slips={}, within=0.02).state == state


def test_slips_of_unit() -> None:
    assert sorted(byte_slips(GiB).values()) == [1.0, 1024.0, 1024.0**2, 8.0 * GiB]


@pytest.mark.parametrize("value", [True, "4", None, ..., math.nan, math.inf, [1], np.array([1, 2])])
def test_what_is_no_number(value: Any) -> None:
    assert not is_number(value)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: np.array([1, 2]), "expected 1,234 cells"),
        (lambda x: [1234], "yours is [1234]"),
        (lambda x: "1234", "yours is '1234'"),
        (lambda: 1234, "raised TypeError"),
        (lambda x: 1 // 0, "raised ZeroDivisionError"),
        (1234, "a function is asked for"),
    ],
)
def test_results_that_are_no_numbers_are_wrong(function: Any, said: str) -> None:
    verdict = check_function(function, right=lambda x: 1234, cases=((1,),), slips={}, unit="cells")
    assert verdict.state == "wrong" and said in verdict.text and not verdict


def test_results_that_cannot_be_compared_are_wrong() -> None:
    def same(mine: Any, theirs: Any) -> bool:
        raise OverflowError

    assert check_function(lambda x: math.inf, right=lambda x: 3, cases=((1,),), slips={}, same=same).state == "wrong"


@pytest.mark.parametrize("nothing", [None, ...])
def test_a_function_that_returns_nothing_is_not_attempted(nothing: Any) -> None:
    assert check_function(lambda x: nothing, right=lambda x: 3, cases=((1,),), slips={}).state == "not attempted"


def test_a_dict_is_compared_where_it_is_wrong() -> None:
    right, slips = {"a": 1.0, "b": 2.0}, {"doubled": {"a": 2.0, "b": 4.0}}

    def judged(answer: Any) -> Verdict:
        return check_values(answer, right=right, slips=slips)

    assert judged({"a": 1, "b": np.int64(2), "c": "more"})
    assert "doubled" in judged({"a": 1, "b": 4}).text
    assert "doubled" not in judged({"a": 1, "b": 5}).text and "b is 5" in judged({"a": 1, "b": 5}).text
    assert judged({"a": ..., "b": None}).state == "not attempted"
    assert judged({"a": 1}).state == judged([1, 2]).state == "wrong"


@pytest.mark.parametrize(
    ("predicted", "found", "unit", "said"),
    [
        (40.0, 128.0, "ms", ["40.0 ms", "128 ms", "3.2×"]),
        (128, 40, "ms", ["128 ms", "40.0 ms", "3.2×"]),
        (3 * GiB, 3 * GiB, "bytes", ["3.00 GiB", "3.00 GiB", "right"]),
        (None, 3.0, "ms", ["3.00 ms", "no prediction"]),
        (..., 3.0, "ms", ["3.00 ms", "no prediction"]),
        (None, None, "ms", ["Nothing"]),
        (0, 3.0, "ms", ["0.00 ms", "3.00 ms", "3.00 ms"]),
        (3.0, -1.0, "MiB", ["3 MiB", "-1 MiB", "4 MiB"]),
        (-1, 3.0, "ms", ["3.00 ms", "below 0"]),
        ("3 GiB", GiB, "bytes", ["1.00 GiB", "'3 GiB'", "a number"]),
        (True, 3.0, "ms", ["3.00 ms", "True", "a number"]),
        (math.nan, 3.0, "ms", ["3.00 ms", "nan", "a number"]),
        (np.int64(2), 4.0, "ms", ["2.00 ms", "4.00 ms", "2.0×"]),
        (10, 12.5, "times slower", ["10 times slower", "12.5 times slower", "1.25×"]),
    ],
)
def test_a_prediction_stands_before_what_was_found(predicted: Any, found: Any, unit: str, said: list[str]) -> None:
    text = compare(predicted, found, unit=unit)
    for part in said:
        assert part in text, text
        text = text.split(part, 1)[1]


def test_what_was_found_is_said_with_how() -> None:
    assert "computed" in compare(1.0, 2.0, how="computed") and "measured" not in compare(1.0, 2.0, how="computed")


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        (None, "no prediction"),
        ("V", "right"),
        ("v ", "right"),
        ("K", "wrong"),
        ("both", "'K', 'V'"),
        (3, "'K', 'V'"),
    ],
)
def test_a_predicted_word_is_one_of_the_choices(predicted: object, said: str) -> None:
    text = compare(predicted, "V", choices=("K", "V"))
    assert "'V'" in text and said in text
