"""Press a panel's button, and look at what it shows."""

from __future__ import annotations

from typing import Any

WAIT_S = 120


def run(panel: Any) -> None:
    panel.runner.run.click()
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    assert not panel.runner.thread.is_alive() and not panel.runner.run.disabled and panel.runner.stop.disabled


def is_png(panel: Any) -> bool:
    return bytes(panel.image.value).startswith(b"\x89PNG")
