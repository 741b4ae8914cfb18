"""Read some blocks of a tensor from a model file, without reading the rest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.gguf import Header
from labkit.gguf.types import TYPES


def read_blocks(header: Header, name: str, *, first: int = 0, n: int | None = None) -> NDArray[np.uint8]:
    """Blocks ``first`` to ``first + n`` of a tensor, shape (n, block_bytes); all from ``first`` on without ``n``.

    Raises:
        KeyError: the model has no such tensor.
        ValueError: the tensor has no such blocks.
        OSError: the file cannot be read.
    """
    tensor = header.tensor(name)
    size = TYPES[tensor.type].block_bytes
    total = tensor.nbytes // size
    count = total - first if n is None else n
    if first < 0 or count < 0 or first + count > total:
        raise ValueError(f"{name} has blocks 0 to {total - 1}; {first} to {first + count - 1} were asked for.")
    with open(header.parts[tensor.part], "rb") as file:
        file.seek(tensor.offset + first * size)
        data = file.read(count * size)
    if len(data) != count * size:
        raise OSError(f"{header.parts[tensor.part].name} ends inside {name}: it is damaged or incomplete.")
    return np.frombuffer(data, np.uint8).reshape(count, size)
