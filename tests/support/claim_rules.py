"""What holds for the checks of every lab's claims, and a bench for worlds that are told instead of measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from labkit.course import claims
from labkit.course.claims.bench import Bench, Part
from labkit.experiments.run import Run


def never(model: str, **how: Any) -> Run:
    """A stand-in for ``measure`` where no run may be missing."""
    raise AssertionError(f"a run of {model} with {how} is missing, and must not be measured")


class ToldBench(Bench):
    """A bench that measures nothing; a subclass overrides what its world shows.

    Attributes:
        told: for a lab's ``Part``, the subclass that takes its place.
    """

    told: ClassVar[Mapping[type[Part], type[Part]]] = {}

    def __init__(self, *runs: Run) -> None:
        super().__init__(runs, measure=never)

    def part(self, kind: type[Any]) -> Any:
        return super().part(self.told.get(kind, kind))


def assert_follows(found: Any, verdict: str) -> None:
    """A finding has this verdict, a sentence with a figure as evidence, and figures that JSON can hold."""
    assert found.verdict == verdict, found.evidence
    assert found.evidence.endswith(".") and any(letter.isdigit() for letter in found.evidence)
    assert found.figures and json.dumps(found.figures, allow_nan=False)


def assert_can_say_more_than_one_thing(lab: str, checks: Mapping[str, Any], cases: Iterable[Any]) -> None:
    """Each claim of the lab has a check; its first case is the expected verdict, and its rule names every verdict."""
    assert list(checks) == [claim.id for claim in claims.all() if claim.lab == lab]
    cases = list(cases)
    for name in checks:
        verdicts = [case.verdict for case in cases if case.id == name]
        assert verdicts[0] == claims.get(name).expected
        assert len(set(verdicts)) >= 2
        for verdict in verdicts:
            assert verdict in claims.rule(name).lower(), f"the rule of {name} does not say when it is {verdict}"


def assert_stays_open(row: Any, reason: str) -> None:
    """A claim is not settled, for this reason."""
    assert row.verdict == "open" and reason in row.source and row.source.startswith("not settled here: ")
    assert not row.surprise
