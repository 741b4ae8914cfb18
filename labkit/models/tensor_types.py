"""Which type every tensor of a model gets in a mixture.

This is llama-quantize without an importance matrix: ``tensor_allows_quantization``, ``llama_tensor_get_type_impl`` and
``tensor_type_fallback`` in src/llama-quant.cpp (llama.cpp 0c1e57098). It holds for any model, forged or not, except
glm5-next, which has rules of its own. Tests compare it with llama.cpp's own dry-run quantization.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.gguf.types import TYPES
from labkit.models.mixtures import Mixture, Traits, find


@dataclass(frozen=True)
class Choice:
    """The type a tensor gets. ``wanted`` is what the mixture asked for, if its rows do not divide into such blocks."""

    name: str
    type: str
    wanted: str | None = None


# What a type becomes when a row is no whole number of its blocks; then F16 if that does not fit either.
FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}

# tensor_get_category: the first that is part of the name decides.
_ROLES = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)

# tensor_allows_quantization: weights that stay as they are.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj|ssm_conv1d"
    r"|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight|attn_rel_b\.weight|position_embd|token_types|\.rel_pos"
    r"|time_mix_(first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)\.weight"
    r"|sam\.(pos_embd|neck\.|net_)|\.patch_(embd|merger)|a\.rvq\.codebook|mm\.a\.code_embd"
)


# Matrices that the converter writes as f32 even where the others become f16.
_F32 = re.compile(
    r"_norm\.weight|ffn_gate_inp(_shexp)?\.weight|altup_(correct|predict)_coef|ssm_conv1d|shortconv\.conv\.weight"
    r"|indexer\.proj|position_embd|token_types|time_mix_(first|w[12]|decay_w[12]|lerp_fused)\.weight"
)


def traits(metadata: Mapping[str, Any], names: Iterable[str]) -> Traits:
    """What the rules use of a model, from its metadata and tensor names.

    Raises:
        ValueError: the metadata does not describe a language model.
    """
    arch = metadata.get("general.architecture")
    heads = _first_layer(metadata.get(f"{arch}.attention.head_count"))
    kv_heads = _first_layer(metadata.get(f"{arch}.attention.head_count_kv", heads))
    n_layer = metadata.get(f"{arch}.block_count")
    if arch is None or n_layer is None:
        raise ValueError("the metadata names no architecture with layers, so no mixture applies to this file.")
    return Traits(
        arch=arch,
        n_layer=n_layer,
        n_gqa=heads // kv_heads if heads and kv_heads else 0,
        n_expert=int(metadata.get(f"{arch}.expert_count", 0)),
        tied="output.weight" not in set(names),
    )


def _first_layer(value: Any) -> int | None:
    """A hyperparameter's value for the first layer."""
    return value if value is None or isinstance(value, int) else int(value[0])


def layer_of(name: str) -> int:
    """The block a tensor belongs to: 7 for ``blk.7.attn_q.weight``, -1 outside the blocks."""
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def file_order(name: str) -> tuple[int, str]:
    """The order in which llama-quantize writes tensors (``weight_name_comparer`` in src/llama-model-loader.h)."""
    return layer_of(name), name


def assign(tensors: Iterable[tuple[str, Sequence[int], str]], quant: str, model: Traits) -> tuple[Choice, ...]:
    """Choose the type of every tensor of a model, in the order llama-quantize writes them.

    Args:
        tensors: (name, dims, type) of the source, dims in ggml's order; those that are not quantized keep their type.
        quant: a name in ``MIXTURES``.
        model: see ``traits``.

    Raises:
        ShapeError: there is no such mixture.
    """
    mixture = find(quant)
    ordered = sorted(tensors, key=lambda t: file_order(t[0]))
    n_attn_v = sum(_role(name) == "attn_v" for name, _, _ in ordered)
    seen: dict[str, int] = {}
    choices = []
    for name, dims, source in ordered:
        if not is_quantized(name, dims):
            choices.append(Choice(name, source))
            continue
        role = _role(name)
        i = seen[role] = seen.get(role, -1) + 1
        # Experts of one layer may be several tensors, so their layer is read from the name.
        if role == "ffn_down" and model.n_expert > 1:
            i = layer_of(name)
        wanted = _wanted(mixture, role, dims, i, n_attn_v if role == "attn_v" else model.n_layer, model)
        choices.append(choose(name, wanted, dims[0]))
    return tuple(choices)


def choose(name: str, wanted: str, ne0: int) -> Choice:
    """The wanted type; where rows of ``ne0`` elements are no whole number of its blocks, the next one that fits."""
    candidates = (wanted, FALLBACK.get(wanted, "F16"), "F16")
    type_ = next(candidate for candidate in candidates if ne0 % TYPES[candidate].block_elems == 0)
    return Choice(name, type_, None if type_ == wanted else wanted)


def converted(name: str, dims: Sequence[int]) -> str:
    """The type a tensor has in a file converted as F16 (``prepare_tensors`` in conversion/base.py).

    What it keeps in f32 is what llama-quantize leaves alone, except for a few matrices of Gemma 3n.
    """
    is_matrix = any(n > 1 for n in dims[1:])
    return "F16" if is_matrix and name.endswith("weight") and not _F32.search(name) else "F32"


def is_quantized(name: str, dims: Sequence[int]) -> bool:
    """Whether llama-quantize changes a tensor at all: matrices do, norms, biases and routers do not."""
    is_matrix = any(n > 1 for n in dims[1:])
    return is_matrix and name.endswith("weight") and not _KEPT.search(name)


def _role(name: str) -> str:
    """The category of a tensor for the rules of a mixture."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((role for part, role in _ROLES if part in name), "other")


def _wanted(mixture: Mixture, role: str, dims: Sequence[int], i: int, n: int, model: Traits) -> str:
    """The type that a mixture asks for: of the i-th of n tensors of this role."""
    base = mixture.base
    if base == "F16":
        return base
    is_output = role == "output" or (role == "token_embd" and model.tied)
    if base == "MXFP4":  # for stacks of matrices, which are mostly experts; the others hardly count for the size
        return base if len(dims) > 2 and dims[2] > 1 and not is_output else "Q8_0"
    if is_output:
        if model.arch == "falcon" or dims[0] % TYPES[base].block_elems:
            return "Q8_0"
        return base if base == "Q8_0" else "Q6_K"
    if model.n_expert == 8 and role in ("attn_v", "attn_k"):
        return "Q8_0"
    wanted = next((type_ for when, type_ in mixture.rules.get(role, ()) if when(i, n, model)), base)
    # Eight query heads share one value head, so this tensor is small and more bits cost little memory.
    if role == "attn_v" and model.is_70b and wanted in ("Q3_K", "Q4_K"):
        return "Q5_K"
    return wanted
