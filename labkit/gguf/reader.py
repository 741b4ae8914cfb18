"""Read the header of a GGUF file: metadata and tensor table, never the weights.

A split model is read through its first part, by the rules of ``llama_model_loader::llama_model_loader`` in
src/llama-model-loader.cpp.
"""

import os
import stat
from pathlib import Path

from labkit.gguf.header import IN_MEMORY, GGUFError, Header, short
from labkit.gguf.parser import Parser


def read_header(source: str | os.PathLike[str] | bytes, *, splits: bool = True) -> Header:
    """Read the metadata and tensor table of a GGUF file, whatever its size; the weights are not touched.

    Args:
        source: a file, or the bytes of a header (or whole file) in memory. Bytes that end where the tensor data would
            begin count as the header of a file that is complete.
        splits: for the first file of a split model, read all its parts.

    Raises:
        GGUFError: the file cannot be read or breaks the format; the message says where.
    """
    if isinstance(source, bytes):
        return Parser(IN_MEMORY, source, len(source), None).header(None, 0)
    path = Path(source)
    first = _read_file(path, 0)
    count = _split_number(first, "split.count")
    if not splits or count is None or count < 2:
        return first
    return _read_parts(first, path, count)


def _read_file(path: Path, part: int) -> Header:
    """The header of one file; GGUFError where the file is not a GGUF."""
    try:
        # A FIFO would block and a device never ends, so look before opening.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise GGUFError(f"{path}: this is a directory; name the .gguf file inside it.")
        if not stat.S_ISREG(mode):
            raise GGUFError(f"{path}: this is not a regular file (a FIFO, socket or device).")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return Parser(str(path), bytearray(), size, file).header(path, part)
    except GGUFError:
        raise
    except FileNotFoundError:
        raise GGUFError(f"{path}: there is no such file.") from None
    except (OSError, ValueError) as e:  # ValueError: a NUL in the path
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise GGUFError(f"{path}: the file cannot be read ({reason}).") from e


def _part_ending(index: int, count: int) -> str:
    """The end of the file name of part ``index`` (``llama_split_path`` in src/llama.cpp)."""
    return f"-{index + 1:05}-of-{count:05}.gguf"


def _split_number(header: Header, key: str) -> int | None:
    """The value of a metadata key about splits; None where the file has none."""
    value = header.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise GGUFError(f"{header.path}: the metadata {key!r} is {short(value)}, not a count.")
    return value


def _read_parts(first: Header, path: Path, count: int) -> Header:
    """The header of a split model, whose first file has been read."""
    index = _split_number(first, "split.no")
    if index is None:
        raise GGUFError(f"{path}: the metadata 'split.count' is {count} but 'split.no' is missing.")
    ending = _part_ending(0, count)
    if index != 0:
        raise GGUFError(f"{path}: this is part {index + 1} of {count}; open the first part, named …{ending}.")
    if not path.name.endswith(ending):
        raise GGUFError(f"{path}: the first of {count} parts must be named …{ending} for the others to be found.")
    prefix = path.name.removesuffix(ending)
    headers = [first]
    for i in range(1, count):
        part_path = path.with_name(prefix + _part_ending(i, count))
        if not part_path.exists():
            raise GGUFError(f"{part_path}: this part, {i + 1} of {count}, is missing; put all parts in one folder.")
        part = _read_file(part_path, i)
        headers.append(part)
        for key, wanted in (("split.no", i), ("split.count", count)):
            found = _split_number(part, key)
            if found != wanted:
                raise GGUFError(f"{part_path}: the metadata {key!r} is {found} where part {i + 1} needs {wanted}.")
    tensors = tuple(t for h in headers for t in h.tensors)
    total = _split_number(first, "split.tensors.count")
    if total is not None and total != len(tensors):
        raise GGUFError(f"{path}: the metadata 'split.tensors.count' is {total} but the parts hold {len(tensors)}.")
    seen: dict[str, int] = {}
    for t in tensors:
        if t.name in seen:
            raise GGUFError(f"{path}: tensor {t.name!r} is in part {seen[t.name] + 1} and again in part {t.part + 1}.")
        seen[t.name] = t.part
    return Header(
        path=path,
        version=first.version,
        alignment=first.alignment,
        data_offset=first.data_offset,
        header_bytes=sum(h.header_bytes for h in headers),
        file_bytes=sum(h.file_bytes for h in headers),
        metadata=first.metadata,
        tensors=tensors,
        parts=tuple(p for h in headers for p in h.parts),
    )
