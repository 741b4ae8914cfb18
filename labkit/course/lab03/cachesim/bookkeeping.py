"""The books of a simulated KV cache: which positions each sequence holds, and in which cells they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.engine.internals.slot_maps import EMPTY, SHARED
from labkit.experiments.cache_slots import runs
from labkit.experiments.cache_trace import SlotsError, Step

RESERVED = -3
"""How a cell that is held for a sequence but has no token is written; ``EMPTY`` and ``SHARED`` as in a slot map."""


def largest_run(cells: NDArray[np.int64]) -> int:
    """Length of the longest unbroken run of free cells."""
    return max((last - first + 1 for first, last in runs(cells == EMPTY)), default=0)


class Policy(ABC):
    """One kind of cache. What it simplifies, its class says.

    A branch whose copy was refused does not exist: what is added to it afterwards is refused as well.
    """

    def __init__(self, n_cells: int) -> None:
        self.n_cells = n_cells
        self.positions: dict[int, list[int]] = {}
        self.lost = 0
        self._refused: set[int] = set()

    @abstractmethod
    def where(self, seq: int) -> Sequence[int]:
        """The cell of each token of a sequence, in the order of ``positions``."""

    @abstractmethod
    def held(self) -> Sequence[int]:
        """Cells that are reserved, with or without a token."""

    def usable(self, cells: NDArray[np.int64]) -> int:
        """How many of the free cells one new request could have."""
        return int((cells == EMPTY).sum())

    def longest(self, cells: NDArray[np.int64]) -> int:
        """Tokens of the longest new request that would be let in, if it does not grow."""
        return self.usable(cells)

    @abstractmethod
    def _grow(self, seq: int, n: int, peak: int) -> bool:
        """Find room for ``n`` more tokens of a sequence that will never have more than ``peak``."""

    @abstractmethod
    def _share(self, src: int, dst: int, peak: int) -> bool:
        """Find room for ``dst`` to have the tokens of ``src``."""

    @abstractmethod
    def _keep(self, seq: int, kept: list[int]) -> bool:
        """Forget all tokens of a sequence but those of index ``kept``; with none left, its room too."""

    def do(self, step: Step, later: Sequence[Step] = ()) -> bool:
        """Carry out a step; False: it was refused, and nothing changed.

        Args:
            later: the steps after it, from which a reservation may know how long a sequence will become.
        """
        have = self.positions.get(step.seq, [])
        if step.op == "add":
            new = after(have, step)
            if step.seq in self._refused or not self._grow(step.seq, len(new) - len(have), peak(step.seq, new, later)):
                return False
            self._write(step.seq, new[len(have) :])
        elif step.op == "copy":
            return self._copy(step.seq, step.to or 0, later)
        elif step.op == "shift":
            return self._shift(step)
        elif step.op == "remove":
            return self._remove(step.seq, [i for i, position in enumerate(have) if not within(position, step)])
        else:
            gone = {*self.positions, *self._refused} - ({step.seq} if step.op == "keep" else set())
            for seq in gone:
                self._remove(seq, [])
        return True

    def cells(self) -> NDArray[np.int64]:
        """What lies in each cell now, shape (n_cells,): see ``cachesim.Usage``."""
        cells = np.full(self.n_cells, EMPTY, np.int64)
        cells[list(self.held())] = RESERVED
        for seq in self.positions:
            for cell in self.where(seq):
                cells[cell] = seq if cells[cell] in (EMPTY, RESERVED) else SHARED
        return cells

    def _write(self, seq: int, positions: Sequence[int]) -> None:
        self.positions.setdefault(seq, []).extend(positions)

    def _copy(self, src: int, dst: int, later: Sequence[Step]) -> bool:
        if self.positions.get(dst):
            raise SlotsError(f"copy({src}, {dst}): sequence {dst} is not empty, remove it first.")
        have = list(self.positions.get(src, []))
        if have and not self._share(src, dst, peak(dst, have, later)):
            self._refused.add(dst)
            return False
        if have:
            self._write(dst, have)
        return True

    def _remove(self, seq: int, kept: list[int]) -> bool:
        self._refused.discard(seq)
        have = self.positions.get(seq, [])
        if len(kept) == len(have):
            return True
        if not self._keep(seq, kept):
            return False
        self.positions[seq] = [have[i] for i in kept]
        if not kept:
            del self.positions[seq]
        return True

    def _shift(self, step: Step) -> bool:
        if step.seq in self.positions:
            self.positions[step.seq] = after(self.positions[step.seq], step)
        return True


def within(position: int, step: Step) -> bool:
    """Whether a step that has a range of positions means this one."""
    return step.p0 <= position and (step.p1 < 0 or position < step.p1)


def after(positions: Sequence[int], step: Step) -> list[int]:
    """A sequence's positions after a step of its own."""
    if step.op == "add":
        start = positions[-1] + 1 if positions else 0
        return [*positions, *range(start, start + (step.n or 0))]
    if step.op == "remove":
        return [position for position in positions if not within(position, step)]
    if step.op == "shift":
        return [position + step.delta if within(position, step) else position for position in positions]
    return list(positions)


def peak(seq: int, positions: Sequence[int], later: Sequence[Step]) -> int:
    """The most tokens that a sequence will have before it ends, if nothing is refused."""
    most = len(positions)
    for step in later:
        gone = step.op == "clear" or (step.op == "keep" and step.seq != seq)
        positions = [] if gone else after(positions, step) if step.seq == seq else positions
        if not positions:
            break
        most = max(most, len(positions))
    return most
