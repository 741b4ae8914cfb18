"""The checks of the claims about which layers move to a device, and what moves with them."""

from __future__ import annotations

import math

from labkit.course.claims.bench import Bench, ending
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.options import known_names, look_up
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
    """Which layers are on the device at an n_gpu_layers below the number of blocks, as the bytes there show. Confirmed
    if that many blocks, the last ones; roughly right if the last ones, but the output layer takes one of the places;
    misleading if that many blocks, but the first ones; else wrong."""
    (seen,) = bench.part(OffloadBench).offloads("part")
    order, show = _order(bench, seen), Figures()
    blocks = seen.asked - order.startswith("the output")
    return show.finding(
        {"the last blocks": "confirmed", OUTPUT_FIRST: "roughly right", "the first blocks": "misleading"}.get(
            order, "wrong"
        ),
        f"With n_gpu_layers {show(n_gpu_layers=seen.asked)} of {seen.model}'s {show(blocks=seen.n_layer)} blocks, "
        f"{show(device_weights_bytes=seen.device_weights_bytes)} {_are(seen)}: {order}, so "
        f"{show(blocks_on_device=blocks)} blocks moved and {show(blocks_on_host=seen.n_layer - blocks)} stayed.",
    )


def c071(bench: Bench) -> Finding:
    """What stays on the host when n_gpu_layers is larger than the model. Output: the device holds more than the blocks.
    Embedding: the host keeps the token embedding. Confirmed if the output layer stays as well; misleading if it moves
    and only the embedding stays; wrong if both move."""
    (seen,) = bench.part(OffloadBench).offloads("all")
    header = bench.header(seen.model)
    blocks, output, embedding = _roles(header)
    moved = seen.device_weights_bytes >= blocks + 0.5 * output
    stays = seen.host_weights_bytes >= MOST * embedding
    tied, show = "" if has_output(header) else ", of which the output layer is a copy", Figures()
    show.keep(output_bytes=output)
    return show.finding(
        "confirmed" if not moved else "misleading" if stays else "wrong",
        f"With n_gpu_layers {seen.asked} of {seen.model}, {show(device_weights_bytes=seen.device_weights_bytes)} "
        f"{_are(seen)}: the blocks ({show(blocks_bytes=blocks)}){' and the output layer' if moved else ''}; "
        f"{show(host_weights_bytes=seen.host_weights_bytes)} stay on the host, and the token embedding takes "
        f"{show(embedding_bytes=embedding)}{tied}.",
    )


def c072(bench: Bench) -> Finding:
    """Most: the blocks hold at least 90 % of the weights of Llama 2 7B and 13B. Light: the output layer, read for every
    token, takes less than half of what a block takes, in both. Confirmed if both, roughly right if most only,
    misleading if light only, else wrong."""
    shares, pairs = [], []
    for model in (SEVEN_B, THIRTEEN_B):
        header = bench.header(model)
        blocks, output, _ = _roles(header)
        counted = sum(math.prod(tensor.dims) for tensor in header.tensors if layer_of(tensor.name) >= 0)
        shares.append(counted / header.n_params)
        pairs.append((output, blocks / header.n_layer))
    most, light = min(shares) >= MOST, all(output < 0.5 * block for output, block in pairs)
    (seven, block), (thirteen, block_13b) = pairs
    show = Figures()
    return show.finding(
        {(1, 1): "confirmed", (1, 0): "roughly right", (0, 1): "misleading", (0, 0): "wrong"}[most, light],
        f"The blocks hold {show(blocks_7b_share=round(shares[0], 4)):.1%} of the weights of Llama 2 7B and "
        f"{show(blocks_13b_share=round(shares[1], 4)):.1%} of 13B; for each token {show(output_7b_bytes=seven)} and "
        f"{show(output_13b_bytes=thirteen)} of the output layer are read, and {show(block_7b_bytes=round(block))} and "
        f"{show(block_13b_bytes=round(block_13b))} of a block (Q4_K_M).",
    )


def c078(bench: Bench) -> Finding:
    """More layers than a device's memory holds, asked for by number. Confirmed if the model loads all the same, with as
    much on the device as it holds; else misleading if llama.cpp's command-line tools know --fit, which before they load
    lowers what was not asked for by number; else wrong."""
    offload, known, show = bench.part(OffloadBench), look_up(bench, "--fit"), Figures()
    run = offload.overfull()
    memory = run.device.memory_bytes if run.device and run.device.memory_bytes else 0
    asked = offload.split(run.model.name, run.settings.n_gpu_layers).devices[0].weights_bytes
    if run.outcome not in ("ok", "load-failed"):
        raise Unsettled(f"the run with too many layers shows nothing: {ending(run)}")
    loaded = run.outcome == "ok"
    how = "loaded all the same" if loaded else f"did not load ({run.reason.rstrip('.')})"
    show.keep(outcome=run.outcome)
    return show.finding(
        "confirmed" if loaded else "misleading" if known["--fit"] else "wrong",
        f"With n_gpu_layers {run.settings.n_gpu_layers} {run.model.name} asks for {show(asked_bytes=asked)} of "
        f"weights on a device of {show(memory_bytes=memory)}, and {how}; llama.cpp's list of options has "
        f"{known_names(show, known)}.",
    )


def c079(bench: Bench) -> Finding:
    """Bytes that cross between llama.cpp and a loopback device with part of a model, for each token, as a share of the
    weights that stayed on the host. Confirmed if half or more, so that they are sent when needed; roughly right if a
    tenth or more. Below that they are not sent: misleading if llama.cpp knows --op-offload, which may send them for a
    large batch, else wrong."""
    (crossed, split), known = bench.part(OffloadBench).crossed(), look_up(bench, "--op-offload")
    each, stayed = crossed.n_bytes / crossed.n_tokens, split.host.read_bytes
    if each >= 0.5 * stayed:
        verdict = "confirmed"
    elif each >= LITTLE * stayed:
        verdict = "roughly right"
    else:
        verdict = "misleading" if known["--op-offload"] else "wrong"
    show = Figures()
    return show.finding(
        verdict,
        f"With {split.n_gpu_layers} of a model's layers on a loopback device, {show(crossed_token_bytes=round(each))} "
        f"crossed for each of {crossed.n_tokens} tokens, {show(predicted_token_bytes=split.crossing_bytes)} of them "
        f"activations and logits, while {show(host_read_bytes=stayed)} of weights that each token reads stayed on the "
        f"host; llama.cpp's list of options has {known_names(show, known)}.",
    )


def c080(bench: Bench) -> Finding:
    """By capacity: of Llama 2 7B's layers, devices with 24 and 8 GiB free get shares that are right within one layer.
    Dynamic: while a device generates, its memory changes by a tenth of its weights or more. Confirmed if both, roughly
    right if by capacity only, misleading if dynamic only, else wrong."""
    offload, show = bench.part(OffloadBench), Figures()
    (seen,) = offload.offloads("part")
    if seen.grown_bytes is None:
        raise Unsettled("whether layers move while it runs shows on a loopback device only, and there is none here")
    n_layer = bench.header(SEVEN_B).n_layer
    counts = offload.spread(n_layer, SHARES)
    ideal = [share / sum(SHARES) * (n_layer + 1) for share in SHARES]
    by_capacity = all(abs(count - wanted) <= 1 for count, wanted in zip(counts, ideal, strict=True))
    dynamic = abs(seen.grown_bytes) >= LITTLE * seen.device_weights_bytes
    show.keep(grown_bytes=seen.grown_bytes)
    return show.finding(
        {(1, 1): "confirmed", (1, 0): "roughly right", (0, 1): "misleading", (0, 0): "wrong"}[by_capacity, dynamic],
        f"Of the {n_layer + 1} layers of Llama 2 7B, devices with {SHARES[0]} and {SHARES[1]} GiB free get "
        f"{show(first_layers=counts[0])} and {show(second_layers=counts[1])}; generating changed the memory of "
        f"{seen.where}, which has {show(device_weights_bytes=seen.device_weights_bytes)} of weights, by "
        f"{fmt_bytes(abs(seen.grown_bytes))}.",
    )


def c081(bench: Bench) -> Finding:
    """Options: llama.cpp's command-line tools know --offload and --unified. Weights: those on the device change with
    offload_kqv, the setting that llama.cpp's source calls offload. Confirmed if both, misleading if one, wrong if
    neither."""
    known, show = look_up(bench, "--offload", "--unified", "--kv-offload", "--kv-unified"), Figures()
    on, off = bench.part(OffloadBench).offloads("all", "all, cache kept")
    options = known["--offload"] and known["--unified"]
    moved = abs(on.device_weights_bytes - off.device_weights_bytes) > CLOSE * on.device_weights_bytes
    return show.finding(
        ("wrong", "misleading", "confirmed")[options + moved],
        f"llama.cpp's list of options has {known_names(show, known)}; with offload_kqv "
        f"{show(on_weights_bytes=on.device_weights_bytes)} of {on.model}'s weights and "
        f"{show(on_kv_bytes=on.device_kv_bytes)} of its cache {_are(on)}, without it "
        f"{show(off_weights_bytes=off.device_weights_bytes)} and {show(off_kv_bytes=off.device_kv_bytes)}.",
    )


def c082(bench: Bench) -> Finding:
    """First: the first blocks move first, as the bytes on the device show. Kept: with 30 layers of Llama 2 7B Q4_K_M on
    a device the host keeps 4.6 GB within 10 %. Confirmed if both, misleading if one, wrong if neither."""
    offload, show = bench.part(OffloadBench), Figures()
    (seen,) = offload.offloads("part")
    order, kept = _order(bench, seen), offload.split(SEVEN_B, 30).host.weights_bytes
    first, as_claimed = "first blocks" in order, abs(kept / 4.6e9 - 1) <= NEAR
    return show.finding(
        ("wrong", "misleading", "confirmed")[first + as_claimed],
        f"With n_gpu_layers {seen.asked} of {seen.model}'s {seen.n_layer} blocks, "
        f"{show(device_weights_bytes=seen.device_weights_bytes)} {_are(seen)}: {order}; with 30 layers of Llama 2 7B "
        f"on a device, {show(host_7b_bytes=kept)} of {show(total_7b_bytes=bench.header(SEVEN_B).tensor_bytes)} stay "
        f"on the host, where the claim says 4.6 GB ({fmt_bytes(4.6e9)}).",
    )


def c084(bench: Bench) -> Finding:
    """Alone: with n_gpu_layers 0 the cache is on the device. By detour: it is there with all layers of Llama 2 7B on
    the device and their weights kept on the host by -ot. Confirmed if alone, and a token then crosses no more often
    than with half of the layers on the device; roughly right if alone only; misleading if by detour only; wrong if the
    cache is on the device neither way."""
    offload, show = bench.part(OffloadBench), Figures()
    (none,) = offload.offloads("none")
    n_layer = bench.header(SEVEN_B).n_layer
    half = offload.split(SEVEN_B, n_layer // 2, n_ctx=4096)
    detour = offload.split(SEVEN_B, n_layer + 1, on_cpu=(r"^blk\.",), n_ctx=4096)
    there = detour.devices[0].kv_bytes
    if none.device_kv_bytes:
        verdict = "confirmed" if detour.crossings <= half.crossings else "roughly right"
    else:
        verdict = "misleading" if there else "wrong"
    return show.finding(
        verdict,
        f"With n_gpu_layers 0, {show(device_kv_bytes=none.device_kv_bytes)} of {none.model}'s cache {_are(none)} and "
        f"{show(host_kv_bytes=none.host_kv_bytes)} stay on the host; with all layers of Llama 2 7B on a device and "
        f"their weights kept on the host by -ot, {show(kept_weights_kv_bytes=there)} of cache for 4096 tokens would "
        f"be on the device, and each token would cross {show(kept_weights_hops=detour.crossings)} times instead of "
        f"{show(half_hops=half.crossings)} with half of the layers there.",
    )


def c085(bench: Bench) -> Finding:
    """n_gpu_layers is a little larger than the number of layers, as 35 is for a 7B, and far larger. All: with the far
    larger one, the device gets the blocks and the output layer. Roughly right if all, and the other does the same;
    confirmed if all, and the other puts less there; wrong if the far larger one does not put all there."""
    offload, show = bench.part(OffloadBench), Figures()
    few, many = offload.offloads("a few too many", "far too many")
    header = bench.header(many.model)
    whole = weights_on_device(header, (1,) * (header.n_layer + 1))
    everything = abs(many.device_weights_bytes / whole - 1) <= CLOSE
    same = everything and abs(few.device_weights_bytes / many.device_weights_bytes - 1) <= CLOSE
    taken = [offload.split(SEVEN_B, asked).n_gpu_layers for asked in (35, 99)]
    return show.finding(
        "wrong" if not everything else "roughly right" if same else "confirmed",
        f"Of {many.model}, which has {header.n_layer} blocks and {show(whole_bytes=whole)} that can move, "
        f"{show(few_bytes=few.device_weights_bytes)} {_are(few)} with n_gpu_layers {show(few_n_gpu_layers=few.asked)} "
        f"and {show(many_bytes=many.device_weights_bytes)} with {show(many_n_gpu_layers=many.asked)}; of Llama 2 7B's "
        f"{show(layers_7b=bench.header(SEVEN_B).n_layer + 1)} layers 35 would move {taken[0]}, and 99 would move "
        f"{taken[1]}.",
    )


def _order(bench: Bench, seen: Offloaded) -> str:
    """In which order layers moved to the device; ``Unsettled`` if its bytes do not tell."""
    order = order_of(bench.header(seen.model), seen)
    if order is None:
        raise Unsettled(f"{seen.device_weights_bytes:,} bytes on the device do not tell which layers are there")
    return order


def _are(seen: Offloaded) -> str:
    """Where something is, after its size."""
    return f"are on {seen.where}" if seen.where else "would be on the device"


def _roles(header: Header) -> tuple[int, int, int]:
    """Bytes of the blocks, of the output layer and of the token embedding, which may be one tensor."""
    blocks = sum(tensor.nbytes for tensor in header.tensors if layer_of(tensor.name) >= 0)
    embedding = header.tensor(EMBEDDING).nbytes
    return blocks, header.tensor("output.weight").nbytes if has_output(header) else embedding, embedding
