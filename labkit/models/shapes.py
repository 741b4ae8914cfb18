"""Published model architectures: their tensors, and the size of each in any mixture.

The catalogue is ``datasets/shapes.json``. Names, order and dimensions of tensors are those that llama.cpp's converter
and llama-quantize write (conversion/, src/models/ and src/llama-quant.cpp at 0c1e57098).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from labkit.files import data_path
from labkit.gguf.types import row_bytes
from labkit.models import mixtures, tensor_types
from labkit.models.layouts import Value, layout
from labkit.models.mixtures import ShapeError

__all__ = [
    "QUANTS",
    "Shape",
    "ShapeError",
    "TensorSpec",
    "get",
    "layout",
    "metadata",
    "names",
    "rope_freqs",
    "tensors",
    "variant",
]

QUANTS: tuple[str, ...] = tuple(mixtures.MIXTURES)
"""Names of all mixtures, largest first."""


@dataclass(frozen=True, eq=False)
class Shape:
    """One published architecture; ``dataclasses.replace`` makes variants.

    Attributes:
        name: as in ``forge("llama-2-7b", …)``.
        title: as its publisher writes it.
        arch: llama.cpp's name of the architecture.
        source: address of the config.json that the figures come from.
        licence: of the published weights (a forged file contains none of them).
        n_params: trained parameters, as published; tables such as rope_freqs do not count.
        tied: the output layer reuses the token embedding, there is no output.weight.
        keys: GGUF hyperparameters without the architecture's prefix. A list has a value for each layer; a variant with
            fewer layers uses the first ones.
        rope_factors: parameters of Llama 3's frequency scaling, None for others.
        note: what differs from other shapes, or "".
        dry_run_only: why this shape is only for dry runs; None if it can be loaded.
    """

    name: str
    title: str
    arch: str
    source: str
    licence: str
    n_params: int
    tied: bool
    keys: Mapping[str, Value]
    rope_factors: Mapping[str, float] | None = None
    note: str = ""
    dry_run_only: str | None = None

    def number(self, key: str, default: int = 0, *, layer: int = 0) -> int:
        """An integer hyperparameter, such as ``number("block_count")``; that of one layer if each has its own."""
        value = self.keys.get(key, default)
        return int(value[layer] if isinstance(value, Sequence) and not isinstance(value, str) else value)

    @property
    def n_layer(self) -> int:
        """Number of blocks."""
        return self.number("block_count")

    @property
    def n_vocab(self) -> int:
        """Rows of the token embedding."""
        return self.number("vocab_size")

    @property
    def head_dim(self) -> int:
        """Width of one key (and value) head."""
        heads = max(1, self.number("attention.head_count"))
        return self.number("attention.key_length", self.number("embedding_length") // heads)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a shape in a mixture.

    Attributes:
        dims: in ggml's order, dims[0] is the length of a row.
        type: such as ``"Q4_K"``.
        wanted: the type the mixture asked for if rows do not divide into its blocks, else None.
    """

    name: str
    dims: tuple[int, ...]
    type: str
    wanted: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the data, without padding."""
        return row_bytes(self.type, self.dims[0]) * math.prod(self.dims[1:])


@cache
def _catalogue() -> dict[str, Shape]:
    """All shapes of the data file, by name."""
    raw = json.loads(data_path("shapes.json").read_text(encoding="utf-8"))
    return {name: _shape(name, fields) for name, fields in raw["shapes"].items()}


def _shape(name: str, fields: dict[str, Any]) -> Shape:
    """A shape from its entry in the data file."""
    factors = fields.pop("rope_factors", None)
    keys = MappingProxyType(fields.pop("keys"))
    return Shape(name=name, keys=keys, rope_factors=MappingProxyType(factors) if factors else None, **fields)


def names() -> list[str]:
    """Names of all shapes, in the catalogue's order."""
    return list(_catalogue())


def get(name: str) -> Shape:
    """The shape of that name, in any case.

    Raises:
        ShapeError: there is none; the message offers the closest names.
    """
    shape = _catalogue().get(name.lower())
    if shape is None:
        close = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.4) or names()
        raise ShapeError(f"there is no shape {name!r}: did you mean {' or '.join(close)}?")
    return shape


def variant(shape: Shape, name: str, keys: Mapping[str, Value]) -> Shape:
    """``shape`` with some hyperparameters changed, to be forged under ``name``.

    Args:
        keys: without the architecture's prefix, as in ``{"embedding_length": 64}``.
    """
    changed = replace(shape, name=name, title=name, keys={**shape.keys, **keys}, note=f"made up, after {shape.title}")
    return replace(
        changed, n_params=sum(math.prod(dims) for part, dims in layout(changed) if part != "rope_freqs.weight")
    )


def tensors(shape: Shape | str, quant: str) -> tuple[TensorSpec, ...]:
    """Every tensor of a shape in a mixture, in file order.

    Raises:
        ShapeError: no such shape or mixture.
    """
    return _tensors(get(shape) if isinstance(shape, str) else shape, mixtures.find(quant).name)


@cache
def _tensors(shape: Shape, quant: str) -> tuple[TensorSpec, ...]:
    parts = tuple(layout(shape))
    source = [(name, dims, tensor_types.converted(name, dims)) for name, dims in parts]
    model = tensor_types.traits(metadata(shape, quant), [name for name, _ in parts])
    choices = tensor_types.assign(source, quant, model)
    return tuple(TensorSpec(c.name, dims, c.type, c.wanted) for c, (_, dims) in zip(choices, parts, strict=True))


def metadata(shape: Shape | str, quant: str) -> dict[str, Any]:
    """GGUF metadata of a shape, enough for llama.cpp to run it; without a tokenizer (``tokenizer.ggml.model`` "none").

    Raises:
        ShapeError: no such shape or mixture.
    """
    shape = get(shape) if isinstance(shape, str) else shape
    return {
        "general.architecture": shape.arch,
        "general.type": "model",
        "general.name": f"{shape.title} (shape only, no trained weights)",
        "general.source.url": shape.source,
        "general.quantization_version": 2,
        "general.file_type": mixtures.find(quant).ftype,
        **{f"{shape.arch}.{key}": _for_layers(value, shape.n_layer) for key, value in shape.keys.items()},
        "tokenizer.ggml.model": "none",
    }


def _for_layers(value: Value, n_layer: int) -> Value:
    """A hyperparameter for ``n_layer`` layers; a list is cut to that length."""
    return value if isinstance(value, (int, float, str)) else value[:n_layer]


def rope_freqs(shape: Shape) -> list[float] | None:
    """Values of rope_freqs.weight, by which Llama 3 divides its rotation frequencies; None for other shapes.

    Source: ``LlamaModel.generate_extra_tensors`` in conversion/llama.py. They cannot be zeros in a forged file, since
    llama.cpp divides by them.
    """
    if shape.rope_factors is None:
        return None
    p = shape.rope_factors
    dim, base = shape.number("rope.dimension_count"), shape.keys["rope.freq_base"]
    assert isinstance(base, float)
    context = p["original_context_length"]
    values = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * base ** (i / dim)
        smooth = (context / wavelength - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
        smooth = min(max(smooth, 0.0), 1.0)  # long waves are stretched by ``factor``, short ones not at all
        values.append(1 / ((1 - smooth) / p["factor"] + smooth))
    return values
