"""What each layer stores: elements of K and V per token, and of a recurrent state per sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labkit.gguf import Header
from labkit.predict.architectures import LATENT, NO_CACHE, RECURRENT, WINDOWS
from labkit.predict.hparams import number, per_layer

Which = Callable[[int], bool]
"""Whether something holds for layer i."""


@dataclass(frozen=True)
class Layer:
    """What one layer stores, at any length of context.

    Attributes:
        kind: "full" attention, "window", "recurrent", "shared" (reads another layer's K and V) or "none". One with
            attention may have a recurrent state as well.
        k: elements of K per token.
        v: elements of V per token.
        state: elements of recurrent state per sequence.
    """

    kind: str
    k: int = 0
    v: int = 0
    state: int = 0


def layers(header: Header) -> tuple[Layer, ...]:
    """Every layer of the file, those for predicting further tokens (``nextn_predict_layers``) at the end included."""
    if header.arch in NO_CACHE:
        return (Layer("none"),) * header.n_layer
    n_layer = header.n_layer - number(header, "nextn_predict_layers")
    n_attending = _n_with_kv(header)
    attends, recurs = _attention(header, n_layer)
    windowed = is_windowed(header)
    found = []
    for i in range(header.n_layer):
        state = state_width(header) if recurs(i) and i < n_layer else 0
        if not attends(i):
            found.append(Layer("recurrent" if state else "none", state=state))
        elif i >= n_attending:
            found.append(Layer("shared"))
        else:
            k, v = kv_widths(header, i)
            found.append(Layer("window" if windowed(i) else "full", k, v, state))
    return tuple(found)


def kv_widths(header: Header, layer: int) -> tuple[int, int]:
    """Elements of one token's K and V in a layer with attention (llama_hparams::n_embd_k_gqa and n_embd_v_gqa)."""
    heads = per_layer(header, "attention.head_count", 0)
    whole = number(header, "embedding_length") // heads if heads else 0
    # llama_model_base::load_hparams reads the widths of heads only if the first layer has any; plamo2 reads them again.
    has_widths = heads or header.arch == "plamo2"
    suffixes = ("_swa", "") if is_windowed(header)(layer) else ("",)

    def width(name: str) -> int:
        keys = [header.key(f"attention.{name}_length{suffix}") for suffix in suffixes if has_widths]
        return int(next((key for key in keys if key is not None), whole)) * kv_heads(header, layer)

    return width("key"), width("value")


def kv_heads(header: Header, layer: int) -> int:
    """Heads with a K and V of their own: all, if the file has no such key; 0 marks a layer without attention."""
    has_key = header.key("attention.head_count_kv") is not None
    return per_layer(header, "attention.head_count_kv" if has_key else "attention.head_count", layer)


def window(header: Header) -> int:
    """Tokens of the sliding window; 0 if there is none or llama.cpp does not apply it."""
    found = WINDOWS.get(header.arch)
    n_layer = header.n_layer - number(header, "nextn_predict_layers")
    if found is None or found.n_layer not in (None, n_layer):
        return 0
    in_file = number(header, "attention.sliding_window", found.default)
    return found.fixed if in_file and found.fixed else in_file


def is_windowed(header: Header) -> Which:
    """Which layers have a sliding window (llama_model_base::load_swa_pattern, llama_hparams::set_swa_pattern)."""
    if not window(header):
        return lambda i: False
    pattern = header.key("attention.sliding_window_pattern")
    if pattern is not None and not isinstance(pattern, int):
        listed = [bool(x) for x in pattern]
        return lambda i: i < len(listed) and listed[i]
    found = WINDOWS[header.arch]
    every = found.every if pattern is None else pattern
    if every is None:  # llama.cpp refuses the file
        return lambda i: False
    full_one = 0 if found.dense_first else every - 1
    n_layer = header.n_layer - number(header, "nextn_predict_layers")
    return lambda i: i < n_layer and (every == 0 or i % every != full_one)


def state_width(header: Header) -> int:
    """Elements of recurrent state of one layer and sequence (llama_hparams::n_embd_r + n_embd_s)."""
    n_embd, heads = number(header, "embedding_length"), per_layer(header, "attention.head_count", 0)
    conv, inner, state = (number(header, f"ssm.{name}") for name in ("conv_kernel", "inner_size", "state_size"))
    match RECURRENT[header.arch].state:
        case "wkv":
            return n_embd * (number(header, "token_shift_count", 2) + number(header, "wkv.head_size"))
        case "shortconv":
            return n_embd * (number(header, "shortconv.l_cache") - 1)
        case "kda":
            head = number(header, "kda.head_dim")
            return heads * head * (3 * (conv - 1 if conv else 3) + head)
        case "linear":
            head = number(header, "attention.key_length", n_embd // heads if heads else 0)
            return heads * head * head
        case _:
            groups = 0 if header.arch in ("mamba", "jamba") else number(header, "ssm.group_count")
            return max(conv - 1, 0) * (inner + 2 * groups * state) + state * inner


def _attention(header: Header, n_layer: int) -> tuple[Which, Which]:
    """Which layers have attention with a cache, and which a recurrent state (the filters in create_memory)."""
    how = RECURRENT.get(header.arch)
    if how is None:
        # Where all layers are for predicting further tokens, llama.cpp runs them as the model.
        return (lambda i: i < n_layer or n_layer <= 0), (lambda i: False)

    def has_no_kv_heads(i: int) -> bool:
        return i < n_layer and kv_heads(header, i) == 0

    def has_ffn(i: int) -> bool:
        return per_layer(header, "feed_forward_length", i) != 0

    match how.layers:
        case "all":
            return (lambda i: False), (lambda i: True)
        case "beside":
            return (lambda i: True), (lambda i: True)
        case "no_ffn":
            return (lambda i: not has_no_kv_heads(i) and not has_ffn(i)), (
                lambda i: has_no_kv_heads(i) and not has_ffn(i)
            )
        case "interval":
            listed = header.key("attention.recurrent_layers") is not None
            interval = max(1, number(header, "full_attention_interval", how.interval))

            def recurs(i: int) -> bool:
                return per_layer(header, "attention.recurrent_layers", i) != 0 if listed else (i + 1) % interval != 0

            return (lambda i: i < n_layer and not recurs(i)), recurs
    return (lambda i: not has_no_kv_heads(i)), has_no_kv_heads


def _n_with_kv(header: Header) -> int:
    """The number of layers, from the start, with K and V of their own; the others read these (has_kv)."""
    match header.arch:
        case "gemma3n":
            return 20  # src/models/gemma3n.cpp does not read the file's shared_kv_layers
        case "gemma4":
            return header.n_layer - number(header, "attention.shared_kv_layers")
    return header.n_layer


def is_latent(header: Header) -> bool:
    """Whether one compressed vector per token, as wide as K, stands for both K and V (llama_hparams::is_mla)."""
    lengths = [number(header, f"attention.{name}_length_mla") for name in ("key", "value")]
    return header.arch in LATENT and all(lengths)
