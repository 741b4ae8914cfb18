"""Three simulated KV caches: contiguous reservation, paged blocks, a ring buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.course.lab03.cachesim.bookkeeping import Policy, in_range, largest_run
from labkit.experiments.cache_trace import SlotsError, Step


class Contiguous(Policy):
    """A sequence that is admitted reserves one unbroken run of cells for all tokens that it may ever have; first fit.

    Servers did so before PagedAttention: Kwon et al. 2023, "Efficient Memory Management for Large Language Model
    Serving with PagedAttention", SOSP, section 3.1. With ``reserve`` every sequence gets that many cells. Without it
    each sequence gets the most that it will need, known from the rest of the trace: the paper's "Oracle".
    Simplified: a copy has a reservation of its own; tokens after a removed part move up at no cost.
    """

    def __init__(self, n_cells: int, *, reserve: int | None = None) -> None:
        super().__init__(n_cells)
        if reserve is not None and not 1 <= reserve <= n_cells:
            raise SlotsError(f"reserve is {reserve}: it must be between 1 and the {n_cells} cells of the cache.")
        self.reserve = reserve
        self._regions: dict[int, range] = {}

    def cells_of(self, seq: int) -> Sequence[int]:
        return self._regions[seq][: len(self.positions[seq])]

    def reserved(self) -> Sequence[int]:
        return [cell for region in self._regions.values() for cell in region]

    def usable(self, cells: NDArray[np.int64]) -> int:
        return largest_run(cells)

    def longest(self, cells: NDArray[np.int64]) -> int:
        run = largest_run(cells)
        return run if self.reserve is None else self.reserve if run >= self.reserve else 0

    def _add_room(self, seq: int, n: int, peak: int) -> bool:
        if seq in self._regions:
            return len(self.positions[seq]) + n <= len(self._regions[seq])
        return self._admit(seq, n, peak)

    def _copy_room(self, src: int, dst: int, peak: int) -> bool:
        return self._admit(dst, len(self.positions[src]), peak)

    def _admit(self, seq: int, n: int, peak: int) -> bool:
        """Whether a new sequence has a reservation now, of which it needs ``n`` cells at once."""
        size = self.reserve or peak
        start = 0
        for region in sorted(self._regions.values(), key=lambda region: region.start):
            if region.start - start >= size:
                break
            start = region.stop
        if n > size or start + size > self.n_cells:
            return False
        self._regions[seq] = range(start, start + size)
        return True

    def _drop(self, seq: int, kept: list[int]) -> bool:
        if not kept:
            del self._regions[seq]
        return True


class Paged(Policy):
    """vLLM's cache: blocks of a fixed size anywhere in memory, and for each sequence a table of its blocks.

    A copy shares the blocks of its source, and references are counted. A sequence that writes into a shared, partly
    filled block gets a copy of the block first (copy on write). Only the last block of a sequence can be partly filled,
    so a sequence wastes fewer than ``block`` cells. Source: Kwon et al. 2023, sections 4.1 to 4.4. Simplified: the
    lowest free block is taken, equal prompts are not detected, and nothing is preempted or swapped out. Removing tokens
    from the middle and shifting positions are refused: every block but the last is full, and vLLM has no such steps.
    """

    def __init__(self, n_cells: int, *, block: int = 16) -> None:
        super().__init__(n_cells)
        if block < 1 or n_cells % block:
            raise SlotsError(f"block is {block}: the {n_cells} cells must be a whole number of blocks.")
        self.block = block
        self.tables: dict[int, list[int]] = {}
        self._references = [0] * (n_cells // block)

    def cells_of(self, seq: int) -> Sequence[int]:
        table, block = self.tables[seq], self.block
        return [table[i // block] * block + i % block for i in range(len(self.positions[seq]))]

    def reserved(self) -> Sequence[int]:
        return [cell for cell in range(self.n_cells) if self._references[cell // self.block]]

    def _add_room(self, seq: int, n: int, peak: int) -> bool:
        table, length = self.tables.get(seq, []), len(self.positions.get(seq, []))
        copied = length % self.block != 0 and self._references[table[-1]] > 1
        needed = self._blocks(length + n) - len(table) + copied
        free = [i for i, count in enumerate(self._references) if count == 0]
        if needed > len(free):
            return False
        if copied:
            self._references[table[-1]] -= 1
            table = table[:-1]
        for index in free[:needed]:
            self._references[index] = 1
        self.tables[seq] = table + free[:needed]
        return True

    def _blocks(self, n: int) -> int:
        """Blocks for ``n`` tokens."""
        return -(-n // self.block)

    def _copy_room(self, src: int, dst: int, peak: int) -> bool:
        self.tables[dst] = list(self.tables[src])
        for index in self.tables[dst]:
            self._references[index] += 1
        return True

    def _drop(self, seq: int, kept: list[int]) -> bool:
        if kept != list(range(len(kept))):
            return False
        table = self.tables[seq]
        while len(table) > self._blocks(len(kept)):
            self._references[table.pop()] -= 1
        if not kept:
            del self.tables[seq]
        return True

    def _shift(self, step: Step) -> bool:
        return not any(in_range(position, step) for position in self.positions.get(step.seq, []))


class Ring(Policy):
    """One ring buffer for all sequences: each token goes into the next cell and overwrites what is there, the oldest.

    Articles say that llama.cpp's cache is one. Simplified: a copy is written again, token by token, and the cell of a
    removed token stays empty until the ring reaches it.
    """

    def __init__(self, n_cells: int) -> None:
        super().__init__(n_cells)
        self._next = 0
        self._cells: dict[int, list[int]] = {}
        self._owner: dict[int, int] = {}

    def cells_of(self, seq: int) -> Sequence[int]:
        return self._cells[seq]

    def reserved(self) -> Sequence[int]:
        return ()

    def longest(self, cells: NDArray[np.int64]) -> int:
        return self.n_cells

    def _add_room(self, seq: int, n: int, peak: int) -> bool:
        return True

    def _copy_room(self, src: int, dst: int, peak: int) -> bool:
        return True

    def _write(self, seq: int, positions: Sequence[int]) -> None:
        for position in positions:
            cell, self._next = self._next, (self._next + 1) % self.n_cells
            if cell in self._owner:
                owner = self._owner[cell]
                index = self._cells[owner].index(cell)
                del self._cells[owner][index], self.positions[owner][index]
                self.lost += 1
            self._owner[cell] = seq
            self._cells.setdefault(seq, []).append(cell)
            self.positions.setdefault(seq, []).append(position)

    def _drop(self, seq: int, kept: list[int]) -> bool:
        cells = self._cells[seq]
        self._cells[seq] = [cells[i] for i in kept]
        for cell in {*cells} - {*self._cells[seq]}:
            del self._owner[cell]
        return True
