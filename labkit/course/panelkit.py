"""What panels are built from: labelled controls, a picture with lines of text, and a Run button for slow work."""

from __future__ import annotations

import html
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from labkit.course.figurekit import image
from labkit.progress import Progress
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CACHES = ("f16", "q8_0", "q4_0")
"""Types of a KV cache to choose from, where K and V have the same."""

IMAGE_WIDTH = "760px"
SLIDER_WIDTH = "480px"


class Panel:
    """Controls above a picture and lines of text. A notebook shows its ``view``; a panel never prints.

    A subclass makes its controls, hands them over in rows, and says with ``on_change`` which of them call what.

    Args:
        rows: of controls, from the top.
        picture: False for a panel that has text alone.

    Attributes:
        image: the picture, hidden while there is none and while it would show other values than the controls.
        text: what the picture shows, in words: an image widget has no alternative text.
        view: the whole panel, for ``display``.
    """

    def __init__(self, *rows: Sequence[Any], picture: bool = True) -> None:
        self.image = widgets.Image(format="png", width=IMAGE_WIDTH, layout=widgets.Layout(display="none"))
        self.text = widgets.HTML("")
        below = [self.image, self.text] if picture else [self.text]
        self.view = widgets.VBox([*(widgets.HBox(list(row)) for row in rows), *below])
        self._fitting = False

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The view for a notebook, made here because widgets of ipywidgets 7 have no such method."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.view.model_id}
        text = f"{type(self).__name__}: run the notebook to use this panel"
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": text}

    def draw(self) -> None:
        """Show the picture, and say in words what it shows, for the present values of the controls."""
        raise NotImplementedError

    def redraw(self) -> None:
        """``draw``; where the values are impossible together, say why and hide the picture of earlier values."""
        try:
            self.draw()
        except ValueError as error:
            self.image.layout.display = "none"  # and so the text stands right below the controls
            self.write(str(error))

    def show(self, figure: Figure) -> None:
        """Put a figure in the place of the picture."""
        self.image.value = image.png(figure)
        self.image.layout.display = None

    def write(self, *lines: str) -> None:
        """Put lines in the place of the text."""
        self.text.value = "".join(map(paragraph, lines))

    def on_change(self, call: Callable[[], None], *controls: Any) -> None:
        """Call this without arguments whenever one of the controls gets another value, except through ``fit``."""

        def changed(change: Any) -> None:
            if not self._fitting:
                call()

        for control in controls:
            control.observe(changed, names="value")

    def fit(self, control: Any, *, most: int, value: int) -> None:
        """Change a control's largest value and its value, without a call for each of the two."""
        self._fitting = True
        try:
            control.max, control.value = most, value
        finally:
            self._fitting = False


class Runner:
    """A Run button, a Stop button, a progress bar and a line of text around one measurement at a time.

    The work runs in a thread, so that the notebook stays usable.

    Args:
        label: of the Run button; it begins with "Run".
        work: called with ``progress`` and with an event that is set when Stop is pressed.

    Attributes:
        row: the controls, to be a row of the panel.
        thread: that of the latest run; None before the first.
    """

    def __init__(self, label: str, work: Callable[[Progress, threading.Event], None]) -> None:
        self._work = work
        self._cancel = threading.Event()
        self.thread: threading.Thread | None = None
        self.run = button(label, self._start, icon="play", button_style="primary", layout=widgets.Layout(width="auto"))
        self.stop = button("Stop", self._cancel.set, icon="stop", disabled=True)
        self.bar = widgets.FloatProgress(min=0.0, max=1.0, value=0.0, layout=widgets.Layout(width="220px"))
        self.state = widgets.HTML("")
        self.row = [self.run, self.stop, self.bar, self.state]

    def write(self, text: str) -> None:
        """Put a text beside the progress bar."""
        self.state.value = paragraph(text)

    def write_outcome(self, outcome: str, reason: str) -> None:
        """Say how a run ended, with the reason unless it is ``ok``."""
        self.write(outcome if outcome == "ok" else f"{outcome}: {reason}")

    def _start(self) -> None:
        if self.thread is not None and self.thread.is_alive():
            return
        self._cancel.clear()
        self.run.disabled, self.stop.disabled = True, False
        self.bar.value = 0.0
        self.thread = threading.Thread(target=self._go, daemon=True)
        self.thread.start()

    def _go(self) -> None:
        try:
            self._work(self._progress, self._cancel)
            self.bar.value = 1.0
        except (ValueError, OSError, RuntimeError) as error:
            self.write(str(error))
        except Exception as error:  # what a thread raises would be printed, and below another cell
            self.write(repr(error))
        finally:
            self.run.disabled, self.stop.disabled = False, True

    def _progress(self, fraction: float, text: str) -> None:
        self.bar.value = fraction
        self.write(text)


def choice(name: str, options: Iterable[Any], *, value: Any = None, width: str | None = None) -> Any:
    """A dropdown list.

    Args:
        options: texts, numbers, or pairs of a text and a value.
        value: the one chosen at first; by default the first.
        width: in CSS units; by default what ipywidgets gives.
    """
    return _control(widgets.Dropdown, name, width, options=_options(options), value=value)


def steps(name: str, options: Iterable[Any], *, value: Any = None, width: str = SLIDER_WIDTH) -> Any:
    """A slider over given values; arguments as for ``choice``."""
    return _control(widgets.SelectionSlider, name, width, options=_options(options), value=value)


def slider(
    name: str,
    *,
    least: float = 0,
    most: float,
    step: float = 1,
    value: float = 0,
    width: str = SLIDER_WIDTH,
    **how: Any,
) -> Any:
    """A slider over a range: of whole numbers, or of fractions if ``step`` is a float."""
    kind = widgets.FloatSlider if isinstance(step, float) else widgets.IntSlider
    return _control(kind, name, width, min=least, max=most, step=step, value=value, **how)


def number(name: str, *, most: int) -> Any:
    """A box for a whole number from 0 to ``most``, for ranges too long for a slider."""
    return _control(widgets.BoundedIntText, name, None, min=0, max=most, value=0)


def entry(name: str, *, value: str, width: str) -> Any:
    """A box for a line of text."""
    return _control(widgets.Text, name, width, value=value)


def check(name: str, *, value: bool, **how: Any) -> Any:
    """A checkbox."""
    return widgets.Checkbox(value=value, description=name, indent=False, **how)


def button(label: str, call: Callable[[], None], **how: Any) -> Any:
    """A button that calls a function without arguments."""
    made = widgets.Button(description=label, **how)
    made.on_click(lambda pressed: call())
    return made


def _control(kind: Any, name: str, width: str | None, **how: Any) -> Any:
    """A control with its whole name beside it. While it is dragged or typed into, it reports nothing."""
    if "continuous_update" in kind.class_trait_names():
        how["continuous_update"] = False
    if how["value"] is None:
        del how["value"]
    made = kind(description=name, style={"description_width": "initial"}, **how)
    if width is not None:
        made.layout.width = width
    return made


def _options(options: Iterable[Any]) -> list[Any]:
    """The options, each number with a mark between its thousands."""
    return [(f"{option:,}", option) if isinstance(option, int) else option for option in options]


def paragraph(text: str) -> str:
    """A line of text as HTML; what a model wrote stays text."""
    return f'<p style="margin:2px 0">{html.escape(text)}</p>'


def sum_of(parts: Mapping[str, int]) -> str:
    """Sizes in bytes with their names, as in ``weights 1.00 GiB + cache 512 MiB``; nothing of those that are 0."""
    return " + ".join(f"{name} {fmt_bytes(size)}" for name, size in parts.items() if size)


def less_or_more(size: int, limit: int) -> str:
    """How far a size in bytes is from a limit, as in ``1.00 GiB less``."""
    return f"{fmt_bytes(abs(limit - size))} {'less' if size <= limit else 'more'}"


def axis_end(size: float) -> int:
    """The power of two at or above a size in bytes: an axis that ends there stays when a setting changes a little."""
    return 1 << math.ceil(math.log2(size))
