"""Pictures of all labs (``lk.figures``): one function each, returning a matplotlib Figure.

They are found in the labs' folders. ``show`` puts one into a notebook, ``png`` gives its bytes.
"""

from __future__ import annotations

from typing import Any

from labkit.course import offers
from labkit.course.figurekit.image import png, show

__all__ = ["png", "show"]  # and what the labs offer


def __getattr__(name: str) -> Any:
    return offers.find("figures", name)


def __dir__() -> list[str]:
    return sorted([*__all__, *offers.names("figures")])
