"""Headers changed at random: the reader answers with a Header or a GGUFError, in bounded memory, and nothing else."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.gguf import GGUFArray, GGUFError, Header, Typed, read_header, write_header

SEED = write_header(
    {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.attention.head_count_kv": [4, 4],
        "tokenizer.ggml.tokens": ["a", "", "déjà", "<|end|>"],
        "tokenizer.ggml.scores": [0.5, -1.0, 0.0, 0.25],
        "split.count": Typed("u16", 1),
        "flags": [True, False],
    },
    [("token_embd.weight", (256, 4), "Q4_K"), ("blk.0.ffn_gate_exps.weight", (32, 4, 3), "Q8_0"), ("n", (3,), "F32")],
    alignment=64,
)
COMMON = {"derandomize": True, "deadline": None, "database": None}

NUMBERS = st.one_of(
    st.integers(0, 48),
    st.sampled_from([2**n + d for n in (8, 16, 31, 32, 33, 61, 62, 63) for d in (-1, 0, 1)] + [2**64 - 1]),
)
POSITION = st.integers(0, len(SEED) - 1)
CHANGE = st.one_of(
    st.tuples(st.just("replace"), POSITION, st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("replace"), POSITION, NUMBERS.map(lambda n: struct.pack("<Q", n))),
    st.tuples(st.just("replace"), POSITION, NUMBERS.map(lambda n: struct.pack("<I", n % 2**32))),
    st.tuples(st.just("insert"), POSITION, st.binary(min_size=1, max_size=16)),
    st.tuples(st.just("delete"), POSITION, st.binary(min_size=1, max_size=16)),
    st.tuples(st.just("repeat"), POSITION, st.binary(min_size=1, max_size=200)),
    st.tuples(st.just("cut"), POSITION, st.just(b"")),
    st.tuples(st.just("append"), POSITION, st.binary(min_size=1, max_size=64)),
)


def change(raw: bytes, how: str, pos: int, patch: bytes) -> bytes:
    n = len(patch)
    return {
        "replace": raw[:pos] + patch + raw[pos + n :],
        "insert": raw[:pos] + patch + raw[pos:],
        "delete": raw[:pos] + raw[pos + n :],
        "repeat": raw[: pos + n] + raw[pos:],
        "cut": raw[:pos],
        "append": raw + patch,
    }[how]


def read_and_use(source: bytes | Path) -> Header | str:
    """Read, look at everything, and hold memory to a multiple of the input."""
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    tracemalloc.start()
    try:
        header = read_header(source)
        for value in header.metadata.values():
            if isinstance(value, GGUFArray):
                assert len(list(value)) == len(value)
        for t in header.tensors:
            assert header.tensor(t.name) is t
            assert t.nbytes >= 0 and t.offset % header.alignment == 0
            assert t.offset + t.nbytes <= header.file_bytes
        assert sum(count for count, _ in header.types.values()) == len(header.tensors)
        _ = (header.n_params, header.bpw, header.arch, header.n_layer, header.key("x"))
        return header
    except GGUFError as e:
        text = str(e)
        assert text.endswith(".") and "\n" not in text and len(text) < 600
        return text
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 * size + 2**16


@settings(max_examples=1500, **COMMON)
@given(st.lists(CHANGE, min_size=1, max_size=4))
def test_changed_headers(changes: list[tuple[str, int, bytes]]) -> None:
    raw = SEED
    for how, pos, patch in changes:
        raw = change(raw, how, pos, patch)
    read_and_use(raw)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "model.gguf"


@settings(max_examples=300, **COMMON)
@given(changes=st.lists(CHANGE, min_size=1, max_size=3))
def test_changed_files(scratch: Path, changes: list[tuple[str, int, bytes]]) -> None:
    raw = SEED + bytes(4096)
    for how, pos, patch in changes:
        raw = change(raw, how, pos, patch)
    scratch.write_bytes(raw)
    from_file, from_memory = read_and_use(scratch), read_and_use(raw)
    if isinstance(from_file, Header) and isinstance(from_memory, Header):
        assert from_file.tensors == from_memory.tensors
        assert repr(from_file.metadata) == repr(from_memory.metadata)
    else:
        assert str(from_file).replace(str(scratch), "GGUF in memory") == from_memory


@settings(max_examples=500, **COMMON)
@given(st.binary(max_size=400))
def test_noise_behind_the_magic(noise: bytes) -> None:
    read_and_use(noise)
    read_and_use(b"GGUF\3\0\0\0" + noise)
    read_and_use(b"GGUF\3\0\0\0" + struct.pack("<QQ", 1, 1) + noise)


KEYS = st.text(min_size=1, max_size=12)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(width=32, allow_nan=False), st.text(max_size=12)
)
ARRAYS = st.one_of(
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9),
    st.lists(st.text(max_size=12), min_size=1, max_size=9),
)
DIMS = st.lists(st.integers(0, 40), min_size=1, max_size=4)
TENSORS = st.dictionaries(
    st.text(max_size=15), st.tuples(DIMS, st.sampled_from(["F32", "F16", "I8", "F64"])), max_size=6
)


@settings(max_examples=300, **COMMON)
@given(st.dictionaries(KEYS, SCALARS | ARRAYS, max_size=6), TENSORS, st.sampled_from([1, 8, 32, 4096]))
def test_what_is_written_is_read(
    metadata: dict[str, object], tensors: dict[str, tuple[list[int], str]], alignment: int
) -> None:
    rows = [(name, tuple(dims), kind) for name, (dims, kind) in tensors.items()]
    header = read_header(write_header(metadata, rows, alignment=alignment))
    found = {k: list(v) if isinstance(v, GGUFArray) else v for k, v in header.metadata.items()}
    assert found.pop("general.alignment", 32) == header.alignment == alignment
    assert found == metadata
    assert [(t.name, t.dims, t.type) for t in header.tensors] == rows
