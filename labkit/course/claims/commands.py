"""What a lab's last cell and ``labkit claims`` do: settle claims, keep the verdicts and show them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from labkit.course.claims.bench import Bench
from labkit.course.claims.ledger import OPEN, Settled, all, get
from labkit.course.claims.records import record, recorded
from labkit.course.claims.rules import rule
from labkit.course.claims.settling import settle
from labkit.course.claims.tables import Report, report
from labkit.experiments.run import Run


def settle_lab(lab: str, *, using: Iterable[Run] = (), bench: Bench | None = None) -> Report:
    """Settle all claims of one lab, keep the verdicts, and show them.

    Args:
        lab: its two digits, such as ``"01"``.
        using, bench: as for ``settle``.

    Raises:
        ValueError: no claim belongs to that lab.
        OSError: the verdicts cannot be kept.
    """
    ids = [claim.id for claim in all() if claim.lab == lab]
    if not ids:
        raise ValueError(f"no claim is settled by lab {lab!r}: write its two digits, as in 01.")
    rows = settle(*ids, using=using, bench=bench)
    record(rows)
    return Report(rows)


def command(ids: Sequence[str], *, topic: str | None = None, as_json: bool = False) -> int:
    """``labkit claims``: settle and record the named claims, or list all with what was recorded.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: there is no such claim or topic.
    """
    topics = sorted({claim.topic for claim in all()})
    if topic is not None and topic not in topics:
        raise ValueError(f"there is no topic {topic!r}: choose one of {', '.join(topics)}.")
    chosen = [get(identifier) for identifier in ids] or list(all())
    chosen = [claim for claim in chosen if topic in (None, claim.topic)]
    if ids:
        rows = settle(*(claim.id for claim in chosen))
        record(rows)
    else:
        known = recorded()
        rows = tuple(known.get(c.id) or Settled(c.id, OPEN, f"Lab {c.lab} settles it.") for c in chosen)
    if as_json:
        print(json.dumps([_contract(row) for row in rows], indent=2))
    else:
        encoding = sys.stdout.encoding or "utf-8"  # an old Windows terminal has no check mark
        print(str(report(rows)).encode(encoding, "replace").decode(encoding))
    return 0


def _contract(row: Settled) -> dict[str, Any]:
    """A row of ``labkit claims --json``."""
    claim = get(row.id)
    about = {"topic": claim.topic, "lab": claim.lab, "claim": claim.claim, "expected": claim.expected}
    return {**asdict(row), **about, "rule": rule(row.id)}
