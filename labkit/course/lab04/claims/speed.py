"""The checks of the claims about what offloading gains, what crossing costs, and memory that CPU and GPU share."""

from __future__ import annotations

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.terms import LITTLE, MAPPED, RAM_BYTES, SEVEN_B, SYSTEM_BYTES, THIRTEEN_B
from labkit.course.lab04.bench import OffloadBench
from labkit.predict import hardware
from labkit.predict.hardware import Hardware
from labkit.predict.offload import Split
from labkit.predict.offload_speed import CROSSING_MS, Speeds, offload_ms
from labkit.system.machine import machine
from labkit.units import fmt_bytes

CLAIMED_GAIN, GAIN_POINTS = 0.31, 0.05
CLAIMED_CROSSING_MS = 5.0
MUCH = 2.0  # "much faster"
HOST = "ddr5-5600"  # the host memory of a graphics card where the claim names none


def c086(bench: Bench) -> Finding:
    """The same model in Q8_0 and Q4_K_M: the gain in tokens per second, and what the bytes alone would allow. Confirmed
    if the gain is 31 % within 5 points and the bytes allow that much within a tenth, so that they are the reason; wrong
    if the gain is less than a tenth; misleading if it is more than the bytes allow by a tenth; else roughly right."""
    offload, show = bench.part(OffloadBench), Figures()
    name = "smollm2-135m" if machine().profile == "tiny" else "llama-3.2-1b"
    names = [f"{name}:{quant}" for quant in ("Q8_0", "Q4_K_M")]
    before, after = offload.fastest_ms(*names, settings=MAPPED)
    read = [offload.split(model, 0).host.read_bytes for model in names]
    gain, allowed = before / after - 1, read[0] / read[1] - 1
    if gain < LITTLE:
        verdict = "wrong"
    elif (1 + gain) / (1 + allowed) > 1 + LITTLE:
        verdict = "misleading"
    else:
        by_bytes = (1 + gain) / (1 + allowed) >= 1 - LITTLE
        verdict = "confirmed" if abs(gain - CLAIMED_GAIN) <= GAIN_POINTS and by_bytes else "roughly right"
    show.keep(q8_0_ms=round(before, 3), q4_k_m_ms=round(after, 3))
    return show.finding(
        verdict,
        f"{name} generates up to {1000 / before:.1f} tokens/s in Q8_0 and {1000 / after:.1f} in Q4_K_M on 1 thread, "
        f"{show(gain_share=round(gain, 4)):+.0%}; the {fmt_bytes(read[0])} and {fmt_bytes(read[1])} that a token "
        f"reads would allow {show(allowed_share=round(allowed, 4)):+.0%}.",
    )


def c087(bench: Bench) -> Finding:
    """What one crossing costs a token of Llama 2 13B with half of its layers on a graphics card, on the slowest link of
    the catalogue: bytes over the link, the logits among them, and an assumed 0.02 ms of waiting. Confirmed if it is 5
    ms within a factor of 2, and there are as many crossings as layers on the card; wrong if it is below a tenth of
    that; else roughly right."""
    offload, show = bench.part(OffloadBench), Figures()
    header = bench.header(THIRTEEN_B)
    split = offload.split(THIRTEEN_B, (header.n_layer + 1) // 2, n_ctx=4096)
    slowest = min(offload.hardware("discrete"), key=lambda card: card.link_bytes_per_s or 0)
    link = slowest.link_bytes_per_s or 0
    ms = split.crossing_bytes / split.crossings / link * 1000 + CROSSING_MS
    if ms < LITTLE * CLAIMED_CROSSING_MS:
        verdict = "wrong"
    else:
        near = CLAIMED_CROSSING_MS / 2 <= ms <= CLAIMED_CROSSING_MS * 2
        verdict = "confirmed" if near and split.crossings >= split.n_gpu_layers else "roughly right"
    inside, layer = 4 * int(header.key("embedding_length")), split.devices[0].weights_bytes / split.n_gpu_layers
    return show.finding(
        verdict,
        f"A token of Llama 2 13B with {split.n_gpu_layers} layers on a card crosses {show(hops=split.crossings)} "
        f"times with {show(hop_bytes=split.crossing_bytes)}, of which {show(activation_bytes=inside)} go to the card: "
        f"{show(hop_ms=round(ms, 4)):.3f} ms for each crossing over {slowest.link} ({show(link_bytes_per_s=link)}) "
        f"with an assumed {CROSSING_MS} ms of waiting; in 5 ms {fmt_bytes(0.005 * link)} would cross, and a layer has "
        f"{show(layer_bytes=round(layer))} of weights.",
    )


def c088(bench: Bench) -> Finding:
    """The Apple chips of the catalogue. Confirmed if in all of them CPU and GPU have one memory and no link between
    them, wrong if in none, else misleading."""
    chips, show = _apple(bench), Figures()
    shared = sum(chip.kind == "unified" and chip.link_bytes_per_s is None for chip in chips)
    return show.finding(
        "confirmed" if shared == len(chips) else "misleading" if shared else "wrong",
        f"In {show(shared=shared)} of {show(chips=len(chips))} Apple chips in the catalogue, from {chips[0].title} to "
        f"{chips[-1].title}, CPU and GPU have one memory and no link between them.",
    )


def c089(bench: Bench) -> Finding:
    """Apart: the GPU has a memory of its own, and so a bandwidth of its own, in the Apple chips of the catalogue. Free:
    of 16 GiB that they share, it may have all but 2 GiB for the system. Confirmed if apart in all; misleading if apart
    in some, or in none but free; wrong if in none and not free, because both then use one bandwidth and one limited
    pool."""
    chips, show = _apple(bench), Figures()
    apart = sum(chip.vram_bytes is not None for chip in chips)
    title, share, ram = bench.part(OffloadBench).gpu_share()
    partly = "misleading" if apart or share >= ram - SYSTEM_BYTES else "wrong"
    chip, card, host = hardware.get("apple-m2"), hardware.get("rtx-4070"), hardware.get(HOST)
    show.keep(with_own_memory=apart)
    return show.finding(
        "confirmed" if apart == len(chips) else partly,
        f"In {len(chips) - apart} of {show(chips=len(chips))} Apple chips CPU and GPU use one memory: in an "
        f"{chip.title} with {show(shared_bytes_per_s=chip.bandwidth_bytes_per_s)} for both, where the {card.title} "
        f"has {fmt_bytes(card.bandwidth_bytes_per_s)}/s in addition to the {fmt_bytes(host.bandwidth_bytes_per_s)}/s "
        f"of {host.title}; and of {show(ram_bytes=ram)} ({title}) the GPU gets {show(gpu_share_bytes=share)}.",
    )


def c090(bench: Bench) -> Finding:
    """What the GPU of an M2 may have of 16 GiB by default. Confirmed if that is all but 2 GiB for the system;
    misleading if it may have less, which is a limit that the claim denies; wrong if it has a memory of its own."""
    title, share, ram = bench.part(OffloadBench).gpu_share("apple-m2", RAM_BYTES)
    own = next(chip for chip in _apple(bench) if chip.name == "apple-m2").vram_bytes is not None
    room, show = ram - SYSTEM_BYTES, Figures()
    return show.finding(
        "wrong" if own else "confirmed" if share >= room else "misleading",
        f"By default the GPU of an {title} may have {show(gpu_share_bytes=share)} of {show(ram_bytes=ram)}, where "
        f"{show(left_bytes=room)} are left if the system takes {fmt_bytes(SYSTEM_BYTES)}.",
    )


def c129(bench: Bench) -> Finding:
    """Speed gained by moving all layers of Llama 2 7B Q4_K_M to each GPU of the catalogue, predicted from bandwidths: a
    graphics card in a computer with DDR5-5600, the others in the memory they share; and on the device here, if there is
    one. Confirmed if each gives a factor of 2 or more, wrong if none does, else depends on machine."""
    offload, show = bench.part(OffloadBench), Figures()
    n_layer = bench.header(SEVEN_B).n_layer
    none, half, whole = (offload.split(SEVEN_B, asked) for asked in (0, (n_layer + 1) // 2, n_layer + 1))
    found = {one.name: one for one in offload.hardware("discrete", "unified", "integrated")}
    catalogue = {name: _gain(none, whole, one) for name, one in found.items()}
    before, after = offload.offloads("none", "all")
    here = min(before.decode_ms) / min(after.decode_ms) if before.decode_ms and after.decode_ms else None
    gains = [*catalogue.values(), *([here] if here else [])]
    much = sum(gain >= MUCH for gain in gains)
    best, least = (found[choose(catalogue, key=lambda name: catalogue[name])] for choose in (max, min))
    best_half = show(best_gain_half=round(_gain(none, half, best), 3))
    measured = f"; on {after.where} {after.model} ran ×{show(gain_here=round(here, 3)):.2g} as fast" if here else ""
    return show.finding(
        "confirmed" if much == len(gains) else "depends on machine" if much else "wrong",
        f"{show(much_faster=much)} of {show(devices=len(gains))} devices make Llama 2 7B at least twice as fast, from "
        f"×{show(least_gain=round(catalogue[least.name], 3)):.2g} ({least.title}) to "
        f"×{show(best_gain=round(catalogue[best.name], 3)):.2g} ({best.title}, ×{best_half:.2g} with half of the "
        f"layers){measured}.",
    )


def _apple(bench: Bench) -> list[Hardware]:
    """The Apple chips of the catalogue."""
    return [one for one in bench.part(OffloadBench).hardware("unified", "discrete") if one.name.startswith("apple")]


def _gain(before: Split, after: Split, device: Hardware) -> float:
    """How many times as fast a token is, at the full bandwidths."""
    own = device.kind == "discrete"
    host = (hardware.get(HOST) if own else device).bandwidth_bytes_per_s
    link = float(device.link_bytes_per_s or "inf")
    speeds = Speeds(host, device.bandwidth_bytes_per_s, link, CROSSING_MS if own else 0.0)
    return offload_ms(before, speeds) / offload_ms(after, speeds)
