"""Simulated caches compared with cases counted by hand, and what must hold for every trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.course.lab03.cachesim import KINDS, Usage, simulate, usage_of
from labkit.course.lab03.cachesim.bookkeeping import RESERVED
from labkit.course.lab03.cachesim.policies import Contiguous, Paged, Ring
from labkit.engine.internals.slot_maps import EMPTY, SHARED
from labkit.experiments.cache_slots import (
    SlotsError,
    Snapshot,
    Step,
    add,
    clear,
    context_shift,
    copy,
    demo_trace,
    keep,
    remove,
    shift,
)


def cells(text: str) -> list[int]:
    """``0`` to ``9`` sequences, ``.`` empty, ``M`` shared, ``_`` reserved."""
    return [{".": EMPTY, "M": SHARED, "_": RESERVED}.get(mark) or int(mark) for mark in text]


def last(kind: str, *trace: Step, n_cells: int, **options: Any) -> Usage:
    return simulate(kind, trace, n_cells=n_cells, **options)[-1]


# Contiguous


def test_contiguous_reserves_what_a_sequence_will_need() -> None:
    first, second, grown = simulate("contiguous", [add(0, 3), add(1, 2), add(0, 2)], n_cells=10)
    assert first.cells.tolist() == cells("000__.....")
    assert (first.used, first.reserved, first.wasted, first.free) == (3, 5, 2, 5)
    assert second.cells.tolist() == cells("000__11...") and second.longest_admitted == 3
    assert grown.cells.tolist() == cells("0000011...") and grown.wasted == 0


def test_contiguous_reserves_a_fixed_length() -> None:
    trace = [add(0, 3), add(1, 1), add(0, 1), add(0, 1), add(2, 5), add(2, 1)]
    found = simulate("contiguous", trace, n_cells=10, reserve=4)
    assert [usage.admitted for usage in found] == [True, True, True, False, False, False]
    assert found[0].cells.tolist() == cells("000_......") and found[0].longest_admitted == 4
    assert found[-1].cells.tolist() == cells("00001___..")
    # Two cells are free, and no request fits into them.
    assert (found[-1].free, found[-1].longest_admitted, found[-1].wasted) == (2, 0, 3)


def test_contiguous_refuses_a_request_that_fits_into_no_free_run() -> None:
    trace = [add(0, 3), add(1, 3), add(2, 3), remove(1), add(3, 4), add(3, 3)]
    hole, refused, placed = simulate("contiguous", trace, n_cells=12)[-3:]
    assert hole.cells.tolist() == cells("000...222...")
    assert (hole.free, hole.largest_free_run, hole.longest_admitted, hole.fragmentation) == (6, 3, 3, 0.5)
    assert not refused.admitted and refused.cells.tolist() == hole.cells.tolist()
    assert placed.admitted and placed.cells.tolist() == cells("000333222...")  # first fit


def test_a_sequence_whose_copy_was_refused_does_not_grow() -> None:
    trace = [add(0, 4), copy(0, 1), add(1, 1), remove(1), add(1, 1)]
    found = simulate("contiguous", trace, n_cells=7)
    assert [usage.admitted for usage in found] == [True, False, False, True, True]
    assert found[-1].cells.tolist() == cells("00001..")


def test_contiguous_moves_the_tokens_after_a_removed_part() -> None:
    trace = [add(0, 6), *context_shift(0, n_keep=1, n_discard=3), add(0, 2)]
    removed, shifted, grown = simulate("contiguous", trace, n_cells=8)[1:]
    assert removed.cells.tolist() == shifted.cells.tolist() == cells("000___..")
    assert grown.cells.tolist() == cells("00000_..")


# Paged


def test_paged_takes_whole_blocks_anywhere() -> None:
    trace = [add(0, 5), add(1, 4), add(0, 4), remove(1), add(2, 6)]
    found = simulate("paged", trace, n_cells=16, block=4)
    assert found[0].cells.tolist() == cells("00000___........")
    assert (found[0].used, found[0].wasted, found[0].free) == (5, 3, 8)
    assert found[2].cells.tolist() == cells("0000000011110___")
    assert found[3].free == found[3].longest_admitted == 4
    assert not found[4].admitted  # six tokens need two blocks, one is free


def test_paged_copies_a_shared_block_only_when_it_is_written() -> None:
    shared, written, other, gone = simulate(
        "paged", [add(0, 6), copy(0, 1), add(1, 1), add(0, 1), remove(0)], n_cells=16, block=4
    )[1:]
    assert shared.cells.tolist() == cells("MMMMMM__........")
    assert (shared.used, shared.wasted, shared.free) == (6, 2, 8)
    assert written.cells.tolist() == cells("MMMM00__111_....")
    assert other.cells.tolist() == cells("MMMM000_111_....")  # no other sequence has its block any more
    assert gone.cells.tolist() == cells("1111....111_....")


def test_a_full_shared_block_is_never_copied() -> None:
    found = last("paged", add(0, 4), copy(0, 1), add(1, 1), n_cells=8, block=4)
    assert found.admitted and found.cells.tolist() == cells("MMMM1___")


def test_paged_refuses_to_remove_from_the_middle() -> None:
    trace = [add(0, 8), *context_shift(0, n_keep=1, n_discard=3), remove(0, 5), shift(0, 7, -1, -1), add(1, 1)]
    found = simulate("paged", trace, n_cells=12, block=4)
    assert [usage.admitted for usage in found] == [True, False, False, True, True, True]
    assert found[3].cells.tolist() == cells("00000___....")


# Ring


def test_the_ring_overwrites_the_oldest() -> None:
    first, second, third = simulate("ring", [add(0, 5), add(1, 3), add(0, 2)], n_cells=6)
    assert (first.cells.tolist(), first.lost) == (cells("00000."), 0)
    assert (second.cells.tolist(), second.lost) == (cells("110001"), 2)
    assert (third.cells.tolist(), third.lost) == (cells("110001"), 4)
    assert third.admitted and third.longest_admitted == 6


def test_the_ring_fills_an_empty_cell_only_when_it_reaches_it() -> None:
    hole, written, copied = simulate("ring", [add(0, 2), add(1, 2), remove(0), add(2, 2), copy(2, 0)], n_cells=5)[2:]
    assert (hole.cells.tolist(), hole.free, hole.lost) == (cells("..11."), 3, 0)
    assert (written.cells.tolist(), written.lost) == (cells("2.112"), 0)
    assert (copied.cells.tolist(), copied.lost) == (cells("20012"), 1)


def test_a_sequence_longer_than_the_ring_keeps_its_end() -> None:
    ring = Ring(4)
    assert ring.apply(add(0, 6)) and ring.positions == {0: [2, 3, 4, 5]} and ring.lost == 2
    assert ring.apply(shift(0, 4, -1, -1)) and ring.positions == {0: [2, 3, 3, 4]}
    assert ring.apply(remove(0, 3, 4)) and ring.positions == {0: [2, 4]}
    assert ring.cells().tolist() == cells(".00.")  # the last token lies in cell 1, the first left in cell 2


# llama.cpp's own


def snapshot(text: str, *, streams: int = 1, status: int = 0) -> Snapshot:
    listed = np.array(cells(text), np.int64)
    used = int((listed != EMPTY).sum())
    return Snapshot(add(0, 1), status, listed, listed, used, (0,) * streams, {}, "")


def test_one_stream_reserves_nothing() -> None:
    (usage,) = usage_of([snapshot("0.M..2.0", status=1)])
    assert (usage.used, usage.reserved, usage.wasted, usage.free) == (4, 4, 0, 4)
    assert (usage.largest_free_run, usage.longest_admitted, usage.fragmentation) == (2, 4, 0)
    assert not usage.admitted and not usage.simulated and usage.lost == 0


def test_a_stream_for_each_sequence_is_a_reservation() -> None:
    (usage,) = usage_of([snapshot("0.........22", streams=3)])
    assert usage.cells.tolist() == cells("0___....__22")
    assert (usage.used, usage.reserved, usage.free, usage.longest_admitted) == (3, 8, 4, 4)
    (full,) = usage_of([snapshot("0...1...2...", streams=3)])
    assert (full.wasted, full.free, full.longest_admitted, full.fragmentation) == (9, 0, 0, 0)
    (two,) = usage_of([snapshot("0...........", streams=3)])
    assert (two.free, two.longest_admitted, two.fragmentation) == (8, 4, 0.5)


# All of them


def test_the_policies_refuse_different_steps_of_the_demonstration() -> None:
    trace = demo_trace()
    refused = {kind: [str(u.step) for u in simulate(kind, trace) if not u.admitted] for kind in KINDS}
    assert refused == {
        "contiguous": ["add(3, 100)", "copy(0, 1)", "add(1, 20)"],
        "paged": ["add(0, 30)", "add(2, 20)"],
        "ring": [],
    }
    assert simulate("ring", trace)[-1].lost > 0
    assert simulate("contiguous", trace)[4].fragmentation > 0.4


SEQS = st.integers(0, 3)
STEPS = st.one_of(
    st.builds(add, SEQS, st.integers(1, 40)),
    st.builds(remove, SEQS),
    st.builds(lambda seq, p0, n: remove(seq, p0, p0 + n), SEQS, st.integers(0, 30), st.integers(1, 20)),
    st.builds(lambda seq, p0: remove(seq, p0), SEQS, st.integers(0, 30)),
    st.builds(lambda seq, p0: shift(seq, p0, -1, -p0), SEQS, st.integers(0, 3)),
    st.builds(keep, SEQS),
    st.just(clear()),
)


@st.composite
def traces(draw: st.DrawFn) -> list[Step]:
    """Steps that every cache accepts as input: a copy goes to a sequence that was removed just before."""
    found: list[Step] = []
    for step in draw(st.lists(STEPS, min_size=1, max_size=12)):
        found.append(step)
        if draw(st.integers(0, 3)) == 0:
            dst = (step.seq + draw(st.integers(1, 3))) % 4
            found += [remove(dst), copy(step.seq, dst)]
    return found


@settings(max_examples=60, deadline=None)
@given(traces(), st.sampled_from([*KINDS, "fixed"]))
def test_what_holds_after_every_step(trace: list[Step], kind: str) -> None:
    n = 96
    options: dict[str, Any] = {"reserve": 32} if kind == "fixed" else {}
    found = simulate("contiguous" if kind == "fixed" else kind, trace, n_cells=n, **options)
    assert [usage.step for usage in found] == trace and all(usage.simulated for usage in found)
    before = np.full(n, EMPTY)
    for usage in found:
        assert usage.used + usage.wasted == usage.reserved == n - usage.free
        assert usage.wasted == (usage.cells == RESERVED).sum() and usage.free == (usage.cells == EMPTY).sum()
        assert 0 <= usage.fragmentation < 1 and usage.largest_free_run <= usage.free
        assert kind == "ring" or usage.lost == 0
        if kind != "ring":
            assert usage.longest_admitted <= usage.free
        if not usage.admitted:
            assert usage.cells.tolist() == before.tolist()
        before = usage.cells
    if kind == "ring":
        assert all(usage.admitted and usage.wasted == 0 for usage in found)


@settings(max_examples=60, deadline=None)
@given(traces(), st.sampled_from([4, 16]))
def test_blocks_and_their_references(trace: list[Step], block: int) -> None:
    policy = Paged(96, block=block)
    for step in trace:
        policy.apply(step)
        tables = policy.tables
        assert set(tables) == set(policy.positions)
        held = [index for table in tables.values() for index in table]
        assert [held.count(i) for i in range(96 // block)] == policy._references
        for seq, table in tables.items():
            assert 0 <= len(table) * block - len(policy.positions[seq]) < block
            assert len(table) == len(set(table))
        wasted = int((policy.cells() == RESERVED).sum())
        assert wasted <= (block - 1) * len(tables)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_a_new_request_of_the_longest_size_is_admitted_and_one_more_is_not(trace: list[Step]) -> None:
    for policy in (Contiguous(96), Contiguous(96, reserve=32), Paged(96)):
        for step in trace:
            policy.apply(step)
        longest = policy.longest(policy.cells())
        assert not policy.apply(add(9, longest + 1))
        assert longest == 0 or policy.apply(add(9, longest))


@settings(max_examples=60, deadline=None)
@given(traces())
def test_the_ring_loses_what_it_does_not_hold(trace: list[Step]) -> None:
    ring = Ring(48)
    for step in trace:
        held, lost = sum(map(len, ring.positions.values())), ring.lost
        source = len(ring.positions.get(step.seq, []))
        ring.apply(step)
        now = sum(map(len, ring.positions.values()))
        written = {"add": step.n or 0, "copy": source}.get(step.op)
        if written is not None:
            assert now - held == written - (ring.lost - lost)
        assert now == (ring.cells() != EMPTY).sum() <= 48


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("buddy", {}, ["'buddy'", "contiguous, paged, ring"]),
        ("paged", {"block": 7}, ["block is 7", "256"]),
        ("contiguous", {"reserve": 300}, ["reserve is 300", "256"]),
        ("ring", {"n_cells": 0}, ["n_cells is 0"]),
    ],
)
def test_impossible_caches(kind: str, options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(SlotsError) as caught:
        simulate(kind, [add(0, 1)], **options)
    assert all(part in str(caught.value) for part in said)


def test_a_copy_to_a_sequence_in_use() -> None:
    with pytest.raises(SlotsError, match=r"copy\(0, 1\): sequence 1"):
        simulate("paged", [add(0, 1), add(1, 1), copy(0, 1)])
