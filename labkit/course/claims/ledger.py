"""The claims themselves, and what can become of one. Data only: ``claims`` runs the checks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from labkit.files import data_path

Figure = float | int | str

OPEN = "open"
SYMBOLS = {
    "confirmed": "✓",
    "roughly right": "≈",
    "misleading": "◐",
    "wrong": "✗",
    "depends on machine": "◇",
    OPEN: "?",
}


@dataclass(frozen=True)
class Claim:
    """One claim, in our words; ``expected`` is what its check should find, ``lab`` the one that settles it."""

    id: str
    topic: str
    source: tuple[str, ...]
    claim: str
    finding: str
    expected: str
    settled_by: str
    lab: str
    option: str
    conflicts_with: tuple[str, ...]


@dataclass(frozen=True)
class Settled:
    """What became of a claim.

    Attributes:
        verdict: a key of ``SYMBOLS``.
        evidence: one sentence with the figures that decided.
        figures: the same as numbers, the unit in the name.
        machine: where it was found, in a few words.
        date: when, as 2026-01-31.
        source: ``measured here``, ``computed``, ``recorded on MACHINE on DATE``, ``recorded from SOURCE`` (published
            figures that this project took over), or ``not settled here: REASON``.
    """

    id: str
    verdict: str
    evidence: str
    figures: dict[str, Figure] = field(default_factory=dict)
    machine: str = ""
    date: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in SYMBOLS:
            raise ValueError(f"{self.verdict!r} is not a verdict: choose one of {', '.join(SYMBOLS)}.")

    @property
    def surprise(self) -> str:
        """``expected X, found Y`` where the figures contradict what was expected, else empty."""
        expected = get(self.id).expected
        return "" if self.verdict in (OPEN, expected) else f"expected {expected}, found {self.verdict}"


@cache
def _ledger() -> dict[str, Claim]:
    rows = json.loads(data_path("claims.json").read_text(encoding="utf-8"))["claims"]
    return {row["id"]: Claim(**{key: _frozen(value) for key, value in row.items()}) for row in rows}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def all() -> tuple[Claim, ...]:
    """Every claim, in order."""
    return tuple(_ledger().values())


def get(identifier: str) -> Claim:
    """One claim by its id, such as ``C001``.

    Raises:
        ValueError: there is none.
    """
    found = _ledger().get(identifier.upper())
    if found is None:
        raise ValueError(f"there is no claim {identifier!r}: ids run from {all()[0].id} to {all()[-1].id}.")
    return found
