"""Pictures of lab 05: figures in them equal the input, and no text is lost or covered."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from matplotlib.figure import Figure
from support.lab05 import FOUND, KILLED, KV, PAGED, ROWS, SPAN, SPOKE, header, pressed, ran, search
from support.pictures import LONG, assert_legible, words

from labkit.course import figures
from labkit.course.figurekit.style import KINDS
from labkit.course.lab05.figures.latency import following, spread
from labkit.experiments.boundary import Boundary
from labkit.planning.context import longest_surviving_context, needed, pinned_bytes
from labkit.settings import Settings
from labkit.units import GiB, MiB

SMALL = search(880 * MiB, 874 * MiB, n_ctx=1024, type_k="q8_0", type_v="q8_0")
LOCKED = Settings(load_mode="mmap+mlock", repack=False)

PICTURES = {
    "locked": lambda: figures.what_is_locked(
        [ran(mode) for mode in ("mmap", "mmap+mlock", "none", "mlock")] + [ran("mmap+mlock", repack=500 * MiB)]
    ),
    "locked, failed": lambda: figures.what_is_locked(
        [ran("mmap+mlock"), ran("mmap+mlock", locked=0), ran("mmap+mlock", locked=200 * MiB)],
        labels=["allowed", "RLIMIT_MEMLOCK 64 KiB", LONG],
    ),
    "locked, killed": lambda: figures.what_is_locked([ran("mmap+mlock", measured=None, **KILLED)]),
    "locked, nothing": lambda: figures.what_is_locked([ran("mmap")]),
    "latency": lambda: figures.latency(ROWS),
    "latency, alike": lambda: figures.latency([ROWS[1], pressed("none", [40, 44])], range_ms=(10, 1000)),
    "latency, recorded": lambda: figures.latency(
        [replace(row, recorded="recorded on AMD EPYC 9B14, 2026-11-29") for row in ROWS], labels=[LONG, "b", "c"]
    ),
    "latency, one": lambda: figures.latency([pressed("mmap", [5.0], faults=None)]),
    "latency, none": lambda: figures.latency([]),
    "latency, all killed": lambda: figures.latency([ROWS[2]]),
    "first": lambda: figures.first_token(SPOKE),
    "first, alike": lambda: figures.first_token(SPOKE[1:]),
    "first, silent": lambda: figures.first_token([*SPOKE, pressed("none", idle_s=5, **KILLED)]),
    "first, none": lambda: figures.first_token([]),
    "boundary": lambda: figures.boundary(FOUND),
    "boundary, two": lambda: figures.boundary([FOUND, SMALL], guess=800 * MiB),
    "boundary, other": lambda: figures.boundary(
        replace(FOUND, runs=(*FOUND.runs, replace(FOUND.runs[0], outcome="timed-out")))
    ),
    "boundary, none": lambda: figures.boundary(Boundary(None, 900 * MiB, 955 * MiB, FOUND.runs[:1])),
    "budget": lambda: figures.lock_budget(header(), LOCKED, limit_bytes=8 * GiB, selected=4096),
    "budget, guess": lambda: figures.lock_budget(header(), LOCKED, limit_bytes=8 * GiB, guess=30000),
    "budget, at the end": lambda: figures.lock_budget(header(), LOCKED, limit_bytes=8 * GiB, selected=8192, guess=8000),
    "budget, repack": lambda: figures.lock_budget(
        header(), Settings(load_mode="mmap+mlock"), limit_bytes=8 * GiB, cpu_features=("avx2",), selected=512
    ),
    "budget, heap": lambda: figures.lock_budget(
        header(), Settings(load_mode="mlock", repack=False), limit_bytes=8 * GiB
    ),
    "budget, mapped": lambda: figures.lock_budget(header(), Settings(repack=False), limit_bytes=8 * GiB),
    "budget, no room": lambda: figures.lock_budget(header(), LOCKED, limit_bytes=2 * GiB, selected=4096),
    "budget, fixed": lambda: figures.lock_budget(
        header(), LOCKED, limit_bytes=62 * GiB, last=32768, top_bytes=16 * GiB, selected=32768
    ),
}  # fmt: skip


@cache
def picture(name: str) -> Figure:
    """Drawn once for all tests."""
    return PICTURES[name]()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    fig = picture(name)
    assert isinstance(fig, Figure) and fig.get_figwidth() == 7.5
    title = fig.get_suptitle()
    assert title[0].isalnum() and len(title.split()) >= 5, "a title is a sentence"
    assert_legible(fig)


@pytest.mark.parametrize("name", ["locked", "latency", "first, silent", "boundary, two", "budget", "budget, repack"])
def test_pictures_stay_small(name: str) -> None:
    assert len(figures.png(picture(name))) < 35_000


@cache
def said(fig: Figure) -> str:
    return words(fig).replace("\n", " ")


def bars(fig: Figure, label: str) -> list[Any]:
    """Of the measured or predicted bars, those of this label, in order."""
    return [bar for container in fig.axes[0].containers if container.get_label() == label for bar in container]


def lines(fig: Figure, label: str) -> list[Any]:
    return [line for line in fig.axes[0].lines if line.get_label() == label]


# what_is_locked


def test_what_is_locked_lies_to_the_left_with_a_dark_edge_and_the_rest_to_the_right() -> None:
    fig = picture("locked")
    unit = MiB if "MiB" in fig.axes[0].get_xlabel() else GiB
    assert [bar.get_width() for bar in bars(fig, "measured locked file")] == pytest.approx([-SPAN / unit] * 2)
    assert [bar.get_width() for bar in bars(fig, "measured locked heap")] == pytest.approx([-SPAN / unit])
    assert [bar.get_width() for bar in bars(fig, "measured loose kv")] == pytest.approx([KV / unit] * 5)
    assert [bar.get_width() for bar in bars(fig, "measured loose repack")] == pytest.approx([500 * MiB / unit])
    assert [bar.get_width() for bar in bars(fig, "predicted loose heap")] == pytest.approx([SPAN / unit])
    assert len(bars(fig, "_edge")) == 6 and not bars(fig, "measured locked kv")
    assert bars(fig, "predicted locked file")[0].get_hatch() == KINDS["file"].hatch
    text = said(fig)
    assert "770 MiB predicted" in text and "exactly what was predicted" in text and "← locked" in text


def test_a_lock_that_failed_is_told_and_drawn() -> None:
    fig = picture("locked, failed")
    assert "0 B of 770 MiB" in said(fig) and "200 MiB of 770 MiB" in said(fig)
    assert "2 of 3 did not get it and ran on all the same" in said(fig)
    assert len(bars(fig, "measured locked file")) == 2
    only = figures.what_is_locked([ran("mmap+mlock", locked=0)])
    assert "Asked to lock 770 MiB, it locked nothing and ran on" in said(only)
    killed = said(picture("locked, killed"))
    assert "oom-killed" in killed and "No run that was to lock came through" in killed


def test_labels_come_one_per_row() -> None:
    for draw in (
        lambda: figures.what_is_locked([ran()], labels=[]),
        lambda: figures.latency(ROWS, labels=["a"]),
        lambda: figures.first_token(SPOKE, labels=["a"]),
        lambda: figures.boundary(FOUND, labels=["a", "b"]),
    ):
        with pytest.raises(ValueError, match="one label per"):
            draw()


# latency and first_token


def test_the_distribution_is_drawn_and_written() -> None:
    assert spread(range(1, 101)) == (50.5, 95, 100) and spread([7.0]) == (7, 7, 7)
    fig = picture("latency")
    assert sorted(lines(fig, "_during")[0].get_xdata()) == sorted(PAGED)
    assert [line.get_xdata()[0] for line in lines(fig, "_median")] == [310, 42]
    assert [line.get_xdata()[0] for line in lines(fig, "_worst")] == [900, 47]
    assert len(lines(fig, "_before")) == 3
    text = said(fig)
    assert "median 310 ms, p95 900 ms, worst 900 ms; 8,638 major faults" in text
    assert "oom-killed: the kernel killed it in context." in text
    assert "the median token takes 42.0 ms with load mode mmap+mlock and 310 ms with mmap" in text
    assert "Beside 300 MiB of ballast" in text and fig.axes[0].get_xscale() == "log"
    assert "whatever the load mode" in said(picture("latency, alike"))
    assert picture("latency, alike").axes[0].get_xlim() == (10, 1000)
    assert "recorded on AMD EPYC 9B14" in said(picture("latency, recorded"))
    assert "major faults" not in said(picture("latency, one"))


def test_the_first_token_stands_beside_those_that_follow() -> None:
    assert following(SPOKE[0]) == (41, 42, 40) and following(ROWS[0]) == ()
    fig = picture("first")
    assert [line.get_xdata()[0] for line in lines(fig, "_first")] == [1400, 44]
    assert [list(line.get_xdata()) for line in lines(fig, "_wait")] == [[41, 1400], [41, 44]]
    text = said(fig)
    assert "first 1.40 s, then 41.0 ms: 34.1×; 777 major faults" in text
    assert "takes 34.1× as long as the next with mmap, and 1.07× with mmap+mlock" in text
    assert "no slower than the next (1.07× at most)" in said(picture("first, alike"))
    assert "oom-killed" in said(picture("first, silent"))


# boundary


def test_the_boundary_found_stands_beside_the_one_predicted() -> None:
    fig = picture("boundary")
    survived, killed = lines(fig, "_survived"), lines(fig, "_killed")
    assert len(survived) + len(killed) == len(FOUND.runs)
    assert all(line.get_xdata()[0] >= 948 for line in survived) and all(line.get_xdata()[0] < 948 for line in killed)
    assert lines(fig, "_predicted")[0].get_xdata()[0] == pytest.approx(955)
    middle = (FOUND.survives_bytes + FOUND.dies_bytes) / 2 / MiB
    text = said(fig)
    assert "mmap+mlock, n_ctx 1,024, f16: predicted 955 MiB" in text
    assert f"off by {100 * (955 / middle - 1):+.1f} %" in text
    assert "Killed below a cap of" in text and "the prediction is off by" in text
    two = said(picture("boundary, two"))
    assert "q8_0" in two and "In 2 searches" in two and "you predicted 800 MiB" in two
    assert "found no boundary" in said(picture("boundary, none")) and "timed-out" in said(picture("boundary, other"))


# lock_budget


def test_the_budget_is_what_must_stay() -> None:
    fig = picture("budget")
    fits = longest_surviving_context(header(), LOCKED, 8 * GiB)
    assert fits == 8192 and pinned_bytes(needed(header(), LOCKED, fits + 256)) > 8 * GiB
    [killed] = lines(fig, "_killed")
    assert killed.get_xdata()[0] == fits and killed.get_ydata()[0] == 8
    text = said(fig)
    assert "killed beyond 8,192" in text and "4,096: 5.93 GiB" in text and "limit 8.00 GiB" in text
    assert "survives with 8,192 tokens of context; without the lock with 15,872 tokens" in text
    [floor] = lines(fig, "the same, not locked: only this must stay")
    loose = replace(LOCKED, load_mode="mmap")
    x, y = floor.get_xdata()[-1], floor.get_ydata()[-1]
    assert y * GiB == pytest.approx(needed(header(), loose, int(x)).anon_floor_bytes)
    assert "you predicted 30,000 tokens, beyond this axis" in said(picture("budget, guess"))


def test_what_cannot_live_locked_is_said() -> None:
    assert "cannot live with its weights locked" in said(picture("budget, no room"))
    assert "though it may have to page" in said(picture("budget, mapped"))
    assert "above this axis" in said(picture("budget, fixed"))
    heap = said(picture("budget, heap"))
    assert "weights on the heap" in heap and "8,192 tokens of context, locked or not" in heap
    assert "repack copy" in said(picture("budget, repack"))


def test_weights_on_the_heap_must_stay_locked_or_not() -> None:
    p = needed(header(), Settings(load_mode="mlock", repack=False), 512)
    assert pinned_bytes(p) == p.anon_floor_bytes
    none = needed(header(), Settings(load_mode="none", repack=False), 512)
    assert pinned_bytes(none) == pinned_bytes(p)
    assert longest_surviving_context(header(), LOCKED, GiB) == 0
    assert longest_surviving_context(header(), LOCKED, 999 * GiB) == 131_072
