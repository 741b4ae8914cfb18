"""Parse the header of one GGUF file, which may be damaged or hostile.

The rules are those of ``gguf_init_from_reader`` in ggml/src/gguf.cpp: what llama.cpp refuses is refused here.
"""

import struct
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from labkit.gguf.header import U64, GGUFArray, GGUFError, Header, Tensor, short
from labkit.gguf.types import DEFAULT_ALIGNMENT, MAX_DIMS, MAX_NAME, TYPES_BY_ID, VALUE_TYPES

# Real headers stay under 30 MiB, 2 million strings and 100,000 tensors. The limits bound time and memory on a file
# made to waste them.
MAX_HEADER_BYTES = 128 * 1024 * 1024
MAX_STRINGS = 4_000_000
MAX_TENSORS = 200_000
MAX_KEYS = 100_000
MAX_KEY = 2**16 - 1  # bytes of a metadata key, by the GGUF specification (docs/gguf.md in ggml)

_FIRST_READ = 256 * 1024
_DAMAGED = "it is cut off or damaged"
_INT64_MAX = 2**63 - 1
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_U32_ID, _STR_ID, _ARR_ID = 4, 8, 9
_SCALARS = {t.id: struct.Struct("<" + t.code) for t in VALUE_TYPES if t.code}
_Row = tuple[str, tuple[int, ...], str, int, int]


class Parser:
    """Reads one header. ``buffer`` holds the file's first bytes and grows as far as the header goes."""

    def __init__(self, label: str, buffer: bytes | bytearray, size: int, file: BinaryIO | None) -> None:
        self.label, self.buffer, self.size, self.file = label, buffer, size, file
        self.pos = 0
        self.n_strings = 0

    def fail(self, pos: int, fault: str) -> NoReturn:
        """Raise GGUFError for a fault at a byte."""
        raise GGUFError(f"{self.label}: at byte {pos}, {fault}.")

    def need(self, n: int, what: str) -> None:
        """Read on until the next ``n`` bytes are in the buffer."""
        end = self.pos + n
        if end <= len(self.buffer):
            return
        if end > self.size:
            self.fail(self.pos, f"{what} takes {n} bytes but the file ends at byte {self.size}; {_DAMAGED}")
        if end > MAX_HEADER_BYTES:
            self.fail(self.pos, f"{what} takes the header past {MAX_HEADER_BYTES} bytes, more than any model needs")
        if self.file is not None and isinstance(self.buffer, bytearray):
            target = min(max(end, 2 * len(self.buffer), _FIRST_READ), self.size, MAX_HEADER_BYTES)
            self.buffer += self.file.read(target - len(self.buffer))
        if end > len(self.buffer):
            self.fail(self.pos, f"{what} takes {n} bytes but the file shrank to {len(self.buffer)} while being read")

    def number(self, kind: struct.Struct, what: str) -> int:
        """Read a number."""
        self.need(kind.size, what)
        (value,) = kind.unpack_from(self.buffer, self.pos)
        self.pos += kind.size
        return int(value)

    def string(self, what: str) -> bytes | bytearray:
        """Read the bytes of a string."""
        length = self.number(U64, f"the length of {what}")
        self.need(length, what)
        raw = self.buffer[self.pos : self.pos + length]
        self.pos += length
        return raw

    def name(self, what: str, most: int) -> str:
        """Read a string of at most ``most`` bytes that has to be UTF-8."""
        start = self.pos
        length = self.number(U64, f"the length of {what}")
        if length > most:
            self.fail(start, f"{what} is {length} bytes long where {most} are allowed")
        self.pos = start
        raw = self.string(what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(start, f"{what} is {short(bytes(raw))}, which is not UTF-8 text")

    def count(self, what: str, item_bytes: int, most: int) -> int:
        """A number of items that take at least ``item_bytes`` each."""
        start = self.pos
        n = self.number(U64, f"the number of {what}")
        if n * item_bytes > self.size - self.pos:
            self.fail(start, f"the number of {what} is {n}, more than {self.size} bytes of file can hold")
        if n > most:
            self.fail(start, f"the number of {what} is {n}, more than any model has")
        return n

    def header(self, path: Path | None, part: int) -> Header:
        """Read the whole header."""
        version = self.magic_and_version()
        n_tensors = self.count("tensors", 24, MAX_TENSORS)
        n_keys = self.count("metadata keys", 14, MAX_KEYS)
        metadata = self.metadata(n_keys)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        rows, data_bytes = self.tensor_table(n_tensors, alignment)
        data_offset = self.pos + (-self.pos % alignment if rows else 0)
        if data_offset > self.size:
            self.fail(self.pos, f"the tensor data should begin at byte {data_offset} but the file ends at {self.size}")
        tensors = tuple(
            Tensor(name, dims, type_, offset + data_offset, nbytes, part) for name, dims, type_, offset, nbytes in rows
        )
        header_only = self.file is None and self.size == data_offset
        if not header_only:
            for t in tensors:
                if t.offset + t.nbytes > self.size:
                    fault = f"the {t.nbytes} bytes of tensor {short(t.name)} run past the file's end"
                    self.fail(t.offset, f"{fault} at byte {self.size}; {_DAMAGED}")
        if isinstance(self.buffer, bytearray):
            del self.buffer[self.pos :]
        return Header(
            path=path,
            version=version,
            alignment=alignment,
            data_offset=data_offset,
            header_bytes=data_offset,
            file_bytes=data_offset + data_bytes if header_only else self.size,
            metadata=metadata,
            tensors=tensors,
            parts=(path,) if path else (),
        )

    def magic_and_version(self) -> int:
        """Read magic and version, and refuse those that llama.cpp does not read."""
        if not self.size:
            self.fail(0, "the file is empty")
        self.need(min(4, self.size), "the magic")
        magic = bytes(self.buffer[:4])
        if magic != b"GGUF":
            self.fail(0, f"the file begins with {magic!r} instead of b'GGUF', so it is not a GGUF model")
        self.pos = 4
        version = self.number(_U32, "the version")
        if version and not version & 0xFFFF:
            self.fail(4, "the version reads byte-swapped, so this is a big-endian GGUF, which llama.cpp refuses here")
        if version == 1:
            self.fail(4, "the version is 1, which llama.cpp no longer reads; convert the model again")
        if version not in (2, 3):
            self.fail(4, f"the version is {version} where llama.cpp reads 2 and 3")
        return version

    def metadata(self, n: int) -> dict[str, Any]:
        """Read ``n`` metadata keys with their values."""
        out: dict[str, Any] = {}
        for i in range(n):
            start = self.pos
            key = self.name(f"the name of metadata key {i}", MAX_KEY)
            if not key:
                self.fail(start, f"the name of metadata key {i} is empty")
            if key in out:
                self.fail(start, f"the metadata key {short(key)} appears a second time")
            start = self.pos
            kind = self.number(_U32, f"the type of {short(key)}")
            out[key] = value = self.value(start, kind, key)
            if key == "general.alignment":
                if kind != _U32_ID:
                    self.fail(start, f"general.alignment has value type {kind} instead of {_U32_ID} (u32)")
                if value == 0 or value & (value - 1):
                    self.fail(start, f"general.alignment is {value}, which is not a power of two")
        return out

    def value(self, start: int, kind: int, key: str) -> Any:
        """Read the value of a metadata key; ``start`` is where its type stands."""
        what = f"the value of {short(key)}"
        scalar = _SCALARS.get(kind)
        if scalar:
            self.need(scalar.size, what)
            (value,) = scalar.unpack_from(self.buffer, self.pos)
            self.pos += scalar.size
            return value
        if kind == _STR_ID:
            return self.string(what).decode(errors="replace")
        if kind != _ARR_ID:
            self.fail(start, f"the type of {short(key)} is {kind}, which is no GGUF value type")
        start = self.pos
        kind = self.number(_U32, f"the item type of {short(key)}")
        if kind == _ARR_ID:
            self.fail(start, f"{short(key)} is an array of arrays, which llama.cpp does not read")
        if kind >= len(VALUE_TYPES):
            self.fail(start, f"the item type of {short(key)} is {kind}, which is no GGUF value type")
        n = self.number(U64, f"the length of {short(key)}")
        start = self.pos
        if kind == _STR_ID:
            self.skip_strings(n, what)
        else:
            nbytes = n * _SCALARS[kind].size
            self.need(nbytes, what)
            self.pos += nbytes
        return GGUFArray(self.buffer, start, n, VALUE_TYPES[kind])

    def skip_strings(self, n: int, what: str) -> None:
        """Step over ``n`` strings. A tokenizer has 100,000 of them, so the loop does only what it must."""
        if n * 8 > self.size - self.pos:
            self.fail(self.pos - 8, f"{what} is said to be {n} strings, more than {self.size} bytes of file can hold")
        self.n_strings += n
        if self.n_strings > MAX_STRINGS:
            self.fail(self.pos - 8, f"{what} takes the header past {MAX_STRINGS} strings, more than any model needs")
        unpack = U64.unpack_from
        start = pos = self.pos
        i = 0
        while i < n:
            buffer = self.buffer
            try:
                for i in range(i, n):  # noqa: B007, B020 - resumes here once the buffer has grown
                    (length,) = unpack(buffer, pos)
                    start, pos = pos, pos + 8 + length
                i = n
            except (struct.error, OverflowError):  # OverflowError: a position beyond 2**63
                self.check_string(start, pos, what)
                self.pos = pos
                self.need(8, f"the length of string {i} of {what}")
        self.check_string(start, pos, what)
        self.pos = pos
        self.need(0, what)

    def check_string(self, start: int, end: int, what: str) -> None:
        """Refuse a string that ends past the end of the file."""
        if end > self.size:
            fault = f"a string of {end - start - 8} bytes in {what} runs past the file's end"
            self.fail(start, f"{fault} at byte {self.size}; {_DAMAGED}")

    def tensor_table(self, n: int, alignment: int) -> tuple[list[_Row], int]:
        """Rows of (name, dims, type, offset within the data, bytes), and the bytes of all with their padding."""
        rows: list[_Row] = []
        seen: set[str] = set()
        total = 0
        for i in range(n):
            start = self.pos
            name = self.name(f"the name of tensor {i}", MAX_NAME - 1)
            if name in seen:
                self.fail(start, f"a second tensor is named {short(name)}")
            seen.add(name)
            label = f"tensor {short(name)}"
            start = self.pos
            n_dims = self.number(_U32, f"the number of dimensions of {label}")
            if n_dims > MAX_DIMS:
                self.fail(start, f"{label} has {n_dims} dimensions where ggml knows {MAX_DIMS}")
            start = self.pos
            dims = tuple(self.number(_I64, f"a dimension of {label}") for _ in range(n_dims))
            self.check_dims(start, dims, label)
            start = self.pos
            type_id = self.number(_U32, f"the type of {label}")
            kind = TYPES_BY_ID.get(type_id)
            if kind is None:
                self.fail(start, f"{label} has type {type_id}, which is not among ggml's tensor types")
            ne0 = dims[0] if dims else 1
            blocks, rest = divmod(ne0, kind.block_elems)
            if rest:
                self.fail(
                    start, f"{label} has rows of {ne0} elements, not whole {kind.name} blocks of {kind.block_elems}"
                )
            nbytes = blocks * kind.block_bytes * prod(dims[1:])
            start = self.pos
            offset = self.number(U64, f"the offset of {label}")
            if offset != total:
                self.fail(start, f"{label} has offset {offset} where {total} is next")
            total += nbytes + -nbytes % alignment
            if total > _INT64_MAX:
                self.fail(start, f"{label} takes the tensor data past 2**63 bytes")
            rows.append((name, dims, kind.name, offset, nbytes))
        return rows, total

    def check_dims(self, start: int, dims: tuple[int, ...], label: str) -> None:
        """Refuse dimensions that are negative or whose product does not fit in 63 bits."""
        elements = 1
        for n in dims:
            if n < 0:
                self.fail(start, f"{label} has dimensions {dims}, one of them negative")
            elements *= n
            if elements > _INT64_MAX:
                self.fail(start, f"{label} has dimensions {dims}, whose product exceeds 2**63")
