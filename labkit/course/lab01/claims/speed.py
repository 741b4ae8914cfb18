"""The checks of the claims about page faults, the disk, and what they cost a token."""

from __future__ import annotations

from statistics import quantiles

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.phases import grown, read_share
from labkit.course.claims.terms import IDLE, LITTLE, MAPPED, MOST, THIRTEEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab01.bench import COPIED, ONE_B_FIRST, REAL_BYTES, PagingBench, tokens_of
from labkit.system.mapping import Touch
from labkit.units import fmt_ms


def c004(bench: Bench) -> Finding:
    """Pages of a mapped file are touched while they are on the disk, without reading ahead, and again in memory.
    Confirmed if at least 90 % of the touches on the disk were major faults that read at least 90 % of those bytes, and
    next to none of those in memory were; wrong if touches on the disk raised next to no major fault; else roughly
    right."""
    seen = bench.part(PagingBench).storage()
    alone, cold, warm = seen.alone, seen.cold, seen.warm
    faults, read = _count(alone, "major_faults"), _count(alone, "read_bytes")
    again = max(_count(warm, "major_faults") / warm.pages, _count(warm, "read_bytes") / warm.nbytes)
    if faults >= MOST * alone.pages and read >= MOST * alone.nbytes and again <= IDLE:
        verdict = "confirmed"
    else:
        verdict = "wrong" if faults <= LITTLE * alone.pages else "roughly right"
    show = Figures()
    return show.finding(
        verdict,
        f"Touching {show(cold_pages=alone.pages)} pages on the disk without reading ahead raised "
        f"{show(cold_major_faults=faults)} major faults and read {show(cold_read_bytes=read)}; with it, "
        f"{show(pages=cold.pages)} pages took {show(readahead_major_faults=_count(cold, 'major_faults'))} major and "
        f"{show(readahead_minor_faults=_count(cold, 'minor_faults'))} minor faults, and in memory "
        f"{show(warm_major_faults=_count(warm, 'major_faults'))} and "
        f"{show(warm_minor_faults=_count(warm, 'minor_faults'))}.",
    )


def c006(bench: Bench) -> Finding:
    """A mapped model runs under a cap of 70 % of what it needs, as a 30B Q4_K_M would in 16 GB. Wrong if it is killed.
    If it is not: confirmed if each token reads under 10 % of the weights from the disk; misleading if half or more, and
    each token takes at least twice as long; else roughly right. The fastest tokens are compared, because other programs
    only make tokens slower."""
    free, capped = bench.part(PagingBench).capped(share=0.7, least=0.62, most=0.78)
    need, show = free.predicted.mapped_bytes + free.predicted.rss_anon_bytes, Figures()
    show.keep(outcome=capped.outcome)
    setting = f"With {show(cap_bytes=capped.cap_bytes or 0)} of the {show(needed_bytes=need)} it needs, "
    if capped.outcome == "oom-killed":
        return show.finding("wrong", f"{setting}{capped.model.name} was killed.")
    share, slow, fast = read_share(capped), min(capped.timings.decode_ms), min(free.timings.decode_ms)
    if share < LITTLE:
        verdict = "confirmed"
    elif share >= 0.5 and slow >= 2 * fast:
        verdict = "misleading"
    elif share >= 0.5 and max(free.timings.decode_ms) >= 2 * fast:
        raise Unsettled("the times vary too much; try again when this computer has less to do")
    else:
        verdict = "roughly right"
    return show.finding(
        verdict,
        f"{setting}{capped.model.name} ran, read {show(read_share_per_token=round(share, 3)):.0%} of its weights from "
        f"the disk for each token, and took {show(capped_ms=slow)} per token instead of {show(free_ms=fast)}.",
    )


def c011(bench: Bench) -> Finding:
    """Milliseconds per token without mmap over those with it, repack off, as the range between quartiles. Wrong if all
    of it is below 1.4 (half way from no gain to 1.8), confirmed if none of it is. Not settled if the range contains
    1.4."""
    model = bench.part(PagingBench).choose(MAPPED, COPIED, among=ONE_B_FIRST, tokens=8)
    run = bench.run(model, MAPPED, tokens=8)
    other = bench.run(model, COPIED, tokens=8, like=run)
    (a1, a2, a3), (b1, b2, b3) = (quantiles(r.timings.decode_ms, n=4) for r in (run, other))
    low, high = b1 / a3, b3 / a1
    if low < 1.4 <= high:
        raise Unsettled(f"the times vary too much: without mmap a token takes {low:.2f} to {high:.2f} times as long")
    show = Figures()
    show.keep(gain_low=round(low, 2), gain_high=round(high, 2))
    return show.finding(
        "wrong" if high < 1.4 else "confirmed",
        f"A token of {model} takes {show(mmap_ms=a2)} with mmap and {show(none_ms=b2)} without, {b2 / a2:.2f} times "
        f"as long, where the claim says 1.8; loading takes {show(mmap_load_s=round(run.timings.load_s or 0.0, 3))} "
        f"with mmap and {show(none_load_s=round(other.timings.load_s or 0.0, 3))} without.",
    )


def c012(bench: Bench) -> Finding:
    """Costly: a page that is read from the disk takes at least ten times as long as one in memory. Idle: a model that
    fits in memory reads under 1 % of its weights from the disk per token. Roughly right if costly and idle, because the
    drive is then not essential; confirmed if costly and not idle; depends on machine if idle and not costly; wrong if
    neither."""
    paging = bench.part(PagingBench)
    seen, run = paging.storage(), bench.run(paging.choose(MAPPED, among=REAL_BYTES), MAPPED)
    share, faults = read_share(run), grown(run, "major_faults", "prefill", "decode")
    cold_ms, warm_ms = seen.alone.ms / seen.alone.pages, seen.warm.ms / seen.warm.pages
    costly, idle = cold_ms >= 10 * warm_ms, share <= IDLE
    show = Figures()
    show.keep(cold_page_ms=cold_ms, warm_page_ms=warm_ms)
    return show.finding(
        {(1, 1): "roughly right", (1, 0): "confirmed", (0, 1): "depends on machine", (0, 0): "wrong"}[costly, idle],
        f"Touching a page takes {1000 * cold_ms:.0f} µs if it is on this disk and {1000 * warm_ms:.2f} µs if it is in "
        f"memory, but {run.model.name}, which fits in memory, read {show(read_share_per_token=round(share, 4)):.1%} "
        f"of its weights from the disk per token, with {show(decode_major_faults=faults)} major faults over "
        f"{tokens_of(run)}.",
    )


def c013(bench: Bench) -> Finding:
    """Near: this drive reads within 30 % of 1.2 GB/s or of 250 MB/s. Busy: a model that fits in memory reads 1 % of its
    weights or more from the disk per token. Confirmed if near and busy, roughly right if only busy. If the disk is
    idle, drive and memory decide together: depends on machine."""
    paging = bench.part(PagingBench)
    disk = paging.storage().disk
    if disk.cold_bytes_per_s is None:
        raise Unsettled(f"the disk could not be measured: {disk.reason}")
    run, rate = bench.run(paging.choose(MAPPED, among=REAL_BYTES), MAPPED), disk.cold_bytes_per_s
    share, weights = read_share(run), bench.header(THIRTEEN_B).tensor_bytes
    near = any(abs(rate / claimed - 1) <= 0.3 for claimed in (1.2e9, 250e6))
    show = Figures()
    return show.finding(
        "depends on machine" if share < IDLE else "confirmed" if near else "roughly right",
        f"This drive reads {show(disk_bytes_per_s=round(rate))}; {run.model.name}, which fits in memory, read "
        f"{show(read_share_per_token=round(share, 4)):.1%} of its weights from the disk per token, but the "
        f"{show(q4_k_m_13b_bytes=weights)} of a 13B Q4_K_M that does not fit would take up to "
        f"{fmt_ms(weights / rate * 1000)} to read for each token.",
    )


def _count(touch: Touch, kind: str) -> int:
    """A counter of a ``Touch``; ``Unsettled`` where the system does not have it."""
    value: int | None = getattr(touch, kind)
    if value is None:
        raise Unsettled(f"this system does not count the {kind.replace('_', ' ')} of a process")
    return value
