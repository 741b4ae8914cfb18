"""Read from llama.cpp's log what it allocated and why it refused. Works on text: no llama.cpp needed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.units import MiB

# "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB", one per device and kind (src/llama-model.cpp,
# llama-kv-cache.cpp, llama-context.cpp). The figures carry two decimals, so a buffer is known to 0.005 MiB.
_BUFFER = re.compile(r"(\S+)\s+(model|KV|compute|output|RS)\s+buffer size\s*=\s*([\d.]+) MiB")
_KV = re.compile(
    r"llama_kv_cache\S*: size =\s*([\d.]+) MiB \(\s*(\d+) cells,\s*(\d+) layers,\s*([\d/]+) seqs\), "
    r"K \((\S+)\):\s*([\d.]+) MiB, V \((\S+)\):\s*([\d.]+) MiB"
)
_RS = re.compile(r"llama_memory_recurrent\S*: size =\s*([\d.]+) MiB")

_ROTATED = re.compile(r"attn_rot_([kv]) = (\d)")  # llama_kv_cache (src/llama-kv-cache.cpp)

LOG_RESOLUTION_BYTES = int(0.005 * MiB) + 1
"""Half a unit of the log's last decimal, by which a logged figure can differ from the true one."""


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


def parse_rotation(lines: Iterable[str]) -> tuple[bool, bool]:
    """Whether llama.cpp rotates K, and V, of a cache before it quantizes them."""
    rotated = {half for line in lines for half, on in _ROTATED.findall(line) if on != "0"}
    return "k" in rotated, "v" in rotated


def failed_lock(lines: Iterable[str]) -> bool:
    """Whether the kernel refused to lock pages; llama.cpp goes on without (llama_mlock in src/llama-mmap.cpp)."""
    return any("failed to mlock" in line or "failed to VirtualLock" in line for line in lines)


def no_room(why: str) -> tuple[str, int] | None:
    """The device and the bytes it could not allocate, if that is the reason (llama-model.cpp, ggml-alloc.c)."""
    match = re.search(r"failed to allocate (\S+) buffer of size (\d+)", why)
    return (match[1], int(match[2])) if match else None


def first_reason(errors: Iterable[str]) -> str | None:
    """Of the lines that llama.cpp logged as errors, the first that says why, without its function's name."""
    bad = [line.lstrip(".") for line in errors if line.strip(".\n ")]  # a row of dots marks progress
    specific = [line for line in bad if not re.search(r"failed to load model|error loading model:\s*$", line)]
    chosen = (specific or bad)[:1]
    return re.sub(r"^[\w:~<>]+: ", "", chosen[0]).strip() if chosen else None
