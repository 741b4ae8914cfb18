"""Press a panel's button, and look at what it shows and at what it had drawn."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.course import figures

WAIT_S = 120


def run(panel: Any) -> None:
    """Press Run and wait until the work has ended and the buttons say so."""
    panel.runner.run.click()
    finish(panel)


def stop(panel: Any) -> None:
    """Press Run, and Stop at once."""
    panel.runner.run.click()
    panel.runner.stop.click()
    finish(panel)


def finish(panel: Any) -> None:
    """Wait for the work."""
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    assert not panel.runner.thread.is_alive() and not panel.runner.run.disabled and panel.runner.stop.disabled


def picture(panel: Any) -> bytes:
    """The picture that is seen; empty if there is none."""
    return b"" if panel.image.layout.display == "none" else bytes(panel.image.value)


def is_png(panel: Any) -> bool:
    return picture(panel).startswith(b"\x89PNG")


def drawn(monkeypatch: pytest.MonkeyPatch, name: str) -> list[dict[str, Any]]:
    """What a picture function is asked for from now on: its keyword arguments, and its first one as ``what``."""
    asked: list[dict[str, Any]] = []
    draw = getattr(figures, name)

    def record(what: Any, *others: Any, **how: Any) -> Any:
        asked.append({"what": what, **how})
        return draw(what, *others, **how)

    monkeypatch.setitem(vars(figures), name, record)
    return asked
