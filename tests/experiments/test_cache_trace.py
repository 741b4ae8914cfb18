"""Steps of a trace: how they read, and which are refused before anything starts."""

from __future__ import annotations

import pytest

from labkit.experiments import cache_slots
from labkit.experiments.cache_slots import add, clear, context_shift, copy, keep, remove, shift, slot_map


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ([], "the trace has no steps: begin with slots.add(0, 60)."),
        ([add(4, 1)], "add(4, 1): there is no sequence 4, they go from 0 to 3."),
        ([add(-1, 1)], "add(-1, 1): there is no sequence -1, they go from 0 to 3."),
        ([copy(0, 9)], "copy(0, 9): there is no sequence 9, they go from 0 to 3."),
        ([copy(0, 0)], "copy(0, 0): copy to another sequence."),
        ([add(0, 0)], "add(0, 0): add one token or more."),
        (
            [remove(0, 5, 5)],
            "remove(0, 5, 5): give positions from 0 on, the first before the second, or -1 for the end.",
        ),
        ([shift(0, 5, -1, -6)], "shift(0, 5, -1, -6): position 5 would become negative."),
        ([shift(0, 0, -1, 100_000)], "the trace reaches positions beyond 99,999: add and shift by less."),
        ([add(0, 2.5)], "add(0, 2.5) is not a step: make one with slots.add, "),  # type: ignore[arg-type]
        ([cache_slots.Step("defrag")], "defrag() is not a step: make one with slots.add, "),
    ],
)
def test_an_impossible_step_is_named(trace: list[cache_slots.Step], said: str) -> None:
    with pytest.raises(cache_slots.SlotsError) as caught:
        slot_map(trace)
    assert str(caught.value).startswith(said)


def test_sizes_that_make_no_picture() -> None:
    with pytest.raises(
        cache_slots.SlotsError, match=r"^n_ctx is 5,000: a picture of cells needs 1 to 4,096 of them\.$"
    ):
        slot_map([add(0, 1)], n_ctx=5000)
    with pytest.raises(cache_slots.SlotsError, match=r"^n_seq_max is 11: the map has one digit for a sequence"):
        slot_map([add(0, 1)], n_seq_max=11)


def test_steps_read_as_they_are_written() -> None:
    steps = [add(0, 60), remove(1), remove(1, 4, 8), copy(0, 1), shift(0, 8, -1, -4), keep(0), clear()]
    written = ["add(0, 60)", "remove(1)", "remove(1, 4, 8)", "copy(0, 1)", "shift(0, 8, -1, -4)", "keep(0)", "clear()"]
    assert [str(step) for step in steps] == written
    assert context_shift(2, n_keep=4, n_discard=10) == (remove(2, 4, 14), shift(2, 14, -1, -10))
