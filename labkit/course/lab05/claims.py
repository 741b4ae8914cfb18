"""The checks of the claims about locking: what it keeps, when it kills, and what it leaves for the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.phases import read_share
from labkit.course.claims.terms import IDLE, MOST, RAM_BYTES, SEVEN_B, SYSTEM_BYTES, THIRTEEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab05.bench import LOCK, LOOSE, LockBench, locked_bytes
from labkit.experiments.run import Run
from labkit.units import GiB, fmt_bytes

EIGHT_BYTES = 8 * GiB
MUCH_LONGER = 1.5  # a cache of half the size should nearly double the context


def c120(bench: Bench) -> Finding:
    """A mapped model whose pages the kernel was asked to drop before each token, locked and not; and a run that may not
    lock as much as it is to. Kept: the locked one reads less than 1 % of its weights for each token. Wrong if not kept;
    misleading if the other one reads no more, so that the lock changes nothing; roughly right if kept, but where it is
    not allowed llama.cpp goes on without; confirmed if it then stops."""
    loose, locked = bench.part(LockBench).dropped()
    read, unlocked = read_share(locked), read_share(loose)
    denied = bench.part(LockBench).denied()
    if read >= IDLE:
        verdict = "wrong"
    elif unlocked < IDLE:
        verdict = "misleading"
    else:
        verdict = "roughly right" if denied.ok else "confirmed"
    size, got = locked_bytes(locked), locked_bytes(denied)
    went = "went on all the same" if denied.ok else f"stopped ({denied.outcome})"
    return Finding(
        verdict,
        f"With its pages dropped before each token, {locked.model.name} read {_share(unlocked)} of its weights again "
        f"for each when mapped, and {_share(read)} with {fmt_bytes(size)} locked; where a limit allowed "
        f"{fmt_bytes(got) if got else 'nothing'} of {fmt_bytes(denied.predicted.locked_bytes)} to be locked, it "
        f"{went}.",
        {
            "locked_bytes": size,
            "asked_bytes": locked.predicted.locked_bytes,
            "mapped_read_share": round(unlocked, 4),
            "locked_read_share": round(read, 4),
            "denied_locked_bytes": got,
            "denied_asked_bytes": denied.predicted.locked_bytes,
            "denied_outcome": denied.outcome,
        },
    )


def c121(bench: Bench) -> Finding:
    """Three runs under one cap: locked with a short context, which comes through, with a long one, and the long one
    mapped only. Wrong if the long one comes through locked; misleading if it is killed unlocked as well, so that the
    lock is not the reason. If the lock kills: confirmed if the cache grows with the tokens; roughly right if 90 % of it
    is there before the first token, so that nothing spikes while it talks."""
    seen = bench.part(LockBench).outgrown()
    anon = [_anon(seen.loose, name) for name in ("load", "context")]
    kv = seen.loose.predicted.kv_bytes
    at_once = None if None in anon else (anon[1] or 0) - (anon[0] or 0)
    if seen.long.ok:
        verdict = "wrong"
    elif not seen.loose.ok:
        verdict = "misleading"
    elif at_once is None:
        raise Unsettled("this system does not tell how much anonymous memory a process has")
    else:
        verdict = "roughly right" if at_once >= MOST * kv else "confirmed"
    room = RAM_BYTES - SYSTEM_BYTES
    locked, loose = (bench.part(LockBench).longest(THIRTEEN_B, settings, room) for settings in (LOCK, LOOSE))
    foreseen = seen.long.predicted
    need = min(foreseen.locked_bytes, foreseen.mapped_bytes) + foreseen.rss_anon_bytes
    there = "" if at_once is None else f"; making the context added {fmt_bytes(at_once)}, its cache is {fmt_bytes(kv)}"
    return Finding(
        verdict,
        f"Under a cap of {fmt_bytes(seen.cap_bytes)} {seen.long.model.name} with its weights locked "
        f"{_fate(seen.short)} with a context of {seen.short.settings.n_ctx} and {_fate(seen.long)} with "
        f"{seen.long.settings.n_ctx}, where {fmt_bytes(need)} must stay; only mapped it {_fate(seen.loose)}{there}; in "
        f"{fmt_bytes(room)} Llama 2 13B lives with up to {locked} tokens locked and {loose} mapped.",
        {
            "cap_bytes": seen.cap_bytes,
            "short_outcome": seen.short.outcome,
            "long_outcome": seen.long.outcome,
            "mapped_outcome": seen.loose.outcome,
            "must_stay_bytes": need,
            "kv_bytes": kv,
            **({} if at_once is None else {"at_once_bytes": at_once}),
            "locked_13b_n_ctx": locked,
            "mapped_13b_n_ctx": loose,
        },
    )


def c122(bench: Bench) -> Finding:
    """Predicted, for Llama 2 7B in 8 GiB and 13B in 16 GiB less 2: the longest context that survives with locked
    weights, against weights that can give way, and against a cache of half the size. Confirmed if in both the lock
    shortens it, and a q8_0 cache makes it 1.5 times as long or more; roughly right if one of these; else wrong."""
    found = {}
    for name, model, room in (("7b", SEVEN_B, EIGHT_BYTES), ("13b", THIRTEEN_B, RAM_BYTES - SYSTEM_BYTES)):
        small = replace(LOCK, type_k="q8_0", type_v="q8_0")
        found[name] = tuple(bench.part(LockBench).longest(model, settings, room) for settings in (LOCK, LOOSE, small))
    shorter = all(locked < loose for locked, loose, _ in found.values())
    helps = all(small >= MUCH_LONGER * locked for locked, _, small in found.values())
    (a, b, c), (d, e, f) = found.values()
    return Finding(
        ("wrong", "roughly right", "confirmed")[shorter + helps],
        f"In {fmt_bytes(EIGHT_BYTES)} Llama 2 7B Q4_K_M lives with {a} tokens of context locked, {b} mapped, and {c} "
        f"locked with a q8_0 cache; 13B in {fmt_bytes(RAM_BYTES - SYSTEM_BYTES)} with {d}, {e} and {f}.",
        {
            "locked_7b_n_ctx": a,
            "mapped_7b_n_ctx": b,
            "locked_7b_q8_0_n_ctx": c,
            "locked_13b_n_ctx": d,
            "mapped_13b_n_ctx": e,
            "locked_13b_q8_0_n_ctx": f,
        },
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {check.__name__.upper(): check for check in (c120, c121, c122)}


def _anon(run: Run, phase: str) -> int | None:
    at = run.phase(phase)
    return at.rss_anon_bytes if at else None


def _fate(run: Run) -> str:
    return "came through" if run.ok else "was killed"


def _share(share: float) -> str:
    return f"{share:.0%}" if share == 0 or share >= 0.01 else f"{share:.2%}"
