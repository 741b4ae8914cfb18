"""The checks of the claims about how llama.cpp makes its cache and fills it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding, sentence
from labkit.course.claims.terms import LITTLE, SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab03.bench import ADDRESSES_BYTES, TOO_LARGE_BYTES, CacheBench
from labkit.engine.internals.slot_maps import EMPTY
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from labkit.experiments.cache_slots import Snapshot

BUSY_FAULTS = 100  # page faults per token that could be called many: a token raises about none once all is in memory


def c037(bench: Bench) -> Finding:
    """Wrong if the cache is one buffer, at least 90 % of it is resident when the context has been made, and generating
    adds at most a quarter of what a cache in segments would. Confirmed if generating adds half of that or more; else
    misleading."""
    growth, show = bench.part(CacheBench).growth(), Figures()
    whole = len(growth.kv_buffers) == 1 and growth.at_once and growth.added_share <= 0.25
    verdict = "confirmed" if growth.added_share >= 0.5 else "wrong" if whole else "misleading"
    buffers = f"{show(kv_buffers=len(growth.kv_buffers))} buffer{'' if len(growth.kv_buffers) == 1 else 's'}"
    return show.finding(
        verdict,
        f"llama.cpp reports a cache of {fmt_bytes(sum(growth.kv_buffers))} in {buffers}; {growth.told(show)}.",
    )


def c047(bench: Bench) -> Finding:
    """Named: "paged" occurs in llama.cpp's libraries. By demand: less than 90 % of the cache is resident when the
    context has been made, as with pages. Confirmed if both, misleading if one, wrong if neither."""
    if not bench.in_libraries(b"llama_kv_cache"):
        raise Unsettled("the names of llama.cpp's own parts cannot be read in this build")
    growth, named, show = bench.part(CacheBench).growth(), bench.in_libraries(b"paged"), Figures()
    show.keep(paged=named)
    return show.finding(
        ("wrong", "misleading", "confirmed")[named + (not growth.at_once)],
        f'"Paged" occurs {"" if named else "nowhere "}in llama.cpp\'s libraries; {growth.told(show)}.',
    )


def c048(bench: Bench) -> Finding:
    """Wrong if "paged" occurs nowhere in llama.cpp's libraries, so that there is nothing to switch off, and a token
    raises fewer than 100 page faults once all is in memory; misleading if it occurs nowhere but a token raises more.
    Not settled if it occurs, because the effect of such a switch would have to be measured."""
    if bench.in_libraries(b"paged"):
        raise Unsettled('"paged" occurs in llama.cpp\'s libraries, so both ways would have to be run')
    growth, show = bench.part(CacheBench).growth(), Figures()
    if growth.minor_faults is None or growth.major_faults is None:
        raise Unsettled("this system does not count the page faults of a process")
    each = (growth.minor_faults + growth.major_faults) / growth.n_tokens
    return show.finding(
        "wrong" if each < BUSY_FAULTS else "misleading",
        f'"Paged" occurs nowhere in llama.cpp\'s libraries, and generating {show(tokens=growth.n_tokens)} tokens '
        f"raised {show(minor_faults=growth.minor_faults)} minor and {show(major_faults=growth.major_faults)} major "
        f"page faults, {show(faults_per_token=round(each, 3)):.2f} per token.",
    )


def c049(bench: Bench) -> Finding:
    """Named: slot_info occurs in llama.cpp's libraries. Apart: tokens of one batch get cells that are not neighbours,
    so that each token needs an entry of its own. Kept: a function of llama.h returns the record. Confirmed if all
    three; roughly right if it is named and the cells are apart, but nothing returns it afterwards; misleading if it is
    named but a batch always gets neighbours; else wrong."""
    if not bench.in_libraries(b"llama_kv_cells"):
        raise Unsettled("the names of llama.cpp's own parts cannot be read in this build")
    named, kept = bench.in_libraries(b"slot_info"), bench.in_libraries(b"llama_kv_cache_view")
    pieces, at = max(((_pieces(before, after), after) for before, after in _added(bench)), key=lambda row: row[0])
    if not named:
        verdict = "wrong"
    elif pieces < 2:
        verdict = "misleading"
    else:
        verdict = "confirmed" if kept else "roughly right"
    show = Figures()
    show.keep(named=named)
    return show.finding(
        verdict,
        f"slot_info occurs {'' if named else 'nowhere '}in llama.cpp's libraries; a batch of "
        f"{show(batch_tokens=at.step.n or 0)} tokens was put into {show(runs_of_cells=pieces)} "
        f"run{'' if pieces == 1 else 's'} of neighbouring cells ({at.note}), and {'a' if kept else 'no'} function "
        "returns the record afterwards.",
    )


def c050(bench: Bench) -> Finding:
    """A batch is longer than all empty cells together. Wrong if llama_decode refuses it and no cell changes; confirmed
    if it is placed, and cells that were taken get other tokens; else roughly right."""
    before, after = next(
        (before, after) for before, after in _added(bench) if (before.cells == EMPTY).sum() < (after.step.n or 0)
    )
    free, overwritten = int((before.cells == EMPTY).sum()), (before.cells != EMPTY) & (before.cells != after.cells)
    changed, show = int((before.cells != after.cells).sum()), Figures()
    if after.status == 1 and not changed:
        verdict = "wrong"
    else:
        verdict = "confirmed" if after.status == 0 and overwritten.any() else "roughly right"
    return show.finding(
        verdict,
        f"With {show(empty=free)} of {show(cells=len(after.cells))} cells empty, llama_decode was given "
        f"{show(asked=after.step.n or 0)} more tokens and returned {show(status=after.status)}, and {changed} cells "
        "changed.",
    )


def c051(bench: Bench) -> Finding:
    """Confirmed if at least 90 % of the cache is resident when the context has been made and generating adds at most a
    quarter of what a cache that grew with the text would; wrong if generating adds half of that or more; else roughly
    right."""
    growth, show = bench.part(CacheBench).growth(), Figures()
    made = growth.at_once and growth.added_share <= 0.25
    return show.finding(
        "wrong" if growth.added_share >= 0.5 else "confirmed" if made else "roughly right",
        f"{sentence(growth.told(show))}; a chat of ten tokens takes as much as one that fills the context.",
    )


def c068(bench: Bench) -> Finding:
    """llama.cpp's error when a child that may have 4 GiB of addresses asks for a cache of 16 GiB. Confirmed if it
    contains bad_alloc, misleading if it fails with another message, wrong if it does not fail."""
    said = bench.part(CacheBench).refusal()
    killed = next(
        (run for run in bench.part(CacheBench).killed() if run.phase("load") and not run.phase("context")), None
    )
    beside = f"; under a cap of {fmt_bytes(killed.cap_bytes or 0)} the kernel killed it" if killed else ""
    if said is None:
        verdict, answer = "wrong", "llama.cpp did not fail"
    else:
        verdict = "confirmed" if "bad_alloc" in said else "misleading"
        answer = f'llama.cpp reported "{said.rstrip(".")}"'
    show = Figures()
    show.keep(said=said or "nothing", killed_under_a_cap="yes" if killed else "not tried")
    return show.finding(
        verdict,
        f"Asked for a cache of {fmt_bytes(TOO_LARGE_BYTES)} with {fmt_bytes(ADDRESSES_BYTES)} of addresses, "
        f"{answer}{beside}.",
    )


def c069(bench: Bench) -> Finding:
    """A 4-bit model with an f16 cache, which is the default, and the memory that generating adds to it, as a share of
    the cache. Confirmed if it is half of it or more, wrong if less than a tenth, else roughly right."""
    cache, show = bench.part(CacheBench), Figures()
    growth = cache.growth()
    share = growth.decode_bytes / growth.kv_bytes
    need = bench.header(SEVEN_B).tensor_bytes + cache.kv_bytes(SEVEN_B, n_ctx=4096)
    return show.finding(
        "confirmed" if share >= 0.5 else "wrong" if share < LITTLE else "roughly right",
        f"{sentence(growth.told(show))}; an f16 cache and 4-bit weights of a 7B at 4096 tokens take "
        f"{show(needed_7b_bytes=need)} together.",
    )


def _added(bench: Bench) -> list[tuple[Snapshot, Snapshot]]:
    """Before and after each batch that was added to a cache in use."""
    trace = bench.part(CacheBench).slots()
    return [(before, after) for before, after in pairwise(trace) if after.step.op == "add"]


def _pieces(before: Snapshot, after: Snapshot) -> int:
    """Into how many unbroken runs of cells a batch was put."""
    taken = (before.cells == EMPTY) & (after.cells == after.step.seq)
    return int(np.count_nonzero(np.diff(np.concatenate(([False], taken)).astype(np.int8)) == 1))
