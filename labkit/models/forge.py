"""Write a GGUF file with the shape of a published model and without its weights.

The file has the real metadata, tensor names, types and sizes, so llama.cpp maps, reads and computes exactly as with
the real one. The text it generates is meaningless: the weights are zeros (a hole in a sparse file, which takes
milliseconds to make and kilobytes of disk) or random.
"""

from __future__ import annotations

import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from labkit import gguf
from labkit.files import disk_bytes, mark_sparse, new_file, shortage
from labkit.models import mixtures, shapes
from labkit.progress import Progress
from labkit.units import MiB, fmt_bytes

_POOL_BYTES = 4 * MiB


class ForgeError(OSError):
    """The file cannot be written; one sentence says why and what to do."""


@dataclass(frozen=True)
class Forged:
    """A forged file.

    Attributes:
        file_bytes: its length.
        disk_bytes: what it takes up on the disk; far less than its length if it is sparse.
        header: its metadata and tensor table.
        reused: whether the same file was there already.
    """

    path: Path
    file_bytes: int
    disk_bytes: int
    header: gguf.Header
    reused: bool


def models_dir() -> Path:
    """Where forged models are kept: the ``forged`` folder in $LABKIT_HOME, or in ~/.cache/labkit."""
    home = os.environ.get("LABKIT_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "labkit") / "forged"


def default_path(shape: shapes.Shape | str, quant: str, *, fill: bool = False, seed: int = 0) -> Path:
    """The file that ``forge`` writes if it is given no path.

    Raises:
        ShapeError: no such shape or mixture.
    """
    name = f"{shapes.get(shape).name if isinstance(shape, str) else shape.name}-{mixtures.find(quant).name}"
    if fill:
        name += "-filled" if seed == 0 else f"-filled-{seed}"
    return models_dir() / f"{name}.gguf"


def header_bytes(shape: shapes.Shape | str, quant: str, *, fill: bool = False, seed: int = 0) -> bytes:
    """Everything of the file up to its tensor data; ``gguf.read_header`` reads it, without a disk.

    Raises:
        ShapeError: no such shape or mixture.
    """
    shape = shapes.get(shape) if isinstance(shape, str) else shape
    marks: dict[str, Any] = {"labkit.forged": True, "labkit.fill": "random" if fill else "zeros"}
    if fill:
        marks["labkit.seed"] = seed
    table = [(t.name, t.dims, t.type) for t in shapes.tensors(shape, quant)]
    return gguf.write_header({**shapes.metadata(shape, quant), **marks}, table)


def forge(
    shape: shapes.Shape | str,
    quant: str,
    *,
    path: Path | str | None = None,
    fill: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Forged:
    """Write a model of a published shape, unless the same one is already there.

    A sparse file behaves like the real one in memory and in speed once it is in the page cache, but nothing is read
    from the disk: measure cold reads with ``fill=True``. Zeros also make the router of a mixture of experts choose the
    same experts for every token, so less memory is touched than in a real one; random weights choose different experts.
    On a file system without sparse files (FAT, exFAT) the zeros take space on the disk, which is checked first.

    Args:
        shape: one of ``shapes.names()``, or a variant of one.
        quant: one of ``shapes.QUANTS``.
        path: the file; by default one in ``models_dir()``.
        fill: write random weights instead of leaving a hole: norms 1, the rest of standard deviation 0.02.
        seed: of the random weights.
        progress: called with the fraction done and a text.

    Raises:
        ShapeError: no such shape or mixture.
        ForgeError: the disk is too full, another file is in the way, or the system refuses.
    """
    shape = shapes.get(shape) if isinstance(shape, str) else shape
    quant = mixtures.find(quant).name
    head = header_bytes(shape, quant, fill=fill, seed=seed)
    header = gguf.read_header(head)
    target = Path(path).expanduser() if path is not None else default_path(shape, quant, fill=fill, seed=seed)
    reused = _holds(target, head, header.file_bytes)
    try:
        if not reused:
            _refuse_foreign(target)
            with new_file(target) as part:
                _write(part, head, header, shape, seed if fill else None, progress)
        used = disk_bytes(target)
    except ForgeError:
        raise
    except OSError as error:
        raise ForgeError(f"{target} cannot be written ({error.strerror or error}): choose another path.") from error
    if progress:
        progress(1.0, f"{target.name}: {fmt_bytes(header.file_bytes)}, {fmt_bytes(used)} on disk")
    return Forged(target, header.file_bytes, used, gguf.read_header(target), reused)


def _holds(path: Path, head: bytes, file_bytes: int) -> bool:
    """Whether the file is the wanted one: it has the same header, which names shape, mixture, fill and seed."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size == file_bytes and file.read(len(head)) == head
    except OSError:
        return False


def _refuse_foreign(path: Path) -> None:
    """Raise ForgeError where another file than a forged one has this name."""
    if not path.exists():
        return
    try:
        ours = gguf.read_header(path).metadata.get("labkit.forged") is True
    except gguf.GGUFError:
        ours = False
    if not ours:
        raise ForgeError(f"{path} exists and was not forged, so it is not overwritten: choose another path.")


def _write(
    path: Path, head: bytes, header: gguf.Header, shape: shapes.Shape, seed: int | None, progress: Progress | None
) -> None:
    """Write header and weights; raise ForgeError where they take space on the disk that is not there."""
    with open(path, "wb") as file:
        sparse = mark_sparse(file)
        if (seed is not None or not sparse) and (problem := shortage(path.parent, header.file_bytes)):
            raise ForgeError(problem)
        file.write(head)
        file.truncate(header.file_bytes)
        if seed is not None:
            _fill(file, header, seed, progress)
        _write_rope_freqs(file, header, shape)
        file.flush()
        if seed is not None:
            # A page that was never written back cannot be evicted, and so never be read cold.
            os.fsync(file.fileno())


def _write_rope_freqs(file: BinaryIO, header: gguf.Header, shape: shapes.Shape) -> None:
    """Write the values of rope_freqs.weight where the shape has it: zeros would be divided by."""
    values = shapes.rope_freqs(shape)
    if values:
        file.seek(header.tensor("rope_freqs.weight").offset)
        file.write(struct.pack(f"<{len(values)}f", *values))


def _fill(file: BinaryIO, header: gguf.Header, seed: int, progress: Progress | None) -> None:
    """Write random weights. Each tensor starts at another place in the pool of its type, so that no two are equal."""
    from labkit.blocks.random import random_blocks  # numpy: only here, so that importing labkit stays quick

    rng = random.Random(seed)
    pools: dict[str, memoryview] = {}
    reported = 0
    for tensor in header.tensors:
        block_bytes = gguf.TYPES[tensor.type].block_bytes
        if tensor.name.endswith("_norm.weight"):
            pool, start = memoryview(struct.pack("<f", 1.0) * tensor.n_elements), 0
        else:
            if tensor.type not in pools:
                blocks = random_blocks(tensor.type, _POOL_BYTES // block_bytes, seed=seed)
                pools[tensor.type] = memoryview(blocks.reshape(-1))  # type: ignore[arg-type]
            pool = pools[tensor.type]
            start = rng.randrange(len(pool) // block_bytes) * block_bytes
        file.seek(tensor.offset)
        left = tensor.nbytes
        while left:
            piece = pool[start : start + left]
            file.write(piece)
            left -= len(piece)
            start = 0
            done = tensor.offset + tensor.nbytes - left
            if progress and done - reported >= 32 * MiB:
                reported = done
                progress(
                    0.98 * done / header.file_bytes, f"{fmt_bytes(done)} of {fmt_bytes(header.file_bytes)} written"
                )
    if progress:
        progress(0.98, "waiting for the disk")
