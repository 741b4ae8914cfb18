"""What is asked of a KV cache, step by step: tokens are added, removed, shared and moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

N_SEQ_MAX = 10  # the map of the cells has one digit for a sequence
TOKENS_MAX = 99_999  # and five for a position
OPS = ("add", "remove", "copy", "shift", "keep", "clear")


class SlotsError(ValueError):
    """A step or a size is not possible; the message says which and what to write."""


@dataclass(frozen=True)
class Step:
    """One operation on the cache, made by ``add``, ``remove``, ``copy``, ``shift``, ``keep`` or ``clear``.

    ``n`` tokens are added; ``to`` is the sequence a copy makes; ``p0`` up to, not including, ``p1`` are positions (-1:
    to the end), which a shift changes by ``delta``.
    """

    op: str
    seq: int = 0
    n: int | None = None
    to: int | None = None
    p0: int = 0
    p1: int = -1
    delta: int = 0

    def __str__(self) -> str:
        span = f", {self.p0}, {self.p1}" if (self.p0, self.p1) != (0, -1) else ""
        inside = {
            "add": f"{self.seq}, {self.n}",
            "remove": f"{self.seq}{span}",
            "copy": f"{self.seq}, {self.to}",
            "shift": f"{self.seq}, {self.p0}, {self.p1}, {self.delta}",
            "keep": f"{self.seq}",
        }
        return f"{self.op}({inside.get(self.op, '')})"


def add(seq: int, n: int) -> Step:
    """Decode ``n`` more tokens of sequence ``seq`` in one batch."""
    return Step("add", seq, n=n)


def remove(seq: int, p0: int = 0, p1: int = -1) -> Step:
    """Forget the positions ``p0`` up to ``p1`` of a sequence; without them, all of it."""
    return Step("remove", seq, p0=p0, p1=p1)


def copy(seq: int, to: int) -> Step:
    """Let the empty sequence ``to`` share the tokens of ``seq``, as when two chats begin alike."""
    return Step("copy", seq, to=to)


def shift(seq: int, p0: int, p1: int, delta: int) -> Step:
    """Add ``delta`` to the positions ``p0`` up to ``p1`` of a sequence."""
    return Step("shift", seq, p0=p0, p1=p1, delta=delta)


def keep(seq: int) -> Step:
    """Forget every other sequence of the same stream."""
    return Step("keep", seq)


def clear() -> Step:
    """Forget everything."""
    return Step("clear")


def context_shift(seq: int, *, n_keep: int, n_discard: int) -> tuple[Step, Step]:
    """Make room at the front of a long chat, as llama-server's ``--context-shift`` does: forget, then close the gap.

    Args:
        n_keep: tokens at the beginning that are kept, such as the system's prompt.
        n_discard: how many after them are removed; llama-server removes half of the rest.
    """
    end = n_keep + n_discard
    return remove(seq, n_keep, end), shift(seq, end, -1, -n_discard)


def demo_trace() -> tuple[Step, ...]:
    """For 256 cells: three requests, the second ends, a long one comes, the first branches, all grow until full."""
    start = (add(0, 60), add(1, 60), add(2, 40), remove(1), add(3, 100))
    return (*start, copy(0, 1), add(1, 20), add(0, 30), add(2, 20))


def check(trace: Sequence[Step], *, n_seq_max: int) -> None:
    """Refuse a trace that no cache could run.

    Raises:
        SlotsError: a step names a sequence that does not exist, adds no token, or has an impossible range.
    """
    if not 1 <= n_seq_max <= N_SEQ_MAX:
        raise SlotsError(f"n_seq_max is {n_seq_max}: the map has one digit for a sequence, so write 1 to {N_SEQ_MAX}.")
    if not trace:
        raise SlotsError("the trace has no steps: begin with slots.add(0, 60).")
    for step in trace:
        _check(step, n_seq_max)
    if sum((step.n or 0) + abs(step.delta) for step in trace) > TOKENS_MAX:
        raise SlotsError(f"the trace reaches positions beyond {TOKENS_MAX:,}: add and shift by less.")


def _check(step: Step, n_seq_max: int) -> None:
    numbers = (step.seq, step.n or 0, step.to or 0, step.p0, step.p1, step.delta)
    if step.op not in OPS or any(type(number) is not int for number in numbers):
        raise SlotsError(f"{step} is not a step: make one with slots.{', slots.'.join(OPS)}, and whole numbers.")
    for seq in (step.seq, step.to or 0):
        if not 0 <= seq < n_seq_max:
            raise SlotsError(f"{step}: there is no sequence {seq}, they go from 0 to {n_seq_max - 1}.")
    if step.op == "add" and (step.n or 0) < 1:
        raise SlotsError(f"{step}: add one token or more.")
    if step.op == "copy" and step.to in (None, step.seq):
        raise SlotsError(f"{step}: copy to another sequence.")
    if step.p0 < 0 or (step.p1 != -1 and step.p1 <= step.p0):
        raise SlotsError(f"{step}: give positions from 0 on, the first before the second, or -1 for the end.")
    if step.op == "shift" and step.p0 + step.delta < 0:
        raise SlotsError(f"{step}: position {step.p0} would become negative.")
