"""What all simulated KV caches share: the positions that each sequence has, and how a step of a trace changes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.engine.internals.slot_maps import EMPTY, SHARED
from labkit.experiments.cache_slots import runs
from labkit.experiments.cache_trace import SlotsError, Step

RESERVED = -3
"""The value of a cell that is reserved for a sequence and has no token; ``EMPTY`` and ``SHARED`` as in a slot map."""


def largest_run(cells: NDArray[np.int64]) -> int:
    """Length of the longest unbroken run of free cells."""
    return max((last - first + 1 for first, last in runs(cells == EMPTY)), default=0)


class Policy(ABC):
    """One way to manage the cells of a cache. Each subclass says what it simplifies.

    A copy that is refused leaves no sequence behind: tokens added to it later are refused as well.

    Attributes:
        n_cells: cells of the cache.
        positions: for each sequence the positions of its tokens, in the order in which they were added.
        lost: tokens overwritten so far while their sequence still had them.
    """

    def __init__(self, n_cells: int) -> None:
        self.n_cells = n_cells
        self.positions: dict[int, list[int]] = {}
        self.lost = 0
        self._refused: set[int] = set()

    @abstractmethod
    def cells_of(self, seq: int) -> Sequence[int]:
        """The cell of each token of a sequence, in the order of ``positions``."""

    @abstractmethod
    def reserved(self) -> Sequence[int]:
        """The cells that are reserved, with or without a token."""

    def usable(self, cells: NDArray[np.int64]) -> int:
        """How many of the free cells one new request could have.

        Args:
            cells: as ``cells`` returns them, shape (n_cells,).
        """
        return int((cells == EMPTY).sum())

    def longest(self, cells: NDArray[np.int64]) -> int:
        """Tokens of the longest new request that would be admitted, if it does not grow.

        Args:
            cells: as for ``usable``.
        """
        return self.usable(cells)

    @abstractmethod
    def _add_room(self, seq: int, n: int, peak: int) -> bool:
        """Whether ``n`` more tokens of a sequence fit, which will have ``peak`` at most; if so, they have cells now."""

    @abstractmethod
    def _copy_room(self, src: int, dst: int, peak: int) -> bool:
        """Whether a copy of ``src`` fits, which will have ``peak`` tokens at most; if so, it has cells now."""

    @abstractmethod
    def _drop(self, seq: int, kept: list[int]) -> bool:
        """Whether a sequence can lose all tokens but those of index ``kept``; if so, their cells are free now."""

    def apply(self, step: Step, later: Sequence[Step] = ()) -> bool:
        """Carry out a step.

        Args:
            later: the steps after it, from which a reservation may know how long a sequence will become.

        Returns:
            Whether the step was admitted; if not, nothing changed.

        Raises:
            SlotsError: a copy to a sequence that is not empty.
        """
        have = self.positions.get(step.seq, [])
        if step.op == "add":
            new = positions_after(have, step)
            most = peak(step.seq, new, later)
            if step.seq in self._refused or not self._add_room(step.seq, len(new) - len(have), most):
                return False
            self._write(step.seq, new[len(have) :])
        elif step.op == "copy":
            return self._copy(step.seq, step.to or 0, later)
        elif step.op == "shift":
            return self._shift(step)
        elif step.op == "remove":
            return self._remove(step.seq, [i for i, position in enumerate(have) if not in_range(position, step)])
        else:
            removed = {*self.positions, *self._refused} - ({step.seq} if step.op == "keep" else set())
            for seq in removed:
                self._remove(seq, [])
        return True

    def cells(self) -> NDArray[np.int64]:
        """The content of each cell, shape (n_cells,): see ``cachesim.Usage``."""
        cells = np.full(self.n_cells, EMPTY, np.int64)
        cells[list(self.reserved())] = RESERVED
        for seq in self.positions:
            for cell in self.cells_of(seq):
                cells[cell] = seq if cells[cell] in (EMPTY, RESERVED) else SHARED
        return cells

    def _write(self, seq: int, positions: Sequence[int]) -> None:
        """Add tokens for which there is room."""
        self.positions.setdefault(seq, []).extend(positions)

    def _copy(self, src: int, dst: int, later: Sequence[Step]) -> bool:
        """Whether ``src`` was copied to ``dst``; an empty sequence always is."""
        if self.positions.get(dst):
            raise SlotsError(f"copy({src}, {dst}): sequence {dst} is not empty, remove it first.")
        have = list(self.positions.get(src, []))
        if have and not self._copy_room(src, dst, peak(dst, have, later)):
            self._refused.add(dst)
            return False
        if have:
            self._write(dst, have)
        return True

    def _remove(self, seq: int, kept: list[int]) -> bool:
        """Whether all tokens of a sequence but those of index ``kept`` were removed."""
        self._refused.discard(seq)
        have = self.positions.get(seq, [])
        if len(kept) == len(have):
            return True
        if not self._drop(seq, kept):
            return False
        self.positions[seq] = [have[i] for i in kept]
        if not kept:
            del self.positions[seq]
        return True

    def _shift(self, step: Step) -> bool:
        """Whether the positions were shifted."""
        if step.seq in self.positions:
            self.positions[step.seq] = positions_after(self.positions[step.seq], step)
        return True


def in_range(position: int, step: Step) -> bool:
    """Whether a position is in the range of a step that has one."""
    return step.p0 <= position and (step.p1 < 0 or position < step.p1)


def positions_after(positions: Sequence[int], step: Step) -> list[int]:
    """A sequence's positions after a step on this sequence."""
    if step.op == "add":
        start = positions[-1] + 1 if positions else 0
        return [*positions, *range(start, start + (step.n or 0))]
    if step.op == "remove":
        return [position for position in positions if not in_range(position, step)]
    if step.op == "shift":
        return [position + step.delta if in_range(position, step) else position for position in positions]
    return list(positions)


def peak(seq: int, positions: Sequence[int], later: Sequence[Step]) -> int:
    """The most tokens that a sequence will have before it is empty, if every step is admitted."""
    most = len(positions)
    for step in later:
        removed = step.op == "clear" or (step.op == "keep" and step.seq != seq)
        positions = [] if removed else positions_after(positions, step) if step.seq == seq else positions
        if not positions:
            break
        most = max(most, len(positions))
    return most
