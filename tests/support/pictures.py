"""Look at a picture as a reader does: its texts, whether they can be read, its bars and marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from labkit.course.figurekit.style import GUESS

LONG = "a-model-with-a-$name$-that-goes-on_and_on-until-nobody-reads-it-any-more.Q4_K_M.gguf"
_UNIT = r"(?: (?:[GMK]iB|B|[mnµ]?s|%|tokens|times|nats)(?!\w)|×)"
_FIGURE = re.compile(rf"[+−]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?{_UNIT}?")


class Album(Mapping[str, Figure]):
    """Pictures by name. Each is drawn when it is first asked for, and kept."""

    def __init__(self, pictures: Mapping[str, Callable[[], Figure]]) -> None:
        self._pictures = pictures
        self._drawn: dict[str, Figure] = {}

    def __getitem__(self, name: str) -> Figure:
        if name not in self._drawn:
            self._drawn[name] = self._pictures[name]()
        return self._drawn[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pictures)

    def __len__(self) -> int:
        return len(self._pictures)


@cache
def drawn(fig: Figure) -> tuple[Text, ...]:
    """The texts that a drawing really shows; tick labels outside the axes, for one, are not among them.

    A figure is laid out without rendering it, which places the same texts in less time. No test changes one afterwards.
    """
    seen: list[Text] = []
    draw = Text.draw

    def record(self: Text, renderer: object, *args: object, **kwargs: object) -> None:
        if self.get_visible() and self.get_text().strip():
            seen.append(self)
        draw(self, renderer, *args, **kwargs)

    with mock.patch.object(Text, "draw", record):
        fig.draw_without_rendering()
    return tuple(dict.fromkeys(seen))


def words(fig: Figure) -> str:
    """All that the picture says, with plain spaces."""
    return "\n".join(text.get_text() for text in drawn(fig)).replace("\u00a0", " ")


def said(fig: Figure) -> str:
    """All that the picture says, in one line."""
    return words(fig).replace("\n", " ")


def title(fig: Figure) -> str:
    """The title in one line, with plain spaces."""
    return fig.get_suptitle().replace("\u00a0", " ").replace("\n", " ")


def numbers(text: str | Figure) -> list[str]:
    """The figures in a text, or in a picture's title, with their units and in order."""
    return [found.strip() for found in _FIGURE.findall(title(text) if isinstance(text, Figure) else text)]


def assert_legible(fig: Figure) -> None:
    """Every text lies inside the picture and clear of the others."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in drawn(fig)]
    assert boxes
    for text, box in boxes:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= fig.bbox.x1 + 1 and box.y1 <= fig.bbox.y1 + 1
        assert inside, f"{text!r} is clipped"
    for n, (text, box) in enumerate(boxes):
        for other_text, other in boxes[n + 1 :]:
            assert not box.padded(-1).overlaps(other.padded(-1)), f"{text!r} covers {other_text!r}"


def assert_well_made(fig: Figure) -> None:
    """A figure of the common width with a sentence for a title, whose texts can all be read."""
    assert isinstance(fig, Figure)
    assert fig.get_figwidth() == 7.5
    assert title(fig)[0].isalnum()
    assert len(title(fig).split()) >= 5, "a title is a sentence"
    assert_legible(fig)


def bars(fig: Figure, axes: int = 0) -> dict[str, list[Any]]:
    """The bars of one axes by label."""
    found: dict[str, list[Any]] = {}
    for container in fig.axes[axes].containers:
        found.setdefault(str(container.get_label()), []).extend(container)
    return found


def patches(fig: Figure, label: str, axes: int = 0) -> list[Any]:
    """The patches of this label."""
    return _labelled(fig.axes[axes].patches, label)


def lines(fig: Figure, label: str, axes: int = 0) -> list[Any]:
    """The lines and marks of this label."""
    return _labelled(fig.axes[axes].lines, label)


def line(fig: Figure, label: str, axes: int = 0) -> Any:
    """The only line or mark of this label."""
    (found,) = lines(fig, label, axes)
    return found


def _labelled(artists: Any, label: str) -> list[Artist]:
    return [artist for artist in artists if artist.get_label() == label]


def guess(fig: Figure, axes: int = 0) -> tuple[float, float]:
    """Where the learner's own prediction is: a black diamond."""
    mark = line(fig, "_guess", axes)
    assert mark.get_marker() == "D" and to_hex(mark.get_color()) == GUESS
    return float(mark.get_xdata()[0]), float(mark.get_ydata()[0])


def assert_no_guess_draws_nothing(draw: Callable[[object], Figure]) -> None:
    """There is no diamond for a prediction that is unset or no number."""
    for typed in (None, "12 ms"):
        fig = draw(typed)
        assert not any(lines(fig, "_guess", n) for n in range(len(fig.axes))), typed


def luma(colour: str) -> float:
    """How light a colour is in grey, from 0 to 1."""
    return float(np.dot(to_rgb(colour), (0.299, 0.587, 0.114)))
