"""What holds of every lab's exercises; what is right and which mistakes are named is tested lab by lab."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.course import exercises, offers

NONSENSE: dict[str, Any] = {
    "text": "much",
    "list": [],
    "True": True,
    "-1": -1,
    "0": 0,
    "nan": float("nan"),
    "function": lambda *arguments: "much",
}


@pytest.mark.parametrize("name", offers.names("exercises"))
@pytest.mark.parametrize("answer", [None, ..., lambda *arguments: None], ids=["None", "dots", "empty function"])
def test_an_open_answer_is_not_attempted(name: str, answer: Any) -> None:
    verdict = getattr(exercises, name)(answer)
    if callable(answer) and verdict.state == "wrong":
        assert "asked for" in verdict.text, "this exercise wants no function"
    else:
        assert verdict.state == "not attempted" and verdict.text


@pytest.mark.parametrize("name", offers.names("exercises"))
@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_wrong_and_raises_nothing(name: str, answer: Any) -> None:
    verdict = getattr(exercises, name)(answer)
    assert verdict.state == "wrong" and verdict.text and not verdict


@pytest.mark.parametrize("name", offers.names("exercises"))
def test_a_check_says_what_it_asks_for(name: str) -> None:
    assert (getattr(exercises, name).__doc__ or "").startswith("Lab 0")
