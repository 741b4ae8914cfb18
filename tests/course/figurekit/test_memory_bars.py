"""Stacked bars of memory by kind."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from support.memory_runs import run
from support.pictures import bars, patches, words

from labkit.course.figurekit import memory_bars, style
from labkit.course.figurekit.style import KINDS
from labkit.settings import Settings
from labkit.units import MiB

SPLIT = dict.fromkeys(KINDS, 0) | {"file": 3 * MiB, "kv": 2 * MiB, "python": MiB}


def axes() -> Axes:
    return style.new_figure(3, title="A picture with bars of memory").add_subplot()


def test_parts_are_stacked_in_the_order_of_the_kinds() -> None:
    ax = axes()
    assert memory_bars.stack(ax, 1, SPLIT, MiB, label="measured", predicted=False) == 6
    found = {label: (bar.get_x(), bar.get_width()) for label, (bar,) in bars(ax.figure).items()}
    assert found == {"measured file": (0, 3), "measured kv": (3, 2), "measured python": (5, 1)}


@pytest.mark.parametrize(("upright", "sign", "end"), [(False, -1, -6), (True, 1, 6)])
def test_bars_may_go_the_other_way_or_upright(upright: bool, sign: int, end: float) -> None:
    ax = axes()
    how = {"label": "predicted", "predicted": True, "upright": upright, "sign": sign, "edge": style.device_edge()}
    assert memory_bars.stack(ax, 1, SPLIT, MiB, **how) == end
    found = bars(ax.figure)
    sizes = [bar.get_height() if upright else bar.get_width() for bar in found["_edge"]]
    assert sizes == [3 * sign, 2 * sign, sign]
    assert found["predicted kv"][0].get_hatch() == KINDS["kv"].hatch


def test_the_size_of_a_part_is_written_into_it() -> None:
    ax = axes()
    parts: list[memory_bars.Part] = []
    memory_bars.stack(ax, 1, SPLIT, MiB, label="measured", predicted=False, sign=-1, parts=parts)
    assert [(text.get_text(), left, right) for text, left, right in parts] == [
        ("3.00 MiB", -3, 0), ("2.00 MiB", -5, -3), ("1.00 MiB", -6, -5),
    ]  # fmt: skip


def test_what_is_locked_has_an_edge_to_either_side() -> None:
    ax = axes()
    for end in (4, -4, 0):
        memory_bars.lock(ax, 0, end)
    assert [(edge.get_x(), edge.get_width()) for edge in patches(ax.figure, "locked")] == [(0, 4), (-4, 4)]


def test_the_legend_names_the_kinds_that_are_drawn() -> None:
    fig = axes().figure
    memory_bars.legend(fig, [SPLIT, None], names={"kv": "the cache"}, more=[memory_bars.locked_swatch()])
    text = words(fig)
    assert "file-backed" in text and "the cache" in text and "locked" in text and "repack" not in text
    assert "hatched: predicted, solid: measured" in text


def test_a_run_is_named_by_its_load_mode() -> None:
    assert memory_bars.setting_name(run()) == "mmap"
    assert memory_bars.setting_name(run(settings=Settings(load_mode="none", repack=False))) == "none, no repack"
