"""The cache: its bytes, layer by layer, for every architecture that ``architectures`` knows."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.gguf import Header, row_bytes
from labkit.predict.architectures import KNOWN, NOT_EXACT
from labkit.predict.layers import is_latent, kv_widths, layers, window
from labkit.settings import CELL_PADDING, Settings

__all__ = [
    "Cache",
    "LayerCache",
    "cache",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_widths",
    "padded",
    "recurrent_bytes",
    "streams_and_cells",
]

_STATE_BYTES = 4  # recurrent states are f32, whatever the cache types (llama_model::create_memory)


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer.

    Attributes:
        layer: its number.
        kind: "full" (all tokens), "window" (the last ones), "recurrent" (a state instead of tokens), "shared" (reads
            another layer's cache) or "none".
        cells: number of tokens that each stream can store; of a recurrent layer, number of states.
        streams: number of separate caches, one for each sequence unless they are unified.
        k_bytes: of all keys, or of the compressed vectors that stand for keys and values (MLA).
        v_bytes: of all values.
        recurrent_bytes: of all states, which do not depend on the context.
        sequences: number of sequences, each with a state of its own.
    """

    layer: int
    kind: str
    cells: int
    streams: int
    k_bytes: int
    v_bytes: int
    recurrent_bytes: int
    sequences: int = 1

    @property
    def bytes(self) -> int:
        """Keys, values and states."""
        return self.k_bytes + self.v_bytes + self.recurrent_bytes

    @property
    def token_bytes(self) -> int:
        """K and V of one token."""
        return (self.k_bytes + self.v_bytes) // (self.streams * self.cells) if self.cells else 0

    def read_bytes(self, n_past: int) -> int:
        """Bytes that decoding one token reads after ``n_past`` others of its sequence, with the sequence's state."""
        return self.token_bytes * min(n_past, self.cells) + self.recurrent_bytes // self.sequences


@dataclass(frozen=True)
class Cache:
    """The cache of all layers.

    Attributes:
        exact: whether llama.cpp allocates exactly this for this architecture.
        reason: why it may allocate something else, in one clause, else ""; then each layer counts as full.
    """

    layers: tuple[LayerCache, ...]
    exact: bool
    reason: str

    @property
    def k_bytes(self) -> int:
        """Keys, or compressed vectors."""
        return sum(layer.k_bytes for layer in self.layers)

    @property
    def v_bytes(self) -> int:
        """Values."""
        return sum(layer.v_bytes for layer in self.layers)

    @property
    def kv_bytes(self) -> int:
        """Keys and values: llama.cpp's "KV buffer"."""
        return self.k_bytes + self.v_bytes

    @property
    def recurrent_bytes(self) -> int:
        """States of recurrent layers: llama.cpp's "RS buffer"."""
        return sum(layer.recurrent_bytes for layer in self.layers)

    @property
    def bytes(self) -> int:
        """Keys, values and states."""
        return self.kv_bytes + self.recurrent_bytes


def cache(header: Header, settings: Settings) -> Cache:
    """The cache of a context, allocated and zeroed when the context is created; tokens do not make it grow.

    A layer with attention takes streams × cells × (row(type_k, k) + row(type_v, v)), k and v being the layer's heads
    with a K and V of their own times their width. A sliding-window layer has cells for its window and one batch only,
    unless ``swa_full``. A recurrent layer takes 4 bytes × elements of its state for each sequence. Sources:
    llama_kv_cache (src/llama-kv-cache.cpp), llama_kv_cache_iswa (src/llama-kv-cache-iswa.cpp), llama_memory_recurrent
    (src/llama-memory-recurrent.cpp), llama_context for the padding; ``layers`` and ``architectures`` for the rest.

    Raises:
        ValueError: a row is no whole number of the cache type's blocks; llama.cpp refuses that too.
    """
    streams, cells = streams_and_cells(settings)
    windowed = _window_cells(header, settings, cells)
    # Without flash attention V is stored transposed, and every layer's is made as wide as the widest.
    transposed = settings.flash_attn == "off" or header.arch == "grok"
    widest = max((kv_widths(header, i)[1] for i in range(header.n_layer)), default=0) if transposed else 0
    latent = is_latent(header)
    n_states = max(1, settings.n_seq_max)
    found = []
    for i, layer in enumerate(layers(header)):
        states = _STATE_BYTES * n_states * layer.state
        if layer.kind not in ("full", "window"):
            places = (n_states, 1) if states else (0, 0)
            found.append(
                LayerCache(i, layer.kind, *places, k_bytes=0, v_bytes=0, recurrent_bytes=states, sequences=n_states)
            )
            continue
        n = windowed if layer.kind == "window" else cells
        k = streams * n * row_bytes(settings.type_k.upper(), layer.k)
        v = 0 if latent else streams * n * row_bytes(settings.type_v.upper(), max(layer.v, widest))
        kind = layer.kind if k or v else "none"
        found.append(LayerCache(i, kind, n, streams, k_bytes=k, v_bytes=v, recurrent_bytes=states, sequences=n_states))
    reason = "" if header.arch in KNOWN else NOT_EXACT.get(header.arch, "labkit does not know this architecture")
    return Cache(tuple(found), exact=not reason, reason=reason)


def kv_bytes(header: Header, settings: Settings) -> int:
    """Bytes of the KV cache: see ``cache``."""
    return cache(header, settings).kv_bytes


def recurrent_bytes(header: Header, settings: Settings) -> int:
    """Bytes of recurrent state: see ``cache``."""
    return cache(header, settings).recurrent_bytes


def kv_bytes_per_token(header: Header, settings: Settings) -> int:
    """Bytes of K and V of one token in all layers. In a layer with a window they add up only until it is full."""
    return sum(layer.token_bytes for layer in cache(header, settings).layers)


def padded(n: int) -> int:
    """The next whole number of 256 cells."""
    return -(-n // CELL_PADDING) * CELL_PADDING


def streams_and_cells(settings: Settings) -> tuple[int, int]:
    """The number of separate caches, and the cells of each (llama_context: n_ctx_seq)."""
    n_ctx = padded(settings.n_ctx)
    if settings.kv_unified:
        return 1, n_ctx
    return settings.n_seq_max, padded(n_ctx // settings.n_seq_max)


def _window_cells(header: Header, settings: Settings, cells: int) -> int:
    """Cells of a sliding-window layer: the window of every sequence in it, and one batch (llama_kv_cache_iswa)."""
    if settings.swa_full:
        return cells
    ubatch = min(settings.n_ubatch, settings.n_batch, settings.n_ctx)
    sequences = settings.n_seq_max if settings.kv_unified else 1
    return padded(min(cells, window(header) * sequences + ubatch))
