"""Small relatives of published models, for tests that load one: a few tens of MiB, all tensor types real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from labkit import gguf
from labkit.models import shapes


def small(name: str = "llama-3.2-1b", **keys: int) -> shapes.Shape:
    """Two layers of a published shape, with a short vocabulary; ``keys`` are hyperparameters with _ for their dots."""
    shape = shapes.get(name)
    changes = {"block_count": 2, "vocab_size": 4096}
    if shape.number("expert_count"):
        changes |= {"expert_count": 8, "expert_used_count": 2}
    changes |= {next(key for key in shape.keys if key.replace(".", "_") == given): n for given, n in keys.items()}
    return replace(shape, name=f"small-{name}", keys={**shape.keys, **changes})


def write(
    path: Path,
    shape: shapes.Shape,
    quant: str,
    *,
    type_of: Callable[[shapes.TensorSpec], str] = lambda tensor: tensor.type,
    **metadata: object,
) -> gguf.Header:
    """A sparse file of this shape, with other tensor types or metadata than its mixture would give."""
    table = [(tensor.name, tensor.dims, type_of(tensor)) for tensor in shapes.tensors(shape, quant)]
    values = {**shapes.metadata(shape, quant), **{name.replace("__", "."): value for name, value in metadata.items()}}
    head = gguf.write_header(values, table)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(gguf.read_header(head).file_bytes)
    return gguf.read_header(path)
