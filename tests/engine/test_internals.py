"""What depends on ggml's structs and debug log: right for the pinned build, and refused where the layout differs."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from labkit import engine
from labkit.engine.internals import LayoutError
from labkit.engine.internals.memory_limit import MemoryLimit
from labkit.engine.internals.slot_maps import EMPTY, SHARED, SlotMap, parse_slot_maps
from labkit.engine.internals.tensors import Reader
from labkit.engine.internals.type_traits import decoder
from labkit.gguf.types import TYPES, GGMLType


@pytest.fixture
def base() -> ctypes.CDLL:
    found = engine.library("ggml-base")
    assert found is not None
    return found


def test_a_layout_error_is_an_error_of_the_engine() -> None:
    assert issubclass(LayoutError, engine.EngineError)


# Structs


def test_another_layout_of_ggmls_tensors_is_refused(base: ctypes.CDLL) -> None:
    Reader(base)
    moved = SimpleNamespace(**{name: getattr(base, name) for name in vars(Reader(base)._base) if "ggml" in name})
    moved.ggml_op_name = lambda op: b"ADD"
    with pytest.raises(LayoutError, match="keeps its tensors differently"):
        Reader(moved)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_the_entry_of_every_type_is_its_own(kind: GGMLType, base: ctypes.CDLL) -> None:
    # F32 needs no decoding; Q8_1 and Q8_K hold activations, and integers and F64 are no weights.
    stored = kind.name not in ("F32", "Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64")
    assert (decoder(base, kind) is not None) == stored


@pytest.mark.parametrize("wrong", [GGMLType(12, "Q4_K", 256, 145), GGMLType(12, "Q5_K", 256, 144)])
def test_the_entry_of_another_type_is_refused(wrong: GGMLType, base: ctypes.CDLL) -> None:
    with pytest.raises(LayoutError, match=f"describes {wrong.name} differently"):
        decoder(base, wrong)


def test_functions_that_ggml_does_not_call_limit_nothing() -> None:
    """A ggml that reads the functions elsewhere: it leaves the sizes as they are and hands out no buffer."""
    device, buffers = (ctypes.c_void_p * 3)(), (ctypes.c_void_p * 2)()
    moved: dict[str, Any] = {
        "ggml_backend_dev_buffer_type": lambda cpu: ctypes.addressof(buffers),
        "ggml_backend_dev_memory": lambda cpu, free, total: None,
        "ggml_backend_buft_alloc_buffer": lambda kind, n: None,
        "ggml_backend_buffer_free": lambda buffer: None,
    }
    with pytest.raises(LayoutError, match="cannot be given a size in this build of ggml"):
        MemoryLimit(SimpleNamespace(**moved), ctypes.addressof(device), 1000)  # type: ignore[arg-type]


# The map of cells in the debug log


def slot_lines(owners: list[str], positions: list[int], *, used: int, head: int, stream: int = 0) -> list[str]:
    """What llama_kv_cache::find_slot logs with LLAMA_KV_CACHE_DEBUG=3, as it formats it."""
    size = len(owners)
    first = "".join(cell + (" *\n" if i % 256 == 255 else "") for i, cell in enumerate(owners))
    second = ""
    for i, position in enumerate(positions):
        second += f"{'.' if position < 0 else position:<5}" + (" *" if i % 256 == 255 else "")
        second += "\n" if i % 64 == 63 else ""
    text = (
        f"find_slot: stream[{stream}], n = {size:5d}, used = {used:5d}, head = {head:5d}, size = {size:5d}, "
        f"n_swa = {0:5d}\n\n{first}\n\n{second}\nfind_slot: stream[{stream}] min[0] =     0, max[0] =     9\n"
    )
    return text.split("\n")


def test_a_map_of_cells() -> None:
    owners = ["0"] * 3 + ["M"] * 2 + ["."] + ["7"] * 300 + ["."] * 206
    positions = [0, 1, 2, 3, 4, -1, *range(12_345, 12_645), *[-1] * 206]
    lines = slot_lines(owners, positions, used=305, head=306, stream=2)
    map_ = SlotMap(2, 305, 306, (0, 0, 0, SHARED, SHARED, EMPTY, *[7] * 300, *[EMPTY] * 206), tuple(positions))
    assert parse_slot_maps(["init: something else", *lines]) == (map_,)
    assert parse_slot_maps([*lines, *lines]) == (map_, map_)
    assert parse_slot_maps(["load_tensors:   CPU_Mapped model buffer size =    67.23 MiB"]) == ()


@pytest.mark.parametrize(
    ("owner", "position", "n_lines"),
    [("10", 0, None), ("0", 100_000, None), ("0", 0, 4), ("0", 0, 1)],
    ids=["sequence of two digits", "position of six digits", "cut in its rows", "only the first line"],
)
def test_a_map_that_cannot_be_told_apart_is_refused(owner: str, position: int, n_lines: int | None) -> None:
    lines = slot_lines([owner, *["."] * 255], [position, *[-1] * 255], used=1, head=1)
    with pytest.raises(ValueError, match=r"^llama\.cpp's map of its cells cannot be read"):
        parse_slot_maps(lines[:n_lines])
