"""The checks of the claims about what loading and generating bring into memory."""

from __future__ import annotations

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding, sentence
from labkit.course.claims.growth import Growth
from labkit.course.claims.phases import at, grown
from labkit.course.claims.terms import LITTLE, MAPPED, MOST, SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab01.bench import COPIED, ONE_B_FIRST, REAL_BYTES, PagingBench, tokens_of
from labkit.experiments.run import Run
from labkit.settings import Settings
from labkit.units import MiB, fmt_bytes

DEFAULT = Settings()


def c001(bench: Bench) -> Finding:
    """A model is loaded with mmap and without, repack off. Mapped: llama.cpp reports a mapping of at least 90 % of the
    weights. Copied: anonymous memory grows by more than 25 % of them. Confirmed if mapped and not copied, misleading if
    both, wrong if only copied, else roughly right. Not settled where the load without mmap adds less than 90 % of the
    weights to anonymous memory, because a copy would not show there."""
    model = bench.part(PagingBench).choose(MAPPED, COPIED, among=ONE_B_FIRST)
    run, other = bench.run(model, MAPPED), bench.run(model, COPIED)
    weights, span = run.predicted.weights_bytes, run.buffer_bytes(kind="model", device="CPU_Mapped")
    file, anon = (grown(run, kind, "start", "load") for kind in ("rss_file_bytes", "rss_anon_bytes"))
    without = grown(other, "rss_anon_bytes", "start", "load")
    if without < MOST * weights:
        raise Unsettled(f"without mmap only {fmt_bytes(without)} of {fmt_bytes(weights)} show as anonymous memory")
    mapped, copied = span >= MOST * weights, anon > 0.25 * weights
    show = Figures()
    return show.finding(
        {(1, 0): "confirmed", (1, 1): "misleading", (0, 1): "wrong", (0, 0): "roughly right"}[mapped, copied],
        f"Of {model}'s {show(weights_bytes=weights)}, llama.cpp mapped {show(mapped_bytes=span)}: loading added "
        f"{show(mmap_file_bytes=file)} of file-backed and {show(mmap_anon_bytes=anon)} of anonymous memory, and "
        f"without mmap {show(none_anon_bytes=without)} of anonymous memory.",
    )


def c002(bench: Bench) -> Finding:
    """The share of the mapped file that is resident after loading, before any token. Confirmed if it is under half, so
    that pages are read when they are needed; roughly right under 90 %. From 90 % on the whole model is in memory at
    once: misleading if as pages of the file, wrong if as a copy in anonymous memory."""
    model = bench.part(PagingBench).choose(MAPPED)
    run = bench.run(model, MAPPED)
    mapped, file = run.predicted.mapped_bytes, grown(run, "rss_file_bytes", "start", "load")
    share = file / mapped
    if grown(run, "rss_anon_bytes", "start", "load") >= MOST * run.predicted.weights_bytes:
        verdict = "wrong"
    else:
        verdict = "confirmed" if share < 0.5 else "roughly right" if share < MOST else "misleading"
    f16, q4 = (bench.header(f"llama-2-13b:{quant}").tensor_bytes for quant in ("F16", "Q4_K_M"))
    show = Figures()
    show.keep(resident_after_load_bytes=file)
    return show.finding(
        verdict,
        f"Right after loading {model}, before any token, {min(share, 1):.0%} of its {show(mapped_bytes=mapped)} were "
        f"resident, and each token reads {show(needed_share=round(_needed_share(bench, model), 3))}; a 13B takes "
        f"{show(f16_13b_bytes=f16)} in F16 and {show(q4_k_m_13b_bytes=q4)} in Q4_K_M.",
    )


def c003(bench: Bench) -> Finding:
    """Shares of the mapped file: resident before the first token, resident after the last, and read for each token.
    Confirmed if less than 90 % was resident at first, and at the end what a token reads, within 10 points. With 90 % or
    more resident at both times: misleading if a token reads 90 % or more anyway, wrong if it reads less. Else roughly
    right."""
    model = bench.part(PagingBench).choose(MAPPED)
    run = bench.run(model, MAPPED)
    mapped, needed = run.predicted.mapped_bytes, _needed_share(bench, model)
    before, after = (grown(run, "rss_file_bytes", "start", until) / mapped for until in ("load", "decode"))
    if before >= MOST and after >= MOST:
        verdict = "misleading" if needed >= MOST else "wrong"
    else:
        verdict = "confirmed" if before < MOST and abs(after - needed) <= LITTLE else "roughly right"
    show = Figures()
    show.keep(resident_before_share=round(before, 3), resident_after_share=round(after, 3))
    return show.finding(
        verdict,
        f"Of {model}'s {show(mapped_bytes=mapped)}, {min(before, 1):.0%} were resident before the first token and "
        f"{min(after, 1):.0%} after the last, and each token reads {show(needed_share=round(needed, 3))}.",
    )


def c005(bench: Bench) -> Finding:
    """File-backed memory at the end of loading and at the end of decoding. Confirmed if llama.cpp gave back at least 10
    % of the mapping in between, misleading if at most 1 %, else roughly right."""
    run = bench.run(bench.part(PagingBench).choose(MAPPED, among=REAL_BYTES), MAPPED)
    released = max(0, -grown(run, "rss_file_bytes", "load", "decode"))
    share = released / run.predicted.mapped_bytes
    show, trimmed = Figures(), run.model.file_bytes - run.predicted.mapped_bytes
    return show.finding(
        "confirmed" if share >= LITTLE else "misleading" if share <= 0.01 else "roughly right",
        f"Of {run.model.name}'s {show(file_bytes=run.model.file_bytes)}, {show(trimmed_bytes=trimmed)} at the ends "
        f"are unmapped when loading ends (predicted), and {show(released_bytes=released)} of the rest was given back "
        f"while {tokens_of(run)} were generated.",
    )


def c007(bench: Bench) -> Finding:
    """File-backed memory that loading a real model adds, compared with its header and its file. Wrong if it is at least
    90 % of the file; confirmed if it is no more than the header and 10 MiB, and no more than half the file; else
    misleading."""
    run = bench.run(bench.part(PagingBench).choose(MAPPED, among=REAL_BYTES), MAPPED)
    header, file = bench.header(run.model.name).header_bytes, run.model.file_bytes
    mapped = grown(run, "rss_file_bytes", "start", "load")
    if mapped >= MOST * file:
        verdict = "wrong"
    else:
        verdict = "confirmed" if mapped <= min(header + 10 * MiB, file / 2) else "misleading"
    show = Figures()
    return show.finding(
        verdict,
        f"Loading {run.model.name}, a file of {show(file_bytes=file)}, added {show(mapped_bytes=mapped)} of "
        f"file-backed memory; the header is {show(header_bytes=header)}.",
    )


def c008(bench: Bench) -> Finding:
    """Memory that is resident after a default load, scaled to the file of a 7B Q4_K_M where a smaller model ran.
    Confirmed within 25 % of 1.8 GB, wrong from 1.5 times away, else roughly right."""
    run, claimed = bench.run(bench.part(PagingBench).choose(), DEFAULT, upto="load"), 1.8e9
    file, anon = (_as_7b(bench, run, kind, at(run, "load", kind)) for kind in ("rss_file_bytes", "rss_anon_bytes"))
    show = Figures()
    return show.finding(
        _nearness((file + anon) / claimed),
        f"Right after a default load of {_scaled(run)}, {show(rss_file_bytes=file)} file-backed and "
        f"{show(rss_anon_bytes=anon)} anonymous were resident, where the claim says "
        f"{show(claimed_bytes=round(claimed))}.",
    )


def c009(bench: Bench) -> Finding:
    """Peak memory of a default load, scaled to a 7B Q4_K_M where a smaller model ran, against 13.2 GB; and whether at
    most 10 % of the file is resident after it, as "only headers" says. Confirmed if the peak is within 25 % and the
    reason holds, misleading if one of the two does, else wrong. The seconds depend on the machine and decide
    nothing."""
    run, claimed = bench.run(bench.part(PagingBench).choose(), DEFAULT, upto="load"), 13.2e9
    if run.measured is None or run.measured.peak_rss_bytes is None:
        raise Unsettled("this system does not give the peak of a process's memory")
    peak = _as_7b(bench, run, "rss", run.measured.peak_rss_bytes)
    share = max(0, grown(run, "rss_file_bytes", "start", "load")) / run.model.file_bytes
    holds = (_nearness(peak / claimed) == "confirmed") + (share <= LITTLE)
    show = Figures()
    show.keep(resident_share=round(share, 3))
    return show.finding(
        ("wrong", "misleading", "confirmed")[holds],
        f"A default load of {_scaled(run)} took {show(load_s=round(run.timings.load_s or 0.0, 2)):.1f} s, with "
        f"{min(share, 1):.0%} of the file resident after it and a peak of {show(peak_bytes=peak)}, where the claim "
        f"says {show(claimed_bytes=round(claimed))} and headers only.",
    )


def c010(bench: Bench) -> Finding:
    """Anonymous memory that making the context and generating add. Wrong if at least 90 % of the KV cache was there
    before the first token, and generating added at most a quarter of what a cache that grows with the text would add;
    confirmed if generating added at least half of that; else roughly right."""
    model = bench.part(PagingBench).choose(MAPPED)
    per_token = predict.kv_bytes(bench.header(model), MAPPED) // MAPPED.n_ctx
    # The kernel's counters may be off by about 1 MiB, so a growing cache would have to add four.
    run = bench.run(model, MAPPED, tokens=-(-4 * MiB // per_token))
    growth, show = Growth.of(run), Figures()
    made = growth.at_once and growth.added_share <= 0.25
    return show.finding(
        "confirmed" if growth.added_share >= 0.5 else "wrong" if made else "roughly right",
        f"{sentence(growth.told(show))}.",
    )


def _needed_share(bench: Bench, model: str) -> float:
    """The share of a model's weights that each token reads."""
    header = bench.header(model)
    return predict.bytes_per_token(header, DEFAULT) / header.tensor_bytes


def _as_7b(bench: Bench, run: Run, kind: str, value: int) -> int:
    """What a resident size would be for a 7B Q4_K_M: what the model added to the process, in proportion to its file."""
    base = at(run, "start", kind)
    return round(base + (value - base) * bench.header(SEVEN_B).file_bytes / run.model.file_bytes)


def _scaled(run: Run) -> str:
    """The model's name, and whether its sizes are scaled to a 7B."""
    return run.model.name if run.model.name == SEVEN_B else f"{run.model.name} (scaled to a 7B)"


def _nearness(ratio: float) -> str:
    """The verdict on a figure that is so many times the claimed one."""
    if 1 / 1.25 <= ratio <= 1.25:
        return "confirmed"
    return "wrong" if ratio >= 1.5 or ratio <= 1 / 1.5 else "roughly right"
