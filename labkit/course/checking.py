"""How answers are judged: not attempted, wrong (with what was expected and which mistake leads there), or right.

A slip is a usual mistake: a sentence that names it, and the answer that it leads to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from labkit.units import GiB, KiB, MiB, fmt_bytes, fmt_ms, times

Slip = float | Callable[[float], bool]
"""The number that a mistake leads to, or a function that knows such numbers."""

DOTS = "put your answer in place of the three dots."


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
    """A prediction and what was found, in one sentence.

    Args:
        predicted: the learner's; None or ``...`` if there is none.
        found: a number, or one of ``choices``; None if nothing was found.
        unit: of numbers: ``ms``, ``tokens/s``, ``bytes`` or a word.
        how: how the figure was found: ``measured``, ``computed``, ``planned by llama.cpp``.
        choices: words of which the learner was to choose one.
    """
    if found is None:
        return f"Nothing was {how}, so there is nothing to compare."
    said = repr(found) if isinstance(found, str) else _say(found, unit)
    alone = f"{how[0].upper()}{how[1:]}: {said}."
    if is_open(predicted):
        return f"{alone} You made no prediction; set one above and run this again."
    if isinstance(found, str):
        word = predicted.strip().lower() if isinstance(predicted, str) else ""
        if word not in (choice.lower() for choice in choices):
            return f"{alone} {predicted!r} is not among {', '.join(map(repr, choices))}: choose one of these."
        return f"You predicted {predicted!r}, {how} {said}: {'right' if word == found.lower() else 'wrong'}."
    if not is_number(predicted):
        return f"{alone} Your prediction is {predicted!r}; write a number."
    if predicted < 0:
        return f"{alone} A prediction must not be below 0."
    if predicted == found:
        return f"You predicted {_say(predicted, unit)}, {how} {said}: right."
    off = times(predicted, found) if predicted > 0 and found > 0 else _say(abs(predicted - found), unit)
    return f"You predicted {_say(predicted, unit)}, {how} {said}: off by {off}."


def _say(value: float, unit: str) -> str:
    """A number with its unit, in three figures."""
    match unit:
        case "ms":
            return fmt_ms(value)
        case "bytes":
            return fmt_bytes(value)
        case _:
            return f"{value:.3g} {unit}"


def check_number(answer: Any, *, right: float, unit: str, slips: Mapping[str, Slip], within: float = 0.0) -> Verdict:
    """Judge a number.

    Args:
        answer: the learner's.
        right: the number expected.
        unit: of both: ``bytes``, ``ms`` or a word.
        slips: usual mistakes. The first one that leads to the answer is named.
        within: how far a number may be off, as a share of the one expected; 0: it must be equal.
    """
    if is_open(answer):
        return Verdict("not attempted", DOTS)
    if not is_number(answer):
        return Verdict("wrong", f"your answer is a {type(answer).__name__}; a number is asked for.")
    answer = float(answer)
    if _close(answer, right, within):
        return Verdict("right", _exact(right, unit) + ".")
    slip = _first(slips, lambda leads: leads(answer) if callable(leads) else _close(answer, leads, within))
    return wrong(f"yours is {_exact(answer, unit)}", _exact(right, unit), slip)


def check_function(
    answer: Any,
    *,
    right: Callable[..., Any],
    cases: Sequence[tuple[Any, ...]],
    slips: Mapping[str, Callable[..., Any]],
    same: Callable[[Any, Any], bool] | None = None,
    within: float = 0.0,
    unit: str = "",
    case: Callable[..., str] | None = None,
    result: Callable[[Any], str] | None = None,
) -> Verdict:
    """Judge a function by what it returns.

    Args:
        answer: the learner's; it may raise anything.
        right: the function expected.
        cases: the arguments of each call.
        slips: usual mistakes, as functions. The first one that returns what the answer returns is named.
        same: whether two results are equal. If it raises, they are not. By default they must be numbers, equal or
            ``within`` a share.
        within: as for ``check_number``.
        unit: of the results.
        case: the arguments of a call as text; by default they are listed.
        result: a result as text; by default a number with its unit.
    """
    if is_open(answer):
        return Verdict("not attempted", "write the function first.")
    if not callable(answer):
        return Verdict("wrong", f"your answer is a {type(answer).__name__}; a function is asked for.")
    try:
        results = [answer(*one) for one in cases]
    except Exception as error:  # the learner's own code may raise anything
        return Verdict("wrong", f"your function raised {type(error).__name__}: {error}.")
    if all(map(is_open, results)):
        return Verdict("not attempted", "your function returns nothing yet.")

    def equal(mine: Any, theirs: Any) -> bool:
        try:
            return bool(is_number(mine) and _close(mine, theirs, within) if same is None else same(mine, theirs))
        except Exception:  # a result may be anything, and many things cannot be compared
            return False

    def text(value: Any) -> str:
        if result is not None:
            return result(value)
        return _exact(value, unit).rstrip() if is_number(value) else repr(value)

    expected = [right(*one) for one in cases]
    if all(map(equal, results, expected)):
        return Verdict("right", f"all {len(cases)} cases.")
    slip = _first(slips, lambda leads: all(map(equal, results, (leads(*one) for one in cases))))
    at = next(n for n, pair in enumerate(zip(results, expected, strict=True)) if not equal(*pair))
    arguments = case(*cases[at]) if case else f"({', '.join(map(str, cases[at]))})"
    return wrong(f"for {arguments} yours is {text(results[at])}", text(expected[at]), slip)


def check_values(answer: Any, *, right: Mapping[str, float], slips: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge a dict of numbers; only the names in ``right`` count."""
    if is_open(answer) or (isinstance(answer, dict) and all(map(is_open, answer.values()))):
        return Verdict("not attempted", DOTS)
    if not isinstance(answer, Mapping):
        return Verdict("wrong", f"your answer is a {type(answer).__name__}; a dict of name and number is asked for.")
    missing = [name for name in right if not is_number(answer.get(name))]
    if missing:
        return Verdict("wrong", f"there is no number yet for {', '.join(missing)}.")
    mine = {name: float(answer[name]) for name in right}
    bad = [name for name in right if mine[name] != right[name]]
    if not bad:
        return Verdict("right", f"all {len(right)}.")
    # A mistake may lead to the right number for some names, so it is compared where the answer is wrong.
    slip = _first(slips, lambda leads: all(mine[name] == leads[name] for name in bad))
    return wrong(f"{bad[0]} is {mine[bad[0]]:g} in yours", f"{right[bad[0]]:g}", slip)


def wrong(mine: str, expected: str, slip: str | None = None) -> Verdict:
    """The verdict on a wrong answer.

    Args:
        mine: what the answer is, as a clause.
        expected: what it should be.
        slip: the mistake that leads to it, as a clause; None if none is known.
    """
    return Verdict("wrong", f"{mine}, expected {expected}" + (f"; {slip}." if slip else "."))


def near(value: float, within: float) -> Slip:
    """A slip that leads to a number which the learner may have rounded.

    Args:
        within: how far it may be off, as a share of ``value``.
    """
    return lambda answer: _close(answer, value, within)


def byte_slips(right: float) -> dict[str, Slip]:
    """The slips of unit where bytes are asked for."""
    return {
        "those are bits: 8 of them are a byte": right * 8,
        "that is KiB, not bytes": right / KiB,
        "that is MiB, not bytes": right / MiB,
        "that is GiB, not bytes": right / GiB,
    }


def is_open(answer: Any) -> bool:
    """Whether nothing was answered yet."""
    return answer is None or answer is ...


def is_number(value: Any) -> bool:
    """Whether this is a number of any kind that Python or numpy has, but no truth value, infinity or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _exact(value: float, unit: str) -> str:
    """A number with its unit: bytes as they are and in a larger unit, thousands marked."""
    if unit == "bytes":
        return f"{value:,.0f} bytes ({fmt_bytes(value)})"
    if unit != "ms" and abs(value) >= 1000:
        return f"{value:,.0f} {unit}" if float(value).is_integer() else f"{value:,.2f} {unit}"
    return _say(value, unit)


def _close(a: float, b: float, within: float) -> bool:
    """Whether two numbers are equal, or differ by at most a share of the second."""
    return a == b if within == 0 else abs(a - b) <= within * abs(b)


def _first(slips: Mapping[str, Any], leads_there: Callable[[Any], bool]) -> str | None:
    """The name of the first slip that explains the answer."""
    return next((text for text, leads in slips.items() if leads_there(leads)), None)
