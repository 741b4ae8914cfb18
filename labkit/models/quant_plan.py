"""What quantizing a model would give, from its header alone: the type of every tensor, and the size of the file.

This is llama-quantize (src/llama-quant.cpp, llama.cpp 0c1e57098). Tests compare it with its dry run and its files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from labkit.gguf.header import Header, Tensor, by_type
from labkit.gguf.parser import Parser
from labkit.gguf.types import DEFAULT_ALIGNMENT, TYPES, row_bytes
from labkit.models.mixtures import find
from labkit.models.tensor_types import Choice, assign, choose, is_quantized, layer_of, traits

# Types that a tensor can be forced to. llama.cpp knows more, but aborts on those that need an importance matrix, since
# none is collected for the token embedding, and on those that only hold intermediate results.
FORCEABLE: tuple[str, ...] = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0"),
    *("Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K"),
)

# With an importance matrix, ffn_down of the first eighth of the layers gets another type than without.
_FFN_DOWN_WITH_IMATRIX = {"Q4_0": "Q4_1", "Q5_0": "Q5_1", "IQ4_NL": "IQ4_NL", "IQ4_XS": "IQ4_XS"}

_VERSION, _FILE_TYPE = "general.quantization_version", "general.file_type"
_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_SPLIT_VALUE_BYTES = {"split.no": 2, "split.count": 2, "split.tensors.count": 4}  # as llama-gguf-split writes them


class PlanError(ValueError):
    """llama.cpp would abort, or write an unreadable file; one sentence names the setting and what to do."""


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor before and after quantizing.

    Attributes:
        dims: in ggml's order, the length of a row first.
        source: its type before quantizing.
        type: its type after quantizing.
        nbytes: its size after quantizing, without padding.
        wanted: the type the mixture asked for, if its rows do not divide into such blocks, else None.
    """

    name: str
    dims: tuple[int, ...]
    source: str
    type: str
    nbytes: int
    wanted: str | None = None


@dataclass(frozen=True)
class QuantPlan:
    """A quantized model, as predicted.

    Attributes:
        file_bytes: size of the file.
        tensor_bytes: bytes of its tensors, without padding.
        fallbacks: number of tensors that get another type than the mixture asks for.
        tensors: in the order of the file.
        n_params: elements of all tensors.
    """

    quant: str
    file_bytes: int
    tensor_bytes: int
    fallbacks: int
    tensors: tuple[PlannedTensor, ...]
    n_params: int

    @property
    def bpw(self) -> float:
        """Bits per weight over all tensors."""
        return self.tensor_bytes * 8 / self.n_params

    @property
    def types(self) -> dict[str, tuple[int, int]]:
        """(number of tensors, their bytes) of each type, in order of appearance."""
        return by_type((t.type, t.nbytes) for t in self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        tensors = [
            {"name": t.name, "type": t.type, "from": t.source, "nbytes": t.nbytes, "wanted": t.wanted}
            for t in self.tensors
        ]
        sizes = {"file_bytes": self.file_bytes, "tensor_bytes": self.tensor_bytes, "bpw": self.bpw}
        return {"name": self.quant, **sizes, "fallbacks": self.fallbacks, "tensors": tensors}


def plan_quant(
    header: Header,
    quant: str,
    *,
    imatrix: bool = False,
    token_embedding_type: str | None = None,
    output_tensor_type: str | None = None,
) -> QuantPlan:
    """Predict the file that ``quantize`` would write; only the header of the model is read.

    Args:
        header: of a file of any tensor types, or of a shape: ``gguf.read_header(forge.header_bytes(shape, "F16"))``.
            If it is in memory and lacks general.file_type or general.quantization_version, ``file_bytes`` can be 32
            bytes too large.
        quant: a mixture, such as ``"Q4_K_M"``.
        imatrix: whether an importance matrix is used; a few mixtures then choose other types.
        token_embedding_type: type of the token embedding instead of the mixture's.
        output_tensor_type: type of output.weight instead of the mixture's.

    Raises:
        ShapeError: there is no such mixture.
        PlanError: llama.cpp would abort.
        ValueError: the header is not that of a language model.
    """
    mixture = find(quant)
    if header.alignment != DEFAULT_ALIGNMENT:
        raise PlanError(
            f"general.alignment is {header.alignment}: llama.cpp's quantizer writes tensors at multiples of "
            f"{DEFAULT_ALIGNMENT} bytes all the same, so llama.cpp could not read the result; convert the model again."
        )
    by_name = {t.name: t for t in header.tensors}
    forced = {
        "token_embd.weight": token_embedding_type,
        "per_layer_token_embd.weight": token_embedding_type,
        "output.weight": output_tensor_type,
    }
    if output_tensor_type is not None and "output.weight" not in by_name:
        raise PlanError(
            "output_tensor_type has no tensor in this model, whose token embedding is also the output layer: set "
            "token_embedding_type."
        )
    model = traits(header.metadata, by_name)
    choices = assign([(t.name, t.dims, t.type) for t in header.tensors], mixture.name, model)
    if imatrix and mixture.name in _FFN_DOWN_WITH_IMATRIX:
        choices = _with_imatrix(choices, by_name, _FFN_DOWN_WITH_IMATRIX[mixture.name], model.n_layer, model.n_expert)
    tensors = []
    for choice in choices:
        tensor, type_ = by_name[choice.name], forced.get(choice.name)
        if type_ is not None:
            choice = Choice(choice.name, _checked(type_, tensor))
        nbytes = row_bytes(choice.type, tensor.dims[0]) * math.prod(tensor.dims[1:])
        tensors.append(PlannedTensor(choice.name, tensor.dims, tensor.type, choice.type, nbytes, choice.wanted))
    return QuantPlan(
        quant=mixture.name,
        file_bytes=_data_offset(header) + sum(map(_padded, (t.nbytes for t in tensors))),
        tensor_bytes=sum(t.nbytes for t in tensors),
        fallbacks=sum(t.wanted is not None for t in tensors),
        tensors=tuple(tensors),
        n_params=header.n_params,
    )


def _with_imatrix(
    choices: Iterable[Choice], by_name: dict[str, Tensor], wanted: str, n_layer: int, n_expert: int
) -> tuple[Choice, ...]:
    """The choices with an importance matrix (``llama_tensor_get_type_impl``, FFN_DOWN, with has_imatrix)."""
    out, i = [], -1
    for choice in choices:
        tensor = by_name[choice.name]
        if "ffn_down" in choice.name and is_quantized(choice.name, tensor.dims):
            i = layer_of(choice.name) if n_expert > 1 else i + 1
            if i < n_layer // 8:
                choice = choose(choice.name, wanted, tensor.dims[0])
        out.append(choice)
    return tuple(out)


def _checked(forced: str, tensor: Tensor) -> str:
    """The name of a forced type that fits a tensor, else PlanError.

    llama.cpp does not fall back from a forced type (``llama_tensor_get_type``), and aborts where it does not fit.
    """
    name = forced.upper()
    setting = "output_tensor_type" if tensor.name == "output.weight" else "token_embedding_type"
    if name not in FORCEABLE:
        raise PlanError(f"{setting}={forced} is not possible: choose one of {', '.join(FORCEABLE)}.")
    block = TYPES[name].block_elems
    if tensor.dims[0] % block:
        fitting = [t for t in FORCEABLE if tensor.dims[0] % TYPES[t].block_elems == 0]
        raise PlanError(
            f"{setting}={name} does not fit {tensor.name}: its rows of {tensor.dims[0]} weights are no whole number of "
            f"{name} blocks of {block}, and llama.cpp aborts on that; choose one of {', '.join(fitting)}."
        )
    return name


def _padded(n: int) -> int:
    """The next multiple of the alignment."""
    return n + -n % DEFAULT_ALIGNMENT


def _data_offset(header: Header) -> int:
    """Length of the header that llama.cpp writes: the source's keys, two of them set, none about splits.

    Source: ``llama_model_quantize_impl``; ``gguf_writer_base::write_tensor_meta`` in ggml/src/gguf.cpp.
    """
    first = [t for t in header.tensors if t.part == 0]
    before = sum(_row_bytes(t.name, t.dims) for t in first)
    after = sum(_row_bytes(t.name, _without_ones(t.dims)) for t in header.tensors)
    grown = after - before
    grown += sum(_key_bytes(key, 4) for key in (_VERSION, _FILE_TYPE) if key not in header.metadata)
    grown -= sum(_key_bytes(key, _SPLIT_VALUE_BYTES[key]) for key in _SPLIT_KEYS if key in header.metadata)
    if not grown:
        return header.data_offset
    return _padded(_unpadded(header, before) + grown)


def _unpadded(header: Header, table_bytes: int) -> int:
    """Where the tensor table ends, which depends on the length of the keys; a Header does not store that."""
    if header.path is None:
        return header.data_offset
    with open(header.parts[0], "rb") as file:
        parser = Parser(str(header.path), bytearray(), header.parts[0].stat().st_size, file)
        parser.magic_and_version()
        parser.count("tensors", 24, 1 << 32)
        parser.metadata(parser.count("metadata keys", 14, 1 << 32))
        return parser.pos + table_bytes


def _row_bytes(name: str, dims: tuple[int, ...]) -> int:
    """Bytes of a tensor's row in the tensor table."""
    return 8 + len(name.encode()) + 4 + 8 * len(dims) + 4 + 8  # name, number of dims, dims, type, offset


def _key_bytes(key: str, value_bytes: int) -> int:
    """Bytes of a metadata key with a number of ``value_bytes`` bytes."""
    return 8 + len(key.encode()) + 4 + value_bytes


def _without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions without the ones at their end; llama.cpp does not write those."""
    n = next((i for i in range(len(dims), 1, -1) if dims[i - 1] != 1), 1)
    return dims[:n]
