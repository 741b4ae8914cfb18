"""Pictures of lab 03: figures in them equal the input, no text is lost or covered, and grey tells enough."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from support.pictures import (
    LONG,
    Album,
    assert_no_guess_draws_nothing,
    assert_well_made,
    bars,
    guess,
    line,
    lines,
    luma,
    numbers,
    patches,
    said,
    words,
)

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.figurekit.style import KINDS, LIMIT
from labkit.course.figures import BudgetRow, SizeRow
from labkit.course.lab03 import cachesim
from labkit.course.lab03.figures import cells
from labkit.course.lab03.figures.cache_quality import nats, shade
from labkit.experiments import cache_trace
from labkit.experiments.cache_slots import Snapshot
from labkit.experiments.depth import DepthSpeed
from labkit.experiments.dry_run import Planned
from labkit.models.forge import header_bytes
from labkit.planning.context import CONTEXTS, budget, context_curve, longest_context
from labkit.predict import Cache, LayerCache
from labkit.quant.cache_quality import CacheQuality
from labkit.quant.quality import Quality
from labkit.settings import CACHE_TYPES, Settings
from labkit.units import GiB, MiB, fmt_bytes

pytestmark = pytest.mark.filterwarnings("error")


def header(shape: str) -> gguf.Header:
    return gguf.read_header(header_bytes(shape, "Q4_K_M"))


def curve(shape: str = "llama-2-13b", limit_bytes: int | None = 14 * GiB, **settings: object) -> tuple[BudgetRow, ...]:
    return context_curve(header(shape), Settings.of(settings), limit_bytes=limit_bytes)


# weights 8 GiB, 1 MiB of cache for each token, 100 MiB of buffers: easy to check by hand
EASY = [BudgetRow(n, 8 * GiB, n * MiB, 100 * MiB) for n in CONTEXTS]
PRESETS = [
    BudgetRow(8192, 4 * GiB, 4 * GiB, 200 * MiB, "7B, f16"),
    BudgetRow(8192, 4 * GiB, 2 * GiB, 200 * MiB, "7B, q8_0"),
    BudgetRow(8192, 40 * GiB, 3 * GiB, 300 * MiB, "70B, f16"),
    BudgetRow(8192, GiB, 1 * MiB, 0, LONG),
]
SIZES = [
    SizeRow("f16", 320 * MiB, 320 * MiB),
    SizeRow("q8_0", 170 * MiB, 170 * MiB),
    SizeRow("q8_0/q4_0", 130 * MiB),
]


def layer(n: int, kind: str, mib: float = 0, state_mib: float = 0) -> LayerCache:
    half = int(mib * MiB) // 2
    return LayerCache(n, kind, 1, 1, half, half, int(state_mib * MiB))


WINDOWED = Cache(tuple(layer(n, "full", 64) if n % 6 == 5 else layer(n, "window", 12) for n in range(34)), True, "")
MIXED = Cache(
    (
        *(layer(n, "full", 64, 2) for n in range(4)),
        *(layer(n, "recurrent", 0, 2) for n in range(4, 12)),
        *(layer(n, "shared") for n in range(12, 16)),
        layer(16, "none"),
    ),
    True,
    "",
)


def compared(
    k: str, v: str, kld: float, *, rotated: bool = True, bins: Sequence[float] = (0.5, 1, 1.5)
) -> CacheQuality:
    along = tuple(kld * share for share in bins)
    found = Quality(18.0, 18.0, kld, kld / 10, 10 * kld, 0.9, 255, 1.0)
    return CacheQuality(k, v, rotated, rotated, rotated, found, 32, along, tuple(x / 5 for x in along))


MEASURED = {
    ("f16", "f16"): 0.0,
    ("f16", "q8_0"): 0.0003,
    ("f16", "q4_0"): 0.0068,
    ("q8_0", "f16"): 0.0002,
    ("q8_0", "q8_0"): 0.0004,
    ("q8_0", "q4_0"): 0.0071,
    ("q4_0", "f16"): 0.068,
    ("q4_0", "q8_0"): 0.071,
    ("q4_0", "q4_0"): 0.072,
}
QUALITY = [compared(k, v, kld) for (k, v), kld in MEASURED.items()]
PLAIN = [compared(k, v, 3 * kld, rotated=False) for (k, v), kld in MEASURED.items() if k == "q4_0"]
ALL_PAIRS = [
    compared(k, v, 10 ** (-5 + 0.6 * i + 0.2 * j)) for i, k in enumerate(CACHE_TYPES) for j, v in enumerate(CACHE_TYPES)
]


def timed(kind: str, n_past: int, ms: float, *, flash_attn: str = "on", v: str | None = None) -> DepthSpeed:
    return DepthSpeed(kind, v or kind, flash_attn, n_past, (ms * 0.9, ms, ms * 1.2), 0, 0.0)


DEPTHS = (0, 1024, 2048, 4096)
SPEED = [
    timed(kind, n, 6 + n / 1000 * slope) for n in DEPTHS for kind, slope in (("f16", 1.5), ("q8_0", 2.0), ("q4_0", 2.2))
]


def planned(n_ctx: int, flash_attn: str, mib: float | None) -> Planned:
    size = None if mib is None else int(mib * MiB)
    return Planned(Settings(n_ctx=n_ctx, flash_attn=flash_attn), compute_bytes=size)


FLASH = [planned(n, "on", 66 + n / 1024) for n in (512, 2048, 8192, 32768)]
FLASH += [planned(n, "off", max(66.0, n * 33 / 512)) for n in (512, 2048, 8192, 32768)]


def snapshot(
    step: cache_trace.Step, *runs: tuple[int, int], status: int = 0, n: int = 256, streams: int = 1
) -> Snapshot:
    owners = np.full(n, -1)
    at = 0
    for kind, length in runs:
        owners[at : at + length] = kind
        at += length
    used = int((owners != -1).sum())
    return Snapshot(step, status, owners, owners, used, (0,) * streams, {}, "a note")


STEPS = [
    snapshot(cache_trace.add(0, 60), (0, 60)),
    snapshot(cache_trace.add(1, 60), (0, 60), (1, 60)),
    snapshot(cache_trace.add(2, 1), (0, 60), (1, 60), (2, 1)),
    snapshot(cache_trace.remove(1), (0, 60), (-1, 60), (2, 1)),
    snapshot(cache_trace.add(3, 100), (0, 60), (3, 60), (2, 1), (3, 40)),
    snapshot(cache_trace.copy(0, 1), (-2, 60), (3, 60), (2, 1), (3, 40)),
    snapshot(cache_trace.add(1, 200), (-2, 60), (3, 60), (2, 1), (3, 40), status=1),
    snapshot(cache_trace.shift(3, 20, -1, -5), (-2, 60), (3, 60), (2, 1), (3, 40)),
]
TRACE = (
    cache_trace.add(0, 60),
    cache_trace.add(1, 60),
    cache_trace.add(2, 60),
    cache_trace.remove(1),
    cache_trace.add(3, 100),
    cache_trace.add(0, 90),
)
POLICIES = {
    "llama.cpp": tuple(replace(usage, simulated=False) for usage in cachesim.simulate("paged", TRACE, block=1)),
    "contiguous reservation": cachesim.simulate("contiguous", TRACE),
    "paged, blocks of 16": cachesim.simulate("paged", TRACE),
    "ring buffer": cachesim.simulate("ring", TRACE),
}
NOISE = np.random.default_rng(7).choice([-3, -2, -1, 0, 1, 2, 3, 12], 60).repeat(np.arange(60) % 9 + 1)

PICTURES = Album(
    {
        "budget": lambda: figures.context_budget(curve(), limit_bytes=14 * GiB),
        "budget, selected": lambda: figures.context_budget(curve(), limit_bytes=14 * GiB, selected=8192),
        "budget, selected first": lambda: figures.context_budget(EASY, limit_bytes=14 * GiB, selected=1),
        "budget, selected last": lambda: figures.context_budget(EASY, limit_bytes=14 * GiB, selected=131072),
        "budget, no limit": lambda: figures.context_budget(curve("llama-3.1-8b", None)),
        "budget, fits": lambda: figures.context_budget(EASY, limit_bytes=500 * GiB, top_bytes=64 * GiB),
        "budget, does not fit": lambda: figures.context_budget(EASY, limit_bytes=4 * GiB),
        "budget, tiny": lambda: figures.context_budget([BudgetRow(1, 9, 0, 0), BudgetRow(2, 9, 0, 1)], limit_bytes=10),
        "budget, huge": lambda: figures.context_budget(
            [BudgetRow(512, GiB, 1, 1), BudgetRow(1 << 30, GiB, 1 << 60, 1)]
        ),
        "budget, always more cache": lambda: figures.context_budget([BudgetRow(n, 1, n * GiB, 0) for n in (512, 1024)]),
        "presets": lambda: figures.context_presets(PRESETS, limit_bytes=14 * GiB),
        "presets, many": lambda: figures.context_presets(
            [replace(r, label=f"row {n}") for n in range(6) for r in PRESETS]
        ),
        "presets, far limit": lambda: figures.context_presets(PRESETS[:1], limit_bytes=900 * GiB),
        "presets, none": lambda: figures.context_presets([]),
        "sizes": lambda: figures.cache_sizes(SIZES, guess_share={"q8_0": 0.5, "q8_0/q4_0": 90, "none": 1}),
        "sizes, one": lambda: figures.cache_sizes([SizeRow(LONG, 96 * 1024, 97 * 1024)]),
        "sizes, nothing": lambda: figures.cache_sizes([SizeRow("f16", 0, 0)]),
        "sizes, none": lambda: figures.cache_sizes([]),
        "layers": lambda: figures.cache_layers(WINDOWED),
        "layers, mixed": lambda: figures.cache_layers(MIXED),
        "layers, 126": lambda: figures.cache_layers(Cache(tuple(layer(n, "full", 64) for n in range(126)), True, "")),
        "layers, one": lambda: figures.cache_layers(Cache((layer(0, "recurrent", 0, 9000),), True, "")),
        "layers, none": lambda: figures.cache_layers(Cache((), True, "")),
        "flash": lambda: figures.flash_attention(FLASH),
        "flash, guess": lambda: figures.flash_attention(FLASH, guess_bytes=GiB),
        "flash, guess beyond": lambda: figures.flash_attention(FLASH, guess_bytes=1 << 50),
        "flash, far": lambda: figures.flash_attention(
            [*FLASH, planned(1 << 20, "off", 67584), planned(1 << 20, "on", 1090)]
        ),
        "flash, one": lambda: figures.flash_attention(FLASH[:1]),
        "flash, refused": lambda: figures.flash_attention([planned(512, "off", None)]),
        "quality": lambda: figures.cache_quality(QUALITY),
        "quality, both": lambda: figures.cache_quality(QUALITY + PLAIN),
        "quality, all": lambda: figures.cache_quality(ALL_PAIRS),
        "quality, all twice": lambda: figures.cache_quality(
            [*ALL_PAIRS, *(replace(r, rotated=False) for r in ALL_PAIRS)]
        ),
        "quality, zero": lambda: figures.cache_quality(QUALITY[:1]),
        "quality, far": lambda: figures.cache_quality(
            [compared("f16", "q4_0", 1e-9), compared("q4_0", "q4_0", 23456.7)]
        ),
        "quality, none": lambda: figures.cache_quality([]),
        "position": lambda: figures.kld_by_position(QUALITY[1:4]),
        "position, many": lambda: figures.kld_by_position(QUALITY + PLAIN),
        "position, 81": lambda: figures.kld_by_position(ALL_PAIRS),
        "position, zero": lambda: figures.kld_by_position(QUALITY[:1]),
        "position, one bin": lambda: figures.kld_by_position([compared("q4_0", "q4_0", 0.1, bins=(1,))]),
        "position, none": lambda: figures.kld_by_position([]),
        "depth": lambda: figures.speed_at_depth(SPEED),
        "depth, guess": lambda: figures.speed_at_depth(SPEED, guess_times=3),
        "depth, guess beyond": lambda: figures.speed_at_depth(SPEED, guess_times=300),
        "depth, many": lambda: figures.speed_at_depth(
            [
                timed(t, n, 6 + n / 50 * i, flash_attn=f)
                for i, t in enumerate(CACHE_TYPES)
                for f in ("on", "off")
                for n in DEPTHS
            ]
        ),
        "depth, one": lambda: figures.speed_at_depth(SPEED[:1]),
        "depth, none": lambda: figures.speed_at_depth([]),
        "slots": lambda: figures.slot_map(STEPS),
        "slots, selected": lambda: figures.slot_map(STEPS, selected=4),
        "slots, streams": lambda: figures.slot_map([snapshot(cache_trace.add(0, 9), (0, 9), n=1024, streams=4)]),
        "slots, many": lambda: figures.slot_map(STEPS * 4),
        "slots, noise": lambda: figures.slot_map([replace(STEPS[0], cells=NOISE, used=int((NOISE >= 0).sum()))]),
        "slots, simulated": lambda: figures.slot_map(POLICIES["contiguous reservation"]),
        "slots, none": lambda: figures.slot_map([]),
        "policies": lambda: figures.cache_policies(POLICIES),
        "policies, one": lambda: figures.cache_policies({LONG: POLICIES["llama.cpp"][:1]}),
        "policies, many steps": lambda: figures.cache_policies({"paged": cachesim.simulate("paged", TRACE * 5)}),
        "policies, none": lambda: figures.cache_policies({}),
    }
)


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    assert_well_made(PICTURES[name])


@pytest.mark.parametrize("name", ["budget", "presets", "slots", "policies", "quality, both", "position, many", "depth"])
def test_pictures_stay_small(name: str) -> None:
    assert len(figures.png(PICTURES[name])) < 60_000


# context_budget


def test_the_budget_says_where_it_stops_fitting_and_where_the_cache_outweighs_the_weights() -> None:
    fig = figures.context_budget(EASY, limit_bytes=14 * GiB, selected=4096)
    text = said(fig)
    # 14 GiB − 8 GiB − 100 MiB = 6,044 MiB of cache at a MiB each, rounded down to a multiple of 256
    assert "limit 14.0 GiB: 5,888 tokens fit" in text
    assert "cache = weights at 8,192 tokens" in text
    assert "4,096 tokens: 12.1 GiB" in text and "KV cache 4.00 GiB at 4,096" in text and "weights 8.00 GiB" in text
    assert numbers(fig) == ["14.0 GiB", "5,888 tokens", "8,192 tokens"]
    assert line(fig, "_fits").get_xdata()[0] == 5888 and line(fig, "_fits").get_ydata()[0] == 14
    limit = line(fig, "_limit")
    assert limit.get_linestyle() == ":"
    assert to_hex(limit.get_color()).upper() == LIMIT and set(limit.get_ydata()) == {14}


def test_the_areas_are_stacked_and_grow_with_the_context() -> None:
    fig = figures.context_budget(EASY)
    tops = []
    for area in fig.axes[0].collections:
        points = area.get_paths()[0].vertices
        tops.append([points[points[:, 0] == n][:, 1].max() for n in CONTEXTS])
        assert all(a <= b for a, b in itertools.pairwise(tops[-1]))
        assert area.get_hatch(), "predicted is hatched"
    weights, cache, buffers = tops
    assert weights == pytest.approx([8] * 9)
    assert cache == pytest.approx([8 + n / 1024 for n in CONTEXTS])
    assert buffers == pytest.approx([row.bytes / GiB for row in EASY])


def test_the_axis_of_the_budget_can_be_fixed() -> None:
    for selected in CONTEXTS:
        fig = figures.context_budget(EASY, limit_bytes=14 * GiB, selected=selected, top_bytes=32 * GiB)
        assert fig.axes[0].get_ylim() == (0, 32) and fig.axes[0].get_xlim() == (512, 131072)
    assert "136 GiB at 131,072 ↑" in said(fig)


def test_a_budget_of_one_length_is_refused() -> None:
    with pytest.raises(ValueError, match="two lengths or more"):
        figures.context_budget(EASY[:1])


def test_the_budget_of_a_published_shape_is_the_one_of_the_formulas() -> None:
    thirteen = header("llama-2-13b")
    row = budget(thirteen, Settings(n_ctx=8192))
    assert row.kv_bytes == 6400 * MiB == predict.kv_bytes(thirteen, Settings(n_ctx=8192))
    assert row.weights_bytes == thirteen.tensor_bytes
    assert "cache = weights at 9,601 tokens" in said(PICTURES["budget"])


def test_the_longest_context_is_the_last_that_fits() -> None:
    thirteen, limit = header("llama-2-13b"), 14 * GiB
    n = longest_context(thirteen, Settings(), limit)
    assert n % 256 == 0 and f"{n:,} tokens fit" in said(PICTURES["budget"])
    assert budget(thirteen, Settings(n_ctx=n)).bytes <= limit < budget(thirteen, Settings(n_ctx=n + 256)).bytes
    assert longest_context(thirteen, Settings(), 7 * GiB) == 0
    assert longest_context(thirteen, Settings(), 1 << 50) == CONTEXTS[-1]


# context_presets


def test_presets_say_what_is_over_the_limit() -> None:
    fig = figures.context_presets(PRESETS, limit_bytes=6 * GiB)
    text = said(fig)
    assert "8.20 GiB, cache 4.00 GiB, 2.20 GiB over" in text
    assert "1.00 GiB, cache 1.00 MiB" in text and "limit 6.00 GiB" in text
    assert numbers(fig) == ["8,192 tokens", "1", "4", "6.00 GiB"]
    over = [t for t in fig.axes[0].texts if "over" in t.get_text()]
    assert len(over) == 3 and {to_hex(t.get_color()).upper() for t in over} == {LIMIT}


# cache_sizes


def test_predicted_is_hatched_and_measured_solid() -> None:
    fig = figures.cache_sizes(SIZES)
    widths = [patch.get_width() for patch in fig.axes[0].patches]
    assert widths == [320, 320, 170, 170, 130]
    assert [bool(patch.get_hatch()) for patch in fig.axes[0].patches] == [True, False, True, False, True]
    assert to_hex(fig.axes[0].patches[1].get_facecolor()).upper() == KINDS["kv"].colour
    text = said(fig)
    assert "170 MiB predicted, 53 %" in text and "320 MiB measured" in text and "not measured" in text
    assert "41 %" in numbers(fig) and not any("iB" in number for number in numbers(fig)), "as predicted"
    off = figures.cache_sizes([SizeRow("f16", 100 * MiB, 150 * MiB)])
    assert numbers(off)[-1] == "50.0 MiB"


def test_a_guess_of_a_share_is_drawn_between_the_bars_of_its_row() -> None:
    fig = figures.cache_sizes(SIZES, guess_share={"q8_0": 0.5})
    assert guess(fig) == (160, 1), "half of 320 MiB"
    assert "170 MiB predicted, 53 %; you predicted 50 %" in said(fig)
    assert "you predicted 9000 %, beyond this axis" in said(PICTURES["sizes"])
    assert_no_guess_draws_nothing(lambda typed: figures.cache_sizes(SIZES, guess_share={"q8_0": typed}))


# cache_layers


def test_layers_stand_in_order_with_their_bytes() -> None:
    fig = figures.cache_layers(WINDOWED)
    heights = {
        round(bar.get_x() + bar.get_width() / 2): bar.get_height() for group in bars(fig).values() for bar in group
    }
    assert heights == {n: 64 if n % 6 == 5 else 12 for n in range(34)}
    text = said(fig)
    assert "full context, 5 layers × 64.0 MiB = 320 MiB" in text
    assert "sliding window, 29 layers × 12.0 MiB = 348 MiB" in text
    assert numbers(fig) == ["29", "34", "52 %", "668 MiB"]
    assert len({group[0].get_hatch() for group in fig.axes[0].containers}) == 2, "kinds differ without colour"


def test_a_state_stands_on_the_tokens_and_layers_without_bytes_have_marks() -> None:
    fig = figures.cache_layers(MIXED)
    states = fig.axes[0].containers[1]
    assert [bar.get_y() for bar in states] == [64] * 4 + [0] * 8
    assert list(line(fig, "shared").get_xdata()) == [12, 13, 14, 15] and list(line(fig, "none").get_xdata()) == [16]
    text = said(fig)
    assert "recurrent state, 12 layers × 2.00 MiB = 24.0 MiB" in text
    assert "uses an earlier layer's cache, 4 layers" in text and "keeps no cache, 1 layer" in text


def test_layers_of_a_published_shape_add_up() -> None:
    found = predict.cache(header("gemma-3-4b"), Settings(n_ctx=8192))
    fig = figures.cache_layers(found)
    drawn = sum(bar.get_height() for group in fig.axes[0].containers for bar in group)
    assert drawn * MiB == pytest.approx(found.bytes)
    assert fmt_bytes(found.bytes) in said(fig)


# flash_attention


def test_both_buffers_are_where_they_belong() -> None:
    fig = figures.flash_attention([*FLASH, planned(65536, "off", None)])
    for name in ("on", "off"):
        rows = [row for row in FLASH if row.settings.flash_attn == name]
        assert list(line(fig, name).get_xdata()) == [row.settings.n_ctx for row in rows]
        assert list(line(fig, name).get_ydata()) == pytest.approx([row.compute_bytes / GiB for row in rows])
    assert line(fig, "on").get_marker() != line(fig, "off").get_marker()
    text = said(fig)
    assert "flash attention off: 2.06 GiB" in text and "flash attention on: 98.0 MiB" in text and "528 MiB" in text
    assert numbers(fig) == ["32,768 tokens", "22 times"]


def test_a_guess_of_the_buffer_is_drawn_at_the_longest_context() -> None:
    assert guess(PICTURES["flash, guess"]) == (32768, 1)
    assert "you predicted 1.00 GiB" in said(PICTURES["flash, guess"])
    assert "beyond this axis" in said(PICTURES["flash, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: figures.flash_attention(FLASH, guess_bytes=typed))


# cache_quality


def test_each_pair_has_its_figure_in_its_cell() -> None:
    fig = PICTURES["quality"]
    ax = fig.axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["f16", "q8_0", "q4_0"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["f16", "q8_0", "q4_0"]
    at = {(int(t.get_position()[1]), int(t.get_position()[0]), "±" in t.get_text()): t.get_text() for t in ax.texts}
    assert at[2, 0, False] == "0.068" and at[2, 0, True] == "±0.0068"
    assert at[0, 2, False] == "0.0068" and at[0, 0, False] == "0" and (0, 0, True) not in at
    shades = [to_hex(patch.get_facecolor()) for patch in patches(fig, "cell")]
    klds = list(MEASURED.values())
    by_size = [luma(shades[n]) for n in sorted(range(9), key=lambda n: klds[n])]
    assert all(a >= b for a, b in itertools.pairwise(by_size)), "the darker the more, also in grey"
    assert numbers(fig)[-2:] == ["0.068 nats", "0.0068"], "for K alone, for V alone"


def test_without_rotation_stands_on_the_right_and_what_is_missing_stays_empty() -> None:
    fig = PICTURES["quality, both"]
    assert [ax.get_title(loc="left") for ax in fig.axes[:2]] == ["rotated, llama.cpp's default", "not rotated"]
    assert len(patches(fig, "cell", 1)) == 3 and len(patches(fig, "empty", 1)) == 6
    assert numbers(fig)[-1] == "3.0 times"


def test_a_shade_means_the_same_in_every_picture() -> None:
    assert shade(0) == "#FFFFFF"
    assert luma(shade(1e-4)) > luma(shade(1e-3)) > luma(shade(0.5))
    assert shade(1e-9) == shade(1e-4) and shade(50) == shade(1)


def test_divergences_are_written_short() -> None:
    assert [nats(x) for x in (0, 1e-9, 3.2e-5, 0.000402, 0.0071, 0.072, 0.63, 1.6, 25)] == [
        "0", "1e−9", "3e−5", "0.00040", "0.0071", "0.072", "0.63", "1.6", "25",
    ]  # fmt: skip


# kld_by_position


def test_divergence_along_the_text_is_where_it_belongs() -> None:
    fig = figures.kld_by_position([QUALITY[-1], PLAIN[-1]])
    for row, container in zip((QUALITY[-1], PLAIN[-1]), fig.axes[0].containers, strict=True):
        mark = container.lines[0]
        assert list(mark.get_xdata()) == [16, 48, 80], "the middle of each bin"
        assert list(mark.get_ydata()) == pytest.approx(list(row.kld_by_position))
    rotated, plain = (container.lines[0] for container in fig.axes[0].containers)
    assert plain.get_markerfacecolor() == "white" != rotated.get_markerfacecolor()
    text = said(fig)
    assert "q4_0/q4_0 0.11" in text and "q4_0/q4_0, not rotated 0.32" in text
    assert numbers(fig)[-1] == "3.0 times"


@pytest.mark.parametrize("name", ["position, many", "depth, many"])
def test_no_line_loses_its_name(name: str) -> None:
    fig = PICTURES[name]
    text = words(fig)
    for container in fig.axes[0].containers:
        assert container.get_label() in text


# speed_at_depth


def test_medians_and_spread_stand_at_their_depth() -> None:
    fig = PICTURES["depth"]
    text = said(fig)
    for container in fig.axes[0].containers:
        mark, _, (whiskers,) = container.lines
        rows = [row for row in SPEED if row.type_k == container.get_label()]
        assert mark.get_xdata() == pytest.approx(DEPTHS, abs=4096 * 0.03)
        assert mark.get_ydata() == pytest.approx([row.median_ms for row in rows])
        ends = [sorted(segment[:, 1]) for segment in whiskers.get_segments()]
        assert ends == [pytest.approx(np.percentile(row.decode_ms, (10, 90))) for row in rows]
        per_thousand = (rows[-1].median_ms - rows[0].median_ms) / 4.096
        assert f"{container.get_label()}: {rows[-1].median_ms:.1f} ms, +{per_thousand:.2g} ms per 1,000" in text
    assert [n for n in numbers(fig) if " " in n] == ["4,096 tokens", "2.5 times", "2.0 times"]
    marks = [container.lines[0].get_marker() for container in fig.axes[0].containers]
    assert len(set(marks)) == 3, "lines differ without colour"


def test_a_guess_of_how_many_times_is_drawn_at_the_greatest_depth() -> None:
    assert guess(PICTURES["depth, guess"]) == (4096, 3 * 6)
    assert "you predicted 3 times" in said(PICTURES["depth, guess"])
    assert "beyond this axis" in said(PICTURES["depth, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: figures.speed_at_depth(SPEED, guess_times=typed))


def test_a_line_is_named_by_both_types_and_by_flash_attention_where_these_differ() -> None:
    rows = [timed("q8_0", n, 6 + n / 1000, v="f16", flash_attn=f) for n in (0, 4096) for f in ("on", "off")]
    assert "q8_0/f16, flash attention off" in said(figures.speed_at_depth(rows))
    assert statistics.median(rows[0].decode_ms) == rows[0].median_ms


# slot_map


def test_cells_are_drawn_where_they_are() -> None:
    fig = PICTURES["slots"]
    drawn = {
        (p.get_label(), p.get_x(), p.get_width(), round(p.get_y() + p.get_height() / 2)) for p in fig.axes[0].patches
    }
    assert {("3", 60, 60, 4), ("3", 121, 40, 4), ("2", 120, 1, 4), ("-2", 0, 60, 5)} <= drawn
    assert not any(label == "-1" for label, *_ in drawn), "an empty cell is white"
    text = said(fig)
    assert "seq 0: 60 cells" in text and "seq 3: 40" in text and "shared: 60 cells" in text
    assert "add 100 tokens to seq 3" in text and "add 1 token to seq 2" in text and "copy seq 0 to seq 1" in text
    assert "shift seq 3 from 20 on by −5" in text and "161 of 256" in text
    assert numbers(fig) == ["95", "256", "200 tokens", "1"]
    [refused] = [t for t in fig.axes[0].get_yticklabels() if "no slot: decode returned 1" in t.get_text()]
    assert to_hex(refused.get_color()).upper() == LIMIT


def test_sequences_differ_in_grey() -> None:
    shades = [luma(colour) for colour in cells._SHADES[:4]]
    assert min(abs(a - b) for a, b in itertools.combinations(shades, 2)) > 0.12
    assert patches(PICTURES["slots"], "-2")[0].get_hatch()


def test_steps_after_the_selected_one_keep_their_place_but_stay_blank() -> None:
    whole, part = PICTURES["slots"], PICTURES["slots, selected"]
    assert whole.get_size_inches() == pytest.approx(part.get_size_inches())
    assert max(p.get_y() for p in part.axes[0].patches) < 5
    assert len(patches(part, "_selected")) == 1
    assert numbers(part) == ["3", "2"], "sequence 3 is in 2 pieces"
    assert "decode returned" not in said(part), "that comes later"


def test_streams_are_parted() -> None:
    fig = PICTURES["slots, streams"]
    assert [p.get_x() for p in patches(fig, "strip")] == [0, 256, 512, 768]


def test_a_simulated_cache_can_be_drawn_as_well() -> None:
    fig = PICTURES["slots, simulated"]
    text = said(fig)
    assert "reserved, unused" in text and "not admitted" in text
    assert patches(fig, "-3")[0].get_hatch()


def test_runs_cover_all_cells_once() -> None:
    found = list(cells.runs(NOISE))
    assert sum(length for *_, length in found) == len(NOISE)
    assert [start for _, start, _ in found] == [0, *itertools.accumulate(length for *_, length in found)][:-1]
    assert all(a[0] != b[0] for a, b in itertools.pairwise(found))


# cache_policies


def test_policies_show_what_is_used_wasted_refused_and_lost() -> None:
    fig = PICTURES["policies"]
    for n, usage in enumerate(POLICIES.values()):
        groups = {label: [bar.get_height() for bar in group] for label, group in bars(fig, 2 * n).items()}
        assert groups["used"] == [u.used for u in usage]
        assert groups.get("wasted", [0] * len(usage)) == [u.wasted for u in usage]
        refused = [mark.get_xdata()[0] for mark in lines(fig, "_refused", 2 * n)]
        assert refused == [x for x, u in enumerate(usage) if not u.admitted]
        assert list(line(fig, "longest", 2 * n + 1).get_ydata()) == [u.longest_admitted for u in usage]
    text = said(fig)
    assert "llama.cpp (ran in llama.cpp)" in text and "contiguous reservation (simulated)" in text
    lost = POLICIES["ring buffer"][-1].lost
    assert lost and f"ring buffer (simulated), {lost} tokens overwritten" in text
    assert numbers(fig)[-2:] == ["1", "3"], "1 policy ran, 3 are simulated"
    assert all(str(step) in text for step in TRACE)
