"""llama.cpp's cells while sequences come, go, branch and shift: live, on the bundled model or a small forged one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.small import small, write

from labkit import engine
from labkit.engine import bindings
from labkit.engine.internals.slot_maps import EMPTY, KV_DEBUG, SHARED, SlotMap, parse_slot_maps
from labkit.experiments import cache_slots
from labkit.experiments.cache_slots import Snapshot, add, clear, context_shift, copy, keep, remove, slot_map
from labkit.experiments.child import task
from labkit.settings import Settings

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forged") / "small.gguf"
    write(path, small(block_count=1), "Q8_0")
    return path


@pytest.fixture(scope="module")
def demo() -> tuple[Snapshot, ...]:
    return slot_map(cache_slots.demo_trace(), threads=1)


def cells(*parts: tuple[int, int]) -> list[int]:
    """(owner, how many), … as one list of 256 cells; the rest is empty."""
    listed = [owner for owner, n in parts for _ in range(n)]
    return listed + [EMPTY] * (256 - len(listed))


# The engine's own answers, in a child


def test_a_long_batch_is_split_over_the_hole(demo: tuple[Snapshot, ...]) -> None:
    assert demo[2].cells.tolist() == cells((0, 60), (1, 60), (2, 40))
    assert demo[3].cells.tolist() == cells((0, 60), (EMPTY, 60), (2, 40))
    assert demo[4].cells.tolist() == cells((0, 60), (3, 60), (2, 40), (3, 40))
    assert demo[4].positions[60:120].tolist() == list(range(60))
    assert demo[4].positions[160:200].tolist() == list(range(60, 100))
    assert demo[4].note == "into cells 60–119 and 160–199"
    assert (demo[3].note, demo[3].head, demo[4].head) == ("60 cells freed", 60, 200)


def test_a_copy_shares_cells_and_takes_none(demo: tuple[Snapshot, ...]) -> None:
    before, copied, grown = demo[4:7]
    assert copied.used == before.used == 200
    assert copied.cells.tolist() == cells((SHARED, 60), (3, 60), (2, 40), (3, 40))
    assert copied.spans[1] == copied.spans[0] == (0, 59)
    assert (grown.cells == SHARED).sum() == 60 and grown.spans[1] == (0, 79) and grown.spans[0] == (0, 59)


def test_a_batch_that_does_not_fit_is_an_outcome(demo: tuple[Snapshot, ...]) -> None:
    assert [snapshot.status for snapshot in demo] == [0] * 8 + [1]
    before, refused = demo[-2:]
    assert (before.cells == EMPTY).sum() == 6
    assert refused.cells.tolist() == before.cells.tolist()
    assert refused.positions.tolist() == before.positions.tolist()
    assert (refused.head, refused.spans, refused.used) == (before.head, before.spans, before.used)
    assert refused.note == "no room for 20 tokens: nothing was placed"


def test_what_holds_after_every_step(demo: tuple[Snapshot, ...]) -> None:
    assert [snapshot.step for snapshot in demo] == list(cache_slots.demo_trace())
    for snapshot in demo:
        taken = snapshot.cells != EMPTY
        assert snapshot.used == taken.sum() and (snapshot.positions >= 0).tolist() == taken.tolist()
        assert taken[: snapshot.head].all()  # the search starts no later than at the first empty cell
        assert snapshot.cells.shape == snapshot.positions.shape == (256,)
        for seq, (first, last) in snapshot.spans.items():
            own = snapshot.positions[snapshot.cells == seq]
            assert first == 0 and (own <= last).all() and len(own) == len(set(own.tolist()))
        lengths = sum(last + 1 for _, last in snapshot.spans.values())
        assert lengths == snapshot.used + (snapshot.cells == SHARED).sum()  # here a shared cell has two sequences


def test_a_context_shift_makes_room_and_moves_no_cell(forged: Path) -> None:
    trace = [add(0, 200), add(0, 100), *context_shift(0, n_keep=4, n_discard=98), add(0, 100)]
    full, refused, removed, shifted, grown = slot_map(trace, model=forged, threads=1)
    assert (full.status, refused.status, grown.status) == (0, 1, 0)
    assert removed.used == 102 and removed.spans[0] == (0, 199)
    assert shifted.cells.tolist() == removed.cells.tolist() == cells((0, 4), (EMPTY, 98), (0, 98))
    assert shifted.spans[0] == (0, 101)
    assert shifted.positions[102:200].tolist() == list(range(4, 102))
    assert grown.used == 202 and grown.spans[0] == (0, 201)
    assert sorted(grown.positions[grown.positions >= 0].tolist()) == list(range(202))
    # A shift sends the search back to the first cell, so that the gap is filled at once.
    assert (removed.head, shifted.head, grown.head) == (4, 0, 202)
    assert grown.positions[4:102].tolist() == list(range(102, 200))
    assert shifted.note == "98 positions changed by -98, cells stay"


def test_a_shared_cell_shifts_for_all_who_share_it(forged: Path) -> None:
    trace = [add(0, 20), copy(0, 1), add(1, 5), *context_shift(0, n_keep=4, n_discard=6)]
    *_, shifted = slot_map(trace, model=forged, threads=1)
    assert shifted.note == "10 positions changed by -6, cells stay; for all who share them"
    seen_by_1 = shifted.positions[(shifted.cells == 1) | (shifted.cells == SHARED)]
    assert sorted(seen_by_1.tolist()) == sorted([*range(4), *range(4, 10), *range(4, 14), *range(20, 25)])


def test_without_kv_unified_each_sequence_has_its_own_stream(forged: Path) -> None:
    trace = [add(0, 60), add(2, 10), add(0, 250), copy(0, 1), keep(0), clear()]
    found = slot_map(trace, n_ctx=768, n_seq_max=3, kv_unified=False, model=forged, threads=1)
    first, second, refused, copied, kept, cleared = found
    assert {snapshot.n_streams for snapshot in found} == {3} and first.cells.shape == (768,)
    assert second.cells.reshape(3, 256).tolist() == [cells((0, 60)), cells(), cells((2, 10))]
    assert second.heads == (60, 0, 10) and refused.status == 1  # 698 cells are free, 196 of them in this stream
    assert copied.used == second.used + 60 and not (copied.cells == SHARED).any()
    assert kept.used == copied.used  # the others live in other streams
    assert cleared.used == 0 and cleared.heads == (0, 0, 0)


def test_keep_and_remove_leave_what_another_sequence_needs(forged: Path) -> None:
    trace = [add(0, 8), copy(0, 1), add(1, 4), remove(0), remove(1, 10), add(2, 3), keep(2), clear()]
    found = slot_map(trace, model=forged, threads=1)
    assert [snapshot.used for snapshot in found] == [8, 8, 12, 12, 10, 13, 3, 0]
    assert found[3].cells.tolist() == cells((1, 12)) and found[3].note == "8 cells no longer shared"
    assert found[6].spans == {2: (0, 2)}


def test_a_batch_larger_than_the_cache_is_refused_by_llama_cpp(forged: Path) -> None:
    small_first = [add(0, 1), add(1, 256), add(1, 255), add(2, 3000)]
    assert [found.status for found in slot_map(small_first, model=forged, threads=1)] == [0, 1, 0, 1]


def test_several_maps_rows_in_a_larger_cache(forged: Path) -> None:
    (found,) = slot_map([add(3, 700)], n_ctx=1024, model=forged, threads=1)
    assert found.cells.tolist() == [3] * 700 + [EMPTY] * 324
    assert found.positions[:700].tolist() == list(range(700)) and found.head == 700


def test_a_copy_to_a_sequence_in_use_is_refused(forged: Path) -> None:
    with pytest.raises(task.TaskError, match=r"^copy\(0, 1\): sequence 1 is not empty, remove it first\.$"):
        slot_map([add(0, 4), add(1, 4), copy(0, 1)], model=forged, threads=1)


def test_a_model_with_two_caches_has_no_one_map(tmp_path: Path) -> None:
    path = tmp_path / "gemma.gguf"
    write(path, small("gemma-3-4b"), "Q8_0")
    with pytest.raises(task.TaskError, match="does not keep all its context in one cache"):
        slot_map([add(0, 4)], model=path, threads=1)


def test_progress_and_environment(forged: Path) -> None:
    heard: list[tuple[float, str]] = []
    slot_map([add(0, 2), remove(0)], model=forged, threads=1, progress=lambda share, text: heard.append((share, text)))
    assert heard == [(0.5, "add(0, 2)"), (1.0, "remove(0)")]
    assert KV_DEBUG not in os.environ


# The engine


@pytest.fixture
def context(forged: Path) -> Iterator[engine.Context]:
    settings = Settings(n_ctx=256, n_seq_max=3, kv_unified=True, n_threads=1, n_outputs_max=3)
    with engine.Model(forged, settings) as model, engine.Context(model, settings, map_cells=True) as made:
        yield made


def overheard(context: engine.Context, n: int, seq: int) -> SlotMap:
    """The map that an ordinary decode logs by itself, before it places its batch."""
    bindings.log.take()
    bindings.log.debug = True
    try:
        context.decode([1] * n, seq=seq)
    finally:
        bindings.log.debug = False
    return parse_slot_maps(bindings.log.take())[0]


def test_the_probe_sees_what_the_next_batch_sees(context: engine.Context) -> None:
    """Also twice in a row, and when the cache is empty."""
    context.decode([1] * 5)
    context.decode([1] * 7, seq=1)
    for change in (lambda: None, lambda: context.remove(0), lambda: context.copy(1, 2), lambda: context.keep(2)):
        change()
        (seen,) = context.slot_maps()
        assert context.slot_maps() == (seen,)
        assert overheard(context, 3, 1) == seen
    context.remove(2)
    context.remove(1)
    (seen,) = context.slot_maps()
    assert seen.used == 0 and overheard(context, 3, 1) == seen


def test_looking_changes_no_result(smollm2_path: Path) -> None:
    settings = Settings(n_ctx=256, n_seq_max=2, kv_unified=True, n_threads=1, n_outputs_max=2)
    rows = []
    with engine.Model(smollm2_path, settings) as model:
        for looked in (False, True):
            with engine.Context(model, settings, map_cells=looked) as context:
                for step in range(4):
                    context.decode([1 + step, 300, 5000], seq=step % 2)
                    if step == 2:
                        context.remove(0, 1, 2)
                        context.shift(0, 2, -1, -1)
                    if looked:
                        context.slot_maps()
                rows.append(context.logits())
                assert context.positions(0) == (0, 4) and context.positions(1) == (0, 5)
    assert (rows[0] == rows[1]).all() and np.ptp(rows[0]) > 1


def test_a_sequence_is_computed_as_if_it_were_alone(smollm2_path: Path) -> None:
    settings = Settings(n_ctx=256, n_seq_max=3, kv_unified=True, n_threads=1, n_outputs_max=3)
    text = [1, 300, 5000, 42]
    with engine.Model(smollm2_path, settings) as model, engine.Context(model, settings) as context:
        context.decode(text)
        alone = context.logits()
        context.decode([7, 8, 9, 10, 11], seq=1)
        assert np.abs(context.logits() - alone).max() > 5
        context.decode(text, seq=2)
        assert (context.logits() == alone).all()
        # A branch, cut back and continued: now its tokens lie in another order, and sums are rounded differently.
        context.remove(1)
        context.copy(0, 1)
        context.remove(0)
        context.remove(1, 2)
        context.decode(text[2:], seq=1)
        assert np.abs(context.logits() - alone).max() < 1 and context.logits().argmax() == alone.argmax()


def test_positions_and_n_past(context: engine.Context) -> None:
    assert context.positions(0) is None and context.n_past == 0
    context.decode([1, 2, 3], seq=1)
    assert context.positions(1) == (0, 2) and context.n_past == 0 and context.logits().shape == (4096,)
    context.decode([1, 2])
    context.remove(1, 0, 1)
    assert context.positions(1) == (1, 2) and context.n_past == 2
    context.remove(0, 1)
    assert context.n_past == 1
    context.clear()
    assert context.positions(1) is None and context.n_past == 0
    with pytest.raises(engine.EngineError, match="no logits before"):
        context.logits()


def test_a_full_cache_of_several_sequences(context: engine.Context) -> None:
    context.decode([1] * 200, seq=1)
    with pytest.raises(
        engine.CacheFull, match=r"^the KV cache is full: 57 cells are needed, and fewer of its 256 are free\.$"
    ):
        context.decode([1] * 57)
    context.decode([1] * 56)
    assert context.slot_maps()[0].used == 256


def test_what_the_engine_refuses(context: engine.Context, forged: Path) -> None:
    for call in (
        lambda: context.decode([1], seq=3),
        lambda: context.remove(-1),
        lambda: context.copy(0, 3),
        lambda: context.keep(7),
        lambda: context.shift(3, 0, -1, 1),
        lambda: context.positions(3),
    ):
        with pytest.raises(engine.EngineError, match=r"^there is no sequence -?[0-9]+: with n_seq_max=3"):
            call()
    settings = Settings(n_ctx=512, n_seq_max=2, n_threads=1)
    with engine.Model(forged, settings) as model, engine.Context(model, settings) as apart:
        with pytest.raises(engine.EngineError, match="map_cells=True"):
            apart.slot_maps()
        with pytest.raises(engine.EngineError, match="only all can be copied: use kv_unified"):
            apart.copy(0, 1, 0, 4)
    with pytest.raises(engine.EngineError, match="this context is closed"):
        apart.remove(0)
