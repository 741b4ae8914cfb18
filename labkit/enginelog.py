"""Read what llama.cpp says about its own memory. Pure text work: no llama.cpp needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkit.units import MiB

# "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB", one per device and kind (src/llama-model.cpp,
# llama-kv-cache.cpp, llama-context.cpp). The figures carry two decimals, so a buffer is known to 0.005 MiB.
_BUFFER = re.compile(r"(\S+)\s+(model|KV|compute|output|RS)\s+buffer size\s*=\s*([\d.]+) MiB")
_KV = re.compile(
    r"llama_kv_cache\S*: size =\s*([\d.]+) MiB \(\s*(\d+) cells,\s*(\d+) layers,\s*([\d/]+) seqs\), "
    r"K \((\S+)\):\s*([\d.]+) MiB, V \((\S+)\):\s*([\d.]+) MiB"
)
# "find_slot: stream[0], n = 180, used = 120, head = 60, size = 256, n_swa = 0" (llama_kv_cache::find_slot), then rows
# of 256 cells with a character each, its sequence, and rows of 64 cells with five characters each, its position. " *"
# marks the end of 256 cells, of which there is always a whole multiple.
_SLOT = re.compile(r"find_slot: stream\[(\d+)\], n =\s*\d+, used =\s*(\d+), head =\s*(\d+), size =\s*(\d+)")
_RS = re.compile(r"llama_memory_recurrent\S*: size =\s*([\d.]+) MiB")

LOG_RESOLUTION_BYTES = int(0.005 * MiB) + 1
"""Half a unit of the log's last decimal: how far a logged figure can be from the true one."""


@dataclass(frozen=True)
class Buffer:
    """One buffer the engine allocated: where (``CPU_Mapped``, ``CPU_REPACK``, ``RPC0[…]``), for what, how large."""

    device: str
    kind: str
    bytes: int


@dataclass(frozen=True)
class KVCache:
    """One cache as llama.cpp describes it. A sliding-window model has two: full layers and windowed ones."""

    cells: int
    n_layers: int
    type_k: str
    type_v: str
    k_bytes: int
    v_bytes: int

    @property
    def bytes(self) -> int:
        """K and V together."""
        return self.k_bytes + self.v_bytes


EMPTY, SHARED = -1, -2
"""How a cell that belongs to no sequence, or to several, is written where others carry their sequence's number."""


_OWNERS = {".": EMPTY, "M": SHARED}


@dataclass(frozen=True)
class SlotMap:
    """The cells of one stream of a KV cache, as llama.cpp logs them while it looks for room.

    ``owners`` has for each cell the number of its sequence, ``EMPTY`` or ``SHARED``; ``positions`` the position of its
    token, or -1. ``head`` is the cell at which the next search for room starts.
    """

    stream: int
    used: int
    head: int
    owners: tuple[int, ...]
    positions: tuple[int, ...]


def _mib(text: str) -> int:
    return round(float(text) * MiB)


def parse_buffers(lines: Iterable[str]) -> tuple[Buffer, ...]:
    """Every buffer-size line, in order. Sizes are rounded by llama.cpp to 0.01 MiB."""
    found = (_BUFFER.search(line) for line in lines)
    return tuple(Buffer(m.group(1), m.group(2).lower(), _mib(m.group(3))) for m in found if m)


def parse_kv(lines: Iterable[str]) -> tuple[KVCache, ...]:
    """Every cache summary line; also true in a dry run, where the buffer-size lines read 0.00."""
    found = (_KV.search(line) for line in lines)
    return tuple(
        KVCache(int(m.group(2)), int(m.group(3)), m.group(5), m.group(7), _mib(m.group(6)), _mib(m.group(8)))
        for m in found
        if m
    )


def parse_recurrent(lines: Iterable[str]) -> int:
    """Bytes of recurrent state (Mamba and hybrids); 0 when the model has none."""
    return sum(_mib(m.group(1)) for line in lines if (m := _RS.search(line)))


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
    cells: list[str] = []
    for row in rows:
        text = row.removesuffix(" *")
        if text:
            if len(text) != per_row * width:
                break
            cells += [text[i : i + width].strip() for i in range(0, len(text), width)]
        if len(cells) >= size:
            return cells
    raise ValueError("llama.cpp's map of its cells cannot be read: a number is too long for its column, or rows lack.")


def no_room(why: str) -> tuple[str, int] | None:
    """The device and the bytes it could not give, if that is what a reason says (llama-model.cpp, ggml-alloc.c)."""
    match = re.search(r"failed to allocate (\S+) buffer of size (\d+)", why)
    return (match[1], int(match[2])) if match else None


def first_reason(errors: Iterable[str]) -> str | None:
    """Of the lines that llama.cpp logged as errors, the first that says why, without its function's name."""
    bad = [line.lstrip(".") for line in errors if line.strip(".\n ")]  # a row of dots marks progress
    specific = [line for line in bad if not re.search(r"failed to load model|error loading model:\s*$", line)]
    chosen = (specific or bad)[:1]
    return re.sub(r"^[\w:~<>]+: ", "", chosen[0]).strip() if chosen else None
