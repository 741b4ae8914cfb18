"""The GGUF reader against gguf-py, against libggml itself, and against files that lie."""

import ctypes
import dataclasses
import importlib.util
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import gguf as gguf_py
import pytest

from labkit import gguf
from labkit.gguf import GGUFError, Typed, parser, read_header, write_header

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "general.flag": True,
    "tokenizer.ggml.tokens": ["a", "", "déjà", "<|end|>"],
    "tokenizer.ggml.scores": [0.5, -1.0],
    "tokenizer.ggml.token_type": Typed("i32", [1, 3]),
    "labkit.small": Typed("u8", 200),
    "labkit.negative": -5,
    "labkit.large": 2**40,
    "labkit.bools": [True, False],
    "labkit.empty": Typed("str", []),
}
TENSORS = [
    ("token_embd.weight", (256, 5), "Q4_K"),
    ("blk.0.attn_norm.weight", (3,), "F32"),
    ("blk.0.ffn_gate_exps.weight", (32, 4, 3), "Q8_0"),
    ("blk.1.attn_norm.weight", (3,), "F32"),
]
SMALL = write_header(METADATA, TENSORS)
DATA_OFFSETS = [0, 5 * 144 + 16, 736 + 32, 768 + 4 * 3 * 34 + 8]  # each padded to 32
DATA_BYTES = 1184 + 32


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def info(name: str | bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    n = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}qIQ", n, *dims, kind, offset)


def raw_header(
    *,
    keys: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    version: int = 3,
    n_keys: int = -1,
    n_tensors: int = -1,
) -> bytes:
    n_keys = len(keys) if n_keys < 0 else n_keys
    n_tensors = len(infos) if n_tensors < 0 else n_tensors
    out = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(keys) + b"".join(infos)
    return out + bytes(-len(out) % 32)


def fault(source: bytes | Path) -> str:
    """The message of the GGUFError that reading `source` gives, after checking that it is one sentence."""
    with pytest.raises(GGUFError) as caught:
        read_header(source)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and len(text) < 500
    assert text.startswith(str(source) if isinstance(source, Path) else "GGUF in memory")
    return text


# Types


def libggml() -> ctypes.CDLL:
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        pytest.skip("llama-cpp-python is not installed, so there is no ggml to compare with")
    names = {"win32": "ggml-base.dll", "darwin": "libggml-base.dylib"}
    path = Path(spec.origin).parent / "lib" / names.get(sys.platform, "libggml-base.so")
    lib = ctypes.CDLL(str(path))
    lib.ggml_type_name.restype = ctypes.c_char_p
    lib.ggml_type_size.restype = ctypes.c_size_t
    lib.ggml_blck_size.restype = ctypes.c_int64
    lib.ggml_row_size.restype = ctypes.c_size_t
    lib.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    return lib


def test_types_equal_those_of_ggml() -> None:
    lib = libggml()
    n_types = 43  # GGML_TYPE_COUNT; asking for one more aborts the process
    theirs = {}
    for i in range(n_types):
        block_elems = lib.ggml_blck_size(i)
        if block_elems:  # 0: a layout that ggml gave up
            theirs[i] = (lib.ggml_type_name(i).decode().upper(), block_elems, lib.ggml_type_size(i))
    ours = {t.id: (t.name, t.block_elems, t.block_bytes) for t in gguf.TYPES_BY_ID.values()}
    assert ours == theirs
    for t in gguf.TYPES.values():
        assert gguf.row_bytes(t.name, 7 * t.block_elems) == lib.ggml_row_size(t.id, 7 * t.block_elems)


def test_types_equal_those_of_gguf_py() -> None:
    both = {t.name: (int(t), *size) for t, size in gguf_py.GGML_QUANT_SIZES.items() if t.name in gguf.TYPES}
    assert len(both) >= 30
    # gguf-py still gives Q8_1 the two f32 that ggml has replaced by two f16. No file holds this type.
    assert both.pop("Q8_1") in {(9, 32, 40), (9, 32, 36)}
    assert {n: (t.id, t.block_elems, t.block_bytes) for n, t in gguf.TYPES.items() if n in both} == both


def test_row_bytes() -> None:
    assert gguf.row_bytes("Q4_K", 4096) == 4096 // 256 * 144
    assert gguf.TYPES["Q4_K"].bpw == 4.5
    with pytest.raises(ValueError, match="576 elements is not a whole number of Q4_K blocks"):
        gguf.row_bytes("Q4_K", 576)
    with pytest.raises(ValueError, match="'q4_k' is not a ggml tensor type"):
        gguf.row_bytes("q4_k", 256)
    with pytest.raises(ValueError, match="-32 elements"):
        gguf.row_bytes("Q4_0", -32)


# A real file


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> gguf_py.GGUFReader:
    return gguf_py.GGUFReader(smollm2_path)


def test_every_tensor_equals_gguf_py(smollm2_path: Path, oracle: gguf_py.GGUFReader) -> None:
    header = read_header(smollm2_path)
    theirs = [
        (
            t.name,
            tuple(int(n) for n in t.shape),
            t.tensor_type.name,
            int(t.data_offset),
            int(t.n_bytes),
            int(t.n_elements),
        )
        for t in oracle.tensors
    ]
    assert len(theirs) == 272
    assert [(t.name, t.dims, t.type, t.offset, t.nbytes, t.n_elements) for t in header.tensors] == theirs
    assert header.data_offset == header.header_bytes == oracle.data_offset
    assert header.alignment == oracle.alignment
    assert header.file_bytes == smollm2_path.stat().st_size
    assert header.parts == (smollm2_path,)


def test_every_metadata_value_equals_gguf_py(smollm2_path: Path, oracle: gguf_py.GGUFReader) -> None:
    header = read_header(smollm2_path)
    fields = {name: field for name, field in oracle.fields.items() if not name.startswith("GGUF.")}
    assert list(header.metadata) == list(fields)
    for name, field in fields.items():
        value = header.metadata[name]
        if isinstance(value, gguf.GGUFArray):
            assert list(value) == field.contents(), name
        else:
            assert value == field.contents() and type(value) is type(field.contents()), name
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == 49152 and tokens.item_type == "str" and repr(tokens) == "GGUFArray(49152 × str)"


def test_header_properties(smollm2_path: Path) -> None:
    header = read_header(smollm2_path)
    assert (header.arch, header.n_layer, header.n_params) == ("llama", 30, 134_515_008)
    assert header.key("attention.head_count_kv") == 3
    assert header.key("no.such.key") is None and header.key("no.such.key", 7) == 7
    assert header.tensor("blk.29.ffn_down.weight").dims == (1536, 576)
    with pytest.raises(KeyError):
        header.tensor("blk.30.ffn_down.weight")
    assert sum(nbytes for _, nbytes in header.types.values()) == header.tensor_bytes
    assert sum(count for count, _ in header.types.values()) == len(header.tensors)
    assert header.types["Q4_1"] == (210, 66_355_200)
    assert header.bpw == header.tensor_bytes * 8 / header.n_params


def test_memory_is_a_small_multiple_of_the_header(smollm2_path: Path) -> None:
    tracemalloc.start()
    header = read_header(smollm2_path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 * header.header_bytes
    assert peak < 3 * header.header_bytes


def test_truncation_of_a_real_file(smollm2_path: Path, tmp_path: Path) -> None:
    header = read_header(smollm2_path)
    with smollm2_path.open("rb") as file:
        raw = file.read(header.header_bytes)
    cuts = [*range(0, len(raw), 50_021), *range(len(raw) - 300, len(raw), 7)]
    for cut in cuts:
        assert "at byte" in fault(raw[:cut])
    path = tmp_path / "cut.gguf"
    for cut in (*cuts[::9], len(raw), header.file_bytes - 1):
        path.write_bytes(raw[:cut])
        os.truncate(path, cut)
        assert "at byte" in fault(path)
    os.truncate(path, header.file_bytes)
    assert read_header(path).tensors == header.tensors


# Writing and reading back


def test_round_trip_in_memory() -> None:
    header = read_header(SMALL)
    values = {k: list(v) if isinstance(v, gguf.GGUFArray) else v for k, v in header.metadata.items()}
    assert values == {k: v.value if isinstance(v, Typed) else v for k, v in METADATA.items()}
    assert [(t.name, t.dims, t.type) for t in header.tensors] == TENSORS
    assert header.path is None and header.parts == () and header.version == 3
    assert header.data_offset == len(SMALL) and len(SMALL) % 32 == 0
    assert [t.offset - len(SMALL) for t in header.tensors] == DATA_OFFSETS
    assert [t.nbytes for t in header.tensors] == [720, 12, 408, 12]
    assert header.file_bytes == len(SMALL) + DATA_BYTES
    assert header.metadata["tokenizer.ggml.tokens"][2] == "déjà"
    assert header.metadata["tokenizer.ggml.tokens"][1:3] == ("", "déjà")


def test_writer_agrees_with_gguf_py(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    header = write_header(METADATA, TENSORS, alignment=64)
    path.write_bytes(header + bytes(4096))
    theirs = gguf_py.GGUFReader(path)
    ours = read_header(path)
    assert ours.alignment == theirs.alignment == 64
    assert ours.data_offset == theirs.data_offset == len(header)
    assert [(t.name, t.offset, t.nbytes) for t in ours.tensors] == [
        (t.name, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]
    for name in METADATA:
        value = ours.metadata[name]
        if len(value) if isinstance(value, gguf.GGUFArray) else True:
            assert (list(value) if isinstance(value, gguf.GGUFArray) else value) == theirs.fields[name].contents()


@pytest.mark.parametrize(
    ("value", "kind", "payload"),
    [
        (True, 7, b"\1"),
        (5, 4, struct.pack("<I", 5)),
        (2**32, 10, struct.pack("<Q", 2**32)),
        (-1, 5, struct.pack("<i", -1)),
        (-(2**40), 11, struct.pack("<q", -(2**40))),
        (1.5, 6, struct.pack("<f", 1.5)),
        ("x", 8, string("x")),
        ([1, 2], 9, struct.pack("<IQII", 4, 2, 1, 2)),
        ([1, -2], 9, struct.pack("<IQii", 5, 2, 1, -2)),
        (["x"], 9, struct.pack("<IQ", 8, 1) + string("x")),
        (Typed("u16", 3), 2, struct.pack("<H", 3)),
        (Typed("f64", [1.5]), 9, struct.pack("<IQd", 12, 1, 1.5)),
    ],
)
def test_writer_picks_the_value_type(value: object, kind: int, payload: bytes) -> None:
    assert write_header({"k": value}, []) == raw_header(keys=(key("k", kind, payload),))


@pytest.mark.parametrize(
    ("metadata", "tensors", "alignment", "message"),
    [
        ({"k": []}, [], 32, "'k'.*Typed"),
        ({"k": [1, "x"]}, [], 32, "'k'.*Typed"),
        ({"k": [True, 1]}, [], 32, "'k'.*Typed"),
        ({"k": None}, [], 32, "'k'.*Typed"),
        ({"k": 2**64}, [], 32, "'k'.*64 bits"),
        ({"k": Typed("u8", 256)}, [], 32, "'k'.*u8"),
        ({"k": Typed("str", 1)}, [], 32, "'k'.*str"),
        ({"k": Typed("arr", [1])}, [], 32, "'arr' is not a value type"),
        ({"": 1}, [], 32, "key is empty"),
        ({"general.alignment": 64}, [], 32, "as an argument"),
        ({}, [], 48, "power of two"),
        ({}, [("t", (1,), "F32")] * 2, 32, "listed twice"),
        ({}, [("t" * 64, (1,), "F32")], 32, "longer than 63"),
        ({}, [("t", (), "F32")], 32, "dimensions"),
        ({}, [("t", (1,) * 5, "F32")], 32, "dimensions"),
        ({}, [("t", (4, -1), "F32")], 32, "none negative"),
        ({}, [("t", (100,), "Q4_0")], 32, "whole number of Q4_0 blocks"),
        ({}, [("t", (100,), "Q9_9")], 32, "'Q9_9'"),
    ],
)
def test_writer_refuses(
    metadata: dict[str, object], tensors: list[tuple[str, tuple[int, ...], str]], alignment: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_header(metadata, tensors, alignment=alignment)


def test_header_is_a_value() -> None:
    header = read_header(SMALL)
    assert header == read_header(SMALL)
    assert header != read_header(write_header(METADATA, TENSORS[:3]))
    assert pickle.loads(pickle.dumps(header)) == header
    with pytest.raises(dataclasses.FrozenInstanceError):
        header.version = 2  # type: ignore[misc]


def test_headers_that_are_unusual_but_good() -> None:
    empty = read_header(raw_header())
    assert empty.tensors == () and empty.bpw is None and empty.n_params == 0 and empty.types == {}
    assert read_header(raw_header(version=2)).version == 2
    scalar = read_header(raw_header(infos=(info("scalar", ()),))).tensors[0]
    assert (scalar.dims, scalar.nbytes) == ((), 4)
    hollow = read_header(raw_header(infos=(info("hollow", (32, 0)), info("next", (1,)))))
    assert [t.nbytes for t in hollow.tensors] == [0, 4]
    bad_text = read_header(raw_header(keys=(key("k", 8, string(b"a\xff")),)))
    assert bad_text.metadata["k"] == "a�"
    longest = read_header(raw_header(infos=(info("n" * 63, (1,)),)))
    assert len(longest.tensors[0].name) == 63


def test_properties_that_need_metadata_say_what_is_missing() -> None:
    with pytest.raises(GGUFError, match=r"'general\.architecture' is missing"):
        _ = read_header(raw_header()).arch
    with pytest.raises(GGUFError, match=r"'llama\.block_count' is 'x'"):
        _ = read_header(write_header({"general.architecture": "llama", "llama.block_count": "x"}, [])).n_layer


# Files that are not what they seem


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    for cut in range(len(SMALL)):
        message = fault(SMALL[:cut])
        position = int(re.search(r"at byte (\d+)", message)[1])  # type: ignore[index]
        assert position <= cut, message
    whole = SMALL + bytes(DATA_BYTES)
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    last = read_header(path).tensors[-1]
    end = last.offset + last.nbytes
    for size in range(len(SMALL), end):
        os.truncate(path, size)
        assert "run past the file's end" in fault(path)
    path.write_bytes(whole[:end])  # llama.cpp needs no padding behind the last tensor
    assert read_header(path).file_bytes == end


ALIGN = "general.alignment"
LIES = {
    "zip": (b"PK\3\4" + bytes(60), r"byte 0, the file begins with b'PK\\x03\\x04'"),
    "empty": (b"", "byte 0, the file is empty"),
    "version 0": (raw_header(version=0), "byte 4, the version is 0"),
    "version 1": (raw_header(version=1), "byte 4, the version is 1"),
    "version 4": (raw_header(version=4), "byte 4, the version is 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "byte 4, .*big-endian"),
    "tensor count": (raw_header(n_tensors=2**63), f"byte 8, the number of tensors is {2**63}, more than 32 bytes"),
    "negative count": (raw_header(n_tensors=2**64 - 1), f"byte 8, the number of tensors is {2**64 - 1}"),
    "key count": (raw_header(n_keys=3, keys=(key("k", 0, b"1"),)), "byte 16, the number of metadata keys is 3"),
    "one key more": (raw_header(n_keys=2, keys=(key("k", 8, string("x" * 30)),)), "byte 75, .*key 1 is empty"),
    "key length": (
        raw_header(keys=(struct.pack("<QIB", 2**40, 0, 0) + bytes(9),)),
        f"byte 24, .* is {2**40} bytes long",
    ),
    "key empty": (raw_header(keys=(key("", 8, string("abc")),)), "byte 24, .*key 0 is empty"),
    "key not text": (raw_header(keys=(key(b"\xff", 0, b"1"),)), "byte 24, .*not UTF-8"),
    "key twice": (raw_header(keys=(key("k", 0, b"1"), key("k", 0, b"1"))), "byte 38, .*'k' appears a second time"),
    "value type": (raw_header(keys=(key("k", 13, b"1"),)), "byte 33, the type of 'k' is 13"),
    "value string": (raw_header(keys=(key("k", 8, struct.pack("<Q", 2**63)),)), f"byte 45, .*takes {2**63} bytes"),
    "item type": (raw_header(keys=(key("k", 9, struct.pack("<IQ", 99, 1)),)), "byte 37, the item type of 'k' is 99"),
    "nested": (raw_header(keys=(key("k", 9, struct.pack("<IQ", 9, 1)),)), "byte 37, 'k' is an array of arrays"),
    "numbers": (raw_header(keys=(key("k", 9, struct.pack("<IQ", 4, 2**62)),)), f"byte 49, .*takes {2**64} bytes"),
    "strings": (raw_header(keys=(key("k", 9, struct.pack("<IQ", 8, 2**61)),)), f"byte 41, .*be {2**61} strings"),
    "string in array": (
        raw_header(keys=(key("k", 9, struct.pack("<IQQQ", 8, 2, 0, 2**64 - 1)),)),
        f"byte 57, a string of {2**64 - 1} bytes",
    ),
    "first of two strings": (
        raw_header(keys=(key("k", 9, struct.pack("<IQQQ", 8, 2, 1000, 0)),)),
        "byte 49, a string of 1000 bytes",
    ),
    "alignment 0": (raw_header(keys=(key(ALIGN, 4, struct.pack("<I", 0)),)), "byte 49, .*is 0, .*power of two"),
    "alignment 24": (raw_header(keys=(key(ALIGN, 4, struct.pack("<I", 24)),)), "byte 49, .*is 24, .*power of two"),
    "alignment u64": (raw_header(keys=(key(ALIGN, 10, struct.pack("<Q", 32)),)), "byte 49, .*value type 10 instead"),
    "alignment array": (
        raw_header(keys=(key(ALIGN, 9, struct.pack("<IQI", 4, 1, 32)),)),
        "byte 49, .*value type 9 instead",
    ),
    "alignment huge": (
        raw_header(keys=(key(ALIGN, 4, struct.pack("<I", 2**31)),), infos=(info("t", (1,)),)),
        f"should begin at byte {2**31}",
    ),
    "name length": (raw_header(infos=(info("t" * 64, (1,)),)), "byte 24, .*tensor 0 is 64 bytes long"),
    "name not text": (raw_header(infos=(info(b"\xc3(", (1,)),)), "byte 24, .*not UTF-8"),
    "name twice": (
        raw_header(infos=(info("t", (1,)), info("t", (1,), offset=32))),
        "byte 57, a second tensor is named 't'",
    ),
    "five dims": (raw_header(infos=(info("t", (1,) * 5),)), "byte 33, tensor 't' has 5 dimensions"),
    "many dims": (raw_header(infos=(info("t", (1,), n_dims=2**32 - 1),)), "byte 33, .*has 4294967295 dimensions"),
    "negative dim": (raw_header(infos=(info("t", (4, -1)),)), "byte 37, .*negative"),
    "product": (raw_header(infos=(info("t", (2**32, 2**32)),)), r"byte 37, .*exceeds 2\*\*63"),
    "product, then 0": (raw_header(infos=(info("t", (2**32, 2**32, 0)),)), r"byte 37, .*exceeds 2\*\*63"),
    "bytes": (raw_header(infos=(info("t", (2**62,)),)), r"byte 49, .*past 2\*\*63 bytes"),
    "sum of bytes": (
        raw_header(infos=(info("t", (2**60,)), info("u", (2**60,), offset=2**62))),
        r"byte 82, .*past 2\*\*63 bytes",
    ),
    "type": (raw_header(infos=(info("t", (1,), kind=4),)), "byte 45, tensor 't' has type 4,"),
    "removed type": (raw_header(infos=(info("t", (32,), kind=31),)), "byte 45, tensor 't' has type 31,"),
    "negative type": (raw_header(infos=(info("t", (1,), kind=2**32 - 1),)), "byte 45, .*has type 4294967295"),
    "row": (raw_header(infos=(info("t", (100, 32), kind=12),)), "byte 53, .*100 elements.*Q4_K blocks of 256"),
    "row of a scalar": (raw_header(infos=(info("t", (), kind=2),)), "byte 37, .*rows of 1 elements"),
    "first offset": (raw_header(infos=(info("t", (1,), offset=32),)), "byte 49, .*offset 32 where 0 is next"),
    "overlap": (
        raw_header(infos=(info("t", (16,)), info("u", (1,), offset=32))),
        "byte 82, tensor 'u' has offset 32 where 64 is next",
    ),
    "gap": (
        raw_header(infos=(info("t", (1,)), info("u", (1,), offset=64))),
        "byte 82, tensor 'u' has offset 64 where 32 is next",
    ),
    "misaligned": (
        raw_header(infos=(info("t", (1,)), info("u", (1,), offset=4))),
        "byte 82, tensor 'u' has offset 4 where 32 is next",
    ),
    "data": (
        raw_header(infos=(info("t", (9,)),)) + bytes(35),
        "byte 64, the 36 bytes of tensor 't' run past .*byte 99",
    ),
}


@pytest.mark.parametrize("raw,message", LIES.values(), ids=LIES)
def test_lies(raw: bytes, message: str, tmp_path: Path) -> None:
    assert re.search(message, fault(raw)), fault(raw)
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    assert re.search(message, fault(path)), fault(path)


sparse = pytest.mark.skipif(os.name == "nt", reason="Windows would reserve the whole 40 GB on disk")


@sparse
def test_limits_on_files_made_to_waste_time_and_memory(tmp_path: Path) -> None:
    """Sparse files whose lies are within the file's size: only a limit of our own stops these."""
    path = tmp_path / "huge.gguf"
    cases = {
        "tensors is 1000000000, more than any model has": raw_header(n_tensors=10**9),
        "keys is 1000000000, more than any model has": raw_header(n_keys=10**9),
        "past 134217728 bytes": raw_header(n_keys=1, keys=(key("k", 9, struct.pack("<IQ", 0, 10**9)),)),
        "value of 'k' takes the header past 134217728 bytes": raw_header(keys=(key("k", 8, struct.pack("<Q", 10**9)),)),
        "past 4000000 strings": raw_header(keys=(key("k", 9, struct.pack("<IQ", 8, 10**9)),)),
    }
    for message, raw in cases.items():
        path.write_bytes(raw)
        os.truncate(path, 40 * 10**9)
        tracemalloc.start()
        text = fault(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert message in text
        assert peak < 2**20


@sparse
def test_a_40_gb_file_is_read_through_its_header(tmp_path: Path) -> None:
    raw = write_header(METADATA, [("big", (256, 4096, 68_000), "Q4_K")])
    path = tmp_path / "big.gguf"
    path.write_bytes(raw)
    header = read_header(raw)
    assert header.file_bytes > 39 * 10**9
    os.truncate(path, header.file_bytes)
    tracemalloc.start()
    assert read_header(path).tensors == header.tensors
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_arrays_longer_than_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the first read, the header comes out the same, and so do the faults."""
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(SMALL + bytes(DATA_BYTES))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(SMALL[: SMALL.index(b"<|end|>") + 3])
    header, message = read_header(whole), fault(cut)
    for first in (1, 7, 64, 333):
        monkeypatch.setattr(parser, "_FIRST_READ", first)
        assert read_header(whole) == header
        assert fault(cut) == message


def test_file_that_shrinks_while_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(SMALL[:100])
    real = os.fstat

    class Longer:
        def __init__(self, fd: int) -> None:
            self.st_size = real(fd).st_size + 4000

    monkeypatch.setattr(os, "fstat", Longer)
    assert "shrank to 100" in fault(path)


def test_things_that_are_not_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in fault(tmp_path / "missing.gguf")
    assert "directory" in fault(tmp_path)
    with pytest.raises(GGUFError, match="cannot be read"):
        read_header("a\0b")
    path = tmp_path / "model.gguf"
    path.write_bytes(SMALL)
    assert re.search("cannot be read|no such file", fault(path / "below"))

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert "the file cannot be read (Permission denied)" in fault(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_fifo_and_device_do_not_block(tmp_path: Path) -> None:
    path = tmp_path / "fifo.gguf"
    os.mkfifo(path)
    assert "not a regular file" in fault(path)
    assert "not a regular file" in fault(Path("/dev/zero"))


# Split models


def part(no: int, count: int, names: list[str], *, total: int | None = None, **extra: object) -> bytes:
    metadata: dict[str, object] = {"split.no": Typed("u16", no), "split.count": Typed("u16", count), **extra}
    if no == 0:
        metadata["general.architecture"] = "llama"
    if total is not None:
        metadata["split.tensors.count"] = Typed("i32", total)
    raw = write_header(metadata, [(name, (8,), "F32") for name in names])
    return raw + bytes(32 * len(names))


def write_parts(folder: Path, parts: list[bytes], *, count: int | None = None) -> Path:
    for i, raw in enumerate(parts):
        (folder / f"m-{i + 1:05}-of-{count or len(parts):05}.gguf").write_bytes(raw)
    return folder / f"m-00001-of-{count or len(parts):05}.gguf"


def test_split_model(tmp_path: Path) -> None:
    parts = [part(0, 3, [], total=3), part(1, 3, ["a", "b"], total=3), part(2, 3, ["c"], total=3)]
    path = write_parts(tmp_path, parts)
    header = read_header(str(path))
    assert [(t.name, t.part) for t in header.tensors] == [("a", 1), ("b", 1), ("c", 2)]
    assert header.file_bytes == sum(len(p) for p in parts)
    assert header.path == path and [p.name[:7] for p in header.parts] == ["m-00001", "m-00002", "m-00003"]
    assert header.arch == "llama"
    for t in header.tensors:
        alone = read_header(header.parts[t.part], splits=False)
        assert t.offset == alone.tensor(t.name).offset
    assert header.header_bytes == sum(read_header(p, splits=False).header_bytes for p in header.parts)
    assert read_header(path, splits=False).parts == (path,)


def test_split_models_that_disagree(tmp_path: Path) -> None:
    good = [part(0, 2, ["a"], total=2), part(1, 2, ["b"], total=2)]

    path = write_parts(tmp_path, good)
    second = path.with_name("m-00002-of-00002.gguf")
    assert re.search("part 2 of 2; open the first part, named …-00001-of-00002.gguf", fault(second))
    renamed = path.rename(tmp_path / "model.gguf")
    assert "must be named …-00001-of-00002.gguf" in fault(renamed)
    renamed.rename(path)

    second.unlink()
    with pytest.raises(GGUFError, match=r"m-00002-of-00002\.gguf: this part, 2 of 2, is missing"):
        read_header(path)

    for raw, message in [
        (part(0, 2, ["b"], total=2), "'split.no' is 0 where part 2 needs 1"),
        (part(1, 3, ["b"], total=2), "'split.count' is 3 where part 2 needs 2"),
        (write_header({}, [("b", (8,), "F32")]) + bytes(32), "'split.no' is None where part 2 needs 1"),
        (good[1][:-1], "m-00002-of-00002.gguf: at byte .* run past the file's end"),
        (part(1, 2, ["a"], total=2), "tensor 'a' is in part 1 and again in part 2"),
        (part(1, 2, ["b", "c"], total=2), "'split.tensors.count' is 2 but the parts hold 3"),
    ]:
        second.write_bytes(raw)
        with pytest.raises(GGUFError, match=message):
            read_header(path)

    second.write_bytes(good[1])
    for metadata, message in [
        ({"split.count": Typed("u16", 2)}, "'split.no' is missing"),
        ({"split.count": "two"}, "'split.count' is 'two', not a count"),
        ({"split.count": -2}, "'split.count' is -2, not a count"),
        ({"split.count": 2, "split.no": True}, "'split.no' is True, not a count"),
    ]:
        path.write_bytes(write_header(metadata, []))
        assert message in fault(path)
    path.write_bytes(write_header({"split.count": 2**63, "split.no": 0}, []))
    assert "must be named" in fault(path)


# The judgement of llama.cpp itself

JUDGE = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
class Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]
lib.gguf_init_from_buffer.restype = ctypes.c_void_p
lib.gguf_init_from_buffer.argtypes = [ctypes.c_char_p, ctypes.c_size_t, Params]
lib.gguf_free.argtypes = [ctypes.c_void_p]
quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *a: None)
lib.ggml_log_set(quiet, None)
while head := sys.stdin.buffer.read(8):
    raw = sys.stdin.buffer.read(int.from_bytes(head, "little"))
    ctx = lib.gguf_init_from_buffer(raw, len(raw), Params(True, None))
    sys.stdout.write("1" if ctx else "0")
    if ctx:
        lib.gguf_free(ctx)
"""


def llama_accepts(headers: list[bytes]) -> list[bool]:
    """What `gguf_init_from_buffer` says of each; in a process of its own, as it may abort."""
    lib = libggml()
    out = subprocess.run(
        [sys.executable, "-c", JUDGE, lib._name],
        input=b"".join(struct.pack("<Q", len(h)) + h for h in headers),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return [c == ord("1") for c in out]


# Where we are stricter than gguf.cpp on purpose: names must be text, the data must be there (its model loader checks
# that later), and what no model needs is not read.
STRICTER = re.compile("not UTF-8|run past the file's end at|bytes long where 65535|more than any model|2\\*\\*63 bytes")


def test_every_small_change_is_judged_as_llama_cpp_does() -> None:
    patches = [bytes([n]) for n in (0, 1, 3, 9, 31, 64, 127, 128, 255)]
    patches += [struct.pack("<Q", n) for n in (0, 1, 2, 40, 2**31, 2**32, 2**61, 2**63, 2**64 - 1)]
    headers, ours = [], []
    for pos in range(len(SMALL)):
        for patch in patches:
            raw = (SMALL[:pos] + patch + SMALL[pos + len(patch) :])[: len(SMALL)]
            try:
                read_header(raw)
                verdict = True
            except GGUFError as e:
                if STRICTER.search(str(e)):
                    continue
                verdict = False
            headers.append(raw)
            ours.append(verdict)
    assert 2000 < sum(ours) < len(ours) - 2000
    theirs = llama_accepts(headers)
    assert [(a, h) for a, b, h in zip(ours, theirs, headers, strict=True) if a != b] == []


def test_lies_are_refused_by_llama_cpp_too() -> None:
    ours_only = {"key not text", "name not text", "bytes", "sum of bytes", "data"}
    names = [name for name in LIES if name != "alignment array"]  # gguf.cpp takes an array of one u32 for a u32
    verdicts = dict(zip(names, llama_accepts([LIES[name][0] for name in names]), strict=True))
    assert {name for name, accepted in verdicts.items() if accepted} <= ours_only
