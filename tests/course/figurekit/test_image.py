"""Pictures as PNG: crisp, small, with a text for those who cannot see them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image
from support.memory_runs import run

from labkit.course import figures
from labkit.course.figurekit.style import KINDS


def test_png_is_crisp_small_and_keeps_the_flat_colours() -> None:
    data = figures.png(figures.where_the_model_is([run(), run()]))
    picture = Image.open(io.BytesIO(data))
    assert picture.width == 1080
    assert len(data) < 60_000
    colours = {to_hex(np.array(rgb) / 255).upper() for _, rgb in picture.convert("RGB").getcolors(1 << 20)}
    assert {"#FFFFFF", KINDS["file"].colour, KINDS["repack"].colour, KINDS["kv"].colour} <= colours


def test_show_gives_a_fixed_width_and_the_text_for_those_who_cannot_see() -> None:
    pytest.importorskip("IPython")
    shown = figures.show(figures.mechanisms(), "Where the mechanisms act.")
    data, metadata = shown._repr_png_()
    assert len(data) > 1000
    assert metadata == {"width": 760, "alt": "Where the mechanisms act."}
