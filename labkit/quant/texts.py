"""The kit's texts, and cutting a text into chunks, of which a model reads one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labkit.experiments.child.task import TaskError
from labkit.files import data_path
from labkit.models.lookup import Found

LANGUAGES = ("english", "korean")
CALIBRATION, EVALUATION = "calibration", "evaluation"
CHUNK = 256  # tokens that a model reads at once, by default


def get(text: str, part: str) -> str:
    """A text of the kit, or ``text`` itself if it is not the name of one.

    Args:
        text: ``"english"``, ``"korean"``, or any text.
        part: ``CALIBRATION`` or ``EVALUATION``, the half of the kit's text; they share no sentence.
    """
    if text not in LANGUAGES:
        return text
    return data_path(f"texts/{text}_{part}.txt").read_text(encoding="utf-8")


def chunks(ids: Sequence[int], n: int, bos: int | None, *, size: int = CHUNK) -> list[list[int]]:
    """Cut the first ``n`` tokens into chunks of ``size``; each begins with ``bos`` if the model's texts do.

    Raises:
        ValueError: fewer than two tokens, so there is nothing to predict.
    """
    head = [] if bos is None else [bos]
    ids = ids[:n]
    ids = ids[1:] if head and ids[:1] == head else ids
    step = size - len(head)
    cut = [[*head, *ids[start : start + step]] for start in range(0, len(ids), step)]
    cut = [chunk for chunk in cut if len(chunk) > 1]  # one token alone predicts nothing
    if not cut:
        raise ValueError("the text is too short: give at least two tokens.")
    return cut


def readable(found: Found) -> Path:
    """The file of a model that can read a text.

    Raises:
        TaskError: it is forged.
    """
    if found.forged:
        raise TaskError(f"{found.name} is forged and has no vocabulary, so it cannot read a text: name a real model.")
    return found.path
