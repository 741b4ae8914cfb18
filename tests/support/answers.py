"""Judge answers to an exercise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.course.checking import Verdict

Check = Callable[[Any], Verdict]


def assert_judged(check: Check, answer: Any, said: str | None) -> None:
    """The answer is right if ``said`` is None, and else wrong, with these words among the reasons."""
    verdict = check(answer)
    assert verdict.state == ("right" if said is None else "wrong"), verdict
    assert said is None or said in verdict.text, verdict
