"""Controls around figures and experiments, for notebooks (``lk.panels``). Each panel is drawn once at its defaults.

They are found in the labs' folders. A panel changes the value of an Image or HTML widget; it never prints. Slow work
happens in a child process, watched by a thread, with a progress bar and a button that stops it.
"""

from __future__ import annotations

from typing import Any

from labkit.course import offers


def __getattr__(name: str) -> Any:
    return offers.find("panels", name)


def __dir__() -> list[str]:
    return offers.names("panels")
