"""The copies that the CPU backend makes of weights, in a layout of its own."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.gguf import Header, Tensor
from labkit.predict.hparams import EMBEDDING, has_output


def repacked(header: Header, *, cpu_features: Iterable[str]) -> tuple[Tensor, ...]:
    """Tensors that the CPU backend copies into its own layout (buffer ``CPU_REPACK``) when ``repack`` is on.

    Only matrices are copied: 2-D ones (MUL_MAT) and stacked experts (MUL_MAT_ID). The token embedding is not, since its
    rows are looked up; where it is also the output layer, it is copied for that. Source:
    ggml_repack_get_optimal_repack_type and extra_buffer_type::supports_op in ggml/src/ggml-cpu/repack.cpp,
    TENSOR_DUPLICATED in llama_model_loader::create_tensor.
    """
    cpu = frozenset(cpu_features)
    tied = not has_output(header)
    return tuple(
        t
        for t in header.tensors
        if (tied if t.name == EMBEDDING else _is_matmul(t))
        and (rows := _repack_rows(t.type, cpu))
        and t.dims[1] % rows == 0
    )


def _is_matmul(tensor: Tensor) -> bool:
    """Whether a tensor is a matrix that activations are multiplied with."""
    if any(part in tensor.name for part in _LOOKED_UP):
        return False
    return len(tensor.dims) == 2 or (len(tensor.dims) == 3 and "_exps." in tensor.name)


# Tensors whose rows are picked by an index (GGML_OP_GET_ROWS in llm_tensor_infos, src/llama-arch.cpp).
_LOOKED_UP = ("token_embd", "token_types", "position_embd")


def _repack_rows(type_name: str, cpu: frozenset[str]) -> int | None:
    """The number of rows that are interleaved for this type on this CPU; None where it is not copied."""
    dot, i8mm = {"neon", "dotprod"} <= cpu, {"neon", "matmul_int8"} <= cpu
    match type_name:
        case "Q4_0":
            return 8 if "avx2" in cpu else 4 if dot or i8mm or "vxe" in cpu else None
        case "Q4_K":
            return 8 if "avx2" in cpu or dot or i8mm else None
        case "IQ4_NL" | "MXFP4":
            return 8 if "avx2" in cpu else 4 if dot else None
        case "Q2_K":
            return 8 if "avx512" in cpu else None
        case "Q5_K" | "Q6_K":
            return 8 if dot or i8mm else None
        case "Q8_0" | "Q1_0":
            return 4 if dot or i8mm else None
        case _:
            return None
