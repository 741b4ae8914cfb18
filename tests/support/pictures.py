"""Look at a picture as a reader does: its texts, whether they can be read, its bars."""

from __future__ import annotations

from unittest import mock

from matplotlib.figure import Figure
from matplotlib.text import Text

LONG = "a-model-with-a-$name$-that-goes-on_and_on-until-nobody-reads-it-any-more.Q4_K_M.gguf"


def drawn(fig: Figure) -> list[Text]:
    """The texts that a drawing really shows; tick labels outside the axes, for one, are not among them."""
    seen: list[Text] = []
    draw = Text.draw

    def record(self: Text, renderer: object, *args: object, **kwargs: object) -> None:
        if self.get_visible() and self.get_text().strip():
            seen.append(self)
        draw(self, renderer, *args, **kwargs)

    with mock.patch.object(Text, "draw", record):
        fig.draw_without_rendering()
    return list(dict.fromkeys(seen))


def words(fig: Figure) -> str:
    """All that the picture says, with plain spaces."""
    return "\n".join(text.get_text() for text in drawn(fig)).replace("\u00a0", " ")


def assert_legible(fig: Figure) -> None:
    boxes = [(text.get_text(), text.get_window_extent()) for text in drawn(fig)]
    assert boxes
    for text, box in boxes:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= fig.bbox.x1 + 1 and box.y1 <= fig.bbox.y1 + 1
        assert inside, f"{text!r} is clipped"
    for n, (text, box) in enumerate(boxes):
        for other_text, other in boxes[n + 1 :]:
            assert not box.padded(-1).overlaps(other.padded(-1)), f"{text!r} covers {other_text!r}"


def bars(fig: Figure, axes: int = 0) -> dict[str, object]:
    """The bars of one axes by label; the last one of a label that comes twice."""
    return {container.get_label(): container[0] for container in fig.axes[axes].containers}
