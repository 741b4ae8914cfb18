"""How answers are judged: not attempted, wrong (with what was expected and which slip leads there), or right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from labkit.units import fmt_bytes, fmt_ms, times


@dataclass(frozen=True)
class Verdict:
    """What a check found: ``state`` is ``not attempted``, ``wrong`` or ``right``."""

    state: str
    text: str

    def __bool__(self) -> bool:
        return self.state == "right"

    def __repr__(self) -> str:
        return f"{self.state}: {self.text}" if self.text else self.state


def compare(
    predicted: Any,
    found: float | str | None,
    *,
    unit: str = "ms",
    how: str = "measured",
    choices: Sequence[str] = (),
) -> str:
    """One sentence: a prediction beside what was found.

    Args:
        predicted: the learner's own; None if there is none.
        found: a number, or one of ``choices``.
        unit: of numbers: ``ms``, ``tokens/s``, ``bytes`` or a word.
        how: it was found: ``measured``, ``computed``, ``planned by llama.cpp``.
        choices: words among which the learner was to choose.
    """
    if found is None:
        return f"Nothing was {how}, so there is nothing to compare."
    said = repr(found) if isinstance(found, str) else _say(found, unit)
    alone = f"{how[0].upper()}{how[1:]}: {said}."
    if predicted is None or predicted is ...:
        return f"{alone} You made no prediction; set one above and run this again."
    if isinstance(found, str):
        word = predicted.strip().lower() if isinstance(predicted, str) else ""
        if word not in (choice.lower() for choice in choices):
            return f"{alone} {predicted!r} is not among {', '.join(map(repr, choices))}: choose one of these."
        return f"You predicted {predicted!r}, {how} {said}: {'right' if word == found.lower() else 'not so'}."
    if not _is_number(predicted):
        return f"{alone} Your prediction is {predicted!r}; write a number."
    if predicted < 0:
        return f"{alone} A prediction must not be below 0."
    if predicted == found:
        return f"You predicted {_say(predicted, unit)}, {how} {said}: right."
    off = times(predicted, found) if predicted > 0 and found > 0 else _say(abs(predicted - found), unit)
    return f"You predicted {_say(predicted, unit)}, {how} {said}: off by {off}."


def _is_number(value: Any) -> bool:
    """Of any kind that Python or numpy has, but no truth value, infinity or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _say(value: float, unit: str) -> str:
    match unit:
        case "ms":
            return fmt_ms(value)
        case "bytes":
            return fmt_bytes(value)
        case _:
            return f"{value:.3g} {unit}"


def check_number(answer: Any, *, right: float, unit: str, slips: Mapping[str, float], within: float = 0.0) -> Verdict:
    if answer is None or answer is ...:
        return Verdict("not attempted", "put your answer in place of the three dots.")
    if not _is_number(answer):
        return Verdict("wrong", f"your answer is a {type(answer).__name__}; a number is asked for.")
    answer = float(answer)
    if _close(answer, right, within):
        return Verdict("right", _exact(right, unit) + ".")
    slip = next((text for text, value in slips.items() if _close(answer, value, within)), None)
    reason = f"; {slip}." if slip else "."
    return Verdict("wrong", f"yours is {_exact(answer, unit)}, expected {_exact(right, unit)}{reason}")


def _exact(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value:,.0f} bytes ({fmt_bytes(value)})"
    if unit != "ms" and abs(value) >= 1000:
        return f"{value:,.0f} {unit}" if float(value).is_integer() else f"{value:,.2f} {unit}"
    return _say(value, unit)


def _close(a: float, b: float, within: float) -> bool:
    return a == b if within == 0 else abs(a - b) <= within * abs(b)


def check_function(
    answer: Any,
    *,
    right: Callable[..., Any],
    cases: tuple[tuple[Any, ...], ...],
    slips: Mapping[str, Callable[..., Any]],
    same: Callable[[Any, Any], bool] = lambda mine, theirs: _is_number(mine) and bool(mine == theirs),
    show: Callable[[Any], str] = repr,
) -> Verdict:
    if answer is None or answer is ...:
        return Verdict("not attempted", "write the function first.")
    if not callable(answer):
        return Verdict("wrong", f"your answer is a {type(answer).__name__}; a function is asked for.")
    try:
        results = [answer(*case) for case in cases]
    except Exception as error:  # the learner's own code may do anything
        return Verdict("wrong", f"your function raised {type(error).__name__}: {error}.")
    if all(result is None or result is ... for result in results):
        return Verdict("not attempted", "your function returns nothing yet.")
    expected = [right(*case) for case in cases]
    if all(map(same, results, expected)):
        return Verdict("right", f"all {len(cases)} cases.")
    slip = next((text for text, wrong in slips.items() if all(map(same, results, (wrong(*c) for c in cases)))), None)
    case, mine, theirs = next(row for row in zip(cases, results, expected, strict=True) if not same(row[1], row[2]))
    reason = f"; {slip}." if slip else "."
    return Verdict("wrong", f"for {show(case)} yours is {show(mine)}, expected {show(theirs)}{reason}")


def check_values(answer: Any, *, right: Mapping[str, float], slips: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge a dict of numbers; only the names in ``right`` count."""
    if (
        answer is None
        or answer is ...
        or (isinstance(answer, dict) and all(v is None or v is ... for v in answer.values()))
    ):
        return Verdict("not attempted", "put your answer in place of the three dots.")
    if not isinstance(answer, Mapping):
        return Verdict("wrong", f"your answer is a {type(answer).__name__}; a dict of name and number is asked for.")
    missing = [name for name in right if not _is_number(answer.get(name))]
    if missing:
        return Verdict("wrong", f"there is no number yet for {', '.join(missing)}.")
    mine = {name: float(answer[name]) for name in right}
    bad = [name for name in right if mine[name] != right[name]]
    if not bad:
        return Verdict("right", f"all {len(right)}.")
    # A slip may agree with the truth for some names, so it is compared where the answer is wrong.
    slip = next((text for text, wrong in slips.items() if all(mine[name] == wrong[name] for name in bad)), None)
    name = bad[0]
    reason = f"; {slip}." if slip else "."
    return Verdict("wrong", f"{name} is {mine[name]:g} in yours, expected {right[name]:g}{reason}")
