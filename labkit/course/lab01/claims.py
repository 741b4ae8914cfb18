"""The checks of the claim ledger: each computes a verdict from figures, by the rule in its docstring.

A check asks a ``Bench`` for what it needs, and comes to another verdict where the machine behaves differently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import quantiles

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.ledger import Figure
from labkit.course.claims.phases import at, grown, read_share
from labkit.course.claims.terms import BUNDLED, IDLE, LITTLE, MAPPED, MOST, RAM_BYTES, SEVEN_B, SYSTEM_BYTES
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab01.bench import ONE_B, REAL_BYTES, PagingBench
from labkit.experiments.run import Run
from labkit.settings import Settings
from labkit.system.mapping import Touch
from labkit.units import GiB, MiB, fmt_bytes, fmt_ms

TOP_32_BIT_BYTES = 3 * GiB  # the most that a 32-bit program usually has for itself
DEFAULT, COPIED = Settings(), Settings(repack=False, load_mode="none")


def c001(bench: Bench) -> Finding:
    """Loading with mmap and without, repack off. Mapped: llama.cpp reports a mapping of at least 90 % of the weights.
    Copied: anonymous memory grows by more than 25 % of them. Confirmed if mapped and not copied, misleading if both,
    wrong if only copied, else roughly right. Without mmap 90 % must show as anonymous, or nothing can be told."""
    model = bench.part(PagingBench).choose(MAPPED, COPIED, among=(ONE_B, SEVEN_B, BUNDLED))
    run, other = bench.run(model, MAPPED), bench.run(model, COPIED)
    weights, span = run.predicted.weights_bytes, run.buffer_bytes(kind="model", device="CPU_Mapped")
    file, anon = grown(run, "rss_file_bytes", "start", "load"), grown(run, "rss_anon_bytes", "start", "load")
    control = grown(other, "rss_anon_bytes", "start", "load")
    if control < MOST * weights:
        raise Unsettled(f"without mmap only {fmt_bytes(control)} of {fmt_bytes(weights)} show as anonymous memory")
    mapped, copied = span >= MOST * weights, anon > 0.25 * weights
    return Finding(
        {(1, 0): "confirmed", (1, 1): "misleading", (0, 1): "wrong", (0, 0): "roughly right"}[mapped, copied],
        f"Of {model}'s {fmt_bytes(weights)}, llama.cpp mapped {fmt_bytes(span)}: loading added {fmt_bytes(file)} of "
        f"file-backed and {fmt_bytes(anon)} of anonymous memory, and without mmap {fmt_bytes(control)} of anonymous.",
        {
            "weights_bytes": weights,
            "mapped_bytes": span,
            "mmap_file_bytes": file,
            "mmap_anon_bytes": anon,
            "none_anon_bytes": control,
        },
    )


def c002(bench: Bench) -> Finding:
    """The share of the mapped file that is resident after loading, before any token. Confirmed if it is under half:
    pages wait to be needed. Roughly right under 90 %. Misleading from there on: all come at once, though as pages of
    the file. Wrong if they are not even that, but a copy in anonymous memory."""
    model = bench.part(PagingBench).choose(MAPPED)
    run = bench.run(model, MAPPED)
    mapped, file = run.predicted.mapped_bytes, grown(run, "rss_file_bytes", "start", "load")
    share, needed = file / mapped, _needed_share(bench, model)
    if grown(run, "rss_anon_bytes", "start", "load") >= MOST * run.predicted.weights_bytes:
        verdict = "wrong"
    else:
        verdict = "confirmed" if share < 0.5 else "roughly right" if share < MOST else "misleading"
    f16, q4 = (bench.header(f"llama-2-13b:{quant}").tensor_bytes for quant in ("F16", "Q4_K_M"))
    return Finding(
        verdict,
        f"Right after loading {model}, before any token, {min(share, 1):.0%} of its {fmt_bytes(mapped)} were resident, "
        f"and each token reads {needed:.0%}; a 13B takes {fmt_bytes(f16)} in F16 and {fmt_bytes(q4)} in Q4_K_M.",
        {
            "mapped_bytes": mapped,
            "resident_after_load_bytes": file,
            "needed_share": round(needed, 3),
            "f16_13b_bytes": f16,
            "q4_k_m_13b_bytes": q4,
        },
    )


def c003(bench: Bench) -> Finding:
    """Shares of the mapped file: resident before the first token, resident after the last, and read for each token.
    Confirmed if residency was under 90 % at first and ended within 10 points of what a token reads. With everything
    resident all along: misleading if a token reads 90 % or more anyway, wrong if it reads less. Else roughly right."""
    model = bench.part(PagingBench).choose(MAPPED)
    run = bench.run(model, MAPPED)
    mapped, needed = run.predicted.mapped_bytes, _needed_share(bench, model)
    before, after = (grown(run, "rss_file_bytes", "start", until) / mapped for until in ("load", "decode"))
    if before >= MOST and after >= MOST:
        verdict = "misleading" if needed >= MOST else "wrong"
    else:
        verdict = "confirmed" if before < MOST and abs(after - needed) <= LITTLE else "roughly right"
    return Finding(
        verdict,
        f"Of {model}'s {fmt_bytes(mapped)}, {min(before, 1):.0%} were resident before the first token and "
        f"{min(after, 1):.0%} after the last, and each token reads {needed:.0%}.",
        {
            "mapped_bytes": mapped,
            "resident_before_share": round(before, 3),
            "resident_after_share": round(after, 3),
            "needed_share": round(needed, 3),
        },
    )


def c004(bench: Bench) -> Finding:
    """Pages of a mapped file touched cold, without reading ahead, and warm. Confirmed if at least 90 % of the cold
    touches were major faults that read at least 90 % of those bytes from the disk, and warm ones next to none; wrong if
    cold touches raised next to no major fault; else roughly right."""
    alone, cold, warm = (
        bench.part(PagingBench).storage().alone,
        bench.part(PagingBench).storage().cold,
        bench.part(PagingBench).storage().warm,
    )
    faults, read = _count(alone, "major_faults"), _count(alone, "read_bytes")
    again = max(_count(warm, "major_faults") / warm.pages, _count(warm, "read_bytes") / warm.nbytes)
    if faults >= MOST * alone.pages and read >= MOST * alone.nbytes and again <= IDLE:
        verdict = "confirmed"
    else:
        verdict = "wrong" if faults <= LITTLE * alone.pages else "roughly right"
    return Finding(
        verdict,
        f"Touching {alone.pages:,} cold pages without reading ahead raised {faults:,} major faults and read "
        f"{fmt_bytes(read)} from disk; with it, {cold.pages:,} pages took {cold.major_faults:,} major and "
        f"{cold.minor_faults:,} minor faults, and in memory {warm.major_faults:,} and {warm.minor_faults:,}.",
        {
            "cold_pages": alone.pages,
            "cold_major_faults": faults,
            "cold_read_bytes": read,
            "pages": cold.pages,
            "readahead_major_faults": _count(cold, "major_faults"),
            "readahead_minor_faults": _count(cold, "minor_faults"),
            "warm_major_faults": _count(warm, "major_faults"),
            "warm_minor_faults": _count(warm, "minor_faults"),
        },
    )


def c005(bench: Bench) -> Finding:
    """File-backed memory at the end of loading and at the end of decoding. Confirmed if at least 10 % of the mapping
    was given back in between, misleading if at most 1 %, else roughly right."""
    run = bench.run(bench.part(PagingBench).choose(MAPPED, among=REAL_BYTES), MAPPED)
    released = max(0, -grown(run, "rss_file_bytes", "load", "decode"))
    share = released / run.predicted.mapped_bytes
    file, trimmed = run.model.file_bytes, run.model.file_bytes - run.predicted.mapped_bytes
    return Finding(
        "confirmed" if share >= LITTLE else "misleading" if share <= 0.01 else "roughly right",
        f"Of {run.model.name}'s {fmt_bytes(file)}, {fmt_bytes(trimmed)} at the ends are unmapped when loading ends "
        f"(predicted), and {fmt_bytes(released)} of the rest was given back over {_decoded(run)}.",
        {"file_bytes": file, "trimmed_bytes": trimmed, "released_bytes": released},
    )


def c006(bench: Bench) -> Finding:
    """A mapped model under a cap of 70 % of what it needs: a 30B Q4_K_M in 16 GB, in small. Wrong if it is killed. If
    it lives: confirmed if each token reads under 10 % of the weights again; misleading if half or more and each token
    takes at least twice as long; else roughly right. The quickest tokens are compared: other work only adds to them."""
    free, capped = bench.part(PagingBench).capped(share=0.7, least=0.62, most=0.78)
    need, cap = free.predicted.mapped_bytes + free.predicted.rss_anon_bytes, capped.cap_bytes or 0
    figures: dict[str, Figure] = {"needed_bytes": need, "cap_bytes": cap, "outcome": capped.outcome}
    setting = f"With {fmt_bytes(cap)} of the {fmt_bytes(need)} it needs, {capped.model.name}"
    if capped.outcome == "oom-killed":
        return Finding("wrong", f"{setting} was killed.", figures)
    share, slow, fast = read_share(capped), min(capped.timings.decode_ms), min(free.timings.decode_ms)
    if share < LITTLE:
        verdict = "confirmed"
    elif share >= 0.5 and slow >= 2 * fast:
        verdict = "misleading"
    elif share >= 0.5 and max(free.timings.decode_ms) >= 2 * fast:
        raise Unsettled("the times are too noisy; try again when this computer has less to do")
    else:
        verdict = "roughly right"
    return Finding(
        verdict,
        f"{setting} ran, read {share:.0%} of its weights from disk for each token, and took {fmt_ms(slow)} per token "
        f"instead of {fmt_ms(fast)}.",
        figures | {"read_share_per_token": round(share, 3), "capped_ms": slow, "free_ms": fast},
    )


def c007(bench: Bench) -> Finding:
    """File-backed memory added by loading a real model, beside its header and its file. Wrong if it is at least 90 % of
    the file, confirmed if it is no more than the header and 10 MiB and no more than half the file, else misleading."""
    run = bench.run(bench.part(PagingBench).choose(MAPPED, among=REAL_BYTES), MAPPED)
    header, file = bench.header(run.model.name).header_bytes, run.model.file_bytes
    mapped = grown(run, "rss_file_bytes", "start", "load")
    if mapped >= MOST * file:
        verdict = "wrong"
    else:
        verdict = "confirmed" if mapped <= min(header + 10 * MiB, file / 2) else "misleading"
    return Finding(
        verdict,
        f"Loading {run.model.name} brought {fmt_bytes(mapped)} of its {fmt_bytes(file)} into its mapping; the header "
        f"is {fmt_bytes(header)}.",
        {"file_bytes": file, "header_bytes": header, "mapped_bytes": mapped},
    )


def c008(bench: Bench) -> Finding:
    """Memory resident after a default load, scaled to the file of a 7B Q4_K_M where a smaller model ran. Confirmed
    within 25 % of 1.8 GB, wrong from 1.5 times away, else roughly right."""
    run, claimed = bench.run(bench.part(PagingBench).choose(), DEFAULT, upto="load"), 1.8e9
    file, anon = (_as_7b(bench, run, kind, at(run, "load", kind)) for kind in ("rss_file_bytes", "rss_anon_bytes"))
    return Finding(
        _nearness((file + anon) / claimed),
        f"Right after a default load of {_scaled(run)}, {fmt_bytes(file)} file-backed and {fmt_bytes(anon)} anonymous "
        f"were resident, where the claim says {fmt_bytes(claimed)}.",
        {"rss_file_bytes": file, "rss_anon_bytes": anon, "claimed_bytes": round(claimed)},
    )


def c009(bench: Bench) -> Finding:
    """Peak memory after a default load, scaled as above, against 13.2 GB; and whether at most 10 % of the file is
    resident after it, as "only headers" says. Confirmed if the peak is within 25 % and the reason holds, misleading if
    one of the two does, else wrong. The seconds depend on the machine and decide nothing."""
    run, claimed = bench.run(bench.part(PagingBench).choose(), DEFAULT, upto="load"), 13.2e9
    if run.measured is None or run.measured.peak_rss_bytes is None:
        raise Unsettled("this system does not tell the peak of a process")
    peak = _as_7b(bench, run, "rss", run.measured.peak_rss_bytes)
    share = max(0, grown(run, "rss_file_bytes", "start", "load")) / run.model.file_bytes
    holds = (_nearness(peak / claimed) == "confirmed") + (share <= LITTLE)
    load_s = run.timings.load_s or 0.0
    return Finding(
        ("wrong", "misleading", "confirmed")[holds],
        f"A default load of {_scaled(run)} took {load_s:.1f} s, with {min(share, 1):.0%} of the file resident after it "
        f"and a peak of {fmt_bytes(peak)}, where the claim says {fmt_bytes(claimed)} and headers only.",
        {
            "peak_bytes": peak,
            "claimed_bytes": round(claimed),
            "resident_share": round(share, 3),
            "load_s": round(load_s, 2),
        },
    )


def c010(bench: Bench) -> Finding:
    """Anonymous memory added by making the context and by generating. Wrong if at least 90 % of the KV cache was there
    before the first token and generating added at most a quarter of what a cache that grows with the text would;
    confirmed if generating added at least half of that; else roughly right."""
    model = bench.part(PagingBench).choose(MAPPED)
    per_token = predict.kv_bytes(bench.header(model), MAPPED) // MAPPED.n_ctx
    # The kernel's counters may be off by about 1 MiB, so a growing cache would have to add four.
    run = bench.run(model, MAPPED, tokens=-(-4 * MiB // per_token))
    kv, n = run.predicted.kv_bytes, len(run.timings.decode_ms)
    at_once = grown(run, "rss_anon_bytes", "load", "context")
    added = max(0, grown(run, "rss_anon_bytes", "prefill", "decode"))
    if at_once >= MOST * kv and added <= 0.25 * per_token * n:
        verdict = "wrong"
    else:
        verdict = "confirmed" if added >= 0.5 * per_token * n else "roughly right"
    return Finding(
        verdict,
        f"Making {model}'s context added {fmt_bytes(at_once)}, of it the whole KV cache for {run.settings.n_ctx} "
        f"tokens ({fmt_bytes(kv)}), and generating {_decoded(run)} added {fmt_bytes(added)}; a cache that grew with "
        f"the text would have added {fmt_bytes(per_token * n)}.",
        {"kv_bytes": kv, "context_bytes": at_once, "decode_bytes": added, "if_growing_bytes": per_token * n},
    )


def c011(bench: Bench) -> Finding:
    """Milliseconds per token without mmap over those with it, repack off, as the range between quartiles. Wrong if all
    of it is below 1.4 (half way from no gain to 1.8), confirmed if none of it is; else the times are too noisy."""
    model = bench.part(PagingBench).choose(MAPPED, COPIED, among=(ONE_B, SEVEN_B, BUNDLED), tokens=8)
    run = bench.run(model, MAPPED, tokens=8)
    other = bench.run(model, COPIED, tokens=8, like=run)
    (a1, a2, a3), (b1, b2, b3) = (quantiles(r.timings.decode_ms, n=4) for r in (run, other))
    low, high = b1 / a3, b3 / a1
    if low < 1.4 <= high:
        raise Unsettled(f"the times are too noisy: without mmap a token takes {low:.2f} to {high:.2f} times as long")
    load_s, other_load_s = run.timings.load_s or 0.0, other.timings.load_s or 0.0
    return Finding(
        "wrong" if high < 1.4 else "confirmed",
        f"A token of {model} takes {fmt_ms(a2)} with mmap and {fmt_ms(b2)} without, {b2 / a2:.2f} times as long where "
        f"the claim says 1.8; loading takes {fmt_ms(1000 * load_s)} and {fmt_ms(1000 * other_load_s)}.",
        {
            "mmap_ms": a2,
            "none_ms": b2,
            "gain_low": round(low, 2),
            "gain_high": round(high, 2),
            "mmap_load_s": round(load_s, 3),
            "none_load_s": round(other_load_s, 3),
        },
    )


def c012(bench: Bench) -> Finding:
    """Costly: a page that waits for the disk takes at least ten times as long as one in memory. Idle: under 1 % of the
    weights are read from disk per token while a model that fits decodes. Roughly right if both, since the drive is then
    not essential; confirmed if costly and not idle; depends on machine if idle and not costly; wrong if neither."""
    seen, run = (
        bench.part(PagingBench).storage(),
        bench.run(bench.part(PagingBench).choose(MAPPED, among=REAL_BYTES), MAPPED),
    )
    share, faults = read_share(run), grown(run, "major_faults", "prefill", "decode")
    cold_ms, warm_ms = seen.alone.ms / seen.alone.pages, seen.warm.ms / seen.warm.pages
    costly, idle = cold_ms >= 10 * warm_ms, share <= IDLE
    return Finding(
        {(1, 1): "roughly right", (1, 0): "confirmed", (0, 1): "depends on machine", (0, 0): "wrong"}[costly, idle],
        f"A page waits {1000 * cold_ms:.0f} µs for this disk and {1000 * warm_ms:.2f} µs for memory, but "
        f"{run.model.name}, which fits, read {share:.1%} of its weights from disk per token, with {faults:,} major "
        f"faults over {_decoded(run)}.",
        {
            "cold_page_ms": cold_ms,
            "warm_page_ms": warm_ms,
            "read_share_per_token": round(share, 4),
            "decode_major_faults": faults,
        },
    )


def c013(bench: Bench) -> Finding:
    """Near: this drive reads within 30 % of 1.2 GB/s or of 250 MB/s. Busy: at least 1 % of the weights are read from
    disk per token while a model that fits decodes. Confirmed if both, roughly right if busy only. If the disk is idle,
    drive and memory decide together: depends on machine."""
    rate = bench.part(PagingBench).storage().disk.cold_bytes_per_s
    if rate is None:
        raise Unsettled(f"the disk could not be measured: {bench.part(PagingBench).storage().disk.reason}")
    run = bench.run(bench.part(PagingBench).choose(MAPPED, among=REAL_BYTES), MAPPED)
    share, weights = read_share(run), bench.header("llama-2-13b:Q4_K_M").tensor_bytes
    near = any(abs(rate / claimed - 1) <= 0.3 for claimed in (1.2e9, 250e6))
    return Finding(
        "depends on machine" if share < IDLE else "confirmed" if near else "roughly right",
        f"This drive reads {fmt_bytes(rate)}/s; {run.model.name}, which fits, read {share:.1%} of its weights from "
        f"disk per token, but a 13B Q4_K_M that does not fit would wait up to {fmt_ms(weights / rate * 1000)}.",
        {"disk_bytes_per_s": round(rate), "read_share_per_token": round(share, 4), "q4_k_m_13b_bytes": weights},
    )


def c014(bench: Bench) -> Finding:
    """Fits: a 13B Q4_K_M with 4096 tokens of f16 cache needs no more than 16 GiB less 2 GiB for the system (predicted).
    Idle: under 1 % of the weights are read from disk per token while a model that fits decodes. Misleading if both,
    confirmed if neither, else roughly right."""
    need = _needed_13b(bench, load_mode="mmap", kv="f16")
    run = bench.run(bench.part(PagingBench).choose(MAPPED, among=REAL_BYTES), MAPPED)
    share, model = read_share(run), bench.part(PagingBench).choose(MAPPED)
    ms = min(bench.run(model, MAPPED).timings.decode_ms)
    rate = predict.bytes_per_token(bench.header(model), Settings()) / ms * 1000
    per_token = predict.bytes_per_token(bench.header("llama-2-13b:Q4_K_M"), Settings())
    fits, idle = need <= RAM_BYTES - SYSTEM_BYTES, share <= IDLE
    return Finding(
        "misleading" if fits and idle else "roughly right" if fits or idle else "confirmed",
        f"A 13B Q4_K_M needs {fmt_bytes(need)} at 4096 tokens; {run.model.name}, which fits, read {share:.1%} of its "
        f"weights from disk per token, and {model} takes its from memory at {fmt_bytes(rate)}/s, which for a 13B is "
        f"{fmt_ms(per_token / rate * 1000)} per token.",
        {
            "needed_13b_bytes": need,
            "read_share_per_token": round(share, 4),
            "memory_bytes_per_s": round(rate),
            "bytes_per_token_13b": per_token,
        },
    )


def c015(bench: Bench) -> Finding:
    """The conclusion holds if a 7B Q4_K_M is larger than the 3 GiB that a 32-bit program has at most. The reason, a
    limit of mmap, holds if this 64-bit process cannot map that file either. Confirmed if both hold, roughly right if
    only the conclusion does, misleading if only the reason does, else wrong."""
    if sys.maxsize <= 2**32:
        raise Unsettled("this Python is itself a 32-bit program, so mmap cannot be told from its address space")
    file, maps = bench.header(SEVEN_B).file_bytes, bench.can_map(SEVEN_B)
    too_large = file > TOP_32_BIT_BYTES
    return Finding(
        {(1, 0): "confirmed", (1, 1): "roughly right", (0, 0): "misleading", (0, 1): "wrong"}[too_large, maps],
        f"A 7B Q4_K_M is {fmt_bytes(file)} and a 32-bit program has at most {fmt_bytes(TOP_32_BIT_BYTES)} of "
        f"addresses, but this 64-bit process {'maps' if maps else 'cannot map'} that file in one piece.",
        {"file_bytes": file, "maps_whole_file": "yes" if maps else "no"},
    )


def c016(bench: Bench) -> Finding:
    """What a 13B Q4_K_M needs at 4096 tokens without the 8-bit cache, and without mmap, against 16 GiB less 2 GiB for
    the system (predicted); and whether llama.cpp's libraries mention the third piece. Wrong if none of the three is
    needed, confirmed if all are, else misleading."""
    f16 = _needed_13b(bench, load_mode="mmap", kv="f16")
    copied = _needed_13b(bench, load_mode="none", kv="q8_0")
    paged = bench.in_libraries(b"paged")
    required = sum(size > RAM_BYTES - SYSTEM_BYTES for size in (f16, copied)) + paged
    return Finding(
        "wrong" if required == 0 else "confirmed" if required == 3 else "misleading",
        f"At 4096 tokens a 13B Q4_K_M needs {fmt_bytes(f16)} without the 8-bit cache and {fmt_bytes(copied)} "
        f'without mmap; "paged" occurs {"" if paged else "nowhere "}in llama.cpp\'s libraries.',
        {"f16_cache_bytes": f16, "no_mmap_bytes": copied, "paged_attention": "yes" if paged else "no"},
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check
    for check in (c001, c002, c003, c004, c005, c006, c007, c008, c009, c010, c011, c012, c013, c014, c015, c016)
}


def _count(touch: Touch, kind: str) -> int:
    value: int | None = getattr(touch, kind)
    if value is None:
        raise Unsettled(f"this system does not tell {kind.replace('_', ' ')} of a process")
    return value


def _decoded(run: Run) -> str:
    n = len(run.timings.decode_ms)
    return f"{n} token{'' if n == 1 else 's'}"


def _needed_share(bench: Bench, model: str) -> float:
    """The share of a model's weights that each token reads."""
    header = bench.header(model)
    return predict.bytes_per_token(header, Settings()) / header.tensor_bytes


def _needed_13b(bench: Bench, *, load_mode: str, kv: str) -> int:
    """Memory that a Llama 2 13B Q4_K_M needs at 4096 tokens, repack off."""
    settings = Settings(load_mode=load_mode, repack=False, n_ctx=4096, type_k=kv, type_v=kv)
    need = predict.memory(bench.header("llama-2-13b:Q4_K_M"), settings, cpu_features=())
    return need.mapped_bytes + need.anon_floor_bytes


def _as_7b(bench: Bench, run: Run, kind: str, value: int) -> int:
    """What a resident size would be for a 7B Q4_K_M: what the model added to the process, in proportion to its file."""
    base = at(run, "start", kind)
    return round(base + (value - base) * bench.header(SEVEN_B).file_bytes / run.model.file_bytes)


def _scaled(run: Run) -> str:
    return run.model.name if run.model.name == SEVEN_B else f"{run.model.name} (scaled to a 7B)"


def _nearness(ratio: float) -> str:
    """A figure over the one claimed: confirmed within 25 %, wrong from 1.5 times away."""
    if 1 / 1.25 <= ratio <= 1.25:
        return "confirmed"
    return "wrong" if ratio >= 1.5 or ratio <= 1 / 1.5 else "roughly right"
