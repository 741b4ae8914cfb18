"""The checks of the labs' exercises, ``lk.check.NAME(answer)``. ``checking`` says how an answer is judged.

They are found in the labs' folders.
"""

from __future__ import annotations

from typing import Any

from labkit.course import offers


def __getattr__(name: str) -> Any:
    return offers.find("exercises", name)


def __dir__() -> list[str]:
    return offers.names("exercises")
