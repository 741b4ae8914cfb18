"""What a check of a claim returns, and its figures as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.course.claims.ledger import Figure
from labkit.units import fmt_bytes, fmt_ms

if TYPE_CHECKING:
    from labkit.course.claims.bench import Bench


@dataclass(frozen=True)
class Finding:
    """What a check found: the verdict, one sentence with the figures that decided, and these figures by name."""

    verdict: str
    evidence: str
    figures: dict[str, Figure]


Check = Callable[["Bench"], Finding]


class Figures:
    """The figures of one finding, kept where its sentence shows them, so that each is written once.

    With ``show = Figures()``, ``f"{show(kv_bytes=4096)}"`` is ``4.00 KiB``, in the unit that the name ends with, and
    ``show.values["kv_bytes"]`` is 4096. A format specification replaces the unit: ``f"{show(saved_share=0.25):.1%}"``.
    """

    def __init__(self) -> None:
        self.values: dict[str, Figure] = {}

    def __call__(self, **figure: Figure) -> Shown:
        """Keep one figure, and return it for the sentence."""
        ((name, value),) = figure.items()
        self.keep(**figure)
        return Shown(name, value)

    def finding(self, verdict: str, evidence: str) -> Finding:
        """What the check found, with the figures that were kept."""
        return Finding(verdict, evidence, self.values)

    def keep(self, **figures: Figure) -> None:
        """Keep figures that the sentence does not show, or shows in another way; a truth value as yes or no."""
        self.values |= {name: _yes(value) if isinstance(value, bool) else value for name, value in figures.items()}


@dataclass(frozen=True)
class Shown:
    """A figure that is text in a sentence."""

    name: str
    value: Figure

    def __str__(self) -> str:
        return in_unit(self.name, self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)


def in_unit(name: str, value: Figure) -> str:
    """A figure as text, in the unit that its name ends with.

    Bytes in KiB, MiB or GiB; times in ms or s; a share in per cent, below 1 % with two decimals. Whole numbers have
    commas from 10,000 on. Text stays as it is.
    """
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        return fmt_bytes(value)
    if name.endswith("_bytes_per_s"):
        return f"{fmt_bytes(value)}/s"
    if name.endswith(("_ms", "_s")):
        return fmt_ms(value if name.endswith("_ms") else 1000 * value)
    if name.endswith("_share"):
        return f"{value:.0%}" if value == 0 or abs(value) >= 0.01 else f"{value:.2%}"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if abs(value) >= 10_000 else str(value)


def sentence(clause: str) -> str:
    """A clause as the beginning of a sentence."""
    return clause[0].upper() + clause[1:]


def joined(texts: Iterable[str], last: str = "and") -> str:
    """Texts in one phrase: ``a, b and c``."""
    *most, end = texts
    return f"{', '.join(most)} {last} {end}" if most else end


def _yes(value: bool) -> str:
    return "yes" if value else "no"
