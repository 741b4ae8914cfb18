"""How four KV caches use their cells, step by step: llama.cpp's own, and three simulated ones.

The simulated caches run no model. They follow the same trace that ``slots.slot_map`` runs in llama.cpp, and only keep
track of cells. Every cache allocates all its cells at the start; the question is how many requests they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.course.lab03.cachesim.bookkeeping import RESERVED, Policy, largest_run
from labkit.course.lab03.cachesim.policies import Contiguous, Paged, Ring
from labkit.engine.internals.slot_maps import EMPTY
from labkit.experiments.cache_slots import Snapshot
from labkit.experiments.cache_trace import N_SEQ_MAX, SlotsError, Step, check

KINDS = ("contiguous", "paged", "ring")


@dataclass(frozen=True, eq=False)
class Usage:
    """The cells of one policy after one step.

    Attributes:
        cells: for each cell its sequence, or -1 empty, -2 shared by several sequences, -3 reserved for a sequence but
            without a token; shape (n_cells,).
        used: cells with a token; a shared cell counts once.
        reserved: cells that are not free for another sequence: ``used`` and ``wasted``.
        wasted: reserved cells without a token (internal fragmentation).
        free: cells that are not reserved.
        largest_free_run: length of the longest unbroken run of free cells.
        fragmentation: the share of the free cells that one new request cannot have, because they are not adjacent
            (external fragmentation); 0 where tokens or blocks can go anywhere, and where nothing is free.
        longest_admitted: tokens of the longest new request that would be admitted now, if it does not grow.
        admitted: whether the step was carried out; if not, nothing changed.
        lost: tokens overwritten since the start while their sequence still had them.
        simulated: False for llama.cpp's own cells.
    """

    step: Step
    cells: NDArray[np.int64]
    used: int
    reserved: int
    wasted: int
    free: int
    largest_free_run: int
    fragmentation: float
    longest_admitted: int
    admitted: bool
    lost: int
    simulated: bool


def simulate(
    kind: str, trace: Sequence[Step], *, n_cells: int = 256, reserve: int | None = None, block: int = 16
) -> tuple[Usage, ...]:
    """Run a trace through a simulated cache and return its cells after each step.

    Args:
        kind: ``contiguous``, ``paged`` or ``ring``; the classes in ``policies`` say what each of them simplifies.
        n_cells: tokens that the cache can hold.
        reserve: contiguous only: cells for every sequence; None gives each sequence the most that it will need.
        block: paged only: cells of a block.

    Raises:
        SlotsError: an unknown kind, an impossible step or size, or a copy to a sequence that is not empty.
    """
    check(trace, n_seq_max=N_SEQ_MAX)
    if n_cells < 1:
        raise SlotsError(f"n_cells is {n_cells}: a cache needs one cell or more.")
    policy: Policy
    if kind == "contiguous":
        policy = Contiguous(n_cells, reserve=reserve)
    elif kind == "paged":
        policy = Paged(n_cells, block=block)
    elif kind == "ring":
        policy = Ring(n_cells)
    else:
        raise SlotsError(f"{kind!r} is not a simulated cache: choose one of {', '.join(KINDS)}.")
    found = []
    for number, step in enumerate(trace, start=1):
        admitted = policy.apply(step, trace[number:])
        cells = policy.cells()
        usable, longest = policy.usable(cells), policy.longest(cells)
        found.append(_usage(step, cells, usable, longest, admitted, lost=policy.lost, simulated=True))
    return tuple(found)


def usage_of(snapshots: Sequence[Snapshot]) -> tuple[Usage, ...]:
    """llama.cpp's own cells in the same terms.

    In one stream a token can go into any free cell: nothing is reserved. Where every sequence has a stream of its own,
    the free cells of a stream in use are reserved for its sequence, and a new request needs an empty stream.
    """
    found = []
    for snapshot in snapshots:
        streams = snapshot.cells.reshape(snapshot.n_streams, -1).copy()
        if snapshot.n_streams > 1:
            in_use = (streams != EMPTY).any(axis=1, keepdims=True)
            streams[in_use & (streams == EMPTY)] = RESERVED
        longest = int((streams == EMPTY).sum(axis=1).max())
        admitted = snapshot.status == 0
        found.append(_usage(snapshot.step, streams.ravel(), longest, longest, admitted, lost=0, simulated=False))
    return tuple(found)


def _usage(
    step: Step, cells: NDArray[np.int64], usable: int, longest: int, admitted: bool, *, lost: int, simulated: bool
) -> Usage:
    """The cells after a step, counted."""
    free, wasted = int((cells == EMPTY).sum()), int((cells == RESERVED).sum())
    return Usage(
        step=step,
        cells=cells,
        used=len(cells) - free - wasted,
        reserved=len(cells) - free,
        wasted=wasted,
        free=free,
        largest_free_run=largest_run(cells),
        fragmentation=1 - usable / free if free else 0.0,
        longest_admitted=longest,
        admitted=admitted,
        lost=lost,
        simulated=simulated,
    )
