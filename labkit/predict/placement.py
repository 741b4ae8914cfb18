"""Which layers and tensors are on the host and which on a device, and how often a token's data crosses between them."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from labkit.gguf import Header, Tensor
from labkit.models.tensor_types import layer_of
from labkit.predict.hparams import EMBEDDING, has_output, n_vocab, number, per_layer
from labkit.predict.layers import kv_heads, kv_widths

HOST = 0
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Names of experts' weights, as ``--cpu-moe`` matches them (LLM_FFN_EXPS_REGEX in common/common.h)."""

# Their rows are looked up before the first block (LLM_TENSOR_LAYER_INPUT in src/llama-arch.cpp).
_INPUT = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
# Read by every layer, so each side that has a layer gets them (TENSOR_DUPLICATED in src/models/).
_EVERY_LAYER = ("rope_freqs", "rope_factors_long", "rope_factors_short")
_F32_BYTES = 4


@dataclass(frozen=True)
class Placed:
    """One tensor on one side. ``looked_up``: a token reads one row of it, not all."""

    tensor: Tensor
    looked_up: bool = False


def place(n_layer: int, n_gpu_layers: int, *, shares: Sequence[float] = (1.0,)) -> tuple[int, ...]:
    """The side of each block and, last, of the output layer: 0 is the host, 1 the first device.

    The output layer goes to a device first, then the last block, then the one before it, and so on. Several devices get
    consecutive layers in proportion to their shares. Source: i_gpu_start and get_layer_buft_list in load_tensors
    (src/llama-model.cpp), which compares in single precision.

    Args:
        n_layer: number of blocks.
        n_gpu_layers: how many go to devices, the output layer counted; -1, or more than there are, means all.
        shares: one for each device: its free memory, or its number in ``--tensor-split``.
    """
    total = n_layer + 1
    n_offloaded = total if n_gpu_layers < 0 else min(n_gpu_layers, total)
    first = total - n_offloaded
    sums = list(accumulate((_f32(share) for share in shares), lambda a, b: _f32(a + b)))
    ends = [_f32(end / sums[-1]) for end in sums]
    return tuple(HOST if i < first else 1 + bisect_right(ends, _f32((i - first) / n_offloaded)) for i in range(total))


def place_tensors(
    header: Header, sides: Sequence[int], kept: Sequence[re.Pattern[str]], *, n_sides: int
) -> tuple[tuple[Placed, ...], ...]:
    """The tensors on each side (load_tensors, and llama_model_loader::create_tensor in src/llama-model-loader.cpp).

    The token embedding stays on the host; where it is also the output layer, the side of the output layer gets a copy.

    Args:
        sides: see ``place``.
        kept: names of weights that stay on the host.
        n_sides: the host and all devices.
    """
    found: list[list[Placed]] = [[] for _ in range(n_sides)]

    def put(tensor: Tensor, side: int, *, looked_up: bool = False) -> None:
        found[HOST if stays(tensor.name, kept) else side].append(Placed(tensor, looked_up))

    for tensor in header.tensors:
        stem, layer = tensor.name.partition(".")[0], layer_of(tensor.name)
        if layer >= 0:
            put(tensor, sides[layer])
        elif stem in _EVERY_LAYER:
            for side in sorted(set(sides[:-1])):
                put(tensor, side)
        elif stem in _INPUT:
            put(tensor, HOST, looked_up=True)
            if tensor.name == EMBEDDING and not has_output(header):
                put(tensor, sides[-1])
        else:
            put(tensor, sides[0] if stem == "token_embd_norm" else sides[-1])
    return tuple(tuple(here) for here in found)


def crossings(
    header: Header, sides: Sequence[int], cache_on: Sequence[int], kept: Sequence[re.Pattern[str]]
) -> tuple[int, int]:
    """How often one token's data crosses between sides, and the bytes: activations in f32, at the end the logits.

    llama.cpp's scheduler splits its graph at the same places ("splits" in its log). Not counted: positions and the
    attention mask, a few bytes each, and crossings because of a weight kept on the host inside an attention block.
    """
    n_embd, used = number(header, "embedding_length"), number(header, "expert_used_count")
    experts = "_exps" if used else ""
    stages = [(HOST, 0)]  # (side, elements that come in)
    into_next = n_embd

    for i, side in enumerate(sides[:-1]):
        k, v = kv_widths(header, i)
        q = k // max(1, kv_heads(header, i)) * per_layer(header, "attention.head_count", i)
        n_ff = max(1, used) * number(header, "expert_feed_forward_length", per_layer(header, "feed_forward_length", i))

        def on(name: str, i: int = i, side: int = side) -> int:
            return HOST if stays(f"blk.{i}.{name}.weight", kept) else side

        stages += [(on("attn_q"), into_next), (cache_on[i], q + k + v), (on("attn_output"), q)]
        stages += [(on(f"ffn_up{experts}"), n_embd), (on(f"ffn_down{experts}"), n_ff)]
        # The results of the experts come back one by one, not as their sum.
        into_next = n_embd * max(1, used) if on(f"ffn_down{experts}") != side else n_embd
    stages += [(output_side(header, sides, kept), into_next), (HOST, n_vocab(header))]
    crossed = [width for (before, _), (after, width) in pairwise(stages) if before != after]
    return len(crossed), _F32_BYTES * sum(crossed)


def output_side(header: Header, sides: Sequence[int], kept: Sequence[re.Pattern[str]]) -> int:
    """The side on which the logits are computed."""
    return HOST if stays("output.weight" if has_output(header) else EMBEDDING, kept) else sides[-1]


def stays(name: str, kept: Sequence[re.Pattern[str]]) -> bool:
    """Whether a weight of this name is kept on the host (``--override-tensor``)."""
    return any(pattern.search(name) for pattern in kept)


def _f32(value: float) -> float:
    """The nearest number in single precision."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
