"""Pictures of lab 05: figures in them equal the input, and no text is lost or covered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.lab05 import AFTER_PAUSE, FOUND, KILLED, KV, PAGED, ROWS, SPAN, header, pressed, ran, search
from support.pictures import (
    LONG,
    Album,
    assert_no_guess_draws_nothing,
    assert_well_made,
    bars,
    guess,
    line,
    lines,
    numbers,
    patches,
    said,
)

from labkit.course import figures
from labkit.course.figurekit.style import KINDS
from labkit.course.lab05.figures.latency import following, spread
from labkit.experiments.boundary import Boundary
from labkit.planning.context import longest_surviving_context, needed, pinned_bytes
from labkit.settings import Settings
from labkit.units import GiB, MiB, fmt_bytes

pytestmark = pytest.mark.filterwarnings("error")

SMALL = search(880 * MiB, 874 * MiB, n_ctx=1024, type_k="q8_0", type_v="q8_0")
LOCKED = Settings(load_mode="mmap+mlock", repack=False)

PICTURES = Album({
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
    "latency, guess": lambda: figures.latency(ROWS, guess_times={"mmap": 4}),
    "latency, guess beyond": lambda: figures.latency(ROWS, guess_times={"mmap": 4000}),
    "latency, alike": lambda: figures.latency([ROWS[1], pressed("none", [40, 44])], range_ms=(10, 1000)),
    "latency, recorded": lambda: figures.latency(
        [replace(row, recorded="recorded on AMD EPYC 9B14, 2026-11-29") for row in ROWS], labels=[LONG, "b", "c"]
    ),
    "latency, one": lambda: figures.latency([pressed("mmap", [5.0], faults=None)]),
    "latency, none": lambda: figures.latency([]),
    "latency, all killed": lambda: figures.latency([ROWS[2]]),
    "first": lambda: figures.first_token(AFTER_PAUSE),
    "first, alike": lambda: figures.first_token(AFTER_PAUSE[1:]),
    "first, silent": lambda: figures.first_token([*AFTER_PAUSE, pressed("none", idle_s=5, **KILLED)]),
    "first, none": lambda: figures.first_token([]),
    "boundary": lambda: figures.boundary(FOUND),
    "boundary, two": lambda: figures.boundary([FOUND, SMALL], guess_bytes=800 * MiB),
    "boundary, guess beyond": lambda: figures.boundary(FOUND, guess_bytes=1 << 40),
    "boundary, other": lambda: figures.boundary(
        replace(FOUND, runs=(*FOUND.runs, replace(FOUND.runs[0], outcome="timed-out")))
    ),
    "boundary, none": lambda: figures.boundary(Boundary(None, 900 * MiB, 955 * MiB, FOUND.runs[:1])),
    "budget": lambda: figures.lock_budget(header(), LOCKED, limit_bytes=8 * GiB, selected=4096),
    "budget, at the end": lambda: figures.lock_budget(header(), LOCKED, limit_bytes=8 * GiB, selected=8192),
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
})  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    assert_well_made(PICTURES[name])


@pytest.mark.parametrize("name", ["locked", "latency", "first, silent", "boundary, two", "budget", "budget, repack"])
def test_pictures_stay_small(name: str) -> None:
    assert len(figures.png(PICTURES[name])) < 35_000


# what_is_locked


def test_what_is_locked_lies_to_the_left_with_a_dark_edge_and_the_rest_to_the_right() -> None:
    fig = PICTURES["locked"]
    drawn = bars(fig)
    unit = MiB if "MiB" in fig.axes[0].get_xlabel() else GiB
    assert [bar.get_width() for bar in drawn.get("measured locked file", [])] == pytest.approx([-SPAN / unit] * 2)
    assert [bar.get_width() for bar in drawn.get("measured locked heap", [])] == pytest.approx([-SPAN / unit])
    assert [bar.get_width() for bar in drawn.get("measured not locked kv", [])] == pytest.approx([KV / unit] * 5)
    assert [bar.get_width() for bar in drawn.get("measured not locked repack", [])] == pytest.approx([500 * MiB / unit])
    assert [bar.get_width() for bar in drawn.get("predicted not locked heap", [])] == pytest.approx([SPAN / unit])
    assert len(patches(fig, "locked")) == 6 and not drawn.get("measured locked kv", [])
    assert drawn.get("predicted locked file", [])[0].get_hatch() == KINDS["file"].hatch
    text = said(fig)
    assert "770 MiB predicted" in text and "← locked" in text
    assert not numbers(fig), "as predicted, so there is no error to give"


def test_a_lock_that_failed_is_told_and_drawn() -> None:
    fig = PICTURES["locked, failed"]
    assert "0 B of 770 MiB" in said(fig) and "200 MiB of 770 MiB" in said(fig)
    assert numbers(fig) == ["2", "3"], "in 2 of 3 runs the lock failed"
    assert len(bars(fig)["measured locked file"]) == 2
    only = figures.what_is_locked([ran("mmap+mlock", locked=0)])
    assert numbers(only) == ["770 MiB"], "asked for"
    assert "oom-killed" in said(PICTURES["locked, killed"])


def test_labels_come_one_per_row() -> None:
    for draw in (
        lambda: figures.what_is_locked([ran()], labels=[]),
        lambda: figures.latency(ROWS, labels=["a"]),
        lambda: figures.first_token(AFTER_PAUSE, labels=["a"]),
        lambda: figures.boundary(FOUND, labels=["a", "b"]),
    ):
        with pytest.raises(ValueError, match="one label per"):
            draw()


# latency and first_token


def test_the_distribution_is_drawn_and_written() -> None:
    assert spread(range(1, 101)) == (50.5, 95, 100) and spread([7.0]) == (7, 7, 7)
    fig = PICTURES["latency"]
    assert sorted(lines(fig, "_during")[0].get_xdata()) == sorted(PAGED)
    assert [mark.get_xdata()[0] for mark in lines(fig, "_median")] == [310, 42]
    assert [mark.get_xdata()[0] for mark in lines(fig, "_p95")] == [900, 47]
    assert [mark.get_xdata()[0] for mark in lines(fig, "_worst")] == [900, 47]
    assert len(lines(fig, "_before")) == 3
    text = said(fig)
    assert "median 310 ms, p95 900 ms, worst 900 ms; 8,638 major faults" in text
    assert "oom-killed: the kernel killed it in context." in text
    assert numbers(fig) == ["300 MiB", "42.0 ms", "310 ms"] and fig.axes[0].get_xscale() == "log"
    assert numbers(PICTURES["latency, alike"]) == ["300 MiB", "42.0 ms"], "at most"
    assert PICTURES["latency, alike"].axes[0].get_xlim() == (10, 1000)
    assert "recorded on AMD EPYC 9B14" in said(PICTURES["latency, recorded"])
    assert "major faults" not in said(PICTURES["latency, one"])


def test_a_guess_of_the_slowdown_is_drawn_in_its_row() -> None:
    assert guess(PICTURES["latency, guess"])[0] == 4 * 40.5, "the median before the pressure is 40.5 ms"
    assert 0 < guess(PICTURES["latency, guess"])[1] < 0.5, "in the first row"
    assert "you predicted 4 times, 162 ms" in said(PICTURES["latency, guess"])
    assert "beyond this axis" in said(PICTURES["latency, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: figures.latency(ROWS, guess_times={"mmap": typed}))


def test_the_first_token_stands_beside_those_that_follow() -> None:
    assert following(AFTER_PAUSE[0]) == (41, 42, 40) and following(ROWS[0]) == ()
    fig = PICTURES["first"]
    assert [mark.get_xdata()[0] for mark in lines(fig, "_first")] == [1400, 44]
    assert [list(wait.get_xdata()) for wait in lines(fig, "_wait")] == [[41, 1400], [41, 44]]
    text = said(fig)
    assert "first 1.40 s, then 41.0 ms: 34.1×; 777 major faults" in text
    assert numbers(fig) == ["34 times", "1.07 times"]
    assert numbers(PICTURES["first, alike"]) == ["1.07 times"], "at most"
    assert "oom-killed" in said(PICTURES["first, silent"])


# boundary


def test_the_boundary_found_stands_beside_the_one_predicted() -> None:
    fig = PICTURES["boundary"]
    finished, killed = ([mark.get_xdata()[0] for mark in lines(fig, label)] for label in ("_finished", "_killed"))
    assert len(finished) + len(killed) == len(FOUND.runs)
    assert min(finished) >= 948 > max(killed)
    assert line(fig, "_predicted").get_xdata()[0] == pytest.approx(955)
    middle = (FOUND.survived_bytes + FOUND.killed_bytes) / 2 / MiB
    text = said(fig)
    assert "mmap+mlock, n_ctx 1,024, f16: predicted 955 MiB" in text
    assert f"off by {100 * (955 / middle - 1):+.1f} %" in text
    error = f"{100 * abs(955 / middle - 1):.1f} %"
    assert numbers(fig)[-1] == error
    assert "q8_0" in said(PICTURES["boundary, two"]) and numbers(PICTURES["boundary, two"]) == ["2", error]
    assert not numbers(PICTURES["boundary, none"]) and "timed-out" in said(PICTURES["boundary, other"])


def test_a_guess_of_the_boundary_is_drawn_through_the_first_search() -> None:
    fig = PICTURES["boundary, two"]
    own, first = line(fig, "_guess line"), lines(fig, "_predicted")[0]
    assert guess(fig)[0] == 800 and set(own.get_xdata()) == {800}
    assert list(own.get_ydata()) == list(first.get_ydata())
    assert "you predicted 800 MiB" in said(fig)
    assert PICTURES["boundary, guess beyond"].axes[0].get_xlim() == PICTURES["boundary"].axes[0].get_xlim()
    assert "beyond this axis" in said(PICTURES["boundary, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: figures.boundary(FOUND, guess_bytes=typed))


# lock_budget


def test_the_budget_is_what_must_stay() -> None:
    fig = PICTURES["budget"]
    fits = longest_surviving_context(header(), LOCKED, 8 * GiB)
    assert fits == 8192 and pinned_bytes(needed(header(), LOCKED, fits + 256)) > 8 * GiB
    killed = line(fig, "_killed")
    assert killed.get_xdata()[0] == fits and killed.get_ydata()[0] == 8
    text = said(fig)
    assert (
        "killed beyond 8,192" in text
        and f"4,096: {fmt_bytes(pinned_bytes(needed(header(), LOCKED, 4096)))}" in text
        and "limit 8.00 GiB" in text
    )
    not_locked = longest_surviving_context(header(), replace(LOCKED, load_mode="mmap"), 8 * GiB)
    assert numbers(fig) == ["8.00 GiB", "8,192 tokens", f"{not_locked:,} tokens"]
    floor = line(fig, "must stay if not locked")
    loose = replace(LOCKED, load_mode="mmap")
    x, y = floor.get_xdata()[-1], floor.get_ydata()[-1]
    assert y * GiB == pytest.approx(needed(header(), loose, int(x)).anon_floor_bytes)


def test_what_cannot_run_locked_is_said() -> None:
    loose = replace(LOCKED, load_mode="mmap")
    for name, gib in (("budget, no room", 2), ("budget, mapped", 8)):  # only without the lock
        n = longest_surviving_context(header(), loose, gib * GiB)
        assert numbers(PICTURES[name]) == [f"{gib}.00 GiB", f"{n:,} tokens"] and n > 0
    assert "above this axis" in said(PICTURES["budget, fixed"])
    assert "weights on the heap" in said(PICTURES["budget, heap"])
    assert numbers(PICTURES["budget, heap"]) == ["8.00 GiB", "8,192 tokens"], "locked or not"
    assert "repack copy" in said(PICTURES["budget, repack"])


def test_weights_on_the_heap_must_stay_locked_or_not() -> None:
    p = needed(header(), Settings(load_mode="mlock", repack=False), 512)
    assert pinned_bytes(p) == p.anon_floor_bytes
    none = needed(header(), Settings(load_mode="none", repack=False), 512)
    assert pinned_bytes(none) == pinned_bytes(p)
    assert longest_surviving_context(header(), LOCKED, GiB) == 0
    assert longest_surviving_context(header(), LOCKED, 999 * GiB) == 131_072
