"""Options looked up in llama.cpp's installed libraries, and how to tell of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.course.claims.ledger import Figure

if TYPE_CHECKING:
    from labkit.course.claims.bench import Bench


def look_up(bench: Bench, *names: str) -> dict[str, bool]:
    """Whether llama.cpp's command-line tools know each option or environment variable.

    Raises:
        Unsettled: see ``Bench.has_option``.
    """
    bench.looked = True
    return {name: bench.has_option(name) for name in names}


def listing(known: dict[str, bool]) -> str:
    """The same in words."""
    return ", ".join(f"{name} {'is there' if there else 'is not there'}" for name, there in known.items())


def as_figures(known: dict[str, bool]) -> dict[str, Figure]:
    """The same as figures of a ``Settled``."""
    return {name.lstrip("-").replace("-", "_").lower(): "yes" if there else "no" for name, there in known.items()}
