"""Time per token: the least time by bandwidth (the roofline), and the time that paging adds."""

from __future__ import annotations

from labkit.gguf import Header
from labkit.predict.hparams import EMBEDDING, has_output
from labkit.predict.kv import cache
from labkit.settings import Settings


def bytes_per_token(header: Header, settings: Settings, *, n_past: int = 0) -> int:
    """Bytes of memory that decoding one token reads: the weights it uses, and the cache of its sequence.

    Of an untied token embedding only one row is read, which is left out; of a mixture of experts, only the routed
    experts. Of the cache, ``n_past`` cells are read, in a layer with a sliding window at most those it has; of
    recurrent states, only the sequence's own.
    """
    untied = has_output(header)
    used, total = int(header.key("expert_used_count", 0)), int(header.key("expert_count", 0))
    read = 0
    for tensor in header.tensors:
        if tensor.name == EMBEDDING and untied:
            continue
        share = used / total if total and "_exps." in tensor.name else 1.0
        read += int(tensor.nbytes * share)
    return read + sum(layer.read_bytes(n_past) for layer in cache(header, settings).layers)


def decode_ms(bytes_read: int, *, bandwidth_bytes_per_s: float, overhead_ms: float = 0.0) -> float:
    """The roofline: a token takes at least the time to read its bytes once, plus a constant overhead."""
    return bytes_read / bandwidth_bytes_per_s * 1000 + overhead_ms


def paging_ms(bytes_read: int, *, warm_ms: float, needed_bytes: int, cap_bytes: int, disk_bytes_per_s: float) -> float:
    """Time per token under a memory cap, for weights that are read in the same order every token.

    While everything fits, nothing is read from the disk. Once the cap is smaller than what is needed, the kernel drops
    the least recently used pages. These are the ones needed next, so nearly every byte is read from the disk each time.
    """
    return warm_ms if cap_bytes >= needed_bytes else warm_ms + bytes_read / disk_bytes_per_s * 1000
