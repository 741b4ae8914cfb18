"""Memory of a model with layers on devices: bytes of each kind on the host and on each device (the sides)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from labkit.gguf import Header
from labkit.predict.compute import compute_bytes, feed_forward_bytes, output_bytes
from labkit.predict.hparams import n_vocab, number, per_layer
from labkit.predict.kv import LayerCache, cache, kv_widths, streams_and_cells
from labkit.predict.placement import HOST, Placed, crossings, output_side, place, place_tensors
from labkit.predict.process import PYTHON_FILE_BYTES, Predicted, mapped_span
from labkit.predict.repack import repacked
from labkit.settings import Settings


@dataclass(frozen=True)
class Side:
    """What is on one side: the host, or a device.

    Attributes:
        name: ``host``, ``device``, or with several ``device 1`` and so on.
        weights_bytes: tensors on this side. A tied embedding is on both sides once its copy is a device's output layer.
        mapped_bytes: of the host, the span of the file that stays mapped; the kernel can drop and reread these pages.
        heap_bytes: of the host, weights read into anonymous memory because the file is not mapped.
        repack_bytes: of the host, copies of weights in the CPU's own layout.
        kv_bytes: keys and values of the layers whose cache is on this side.
        recurrent_bytes: recurrent states of these layers.
        compute_bytes: the compute buffer.
        output_bytes: the output buffer with the rows of logits, always on the host.
        read_bytes: weights that decoding one token reads on this side.
        caches: of the layers whose cache is on this side.
    """

    name: str
    weights_bytes: int
    mapped_bytes: int
    heap_bytes: int
    repack_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    output_bytes: int
    read_bytes: int
    caches: tuple[LayerCache, ...] = field(repr=False)

    @property
    def pinned_bytes(self) -> int:
        """Bytes that must stay in memory: on a device all, on the host all but the mapped file."""
        weights = self.heap_bytes + self.repack_bytes if self.name == "host" else self.weights_bytes
        return weights + self.kv_bytes + self.recurrent_bytes + self.compute_bytes + self.output_bytes

    @property
    def total_bytes(self) -> int:
        """All bytes of this side, with the mapped file."""
        return self.pinned_bytes + self.mapped_bytes


@dataclass(frozen=True)
class Split:
    """A model on a host and its devices.

    Attributes:
        n_gpu_layers: number of layers on devices: blocks and the output layer, n_layer + 1 at most.
        host: what is on the host.
        devices: what is on each device.
        layers_on: for each block, 0 for the host or the number of its device.
        output_on: the same for the output layer.
        crossings: how often one token's data crosses between sides; the last one returns the logits to the host.
        crossing_bytes: bytes of one token in all crossings.
        compute_exact: whether the compute buffers are known to be llama.cpp's; else they are estimates.
    """

    n_gpu_layers: int
    host: Side
    devices: tuple[Side, ...]
    layers_on: tuple[int, ...]
    output_on: int
    crossings: int
    crossing_bytes: int
    compute_exact: bool


def offload(
    header: Header,
    settings: Settings,
    *,
    n_devices: int = 1,
    shares: Sequence[float] | None = None,
    on_cpu: Sequence[str] = (),
    cpu_features: Iterable[str] | None = None,
    pinned_host: bool = False,
    page_bytes: int = 4096,
) -> Split:
    """What is on which side for ``settings.n_gpu_layers`` and ``settings.offload_kqv``.

    A layer's cache is on the side of the layer; with ``offload_kqv`` off, all of it is on the host (llama_kv_cache).
    Weights: ``place`` and ``place_tensors``. Tests compare this with llama.cpp on RPC devices that compute on a CPU;
    another backend may pad rows (CUDA: to 512 elements) and need other compute buffers.

    Args:
        header: the model's.
        settings: how it is run.
        n_devices: number of devices.
        shares: of the layers for each device, see ``place``; equal by default.
        on_cpu: regular expressions; weights whose name matches one of them stay on the host (``-ot REGEX=CPU``).
        cpu_features: what this build of ggml uses (``engine.cpu_features()``); None counts as none, so no repacking.
        pinned_host: whether the device offers page-locked host memory, as CUDA, HIP, Vulkan and SYCL do, and Metal and
            RPC do not; then llama.cpp repacks nothing (make_cpu_buft_list in src/llama-model.cpp).
        page_bytes: the system's page size.
    """
    n_layer = header.n_layer
    sides = place(n_layer, settings.n_gpu_layers, shares=shares or (1.0,) * n_devices)
    kept = [re.compile(pattern) for pattern in on_cpu]
    copied = repacked(header, cpu_features=cpu_features or ()) if settings.repack and not pinned_host else ()
    names = frozenset(tensor.name for tensor in copied)
    cache_on = tuple(side if settings.offload_kqv else HOST for side in sides[:n_layer])
    caches = cache(header, settings).layers
    compute, exact = _compute(header, settings, sides, n_devices, bool(kept))
    n_crossings, crossing_bytes = crossings(header, sides, cache_on, kept)
    found = []
    for side, placed in enumerate(place_tensors(header, sides, kept, n_sides=n_devices + 1)):
        name = "host" if side == HOST else "device" if n_devices == 1 else f"device {side}"
        mine = [layer for layer, on in zip(caches, cache_on, strict=True) if on == side]
        in_ram = (0, 0, 0) if side != HOST else _in_ram(placed, names, settings, page_bytes)
        found.append(_side(name, header, settings, placed, mine, compute[side], in_ram))
    return Split(
        n_gpu_layers=sum(side != HOST for side in sides),
        host=found[HOST],
        devices=tuple(found[1:]),
        layers_on=sides[:n_layer],
        output_on=output_side(header, sides, kept),
        crossings=n_crossings,
        crossing_bytes=crossing_bytes,
        compute_exact=exact,
    )


def on_host(
    whole: Predicted, split: Split, header: Header, settings: Settings, *, prompt_tokens: int, cap_bytes: int | None
) -> Predicted:
    """The memory of the host's process when some layers are on a device.

    Args:
        whole: the prediction without a device, from ``memory``.
        split: from ``offload`` for the same settings.
        prompt_tokens, cap_bytes: as for ``memory``.
    """
    host = split.host
    anon = host.pinned_bytes - host.compute_bytes + whole.python_bytes
    rss_anon = anon + min(host.compute_bytes, feed_forward_bytes(header, settings, prompt_tokens))
    resident = host.mapped_bytes if cap_bytes is None else max(0, min(host.mapped_bytes, cap_bytes - rss_anon))
    return replace(
        whole,
        mapped_bytes=host.mapped_bytes,
        heap_bytes=host.heap_bytes,
        repack_bytes=host.repack_bytes,
        kv_bytes=host.kv_bytes,
        recurrent_bytes=host.recurrent_bytes,
        compute_bytes=host.compute_bytes,
        compute_exact=split.compute_exact,
        output_bytes=host.output_bytes,
        anon_floor_bytes=anon + host.compute_bytes,
        rss_anon_bytes=rss_anon,
        rss_file_bytes=resident + PYTHON_FILE_BYTES,
        locked_bytes={"mmap+mlock": host.mapped_bytes, "mlock": host.heap_bytes}.get(settings.load_mode, 0),
    )


def _side(
    name: str,
    header: Header,
    settings: Settings,
    placed: Sequence[Placed],
    caches: Sequence[LayerCache],
    compute: int,
    in_ram: tuple[int, int, int],
) -> Side:
    """One side, from the tensors and caches on it; ``in_ram`` are the sizes of ``_in_ram``."""
    used, experts = number(header, "expert_used_count"), number(header, "expert_count")
    read = sum(
        one.tensor.nbytes * used // experts if experts and "_exps." in one.tensor.name else one.tensor.nbytes
        for one in placed
        if not one.looked_up
    )
    # A tied embedding on the host is listed twice: its rows are looked up, and it is the output layer.
    distinct = {one.tensor.name: one.tensor.nbytes for one in placed}
    mapped, heap, repack = in_ram
    return Side(
        name=name,
        weights_bytes=sum(distinct.values()),
        mapped_bytes=mapped,
        heap_bytes=heap,
        repack_bytes=repack,
        kv_bytes=sum(layer.k_bytes + layer.v_bytes for layer in caches),
        recurrent_bytes=sum(layer.recurrent_bytes for layer in caches),
        compute_bytes=compute,
        output_bytes=output_bytes(header, settings) if name == "host" else 0,
        read_bytes=read,
        caches=tuple(caches),
    )


def _in_ram(
    placed: Sequence[Placed], copied: frozenset[str], settings: Settings, page_bytes: int
) -> tuple[int, int, int]:
    """Bytes of the host's weights: the mapped span, those in anonymous memory instead, and the CPU's copies.

    Repacked weights are not used in place, except a tied embedding, whose rows are also looked up.
    """
    in_place = {one.tensor.name: one.tensor for one in placed if one.looked_up or one.tensor.name not in copied}
    repack = sum(one.tensor.nbytes for one in placed if one.tensor.name in copied and not one.looked_up)
    if settings.load_mode in ("auto", "mmap", "mmap+mlock"):
        return mapped_span(list(in_place.values()), page_bytes), 0, repack
    return 0, sum(tensor.nbytes for tensor in in_place.values()), repack


def _compute(
    header: Header, settings: Settings, sides: tuple[int, ...], n_devices: int, kept: bool
) -> tuple[tuple[int, ...], bool]:
    """Bytes of the compute buffer of each side, the host first, and whether they are exact.

    With all layers on the host: ``compute_bytes``. Else, found by comparing with llama.cpp's dry runs on RPC devices,
    with flash attention and the cache on the side of its layer:

    - host: the largest intermediate results of a feed-forward if it has a block; if not, the embedded batch twice, the
      token ids and the attention mask;
    - device: the logits and the rows they are computed from; if it has a block also the feed-forward, less the embedded
      batch, once or twice.

    Several devices with all layers work on four batches in turn (pipeline parallelism), with four copies of the inputs.
    """
    total, exact = compute_bytes(header, settings)
    if sides[-1] == HOST:
        return (total, *[0] * n_devices), exact
    ub = min(settings.n_ubatch, settings.n_batch, settings.n_ctx)
    outputs = min(ub, settings.n_outputs_max or ub)
    embedded = 4 * ub * number(header, "embedding_length")
    flash = settings.flash_attn != "off"
    mask = (2 if flash else 4) * ub * streams_and_cells(settings)[1]
    # Token ids, positions and the cell of each K and V; without flash attention, the place of each element of V.
    inputs = mask + 24 * ub + (0 if flash else 8 * ub * kv_widths(header, 0)[1])
    logits = 4 * outputs * (n_vocab(header) + number(header, "embedding_length"))
    # Without flash attention or with an f32 cache, ``compute_bytes`` may have found something larger.
    feed_forward = feed_forward_bytes(header, settings, ub)
    block = total if total > max(logits + embedded, feed_forward) + 4 * outputs else feed_forward
    whole = HOST not in sides[:-1]
    # With a large mask or few outputs the allocator also reuses memory for the batch; in between, it leaves holes.
    reused = flash and not whole and (mask >= embedded or outputs < ub)
    n_ff = per_layer(header, "feed_forward_length", 0)
    holes = outputs == ub and 4 * ub * n_ff - 2 * embedded <= mask < embedded and block - embedded > logits
    in_turn = whole and n_devices > 1 and settings.offload_kqv and not kept
    copies, moves = (3 * inputs, 4 * embedded) if in_turn else (0, 0)
    batch_in = 2 * embedded + inputs + copies + moves * 3 // 4
    sizes = [batch_in if whole and not kept else block + 4 * outputs]
    for device in range(1, n_devices + 1):
        has_block = device in sides[:-1]
        widest = block - embedded * (0 if holes else 2 if reused else 1) + moves if has_block else 0
        last = logits + moves * (2 if has_block else 1) if sides[-1] == device else 0
        sizes.append(max(widest, last) + (copies if has_block else 0))
    n_blocks = sum(side != HOST for side in sides[:-1])
    plain = n_devices == 1 and (settings.offload_kqv or not n_blocks) and not number(header, "expert_count")
    unclear = reused and n_blocks == 1 and block - embedded > logits
    return tuple(sizes), exact and plain and not kept and not unclear and not (holes and n_blocks)
