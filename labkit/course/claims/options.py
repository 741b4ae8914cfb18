"""Options looked up in llama.cpp's installed libraries, and how a sentence lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.course.claims.finding import Figures, joined

if TYPE_CHECKING:
    from labkit.course.claims.bench import Bench


def look_up(bench: Bench, *names: str) -> dict[str, bool]:
    """Whether llama.cpp's command-line tools know each option or environment variable.

    Raises:
        Unsettled: see ``Bench.has_option``.
    """
    bench.looked = True
    return {name: bench.has_option(name) for name in names}


def known_names(show: Figures, known: dict[str, bool]) -> str:
    """What goes after "has": ``--kv-offload but not --offload-kv``. Each is kept as a figure, yes or no."""
    show.keep(**{name.lstrip("-").replace("-", "_").lower(): there for name, there in known.items()})
    found = [name for name, there in known.items() if there]
    missing = [name for name, there in known.items() if not there]
    if not found:
        return f"no {joined(missing, 'and no')}"
    return f"{joined(found)} but not {joined(missing, 'or')}" if missing else joined(found)
