"""What panels are built from: a picture, a line of text, and a Run button around slow work."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from labkit.progress import Progress

IMAGE_WIDTH = "760px"
WIDE = {"description_width": "initial"}


def image(png: bytes = b"") -> widgets.Image:
    """A picture; this widget has no alternative text, so each panel says the same in words below it."""
    return widgets.Image(value=png, format="png", width=IMAGE_WIDTH)


def say(text: str) -> str:
    """A line of text as HTML; whatever a model wrote stays text."""
    return f'<p style="margin:2px 0">{html.escape(text)}</p>'


def draw(picture: widgets.Image, png: bytes) -> None:
    """Show a picture."""
    picture.value, picture.layout.visibility = png, "visible"


def refuse(picture: widgets.Image, text: widgets.HTML, error: Exception) -> None:
    """Say what is wrong, and hide the picture, which shows other settings."""
    picture.layout.visibility, text.value = "hidden", say(str(error))


def set_range(slider: Any, *, most: int, value: int, seen_by: Callable[[Any], None]) -> None:
    """Change a slider's end and value without its observer, which would draw once for each."""
    slider.unobserve(seen_by, names="value")
    slider.max, slider.value = most, value
    slider.observe(seen_by, names="value")


class Runner:
    """A Run button, a Stop button and a bar around one measurement at a time."""

    def __init__(self, label: str, work: Callable[[Progress, threading.Event], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self.thread: threading.Thread | None = None
        self.run = widgets.Button(
            description=label, button_style="primary", icon="play", layout=widgets.Layout(width="auto")
        )
        self.stop = widgets.Button(description="Stop", disabled=True, icon="stop")
        self.bar = widgets.FloatProgress(min=0.0, max=1.0, value=0.0, layout=widgets.Layout(width="220px"))
        self.state = widgets.HTML("")
        self.run.on_click(self._start)
        self.stop.on_click(lambda button: self._stop.set())
        self.row = widgets.HBox([self.run, self.stop, self.bar, self.state])

    def _start(self, button: Any) -> None:
        if self.thread is not None and self.thread.is_alive():
            return
        self._stop.clear()
        self.run.disabled, self.stop.disabled = True, False
        self.thread = threading.Thread(target=self._go, daemon=True)
        self.thread.start()

    def _go(self) -> None:
        try:
            self._work(self._progress, self._stop)
            self.bar.value = 1.0
        except (ValueError, OSError, RuntimeError) as error:
            self.state.value = say(str(error))
        finally:
            self.run.disabled, self.stop.disabled = False, True

    def _progress(self, fraction: float, text: str) -> None:
        self.bar.value = fraction
        self.state.value = say(text)
