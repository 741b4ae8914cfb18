"""Panels of all labs, for notebooks (``lk.panels``): controls around a picture. ``panelkit`` says what they share.

They are found in the labs' folders. A panel that only predicts has a picture from the start. One that measures does so
in a child process, when its Run button is pressed, and shows first what is known already.
"""

from __future__ import annotations

from typing import Any

from labkit.course import offers


def __getattr__(name: str) -> Any:
    return offers.find("panels", name)


def __dir__() -> list[str]:
    return offers.names("panels")
