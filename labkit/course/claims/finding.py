"""What a check of a claim returns, and its figures as text."""

from __future__ import annotations

from collections.abc import Callable
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
    """Figures for a ``Finding``: each is written once, and its name says in which unit the sentence shows it.

    ``n = Figures(kv_bytes=4096)`` makes ``n.values["kv_bytes"]`` 4096 and ``f"{n.kv_bytes}"`` the text ``4.00 KiB``. A
    format specification replaces the unit's own, as in ``f"{n.saved_share:.1%}"``.

    Raises:
        AttributeError: there is no figure of that name.
    """

    def __init__(self, **values: Figure) -> None:
        self.values = values

    def __getattr__(self, name: str) -> _Shown:
        values: dict[str, Figure] = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(f"there is no figure {name!r}")
        return _Shown(name, values[name])


@dataclass(frozen=True)
class _Shown:
    name: str
    value: Figure

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else in_unit(self.name, self.value)


def in_unit(name: str, value: Figure) -> str:
    """A figure as text, in the unit that its name ends with.

    Bytes in KiB, MiB or GiB; times in ms or s; a share in per cent, below 1 % with two decimals. Other numbers have a
    comma from 10,000 on. Text stays as it is.
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
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
