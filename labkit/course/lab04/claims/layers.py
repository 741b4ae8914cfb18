"""The checks of the claims about which layers leave for a device, and what goes with them.

What follows from options is in ``checks_04_options``, what is about speed and memory that is shared in
``checks_04_speed``. ``CHECKS`` has all of lab 04.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.options import as_figures, listing, look_up
from labkit.course.claims.terms import CLOSE, LITTLE, MOST, NEAR, SEVEN_B, THIRTEEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab04.bench import OffloadBench
from labkit.course.lab04.offloaded import OUTPUT_FIRST, Offloaded, order_of, weights_on_device
from labkit.gguf import Header
from labkit.models.tensor_types import layer_of
from labkit.predict.hparams import EMBEDDING, has_output
from labkit.units import fmt_bytes

SHARES = (24, 8)  # of two devices, their free memory in GiB


def c070(bench: Bench) -> Finding:
    """Which layers left at an n_gpu_layers below the number of blocks, told from the bytes on the device. Confirmed if
    that many blocks, the last ones; roughly right if the last ones, but the output layer takes one of the places;
    misleading if that many blocks, but the first ones; else wrong."""
    (seen,) = bench.part(OffloadBench).offloads("part")
    order = _order(bench, seen)
    blocks = seen.asked - order.startswith("the output")
    return Finding(
        {"the last blocks": "confirmed", OUTPUT_FIRST: "roughly right", "the first blocks": "misleading"}.get(
            order, "wrong"
        ),
        f"With n_gpu_layers {seen.asked} of {seen.model}'s {seen.n_layer} blocks, "
        f"{fmt_bytes(seen.device_weights_bytes)} {_lie(seen)}: {order}, so {blocks} blocks went and "
        f"{seen.n_layer - blocks} stayed.",
        {
            "n_gpu_layers": seen.asked,
            "blocks": seen.n_layer,
            "device_weights_bytes": seen.device_weights_bytes,
            "blocks_on_device": blocks,
            "blocks_on_host": seen.n_layer - blocks,
        },
    )


def c071(bench: Bench) -> Finding:
    """What stays when n_gpu_layers is larger than the model. Output: the device holds more than the blocks. Embedding:
    the host keeps the token embedding. Confirmed if the output layer stays as well; misleading if it leaves and only
    the embedding stays; wrong if both leave."""
    (seen,) = bench.part(OffloadBench).offloads("all")
    header = bench.header(seen.model)
    blocks, output, embedding = _roles(header)
    gone = seen.device_weights_bytes >= blocks + 0.5 * output
    stays = seen.host_weights_bytes >= MOST * embedding
    tied = "" if has_output(header) else ", of which the output layer is a copy"
    return Finding(
        "confirmed" if not gone else "misleading" if stays else "wrong",
        f"With n_gpu_layers {seen.asked} of {seen.model}, {fmt_bytes(seen.device_weights_bytes)} {_lie(seen)}: the "
        f"blocks ({fmt_bytes(blocks)}){' and the output layer' if gone else ''}; {fmt_bytes(seen.host_weights_bytes)} "
        f"stay, and the token embedding takes {fmt_bytes(embedding)}{tied}.",
        {
            "device_weights_bytes": seen.device_weights_bytes,
            "host_weights_bytes": seen.host_weights_bytes,
            "blocks_bytes": blocks,
            "output_bytes": output,
            "embedding_bytes": embedding,
        },
    )


def c072(bench: Bench) -> Finding:
    """Most: the blocks hold at least 90 % of the weights of Llama 2 7B and 13B. Light: the output layer, read for every
    token, takes less than half of what a block takes, in both. Confirmed if both, roughly right if most only,
    misleading if light only, else wrong."""
    shares, against = {}, {}
    for model in (SEVEN_B, THIRTEEN_B):
        header = bench.header(model)
        blocks, output, _ = _roles(header)
        counted = sum(math.prod(tensor.dims) for tensor in header.tensors if layer_of(tensor.name) >= 0)
        shares[model] = counted / header.n_params
        against[model] = output, blocks / header.n_layer
    most = min(shares.values()) >= MOST
    light = all(output < 0.5 * block for output, block in against.values())
    (seven, block), (thirteen, block_13b) = against.values()
    return Finding(
        {(1, 1): "confirmed", (1, 0): "roughly right", (0, 1): "misleading", (0, 0): "wrong"}[most, light],
        f"The blocks hold {shares[SEVEN_B]:.1%} of the weights of Llama 2 7B and {shares[THIRTEEN_B]:.1%} of 13B, and "
        f"the output layer reads {fmt_bytes(seven)} and {fmt_bytes(thirteen)} for each token, where a block reads "
        f"{fmt_bytes(block)} and {fmt_bytes(block_13b)} (Q4_K_M).",
        {
            "blocks_7b_share": round(shares[SEVEN_B], 4),
            "blocks_13b_share": round(shares[THIRTEEN_B], 4),
            "output_7b_bytes": seven,
            "block_7b_bytes": round(block),
            "output_13b_bytes": thirteen,
            "block_13b_bytes": round(block_13b),
        },
    )


def c078(bench: Bench) -> Finding:
    """More layers than a device's memory holds, asked for by number. Confirmed if the model loads all the same, with as
    much on the device as it holds; else misleading if llama.cpp's command-line tools know --fit, which lowers what was
    not asked for by number before they load; else wrong."""
    run, known = bench.part(OffloadBench).overfull(), look_up(bench, "--fit")
    memory = run.device.memory_bytes if run.device and run.device.memory_bytes else 0
    asked = bench.part(OffloadBench).split(run.model.name, run.settings.n_gpu_layers).devices[0].weights_bytes
    if run.outcome not in ("ok", "load-failed"):
        raise Unsettled(f"the run with too many layers shows nothing: {run.outcome}, {run.reason.rstrip('.')}")
    moved = run.outcome == "ok"
    said = "loaded all the same" if moved else f"did not load ({run.reason.rstrip('.')})"
    return Finding(
        "confirmed" if moved else "misleading" if known["--fit"] else "wrong",
        f"With n_gpu_layers {run.settings.n_gpu_layers} {run.model.name} asks for {fmt_bytes(asked)} of weights on a "
        f"device of {fmt_bytes(memory)}, and {said}; in llama.cpp's library of options: {listing(known)}.",
        {"asked_bytes": asked, "memory_bytes": memory, "outcome": run.outcome, **as_figures(known)},
    )


def c079(bench: Bench) -> Finding:
    """Bytes that cross between llama.cpp and a loopback device with part of a model, for each token, as a share of the
    weights that stayed. Confirmed if half or more: they are sent when needed; roughly right if a tenth or more. Below
    that they are not: misleading if llama.cpp knows --op-offload, which may send them for a large batch, else wrong."""
    (crossed, split), known = bench.part(OffloadBench).crossed(), look_up(bench, "--op-offload")
    each, stayed = crossed.n_bytes / crossed.n_tokens, split.host.read_bytes
    if each >= 0.5 * stayed:
        verdict = "confirmed"
    elif each >= LITTLE * stayed:
        verdict = "roughly right"
    else:
        verdict = "misleading" if known["--op-offload"] else "wrong"
    return Finding(
        verdict,
        f"Over {crossed.n_tokens} tokens {fmt_bytes(each)} each crossed to and from a loopback device with "
        f"{split.n_gpu_layers} of a model's layers, {fmt_bytes(split.hop_bytes)} of it activations and logits, while "
        f"{fmt_bytes(stayed)} of weights stayed that each token reads; in llama.cpp's library of options: "
        f"{listing(known)}.",
        {
            "crossed_token_bytes": round(each),
            "predicted_token_bytes": split.hop_bytes,
            "host_read_bytes": stayed,
            **as_figures(known),
        },
    )


def c080(bench: Bench) -> Finding:
    """By capacity: of Llama 2 7B's layers, devices with 24 and 8 GiB free get shares that are right within one layer.
    Dynamic: while a device generates, its memory changes by a tenth of its weights or more. Confirmed if both, roughly
    right if by capacity only, misleading if dynamic only, else wrong."""
    (seen,) = bench.part(OffloadBench).offloads("part")
    if seen.grown_bytes is None:
        raise Unsettled("whether layers move while it runs shows on a loopback device only, and there is none here")
    n_layer = bench.header(SEVEN_B).n_layer
    counts = bench.part(OffloadBench).spread(n_layer, SHARES)
    ideal = [share / sum(SHARES) * (n_layer + 1) for share in SHARES]
    by_capacity = all(abs(count - wanted) <= 1 for count, wanted in zip(counts, ideal, strict=True))
    dynamic = abs(seen.grown_bytes) >= LITTLE * seen.device_weights_bytes
    return Finding(
        {(1, 1): "confirmed", (1, 0): "roughly right", (0, 1): "misleading", (0, 0): "wrong"}[by_capacity, dynamic],
        f"Of the {n_layer + 1} layers of Llama 2 7B, devices with {SHARES[0]} and {SHARES[1]} GiB free get {counts[0]} "
        f"and {counts[1]}; generating changed the memory of {seen.where}, which has "
        f"{fmt_bytes(seen.device_weights_bytes)} of weights, by {fmt_bytes(abs(seen.grown_bytes))}.",
        {
            "first_layers": counts[0],
            "second_layers": counts[1],
            "device_weights_bytes": seen.device_weights_bytes,
            "grown_bytes": seen.grown_bytes,
        },
    )


def c081(bench: Bench) -> Finding:
    """Options: llama.cpp's command-line tools know --offload and --unified. Weights: those on the device change with
    offload_kqv, the setting that the source calls offload. Confirmed if both, misleading if one, wrong if neither."""
    known = look_up(bench, "--offload", "--unified", "--kv-offload", "--kv-unified")
    on, off = bench.part(OffloadBench).offloads("all", "all, cache kept")
    options = known["--offload"] and known["--unified"]
    moved = abs(on.device_weights_bytes - off.device_weights_bytes) > CLOSE * on.device_weights_bytes
    return Finding(
        ("wrong", "misleading", "confirmed")[options + moved],
        f"In llama.cpp's library of options: {listing(known)}; with offload_kqv {fmt_bytes(on.device_weights_bytes)} "
        f"of {on.model}'s weights and {fmt_bytes(on.device_kv_bytes)} of its cache {_lie(on)}, without it "
        f"{fmt_bytes(off.device_weights_bytes)} and {fmt_bytes(off.device_kv_bytes)}.",
        {
            "on_weights_bytes": on.device_weights_bytes,
            "on_kv_bytes": on.device_kv_bytes,
            "off_weights_bytes": off.device_weights_bytes,
            "off_kv_bytes": off.device_kv_bytes,
            **as_figures(known),
        },
    )


def c082(bench: Bench) -> Finding:
    """First: the first blocks leave first, told from the bytes on the device. Kept: with 30 layers of Llama 2 7B Q4_K_M
    gone the host keeps 4.6 GB within 10 %. Confirmed if both, misleading if one, wrong if neither."""
    (seen,) = bench.part(OffloadBench).offloads("part")
    order, split = _order(bench, seen), bench.part(OffloadBench).split(SEVEN_B, 30)
    total = bench.header(SEVEN_B).tensor_bytes
    first = "first blocks" in order
    kept = abs(split.host.weights_bytes / 4.6e9 - 1) <= NEAR
    return Finding(
        ("wrong", "misleading", "confirmed")[first + kept],
        f"With n_gpu_layers {seen.asked} of {seen.model}'s {seen.n_layer} blocks, "
        f"{fmt_bytes(seen.device_weights_bytes)} {_lie(seen)}: {order}; with 30 of Llama 2 7B "
        f"{fmt_bytes(split.host.weights_bytes)} of {fmt_bytes(total)} stay, where the claim says 4.6 GB "
        f"({fmt_bytes(4.6e9)}).",
        {
            "device_weights_bytes": seen.device_weights_bytes,
            "host_7b_bytes": split.host.weights_bytes,
            "total_7b_bytes": total,
        },
    )


def c084(bench: Bench) -> Finding:
    """Alone: with n_gpu_layers 0 the cache lies on the device. By detour: with all layers of Llama 2 7B on the device
    and their weights kept by -ot, it does. Confirmed if alone, and a token then crosses no more often than with half
    of the layers gone; roughly right if alone only; misleading if by detour only; wrong if it cannot be had."""
    (none,) = bench.part(OffloadBench).offloads("none")
    n_layer = bench.header(SEVEN_B).n_layer
    half = bench.part(OffloadBench).split(SEVEN_B, n_layer // 2, n_ctx=4096)
    detour = bench.part(OffloadBench).split(SEVEN_B, n_layer + 1, on_cpu=(r"^blk\.",), n_ctx=4096)
    there = detour.devices[0].kv_bytes
    if none.device_kv_bytes:
        verdict = "confirmed" if detour.hops <= half.hops else "roughly right"
    else:
        verdict = "misleading" if there else "wrong"
    return Finding(
        verdict,
        f"With n_gpu_layers 0 {fmt_bytes(none.device_kv_bytes)} of {none.model}'s cache {_lie(none)} and "
        f"{fmt_bytes(none.host_kv_bytes)} stay; with all layers of Llama 2 7B there and their weights kept by -ot, "
        f"{fmt_bytes(there)} of cache for 4096 tokens would be there, and each token would change sides {detour.hops} "
        f"times instead of {half.hops}.",
        {
            "device_kv_bytes": none.device_kv_bytes,
            "host_kv_bytes": none.host_kv_bytes,
            "kept_weights_kv_bytes": there,
            "kept_weights_hops": detour.hops,
            "half_hops": half.hops,
        },
    )


def c085(bench: Bench) -> Finding:
    """A few more layers than a model has, as 35 are for a 7B, and far more. All: with far more, the device gets the
    blocks and the output layer. Roughly right if all, and a few more do the same; confirmed if all, and a few more put
    less there; wrong if far more do not put all there."""
    few, many = bench.part(OffloadBench).offloads("a few too many", "far too many")
    header = bench.header(many.model)
    whole = weights_on_device(header, (1,) * (header.n_layer + 1))
    everything = abs(many.device_weights_bytes / whole - 1) <= CLOSE
    same = abs(few.device_weights_bytes / many.device_weights_bytes - 1) <= CLOSE if everything else False
    n_7b = bench.header(SEVEN_B).n_layer
    gone = [bench.part(OffloadBench).split(SEVEN_B, n).n_gpu_layers for n in (35, 99)]
    return Finding(
        "wrong" if not everything else "roughly right" if same else "confirmed",
        f"Of {many.model}, which has {header.n_layer} blocks and {fmt_bytes(whole)} that can leave, "
        f"{fmt_bytes(few.device_weights_bytes)} {_lie(few)} with n_gpu_layers {few.asked} and "
        f"{fmt_bytes(many.device_weights_bytes)} with {many.asked}; of Llama 2 7B's {n_7b + 1} layers 35 would take "
        f"{gone[0]}, and 99 would take {gone[1]}.",
        {
            "few_n_gpu_layers": few.asked,
            "few_bytes": few.device_weights_bytes,
            "many_n_gpu_layers": many.asked,
            "many_bytes": many.device_weights_bytes,
            "whole_bytes": whole,
            "layers_7b": n_7b + 1,
        },
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check for check in (c070, c071, c072, c078, c079, c080, c081, c082, c084, c085)
}


def _order(bench: Bench, seen: Offloaded) -> str:
    order = order_of(bench.header(seen.model), seen)
    if order is None:
        raise Unsettled(f"{seen.device_weights_bytes:,} bytes on the device do not tell which layers are there")
    return order


def _lie(seen: Offloaded) -> str:
    """Where it is, in a clause."""
    return f"lie on {seen.where}" if seen.where else "would lie on the device"


def _roles(header: Header) -> tuple[int, int, int]:
    """Bytes of the blocks, of the output layer and of the token embedding, which may be one tensor."""
    blocks = sum(tensor.nbytes for tensor in header.tensors if layer_of(tensor.name) >= 0)
    embedding = header.tensor(EMBEDDING).nbytes
    return blocks, header.tensor("output.weight").nbytes if has_output(header) else embedding, embedding
