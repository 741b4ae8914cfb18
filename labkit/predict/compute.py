"""The compute buffer: memory for the intermediate results of one batch."""

from __future__ import annotations

from labkit.gguf import Header
from labkit.predict.hparams import n_vocab, per_layer
from labkit.predict.kv import kv_widths, streams_and_cells
from labkit.settings import Settings


def compute_bytes(header: Header, settings: Settings) -> tuple[int, bool]:
    """Bytes of the compute buffer on the CPU, and whether the formula is exact for these settings.

    It is as large as the largest intermediate results of one batch of ub tokens, in f32: the logits, the feed-forward,
    or without flash attention the attention scores. With flash attention

        4 · max(outputs · (n_vocab + n_embd + 1) + ub · n_embd,  ub · (3 · n_ff + 4 · n_embd + n_ctx / 2 + 6) + outputs)

    where n_ctx / 2 is the f16 attention mask and 6 the batch's ids, positions and cache indices. Found by comparing
    with llama.cpp's dry run; equal to it for llama, qwen2 and qwen3 with flash attention on and an f16 or bf16 cache.
    Elsewhere an estimate: where the feed-forward is narrow or only some logits are wanted, ggml's allocator may leave
    holes; a quantized cache adds its rotation; an f32 one is copied to f16, layer by layer.
    """
    ub = min(settings.n_ubatch, settings.n_batch, settings.n_ctx)
    outputs = min(ub, settings.n_outputs_max or ub)
    n_embd = int(header.key("embedding_length", 0))
    logits = 4 * (outputs * (n_vocab(header) + n_embd + 1) + ub * n_embd)
    feed_forward = feed_forward_bytes(header, settings, ub) + 4 * outputs
    streams, cells = streams_and_cells(settings)
    k, v = kv_widths(header, 0)
    if settings.flash_attn != "off":
        solid = outputs in (1, ub) and (feed_forward > logits or _n_ff(header) >= 3 * n_embd)
        exact = (
            header.arch in ("llama", "qwen2", "qwen3")
            and settings.n_seq_max == 1
            and {settings.type_k, settings.type_v} <= {"f16", "bf16"}
        )
        copied = (k if settings.type_k == "f32" else 0) + (v if settings.type_v == "f32" else 0)
        copies = 2 * streams * cells * copied + ub * (20 * n_embd + 2 * cells)
        return max(logits, feed_forward, copies if copied else 0), exact and solid
    scores = 4 * ub * (cells * (per_layer(header, "attention.head_count", 0) + 1) + 5 * n_embd + k + v + 6)
    return max(logits, scores, feed_forward_bytes(header, settings, ub) + 4 * ub * (cells // 2 + k + v - n_embd)), False


def output_bytes(header: Header, settings: Settings) -> int:
    """Bytes of the output buffer on the host: a row of logits for each sequence (llama_context::output_reserve)."""
    return 4 * n_vocab(header) * settings.n_seq_max


def feed_forward_bytes(header: Header, settings: Settings, batch: int) -> int:
    """Bytes of the compute buffer that a batch with one output row uses, mostly for gate, up and their product."""
    ub = min(batch, settings.n_ubatch)
    n_embd = int(header.key("embedding_length", 0))
    return 4 * ub * (3 * _n_ff(header) + 4 * n_embd + 6) + 2 * ub * streams_and_cells(settings)[1]


def _n_ff(header: Header) -> int:
    """Width of a token's feed-forward; of a mixture of experts, of all the experts that the token is routed to."""
    n_ff = per_layer(header, "feed_forward_length", 0)
    if used := int(header.key("expert_used_count", 0)):
        n_ff = used * int(header.key("expert_feed_forward_length", n_ff))
    return n_ff
