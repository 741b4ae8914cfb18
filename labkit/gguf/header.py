"""The header of a GGUF file: metadata, its arrays, and the table of tensors."""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, overload

from labkit.gguf.types import ValueType

IN_MEMORY = "GGUF in memory"
U64 = struct.Struct("<Q")


class GGUFError(ValueError):
    """A file is not a GGUF that llama.cpp can read; one sentence says at which byte of which file, and why."""


class GGUFArray(Sequence[Any]):
    """A metadata array, decoded when it is first read. Bytes that are not UTF-8 become U+FFFD.

    ``item_type`` is llama.cpp's name of the items' type (u8 … f64, bool, str).
    """

    def __init__(self, buffer: bytes | bytearray, start: int, n: int, kind: ValueType) -> None:
        self._buffer, self._start, self._n, self._kind = buffer, start, n, kind

    @property
    def item_type(self) -> str:
        """llama.cpp's name of the items' type, as in ``u8``."""
        return self._kind.name

    @cached_property
    def _items(self) -> tuple[Any, ...]:
        buffer, pos = self._buffer, self._start
        if self._kind.code:
            return struct.unpack_from(f"<{self._n}{self._kind.code}", buffer, pos)
        items = []
        for _ in range(self._n):
            (length,) = U64.unpack_from(buffer, pos)
            items.append(buffer[pos + 8 : pos + 8 + length].decode(errors="replace"))
            pos += 8 + length
        return tuple(items)

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GGUFArray):
            return NotImplemented
        return self.item_type == other.item_type and self._items == other._items

    def __repr__(self) -> str:
        return f"GGUFArray({self._n} × {self.item_type})"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its shape, and where its data lies.

    Attributes:
        dims: in ggml's order: dims[0] is the length of a row.
        offset: position of the data in its own file, which is ``Header.parts[part]``, in bytes.
        nbytes: bytes of the data, without padding.
    """

    name: str
    dims: tuple[int, ...]
    type: str
    offset: int
    nbytes: int
    part: int

    @property
    def n_elements(self) -> int:
        """Number of its elements."""
        return prod(self.dims)


@dataclass(frozen=True)
class Header:
    """What the header of a GGUF file holds; of a split model, those of all its files together.

    Attributes:
        path: the (first) file; None where the header was read from memory.
        alignment: of the tensor data, in bytes.
        data_offset: where the (first) file's tensor data begins.
        header_bytes: length of the headers of all files.
        file_bytes: length of all files.
        metadata: that of the first file: numbers, bools and strings as such, arrays as ``GGUFArray``.
        parts: the files.
    """

    path: Path | None
    version: int
    alignment: int
    data_offset: int
    header_bytes: int
    file_bytes: int
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    parts: tuple[Path, ...]

    @cached_property
    def arch(self) -> str:
        """``general.architecture``. Raises GGUFError where the file has none."""
        return str(self._required("general.architecture", str))

    @property
    def n_layer(self) -> int:
        """``<arch>.block_count``. Raises GGUFError where the file has none."""
        return int(self._required(f"{self.arch}.block_count", int))

    @property
    def n_params(self) -> int:
        """Elements of all tensors."""
        return sum(t.n_elements for t in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def bpw(self) -> float | None:
        """Bits per weight over all tensors; None where there is no weight to divide by."""
        n = self.n_params
        return self.tensor_bytes * 8 / n if n else None

    @property
    def types(self) -> dict[str, tuple[int, int]]:
        """(number of tensors, their bytes) of each tensor type, in order of appearance."""
        return by_type((t.type, t.nbytes) for t in self.tensors)

    def key(self, name: str, default: Any = None) -> Any:
        """Metadata under the architecture's prefix: ``key("block_count")`` is ``metadata["llama.block_count"]``."""
        return self.metadata.get(f"{self.arch}.{name}", default)

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name. Raises KeyError."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    def _required(self, key: str, kind: type) -> Any:
        """A metadata value; GGUFError where it is missing or of another type."""
        value = self.metadata.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            found = "is missing" if value is None else f"is {short(value)}"
            raise GGUFError(f"{self.path or IN_MEMORY}: the metadata {key!r} {found}, so llama.cpp cannot run it.")
        return value


def short(value: object) -> str:
    """``value`` for an error message: ASCII, on one line, at most 80 characters."""
    if isinstance(value, str | bytes):
        value = value[:80]
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def by_type(tensors: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """(number, bytes) of each type among (type, bytes) pairs, in order of appearance."""
    out: dict[str, tuple[int, int]] = {}
    for name, nbytes in tensors:
        count, total = out.get(name, (0, 0))
        out[name] = (count + 1, total + nbytes)
    return out
