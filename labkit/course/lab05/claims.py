"""The checks of lab 05's claims about locking: what it keeps in memory, when it kills, how much cache it allows."""

from __future__ import annotations

import sys
from dataclasses import replace

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.phases import grown_if_known, read_share
from labkit.course.claims.rules import checks_in
from labkit.course.claims.terms import IDLE, MOST, RAM_BYTES, SEVEN_B, SYSTEM_BYTES, THIRTEEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab05.bench import LOCK, LOOSE, LockBench, locked_bytes
from labkit.experiments.run import Run
from labkit.units import GiB, fmt_bytes

SMALL_RAM_BYTES, ROOM_BYTES = 8 * GiB, RAM_BYTES - SYSTEM_BYTES
MUCH_LONGER = 1.5  # a cache of half the size should nearly double the context


def c120(bench: Bench) -> Finding:
    """A mapped model whose pages the kernel was asked to drop before each token, locked and not locked; and a run that
    may not lock as much as it was to. Kept: the locked model reads less than 1 % of its weights from the disk for each
    token. Wrong if not kept; misleading if the one without a lock reads no more, so that the lock changes nothing. If
    kept: roughly right if the run that may not lock runs without the lock, confirmed if it stops."""
    loose, locked = bench.part(LockBench).dropped()
    read, unlocked = read_share(locked), read_share(loose)
    denied = bench.part(LockBench).denied()
    if read >= IDLE:
        verdict = "wrong"
    elif unlocked < IDLE:
        verdict = "misleading"
    else:
        verdict = "roughly right" if denied.ok else "confirmed"
    got, then = locked_bytes(denied), "ran without the lock" if denied.ok else f"stopped ({denied.outcome})"
    show = Figures()
    show.keep(asked_bytes=locked.predicted.locked_bytes, denied_locked_bytes=got, denied_outcome=denied.outcome)
    return show.finding(
        verdict,
        f"With the file's pages dropped before each token, {locked.model.name} read "
        f"{show(mapped_read_share=round(unlocked, 4))} of its weights again for each token when mapped, and "
        f"{show(locked_read_share=round(read, 4))} with {show(locked_bytes=locked_bytes(locked))} locked; where a "
        f"limit allowed {fmt_bytes(got) if got else 'nothing'} of "
        f"{show(denied_asked_bytes=denied.predicted.locked_bytes)} to be locked, it {then}.",
    )


def c121(bench: Bench) -> Finding:
    """Three runs under one cap: locked with a short context, which finishes, locked with a long one, and only mapped
    with the long one. Wrong if the long one finishes locked; misleading if it is killed without the lock as well, so
    that the lock is not the reason. If it is killed only with the lock: confirmed if the cache grows with the tokens;
    roughly right if 90 % of it is there before the first token, so that nothing grows while tokens are generated."""
    lock, show = bench.part(LockBench), Figures()
    seen = lock.outgrown()
    kv = seen.loose.predicted.kv_bytes
    at_once = grown_if_known(seen.loose, "rss_anon_bytes", "load", "context")
    if seen.long.ok:
        verdict = "wrong"
    elif not seen.loose.ok:
        verdict = "misleading"
    elif at_once is None:
        raise Unsettled("this system does not give the anonymous memory of a process")
    else:
        verdict = "roughly right" if at_once >= MOST * kv else "confirmed"
    foreseen = seen.long.predicted
    need = min(foreseen.locked_bytes, foreseen.mapped_bytes) + foreseen.rss_anon_bytes
    outcomes = {"short": seen.short, "long": seen.long, "mapped": seen.loose}
    show.keep(kv_bytes=kv, **{f"{name}_outcome": run.outcome for name, run in outcomes.items()})
    added = ""
    if at_once is not None:
        added = f"; making the context added {show(at_once_bytes=at_once)}, where its cache takes {fmt_bytes(kv)}"
    locked, mapped = (lock.longest(THIRTEEN_B, settings, ROOM_BYTES) for settings in (LOCK, LOOSE))
    return show.finding(
        verdict,
        f"Under a cap of {show(cap_bytes=seen.cap_bytes)} {seen.long.model.name} with its weights locked "
        f"{_end(seen.short)} with a context of {seen.short.settings.n_ctx} tokens and {_end(seen.long)} with "
        f"{seen.long.settings.n_ctx}, with which {show(must_stay_bytes=need)} must stay in memory; with them only "
        f"mapped it {_end(seen.loose)}{added}; in {fmt_bytes(ROOM_BYTES)} Llama 2 13B can have "
        f"{show(locked_13b_n_ctx=locked)} tokens of context with its weights locked and "
        f"{show(mapped_13b_n_ctx=mapped)} with them only mapped.",
    )


def c122(bench: Bench) -> Finding:
    """Predicted, for Llama 2 7B in 8 GiB and 13B in 16 GiB less 2: the longest context with which it is not killed,
    with locked weights, with weights whose pages can be dropped, and with locked weights and a cache of half the size.
    Confirmed if in both the lock shortens the context, and a q8_0 cache makes it 1.5 times as long or more; roughly
    right if one of these; else wrong."""
    settings = (LOCK, LOOSE, replace(LOCK, type_k="q8_0", type_v="q8_0"))
    longest, show = bench.part(LockBench).longest, Figures()
    locked_7b, mapped_7b, small_7b = (longest(SEVEN_B, one, SMALL_RAM_BYTES) for one in settings)
    locked_13b, mapped_13b, small_13b = (longest(THIRTEEN_B, one, ROOM_BYTES) for one in settings)
    shorter = locked_7b < mapped_7b and locked_13b < mapped_13b
    helps = small_7b >= MUCH_LONGER * locked_7b and small_13b >= MUCH_LONGER * locked_13b
    return show.finding(
        ("wrong", "roughly right", "confirmed")[shorter + helps],
        f"In {fmt_bytes(SMALL_RAM_BYTES)} Llama 2 7B Q4_K_M can have {show(locked_7b_n_ctx=locked_7b)} tokens of "
        f"context with its weights locked, {show(mapped_7b_n_ctx=mapped_7b)} with them only mapped, and "
        f"{show(locked_7b_q8_0_n_ctx=small_7b)} with them locked and a q8_0 cache; in {fmt_bytes(ROOM_BYTES)} 13B can "
        f"have {show(locked_13b_n_ctx=locked_13b)}, {show(mapped_13b_n_ctx=mapped_13b)} and "
        f"{show(locked_13b_q8_0_n_ctx=small_13b)}.",
    )


def _end(run: Run) -> str:
    """How a run ended, in words."""
    return "finished" if run.ok else "was killed"


CHECKS = checks_in(sys.modules[__name__])
