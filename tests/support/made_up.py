"""Metadata of a small model of any architecture: enough for llama.cpp to make one up, without weights."""

from __future__ import annotations

from typing import Any

from labkit.gguf import Typed
from labkit.predict.architectures import RECURRENT, WINDOWS

_LATENT = ("deepseek2", "mistral4", "kimi-linear", "kimi-k3", "bailingmoe3")
_ELSEWHERE = {"tokenizer.ggml.model": "none", "tokenizer.ggml.token_type_count": 2} | {
    f"xielu.{name}": 1.0 for name in ("alpha_n", "alpha_p", "beta", "eps")
}


def metadata(arch: str, *, n_layer: int = 12, **changes: Any) -> dict[str, Any]:
    """Hyperparameters that differ where a mistake could hide: 6 heads of which 2 have a K and V, K wider than V.

    Args:
        changes: other hyperparameters, with __ for their dots; None leaves one out.
    """
    keys: dict[str, Any] = {
        "vocab_size": 128,
        "context_length": 8192,
        "embedding_length": 384,
        "block_count": n_layer,
        "feed_forward_length": 512,
        "leading_dense_block_count": 1,
        "logit_scale": 1.0,
        "residual_scale": 1.0,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.max_alibi_bias": 8.0,
        "attention.clamp_kqv": 1.0,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.q_lora_rank": 128,
        "attention.kv_lora_rank": 128,
        "attention.relative_buckets_count": 8,
        "attention.sliding_window": 300,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [16, 16, 16, 16],
        "rope.freq_base_swa": 10000.0,
        "expert_feed_forward_length": 256,
        "expert_shared_feed_forward_length": 128,
        "expert_latent_length": 256,
        "interleave_moe_layer_step": 2,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "expert_group_scale": 1.0,
        "experts_per_group": 1,
        "moe_every_n_layers": 2,
        "use_parallel_residual": False,
        "time_mix_extra_dim": 32,
        "time_decay_extra_dim": 64,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 768,
        "ssm.state_size": 64,
        "ssm.time_step_rank": 12,
        "ssm.group_count": 2,
        "kda.head_dim": 64,
        "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
        "wkv.head_size": 64,
        "shortconv.l_cache": 3,
        "attn_res.block_size": 12,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
        "swiglu_clamp_exp": 7.0,
        "embedding_length_per_layer_input": 32,
        "attention.decay_lora_rank": 32,
        "attention.iclr_lora_rank": 32,
        "attention.value_residual_mix_lora_rank": 32,
        "attention.gate_lora_rank": 32,
        "hrm.layers_per_stack": 2,
        "hrm.h_cycles": 2,
        "hrm.l_cycles": 2,
    }
    if arch in _LATENT:  # 128 compressed and 64 rotated, unpacked to heads of 128 (K) and 64 (V)
        lengths = {"key_length": 192, "value_length": 128, "key_length_mla": 128, "value_length_mla": 64}
        keys |= {"attention.head_count_kv": 1, **{f"attention.{name}": n for name, n in lengths.items()}}
    if arch == "gemma4":
        keys |= {"attention.key_length_swa": 32, "attention.value_length_swa": 32, "rope.dimension_count_swa": 32}
        keys["attention.shared_kv_layers"] = 3
    window, recurrence = WINDOWS.get(arch), RECURRENT.get(arch)
    if window and window.every is None:
        keys["attention.sliding_window_pattern"] = [i % 3 != 2 for i in range(n_layer)]
    if recurrence and recurrence.layers in ("kv_heads", "no_ffn"):
        kv_heads = keys["attention.head_count_kv"]
        keys["attention.head_count_kv"] = [kv_heads if i % 4 == 1 else 0 for i in range(n_layer)]
    if recurrence and recurrence.layers == "no_ffn":
        keys["feed_forward_length"] = [0 if i % 3 else 512 for i in range(n_layer)]
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    return (
        _ELSEWHERE
        | {"general.architecture": arch}
        | {f"{arch}.{key}": _typed(value) for key, value in keys.items() if value is not None}
    )


def _typed(value: Any) -> Any:
    """Lists of numbers as the converter writes them."""
    return Typed("i32", value) if isinstance(value, list) and not isinstance(value[0], bool) else value
