"""The checks of the claims about what offloading buys, what crossing costs, and memory that CPU and GPU share."""

from __future__ import annotations

from collections.abc import Callable

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.terms import LITTLE, MAPPED, RAM_BYTES, SEVEN_B, SYSTEM_BYTES, THIRTEEN_B
from labkit.course.lab04.bench import OffloadBench
from labkit.planning.planner import HOP_MS
from labkit.predict import hardware
from labkit.predict.hardware import Hardware
from labkit.predict.offload import Split
from labkit.predict.offload_speed import Speeds, offload_ms
from labkit.system.machine import machine
from labkit.units import fmt_bytes

CLAIMED_GAIN, GAIN_POINTS = 0.31, 0.05
CLAIMED_HOP_MS = 5.0
MUCH = 2.0  # "much faster"
HOST = "ddr5-5600"  # the memory beside which a graphics card is put where the claim names none


def c086(bench: Bench) -> Finding:
    """The same model in Q8_0 and Q4_K_M: tokens per second gained, and what the bytes alone would allow. Confirmed if
    the gain is 31 % within 5 points and the bytes allow that much within a tenth, so that they are the reason; wrong if
    there is no gain of a tenth; misleading if it is more than the bytes allow by a tenth; else roughly right."""
    name = "smollm2-135m" if machine().profile == "tiny" else "llama-3.2-1b"
    names = [f"{name}:{quant}" for quant in ("Q8_0", "Q4_K_M")]
    before, after = bench.part(OffloadBench).fastest_ms(*names, settings=MAPPED)
    read = [bench.part(OffloadBench).split(model, 0).host.read_bytes for model in names]
    gain, allowed = before / after - 1, read[0] / read[1] - 1
    if gain < LITTLE:
        verdict = "wrong"
    elif (1 + gain) / (1 + allowed) > 1 + LITTLE:
        verdict = "misleading"
    else:
        by_bytes = (1 + gain) / (1 + allowed) >= 1 - LITTLE
        verdict = "confirmed" if abs(gain - CLAIMED_GAIN) <= GAIN_POINTS and by_bytes else "roughly right"
    return Finding(
        verdict,
        f"{name} makes up to {1000 / before:.1f} tokens/s in Q8_0 and {1000 / after:.1f} in Q4_K_M on 1 thread, "
        f"{gain:+.0%}; the {fmt_bytes(read[0])} and {fmt_bytes(read[1])} that a token reads would allow "
        f"{allowed:+.0%}.",
        {
            "q8_0_ms": round(before, 3),
            "q4_k_m_ms": round(after, 3),
            "gain_share": round(gain, 4),
            "allowed_share": round(allowed, 4),
        },
    )


def c087(bench: Bench) -> Finding:
    """What one crossing costs a token of Llama 2 13B with half of its layers on a graphics card, on the slowest link of
    the catalogue: bytes over the link, the logits among them, and an assumed 0.02 ms of waiting. Confirmed if it is
    5 ms within a factor of 2, and there are as many crossings as layers on the card; wrong if it is below a tenth of
    that; else roughly right."""
    header = bench.header(THIRTEEN_B)
    split = bench.part(OffloadBench).split(THIRTEEN_B, (header.n_layer + 1) // 2, n_ctx=4096)
    cards = bench.part(OffloadBench).hardware("discrete")
    slowest = min(cards, key=lambda card: card.link_bytes_per_s or 0)
    link = slowest.link_bytes_per_s or 0
    hop_ms = split.hop_bytes / split.hops / link * 1000 + HOP_MS
    inside = 4 * int(header.key("embedding_length"))
    if hop_ms < LITTLE * CLAIMED_HOP_MS:
        verdict = "wrong"
    else:
        near = CLAIMED_HOP_MS / 2 <= hop_ms <= CLAIMED_HOP_MS * 2
        verdict = "confirmed" if near and split.hops >= split.n_gpu_layers else "roughly right"
    layer = split.devices[0].weights_bytes / split.n_gpu_layers
    return Finding(
        verdict,
        f"A token of Llama 2 13B with {split.n_gpu_layers} layers on a card crosses {split.hops} times with "
        f"{fmt_bytes(split.hop_bytes)}, of which {fmt_bytes(inside)} go into the card: {hop_ms:.3f} ms each over "
        f"{slowest.link} ({fmt_bytes(link)}/s) with an assumed {HOP_MS} ms of waiting; in 5 ms "
        f"{fmt_bytes(0.005 * link)} would cross, and a layer has {fmt_bytes(layer)} of weights.",
        {
            "hops": split.hops,
            "hop_bytes": split.hop_bytes,
            "activation_bytes": inside,
            "hop_ms": round(hop_ms, 4),
            "link_bytes_per_s": link,
            "layer_bytes": round(layer),
        },
    )


def c088(bench: Bench) -> Finding:
    """The Apple chips of the catalogue. Confirmed if in all of them CPU and GPU have one memory and no link between
    them, wrong if in none, else misleading."""
    chips = _apple(bench)
    shared = sum(chip.kind == "unified" and chip.link_bytes_per_s is None for chip in chips)
    return Finding(
        "confirmed" if shared == len(chips) else "misleading" if shared else "wrong",
        f"In {shared} of {len(chips)} Apple chips in the catalogue, from {chips[0].title} to {chips[-1].title}, CPU "
        f"and GPU have one memory and no link in between.",
        {"chips": len(chips), "shared": shared},
    )


def c089(bench: Bench) -> Finding:
    """Apart: the GPU has a memory of its own, and so a bandwidth of its own, in the Apple chips of the catalogue. Free:
    of 16 GiB that they share, it may have all but 2 GiB for the system. Confirmed if apart in all, misleading if apart
    in some, or nowhere but free; wrong if nowhere and not free: both draw on one bandwidth and one limited pool."""
    chips = _apple(bench)
    apart = sum(chip.vram_bytes is not None for chip in chips)
    title, share, ram = bench.part(OffloadBench).gpu_share()
    free = share >= ram - SYSTEM_BYTES
    partly = "misleading" if apart or free else "wrong"
    chip, card, host = hardware.get("apple-m2"), hardware.get("rtx-4070"), hardware.get(HOST)
    return Finding(
        "confirmed" if apart == len(chips) else partly,
        f"In {len(chips) - apart} of {len(chips)} Apple chips CPU and GPU draw on one memory: in an {chip.title} on "
        f"{_speed(chip)} together, where a {card.title} has {_speed(card)} beside the {_speed(host)} of {host.title}; "
        f"and of {fmt_bytes(ram)} ({title}) the GPU gets {fmt_bytes(share)}.",
        {
            "chips": len(chips),
            "with_own_memory": apart,
            "gpu_share_bytes": share,
            "ram_bytes": ram,
            "shared_bytes_per_s": chip.bandwidth_bytes_per_s,
        },
    )


def c090(bench: Bench) -> Finding:
    """What the GPU of an M2 may have of 16 GiB by default. Confirmed if that is all but 2 GiB for the system;
    misleading if it may have less, which is a border that the claim says is gone; wrong if it has a memory of its
    own."""
    title, share, ram = bench.part(OffloadBench).gpu_share("apple-m2", RAM_BYTES)
    own = next(chip for chip in _apple(bench) if chip.name == "apple-m2").vram_bytes is not None
    room = ram - SYSTEM_BYTES
    return Finding(
        "wrong" if own else "confirmed" if share >= room else "misleading",
        f"By default the GPU of an {title} may have {fmt_bytes(share)} of {fmt_bytes(ram)}, where {fmt_bytes(room)} "
        f"are left beside {fmt_bytes(SYSTEM_BYTES)} for the system.",
        {"gpu_share_bytes": share, "ram_bytes": ram, "left_bytes": room},
    )


def c129(bench: Bench) -> Finding:
    """Speed gained by moving all layers of Llama 2 7B Q4_K_M to each GPU of the catalogue, predicted from bandwidths: a
    graphics card beside DDR5-5600, the others in the memory they share; and on the device here, if there is one.
    Confirmed if each gives a factor of 2 or more, wrong if none does, else depends on machine."""
    n_layer = bench.header(SEVEN_B).n_layer
    none, half, whole = (bench.part(OffloadBench).split(SEVEN_B, n) for n in (0, (n_layer + 1) // 2, n_layer + 1))
    found = {one.name: one for one in bench.part(OffloadBench).hardware("discrete", "unified", "integrated")}
    catalogue = {name: _gain(none, whole, one) for name, one in found.items()}
    before, after = bench.part(OffloadBench).offloads("none", "all")
    here = min(before.decode_ms) / min(after.decode_ms) if before.decode_ms and after.decode_ms else None
    gains = [*catalogue.values(), *([here] if here else [])]
    much = sum(gain >= MUCH for gain in gains)
    best, least = (found[choose(catalogue, key=lambda name: catalogue[name])] for choose in (max, min))
    measured = f"; on {after.where} {after.model} ran ×{here:.2g} as fast" if here else ""
    return Finding(
        "confirmed" if much == len(gains) else "depends on machine" if much else "wrong",
        f"{much} of {len(gains)} devices make Llama 2 7B at least twice as fast, from ×{catalogue[least.name]:.2g} "
        f"({least.title}) to ×{catalogue[best.name]:.2g} ({best.title}), which with half of the layers gives "
        f"×{_gain(none, half, best):.2g}{measured}.",
        {
            "devices": len(gains),
            "much_faster": much,
            "least_gain": round(catalogue[least.name], 3),
            "best_gain": round(catalogue[best.name], 3),
            "best_gain_half": round(_gain(none, half, best), 3),
            **({"gain_here": round(here, 3)} if here else {}),
        },
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check for check in (c086, c087, c088, c089, c090, c129)
}


def _apple(bench: Bench) -> list[Hardware]:
    return [one for one in bench.part(OffloadBench).hardware("unified", "discrete") if one.name.startswith("apple")]


def _gain(before: Split, after: Split, device: Hardware) -> float:
    """How many times as fast a token is, at the full bandwidths."""
    own = device.kind == "discrete"
    host = (hardware.get(HOST) if own else device).bandwidth_bytes_per_s
    link = float(device.link_bytes_per_s or "inf")
    speeds = Speeds(host, device.bandwidth_bytes_per_s, link, HOP_MS if own else 0.0)
    return offload_ms(before, speeds) / offload_ms(after, speeds)


def _speed(device: Hardware) -> str:
    return f"{fmt_bytes(device.bandwidth_bytes_per_s)}/s"
