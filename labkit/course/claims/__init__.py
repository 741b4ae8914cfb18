"""The claim ledger: what articles say about memory and large models, and what this computer says to that.

settled = claims.settle("C001", "C002", using=runs)
claims.record(settled)
claims.report(settled)
"""

from __future__ import annotations

import html
import json
import os
import shutil
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from labkit.course import offers
from labkit.course.claims.bench import Bench
from labkit.course.claims.ledger import OPEN, SYMBOLS, Claim, Settled, all, get
from labkit.course.claims.unsettled import Unsettled
from labkit.experiments.run import Run
from labkit.models.forge import models_dir
from labkit.progress import bar
from labkit.system.machine import machine
from labkit.units import fmt_bytes

__all__ = [
    "SYMBOLS",
    "Claim",
    "Report",
    "Settled",
    "all",
    "command",
    "get",
    "record",
    "recorded",
    "records_path",
    "report",
    "rule",
    "settle",
    "settle_lab",
]

SCHEMA = 1


@cache
def checks() -> dict[str, Callable[[Bench], Any]]:
    """The check of each claim that has one, by its id, from the labs' folders."""
    return {name: check for lab in offers.modules("claims") for name, check in lab.CHECKS.items()}


@dataclass(frozen=True)
class Report:
    """A table of claims and verdicts: text when printed, HTML in a notebook."""

    rows: tuple[Settled, ...]

    def __str__(self) -> str:
        return "\n".join(_text_row(row) for row in self.rows)

    __repr__ = __str__

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """The table for a notebook; only counts as text, or the notebook would hold everything twice."""
        counts = Counter(row.verdict for row in self.rows)
        text = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
        return {"text/html": self._repr_html_(), "text/plain": f"{len(self.rows)} claims: {text}; print it for all."}

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in ("id", "claim", "verdict", "evidence"))
        return f"<table><tr>{head}</tr>{''.join(_html_row(row) for row in self.rows)}</table>"


def settle(*ids: str, using: Iterable[Run] = (), bench: Bench | None = None) -> tuple[Settled, ...]:
    """Run the checks of claims on this computer.

    Args:
        ids: such as ``"C001"``.
        using: runs that may serve; what is missing is measured once for all the claims of this call.
        bench: where figures come from; by default a new ``Bench(using)``.

    Returns:
        One ``Settled`` each, in the order asked for; ``open``, with the reason, where the figures cannot be had.

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


def _settle(claim: Claim, bench: Bench) -> Settled:
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


def _label(values: Any) -> str:
    """A machine in a few words."""
    limit = values.get("limit_bytes")
    words = [values.get("cpu_name") or values.get("system") or "unknown", f"{values.get('cores', '?')} cores"]
    return ", ".join([*words, fmt_bytes(limit)] if limit else words)


def rule(identifier: str) -> str:
    """How the check of a claim decides, in a few sentences; empty if there is no check."""
    check = checks().get(identifier)
    return " ".join((check.__doc__ or "").split()) if check else ""


def report(settled: Iterable[Settled]) -> Report:
    """A table to print or to leave as a cell's last value."""
    return Report(tuple(settled))


def _text_row(row: Settled) -> str:
    claim = get(row.id)
    verdict = f"{SYMBOLS[row.verdict]} {row.verdict}"
    texts = [claim.claim, f"{row.evidence} [{row.source}]" if _has_source(row) else row.evidence]
    if row.surprise:
        texts.append(f"{row.surprise[0].upper()}{row.surprise[1:]}.")
    width = max(40, shutil.get_terminal_size((100, 24)).columns - 29)
    lines = [line for text in texts if text for line in textwrap.wrap(text, width, break_on_hyphens=False)]
    left = [f"{row.id}  {verdict:<22}"] + [" " * 28] * (len(lines) - 1)
    return "\n".join(f"{a}{b}" for a, b in zip(left, lines, strict=True))


def _html_row(row: Settled) -> str:
    claim = get(row.id)
    verdict = f"{SYMBOLS[row.verdict]} {row.verdict}"
    source = f' <span style="color:gray">{html.escape(row.source)}</span>' if _has_source(row) else ""
    surprise = f"<br><i>{row.surprise}</i>" if row.surprise else ""
    cells = (
        row.id,
        html.escape(claim.claim),
        f'<span style="white-space:nowrap" title="{html.escape(rule(row.id))}">{verdict}</span>{surprise}',
        html.escape(row.evidence) + source,
    )
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def _has_source(row: Settled) -> bool:
    """Whether the source says more than the evidence does."""
    return row.verdict != OPEN and bool(row.source)


def records_path() -> Path:
    """Where verdicts are kept: ``claims.json`` in $LABKIT_HOME, or in ~/.cache/labkit."""
    return models_dir().parent / "claims.json"


def record(settled: Iterable[Settled]) -> Path:
    """Keep verdicts; a newer one replaces an older, but ``open`` replaces nothing.

    Raises:
        OSError: the file cannot be written.
    """
    kept = recorded()
    for row in settled:
        if row.verdict != OPEN or row.id not in kept:
            kept[row.id] = row
    path = records_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"schema": SCHEMA, "claims": [asdict(kept[key]) for key in sorted(kept)]}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def recorded() -> dict[str, Settled]:
    """The verdicts kept on this computer, by id. A damaged file is left out, with a warning."""
    path = records_path()
    known, ids = {item.name for item in fields(Settled)}, {claim.id for claim in all()}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        rows = [{key: value for key, value in row.items() if key in known} for row in values["claims"]]
        return {row["id"]: Settled(**row) for row in rows if row["id"] in ids}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError):
        warnings.warn(f"{path} is damaged, so the verdicts in it are left out: settle the claims again.", stacklevel=2)
        return {}


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
