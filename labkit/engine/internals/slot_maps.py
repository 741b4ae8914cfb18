"""Read the map of a cache's cells from llama.cpp's debug log. Works on text: no llama.cpp needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

KV_DEBUG = "LLAMA_KV_CACHE_DEBUG"  # read when a context is made; 3: log every cell's sequence and position
# "find_slot: stream[0], n = 180, used = 120, head = 60, size = 256, n_swa = 0" (llama_kv_cache::find_slot), then rows
# of 256 cells with a character each, its sequence, and rows of 64 cells with five characters each, its position. " *"
# marks the end of 256 cells, of which there is always a whole multiple.
_SLOT = re.compile(r"find_slot: stream\[(\d+)\], n =\s*\d+, used =\s*(\d+), head =\s*(\d+), size =\s*(\d+)")

EMPTY, SHARED = -1, -2
"""Stand for the number of the sequence where a cell belongs to none, or to several."""

_OWNERS = {".": EMPTY, "M": SHARED}


@dataclass(frozen=True)
class SlotMap:
    """The cells of one stream of a KV cache, as llama.cpp logs them while it searches for free cells.

    ``owners`` has for each cell the number of its sequence, ``EMPTY`` or ``SHARED``; ``positions`` the position of its
    token, or -1. ``head`` is the cell at which the next search for room starts.
    """

    stream: int
    used: int
    head: int
    owners: tuple[int, ...]
    positions: tuple[int, ...]


def parse_slot_maps(lines: Iterable[str]) -> tuple[SlotMap, ...]:
    """Every map of the cells, in order. Needs LLAMA_KV_CACHE_DEBUG=3.

    Raises:
        ValueError: a map is incomplete, or has a number too long for its column: sequences end at 9, positions at
            99,999.
    """
    found = []
    rows = iter(lines)
    for line in rows:
        if match := _SLOT.search(line):
            stream, used, head, size = (int(group) for group in match.groups())
            owners = [_OWNERS.get(cell) or int(cell) for cell in _cells(rows, size, per_row=256, width=1)]
            positions = [-1 if cell == "." else int(cell) for cell in _cells(rows, size, per_row=64, width=5)]
            found.append(SlotMap(stream, used, head, tuple(owners), tuple(positions)))
    return tuple(found)


def _cells(rows: Iterator[str], size: int, *, per_row: int, width: int) -> list[str]:
    """The texts of ``size`` cells, from rows of ``per_row`` cells that are ``width`` characters each."""
    cells: list[str] = []
    for row in rows:
        text = row.removesuffix(" *")
        if text:
            if len(text) != per_row * width:
                break
            cells += [text[i : i + width].strip() for i in range(0, len(text), width)]
        if len(cells) >= size:
            return cells
    raise ValueError(
        "llama.cpp's map of its cells cannot be read: a number is too long for its column, or rows are missing."
    )
