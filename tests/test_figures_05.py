"""Pictures of lab 05: figures in them equal the input, and no text is lost or covered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from matplotlib.figure import Figure
from test_figures import LONG, assert_legible, predicted, words
from test_figures import run as any_run

from labkit import figures, gguf
from labkit.boundary import Boundary
from labkit.enginelog import Buffer
from labkit.figures.latency import following, spread
from labkit.figures.style import KINDS
from labkit.forge import header_bytes
from labkit.lockbudget import longest_context, needed, pinned_bytes
from labkit.pressure import Pressured, Step
from labkit.run import Measured, Phase, Run
from labkit.settings import Settings
from labkit.units import GiB, MiB

SPAN, KV, OWN, TOUCHED = 770 * MiB, 128 * MiB, 40 * MiB, 10 * MiB
KILLED = {"outcome": "oom-killed", "reason": "the kernel killed it in context.", "phases": (), "buffers": ()}


@cache
def header(shape: str = "llama-2-7b") -> gguf.Header:
    return gguf.read_header(header_bytes(shape, "Q4_K_M"))


def ran(mode: str = "mmap", *, locked: int | None = None, cap: int | None = None, **changes: Any) -> Run:
    """A run of a 1B whose memory is as predicted; the lock may have got less."""
    mapped = mode in ("mmap", "mmap+mlock")
    repack = changes.pop("repack", 0)
    heap = 0 if mapped else SPAN
    asked = SPAN if mode.endswith("mlock") else 0
    got = asked if locked is None else locked
    anon = heap + repack + KV + OWN + TOUCHED
    file = (SPAN if mapped else 0) + 22 * MiB
    foreseen = predicted(heap=heap, repack=repack, kv=KV, python=OWN, touched=TOUCHED, file=file, locked=asked)
    at: dict[str, Any] = {"minor_faults": 1, "major_faults": 0, "read_bytes": 0, "rss_file_bytes": file}
    ends = {"start": OWN, "load": OWN + heap + repack, "context": OWN + heap + repack + KV, "decode": anon}
    buffers = [Buffer("CPU_Mapped" if mapped else "CPU", "model", SPAN), Buffer("CPU", "kv", KV)]
    buffers += [Buffer("CPU_REPACK", "model", repack)] if repack else []
    base = any_run(
        settings=Settings(load_mode=mode, repack=bool(repack)),
        predicted=replace(foreseen, mapped_bytes=SPAN if mapped else 0),
        measured=Measured(rss_anon_bytes=anon, peak_rss_bytes=None, decode_ms=40.0, locked_bytes=got, **at),
        buffers=(*buffers, Buffer("CPU", "compute", 96 * MiB)),
        phases=tuple(
            Phase(name, 0, 1, pss_bytes=None, rss_anon_bytes=size, locked_bytes=got, **at)
            for name, size in ends.items()
        ),
        samples=(),
        cap_bytes=cap,
    )
    return replace(base, **changes)


def pressed(
    mode: str = "mmap",
    during: Sequence[float] = (),
    *,
    before: Sequence[float] = (40.0, 41.0, 39.5, 42.0),
    after: Sequence[float] = (),
    idle_s: float = 0.0,
    faults: int | None = 3,
    recorded: str | None = None,
    **changes: Any,
) -> Pressured:
    stages = {"before": before, "during": during, "after": after}
    steps = tuple(Step(stage, ms, faults, 0) for stage, times in stages.items() for ms in times)
    how = {"kind": "file", "inside": True, "rate_bytes_per_s": 400 * MiB, "ballast_passes": 3, "recorded": recorded}
    return Pressured(run=ran(mode, **changes), ballast_bytes=300 * MiB, idle_s=idle_s, steps=steps, **how)


def search(
    boundary: int, predicted_bytes: int, *, mode: str = "mmap+mlock", steps: int = 7, **settings: Any
) -> Boundary:
    low, high, runs = 700 * MiB, 1100 * MiB, []
    for _ in range(steps):
        middle = (low + high) // 2
        ok = middle >= boundary
        low, high = (low, middle) if ok else (middle, high)
        one = ran(mode, cap=middle, **({} if ok else KILLED))
        runs.append(replace(one, settings=Settings(load_mode=mode, repack=False, **settings)))
    return Boundary(high, low, predicted_bytes, tuple(runs))


PAGED = [300.0, 310, 320, 290, 305, 333, 900]
ROWS = [
    pressed("mmap", PAGED, faults=1234),
    pressed("mmap+mlock", [40, 41, 42, 43, 44, 40, 47], faults=0),
    pressed("none", **KILLED),
]
SPOKE = [
    pressed("mmap", after=[1400, 41, 42, 40], idle_s=5, faults=777),
    pressed("mmap+mlock", after=[44, 41, 42, 40], idle_s=5, faults=0),
]
FOUND = search(948 * MiB, 955 * MiB, n_ctx=1024)
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
    fits = longest_context(header(), LOCKED, 8 * GiB)
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
    assert longest_context(header(), LOCKED, GiB) == 0
    assert longest_context(header(), LOCKED, 999 * GiB) == 131_072
