"""A table of claims and verdicts, as text and as HTML."""

from __future__ import annotations

import html
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from labkit.course.claims.ledger import OPEN, SYMBOLS, Settled, get
from labkit.course.claims.rules import rule


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


def report(settled: Iterable[Settled]) -> Report:
    """A table to print or to leave as a cell's last value."""
    return Report(tuple(settled))


def _text_row(row: Settled) -> str:
    """The lines of one claim: its id and verdict on the left, claim and evidence wrapped on the right."""
    texts = [get(row.id).claim, f"{row.evidence} [{row.source}]" if _has_source(row) else row.evidence]
    if row.surprise:
        texts.append(f"{row.surprise[0].upper()}{row.surprise[1:]}.")
    width = max(40, shutil.get_terminal_size((100, 24)).columns - 29)
    lines = [line for text in texts if text for line in textwrap.wrap(text, width, break_on_hyphens=False)]
    left = [f"{row.id}  {_verdict(row):<22}"] + [" " * 28] * (len(lines) - 1)
    return "\n".join(f"{a}{b}" for a, b in zip(left, lines, strict=True))


def _html_row(row: Settled) -> str:
    """One claim as a row; its verdict shows the rule when pointed at."""
    source = f' <span style="color:gray">{html.escape(row.source)}</span>' if _has_source(row) else ""
    surprise = f"<br><i>{row.surprise}</i>" if row.surprise else ""
    cells = (
        row.id,
        html.escape(get(row.id).claim),
        f'<span style="white-space:nowrap" title="{html.escape(rule(row.id))}">{_verdict(row)}</span>{surprise}',
        html.escape(row.evidence) + source,
    )
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def _verdict(row: Settled) -> str:
    """The verdict after its symbol."""
    return f"{SYMBOLS[row.verdict]} {row.verdict}"


def _has_source(row: Settled) -> bool:
    """Whether the source says more than the evidence does."""
    return row.verdict != OPEN and bool(row.source)
