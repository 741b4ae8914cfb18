"""What holds for the checks of every lab's claims."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from labkit.course import claims


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
