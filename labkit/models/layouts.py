"""The tensors of each architecture, with their dimensions.

Names and dimensions are those of ``load_arch_tensors`` in src/models/ (llama.cpp 0c1e57098). To add an architecture,
add a function to ``_BLOCKS`` that returns the tensors of one of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

Dims = tuple[int, ...]
Tensors = dict[str, Dims]
Value = int | float | str | bool | Sequence[int]


class HasKeys(Protocol):
    """What a layout reads of a shape; see ``shapes.Shape``."""

    @property
    def arch(self) -> str: ...
    @property
    def tied(self) -> bool: ...
    @property
    def rope_factors(self) -> Mapping[str, float] | None: ...
    @property
    def head_dim(self) -> int: ...
    def number(self, key: str, default: int = 0, *, layer: int = 0) -> int: ...


def layout(shape: HasKeys) -> Iterator[tuple[str, Dims]]:
    """Name and dims of every tensor, in the order llama-quantize writes them."""
    yield from sorted(_outside(shape).items())
    for i in range(shape.number("block_count")):
        for name, dims in sorted(_BLOCKS[shape.arch](shape, i).items()):
            yield f"blk.{i}.{name}", dims


def _outside(shape: HasKeys) -> Tensors:
    """The tensors outside the blocks."""
    embd, vocab = shape.number("embedding_length"), shape.number("vocab_size")
    found: Tensors = {"token_embd.weight": (embd, vocab), "output_norm.weight": (embd,)}
    if not shape.tied:
        found["output.weight"] = (embd, vocab)
    if shape.rope_factors:
        found["rope_freqs.weight"] = (shape.number("rope.dimension_count") // 2,)
    return found | (_gemma3n_outside(shape) if shape.arch == "gemma3n" else {})


def _attention(shape: HasKeys, i: int) -> Tensors:
    """The tensors of ordinary attention."""
    embd = shape.number("embedding_length")
    q = shape.head_dim * shape.number("attention.head_count", layer=i)
    kv = shape.head_dim * shape.number("attention.head_count_kv", layer=i)
    return {
        "attn_norm.weight": (embd,),
        "attn_q.weight": (embd, q),
        "attn_k.weight": (embd, kv),
        "attn_v.weight": (embd, kv),
        "attn_output.weight": (q, embd),
    }


def _feed_forward(shape: HasKeys, i: int) -> Tensors:
    """The tensors of an ordinary feed-forward."""
    embd, ff = shape.number("embedding_length"), shape.number("feed_forward_length", layer=i)
    return {
        "ffn_norm.weight": (embd,),
        "ffn_gate.weight": (embd, ff),
        "ffn_up.weight": (embd, ff),
        "ffn_down.weight": (ff, embd),
    }


def _experts(shape: HasKeys, *, shared: int = 0) -> Tensors:
    """A router and its experts; ``shared`` is the width of the shared expert, which every token passes through."""
    embd, experts = shape.number("embedding_length"), shape.number("expert_count")
    ff = shape.number("expert_feed_forward_length", shape.number("feed_forward_length"))
    found: Tensors = {
        "ffn_norm.weight": (embd,),
        "ffn_gate_inp.weight": (embd, experts),
        "ffn_gate_exps.weight": (embd, ff, experts),
        "ffn_up_exps.weight": (embd, ff, experts),
        "ffn_down_exps.weight": (ff, embd, experts),
    }
    if shared:
        found |= {"ffn_gate_shexp.weight": (embd, shared), "ffn_up_shexp.weight": (embd, shared)}
        found["ffn_down_shexp.weight"] = (shared, embd)
    return found


def _llama(shape: HasKeys, i: int) -> Tensors:
    return _attention(shape, i) | (_experts(shape) if shape.number("expert_count") else _feed_forward(shape, i))


def _qwen2(shape: HasKeys, i: int) -> Tensors:
    block = _llama(shape, i)
    return block | {f"attn_{part}.bias": (block[f"attn_{part}.weight"][1],) for part in "qkv"}


def _qwen3(shape: HasKeys, i: int) -> Tensors:
    return _llama(shape, i) | {"attn_q_norm.weight": (shape.head_dim,), "attn_k_norm.weight": (shape.head_dim,)}


def _gemma3(shape: HasKeys, i: int) -> Tensors:
    embd = shape.number("embedding_length")
    return _qwen3(shape, i) | {"post_attention_norm.weight": (embd,), "post_ffw_norm.weight": (embd,)}


def _gemma3n_outside(shape: HasKeys) -> Tensors:
    embd, per_layer = shape.number("embedding_length"), shape.number("embedding_length_per_layer_input")
    everywhere = per_layer * shape.number("block_count")
    others = shape.number("altup.num_inputs") - 1
    return {
        "altup_proj.weight": (embd, embd, others),
        "altup_unembd_proj.weight": (embd, embd, others),
        "per_layer_token_embd.weight": (everywhere, shape.number("vocab_size")),
        "per_layer_model_proj.weight": (embd, everywhere),
        "per_layer_proj_norm.weight": (per_layer,),
    }


def _gemma3n(shape: HasKeys, i: int) -> Tensors:
    embd, per_layer = shape.number("embedding_length"), shape.number("embedding_length_per_layer_input")
    inputs, rank = shape.number("altup.num_inputs"), 64  # laurel_rank in src/llama-hparams.h
    return _gemma3(shape, i) | {
        "inp_gate.weight": (embd, per_layer),
        "proj.weight": (per_layer, embd),
        "post_norm.weight": (embd,),
        "altup_correct_coef.weight": (inputs, inputs),
        "altup_correct_scale.weight": (embd,),
        "altup_predict_coef.weight": (inputs, inputs * inputs),
        "altup_router.weight": (embd, inputs),
        "altup_router_norm.weight": (embd,),
        "laurel_l.weight": (embd, rank),
        "laurel_r.weight": (rank, embd),
        "laurel_post_norm.weight": (embd,),
    }


def _phi3(shape: HasKeys, i: int) -> Tensors:
    """Q, K and V in one matrix, gate and up in another."""
    embd, ff = shape.number("embedding_length"), shape.number("feed_forward_length")
    q = shape.head_dim * shape.number("attention.head_count")
    kv = shape.head_dim * shape.number("attention.head_count_kv")
    return {
        "attn_norm.weight": (embd,),
        "attn_qkv.weight": (embd, q + 2 * kv),
        "attn_output.weight": (q, embd),
        "ffn_norm.weight": (embd,),
        "ffn_up.weight": (embd, 2 * ff),
        "ffn_down.weight": (ff, embd),
    }


def _gpt_oss(shape: HasKeys, i: int) -> Tensors:
    """Biases everywhere, and a learnt sink for each head's attention."""
    embd, experts = shape.number("embedding_length"), shape.number("expert_count")
    ff, heads = shape.number("expert_feed_forward_length"), shape.number("attention.head_count")
    block = _attention(shape, i) | _experts(shape)
    block["post_attention_norm.weight"] = block.pop("ffn_norm.weight")
    block |= {f"attn_{part}.bias": (block[f"attn_{part}.weight"][1],) for part in ("q", "k", "v", "output")}
    return block | {
        "attn_sinks.weight": (heads,),
        "ffn_gate_inp.bias": (experts,),
        "ffn_gate_exps.bias": (ff, experts),
        "ffn_up_exps.bias": (ff, experts),
        "ffn_down_exps.bias": (embd, experts),
    }


def _deepseek2(shape: HasKeys, i: int) -> Tensors:
    """K and V are unpacked from a compressed vector by attn_k_b and attn_v_b."""
    embd, heads = shape.number("embedding_length"), shape.number("attention.head_count")
    rank, rotated = shape.number("attention.kv_lora_rank"), shape.number("rope.dimension_count")
    k, v = shape.number("attention.key_length_mla"), shape.number("attention.value_length_mla")
    attention: Tensors = {
        "attn_norm.weight": (embd,),
        "attn_q.weight": (embd, heads * k),
        "attn_kv_a_mqa.weight": (embd, rank + rotated),
        "attn_kv_a_norm.weight": (rank,),
        "attn_k_b.weight": (k - rotated, rank, heads),
        "attn_v_b.weight": (rank, v, heads),
        "attn_output.weight": (heads * v, embd),
    }
    if i < shape.number("leading_dense_block_count"):
        return attention | _feed_forward(shape, i)
    shared = shape.number("expert_shared_count") * shape.number("expert_feed_forward_length")
    return attention | _experts(shape, shared=shared)


def _mamba(shape: HasKeys, i: int) -> Tensors:
    embd, inner, state = (shape.number(key) for key in ("embedding_length", "ssm.inner_size", "ssm.state_size"))
    conv, rank = shape.number("ssm.conv_kernel"), shape.number("ssm.time_step_rank")
    return {
        "attn_norm.weight": (embd,),
        "ssm_in.weight": (embd, 2 * inner),
        "ssm_conv1d.weight": (conv, inner),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (inner, rank + 2 * state),
        "ssm_dt.weight": (rank, inner),
        "ssm_dt.bias": (inner,),
        "ssm_a": (state, inner),
        "ssm_d": (inner,),
        "ssm_out.weight": (inner, embd),
    }


def _granite_hybrid(shape: HasKeys, i: int) -> Tensors:
    """Mamba-2 in most layers, attention in those that have heads for K and V."""
    experts = _experts(shape, shared=shape.number("expert_shared_feed_forward_length"))
    if shape.number("attention.head_count_kv", layer=i):
        return _attention(shape, i) | experts
    embd, inner, heads = (shape.number(key) for key in ("embedding_length", "ssm.inner_size", "ssm.time_step_rank"))
    groups = shape.number("ssm.group_count")
    mixed = inner + 2 * groups * shape.number("ssm.state_size")
    return experts | {
        "attn_norm.weight": (embd,),
        "ssm_in.weight": (embd, inner + mixed + heads),
        "ssm_conv1d.weight": (shape.number("ssm.conv_kernel"), mixed),
        "ssm_conv1d.bias": (mixed,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (1, heads),
        "ssm_d": (1, heads),
        "ssm_norm.weight": (inner // groups, groups),
        "ssm_out.weight": (inner, embd),
    }


_BLOCKS: dict[str, Callable[[HasKeys, int], Tensors]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "phi3": _phi3,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
    "mamba": _mamba,
    "granitehybrid": _granite_hybrid,
}
