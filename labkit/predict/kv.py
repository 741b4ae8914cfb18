"""The KV cache: its bytes, layer by layer."""

from __future__ import annotations

from labkit.gguf import Header, row_bytes
from labkit.predict.hparams import per_layer
from labkit.settings import Settings

CELL_PADDING = 256  # llama_context pads n_ctx to it (src/llama-context.cpp)


def kv_bytes(header: Header, settings: Settings) -> int:
    """Bytes of the KV cache, allocated and zeroed when the context is created.

    Σ over layers of streams × cells × (row(type_k, head_k × n_head_kv) + row(type_v, head_v × n_head_kv)). A
    sliding-window layer keeps only its window plus one batch, unless ``swa_full``. Source: llama_kv_cache (src/
    llama-kv-cache.cpp), llama_kv_cache_iswa (src/llama-kv-cache-iswa.cpp), llama_context for the padding.
    """
    streams, cells = streams_and_cells(settings)
    n_swa = _window(header)
    windowed = cells
    if n_swa and not settings.swa_full:
        ubatch = min(settings.n_ubatch, settings.n_batch, padded(settings.n_ctx))
        windowed = min(cells, padded(min(cells, n_swa * (settings.n_seq_max if settings.kv_unified else 1) + ubatch)))
    total = 0
    for layer in range(header.n_layer):
        k, v = kv_widths(header, layer)
        rows = windowed if n_swa and _is_windowed(header, layer) else cells
        total += streams * rows * (row_bytes(settings.type_k.upper(), k) + row_bytes(settings.type_v.upper(), v))
    return total


def padded(n: int) -> int:
    return -(-n // CELL_PADDING) * CELL_PADDING


def streams_and_cells(settings: Settings) -> tuple[int, int]:
    """How many separate caches there are, and the cells of each."""
    n_ctx = padded(settings.n_ctx)
    if settings.kv_unified:
        return 1, n_ctx
    return settings.n_seq_max, padded(n_ctx // settings.n_seq_max)


def kv_widths(header: Header, layer: int) -> tuple[int, int]:
    """Elements of one cell's K and V row in a layer."""
    heads = per_layer(header, "attention.head_count", layer)
    # Without the key, every head has its own K and V; a 0 in a list marks a layer without attention.
    kv_heads = (
        heads if header.key("attention.head_count_kv") is None else per_layer(header, "attention.head_count_kv", layer)
    )
    head = int(header.key("embedding_length", 0)) // max(1, heads)
    return int(header.key("attention.key_length", head)) * kv_heads, int(
        header.key("attention.value_length", head)
    ) * kv_heads


def _window(header: Header) -> int:
    """Cells of the sliding window; 0 where llama.cpp ignores it (phi3: src/models/phi3.cpp)."""
    return 0 if header.arch in ("llama", "phi3") else int(header.key("attention.sliding_window", 0) or 0)


def _is_windowed(header: Header, layer: int) -> bool:
    """Whether a layer is a sliding-window one. Gemma 3: all but every sixth (llama_hparams::set_swa_pattern)."""
    pattern = header.key("attention.sliding_window_pattern", 6)
    if isinstance(pattern, int):
        return layer % pattern < pattern - 1
    return bool(pattern[layer])
