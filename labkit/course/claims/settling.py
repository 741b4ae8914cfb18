"""Run the checks of claims on this computer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from labkit.course.claims.bench import Bench
from labkit.course.claims.ledger import OPEN, Claim, Settled, get
from labkit.course.claims.rules import checks
from labkit.course.claims.unsettled import Unsettled
from labkit.experiments.run import Run
from labkit.progress import bar
from labkit.system.machine import machine
from labkit.units import fmt_bytes


def settle(*ids: str, using: Iterable[Run] = (), bench: Bench | None = None) -> tuple[Settled, ...]:
    """Run the checks of claims on this computer.

    Args:
        ids: such as ``"C001"``.
        using: runs that may serve; what is missing is measured once for all the claims of this call.
        bench: where figures come from; by default a new ``Bench(using)``.

    Returns:
        One ``Settled`` each, in the order asked for; ``open``, with the reason, where there are no figures.

    Raises:
        ValueError: there is no such claim.
        Interrupted: Ctrl-C.
    """
    claims = [get(identifier) for identifier in ids]
    source = bench or Bench(using)
    settled = []
    with bar("settling claims") as shown:
        for number, claim in enumerate(claims):

            def tell(share: float, text: str, number: int = number, claim: Claim = claim) -> None:
                shown((number + share) / len(claims), f"{claim.id}, {text}")

            tell(0.0, "looking")
            source.progress = tell
            settled.append(_settle(claim, source))
    return tuple(settled)


def _settle(claim: Claim, bench: Bench) -> Settled:
    """What the check of one claim found, and where its figures come from."""
    where: dict[str, Any] = {"machine": _label(machine().to_dict()), "date": date.today().isoformat()}
    bench.begin()
    try:
        if claim.id not in checks():
            raise Unsettled(f"lab {claim.lab} settles it")
        found = checks()[claim.id](bench)
    except Unsettled as reason:
        return Settled(claim.id, OPEN, f"Not settled here: {reason}.", source=f"not settled here: {reason}", **where)
    how = "measured here" if bench.used or bench.looked else ""
    elsewhere = next((run for run in bench.used if run.recorded), None)
    if elsewhere is not None and elsewhere.recorded:
        where = {"machine": _label(elsewhere.machine), "date": str(elsewhere.recorded["date"])}
        how = f"recorded on {where['machine']} on {where['date']}"
    cited = f"recorded from {bench.cited}" if bench.cited else ""
    source = " and ".join(filter(None, (how, cited))) or "computed"
    return Settled(claim.id, found.verdict, found.evidence, found.figures, source=source, **where)


def _label(values: Mapping[str, Any]) -> str:
    """A machine in a few words."""
    limit = values.get("limit_bytes")
    words = [values.get("cpu_name") or values.get("system") or "unknown", f"{values.get('cores', '?')} cores"]
    return ", ".join([*words, fmt_bytes(limit)] if limit else words)
