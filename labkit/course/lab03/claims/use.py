"""The checks of the claims about how llama.cpp uses its cache: when it is made, what fills it, what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import TYPE_CHECKING

import numpy as np

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.ledger import Figure
from labkit.course.claims.terms import BUNDLED, CLOSE, EIGHT_B, LITTLE, MOST, SEVEN_B, THIRTEEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab03.bench import ADDRESSES_BYTES, COMPARED, TOO_LARGE_BYTES, CacheBench, Growth
from labkit.engine.internals.slot_maps import EMPTY
from labkit.settings import Settings
from labkit.units import fmt_bytes, fmt_ms

if TYPE_CHECKING:
    from labkit.experiments.cache_slots import Snapshot
    from labkit.quant.cache_quality import CacheQuality

BUSY_FAULTS = 100  # page faults per token that could be called many: a warm token raises about none


def c034(bench: Bench) -> Finding:
    """Saves: a token after a filled cache takes less than a tenth of the time that filling it took. Much: at their
    trained lengths the f16 caches of Llama 2 7B and 13B and Llama 3.1 8B take a fifth of cache and Q4_K_M weights or
    more, and a real cache is resident. Confirmed if it saves and takes much in all three, roughly right if it saves
    only, misleading if it takes much in all but saves nothing, else wrong."""
    growth, filled = (
        bench.part(CacheBench).growth(),
        [one for one in bench.part(CacheBench).depth() if one.type_k == "f16"],
    )
    last, fill_ms = max(filled, key=lambda one: one.n_past), 1000 * sum(one.fill_s for one in filled)
    token_ms = last.median_ms
    saves = token_ms < LITTLE * fill_ms
    shares, each = {}, {}
    for model in (SEVEN_B, THIRTEEN_B, EIGHT_B):
        header = bench.header(model)
        trained = int(header.key("context_length"))
        cache = bench.part(CacheBench).kv_bytes(model, n_ctx=trained)
        each[model] = cache / trained
        shares[model] = cache / (cache + header.tensor_bytes)
    much = min(shares.values()) >= 0.2 and growth.context_bytes >= MOST * growth.kv_bytes
    return Finding(
        {(1, 1): "confirmed", (1, 0): "roughly right", (0, 1): "misleading", (0, 0): "wrong"}[saves, much],
        f"A token after {last.n_past} others takes {fmt_ms(token_ms)}, and to compute these others again would take "
        f"{fmt_ms(fill_ms)}; one costs {_listing(each, fmt_bytes)}, and at the trained lengths the cache is "
        f"{_listing(shares, lambda share: f'{share:.0%}')} of cache and weights.",
        {
            "token_ms": round(token_ms, 3),
            "fill_ms": round(fill_ms, 1),
            "depth_tokens": last.n_past,
            **{f"{_short(model)}_token_bytes": round(size) for model, size in each.items()},
            **{f"{_short(model)}_share": round(share, 4) for model, share in shares.items()},
        },
    )


def c035(bench: Bench) -> Finding:
    """llama.cpp's plans for Llama 2 13B: for 512 to 8192 tokens, for 1 to 4 sequences of 2048 each, and for n_batch
    from 32 to 2048. Linear means in proportion within 2 %. Confirmed if the cache is linear in tokens, sequences and
    n_batch; roughly right if in all but n_batch, which batch size means in llama.cpp; misleading if in tokens only;
    else wrong."""
    tokens, sequences, batches = (512, 1024, 2048, 4096, 8192), (1, 2, 4), (32, 128, 512, 2048)
    by_tokens = bench.planned_kv_bytes(THIRTEEN_B, *(Settings(n_ctx=n) for n in tokens))
    by_sequences = bench.planned_kv_bytes(THIRTEEN_B, *(Settings(n_ctx=2048 * n, n_seq_max=n) for n in sequences))
    planned = bench.planned(THIRTEEN_B, *(Settings(n_ctx=2048, n_batch=n, n_ubatch=n) for n in batches))
    by_batch, compute = [plan.kv_bytes or 0 for plan in planned], [plan.compute_bytes or 0 for plan in planned]
    linear = [
        _is_linear(wanted, found)
        for wanted, found in ((tokens, by_tokens), (sequences, by_sequences), (batches, by_batch))
    ]
    if not linear[0]:
        verdict = "wrong"
    elif not linear[1]:
        verdict = "misleading"
    else:
        verdict = "confirmed" if linear[2] else "roughly right"
    return Finding(
        verdict,
        f"llama.cpp plans {fmt_bytes(by_tokens[0])} for {tokens[0]} tokens of Llama 2 13B and "
        f"{fmt_bytes(by_tokens[-1])} for {tokens[-1]}, {fmt_bytes(by_sequences[0])} for one sequence of 2048 and "
        f"{fmt_bytes(by_sequences[-1])} for {sequences[-1]}; with n_batch from {batches[0]} to {batches[-1]} the cache "
        f"goes from {fmt_bytes(by_batch[0])} to {fmt_bytes(by_batch[-1])} and the compute buffer from "
        f"{fmt_bytes(compute[0])} to {fmt_bytes(compute[-1])}.",
        {
            "kv_512_tokens_bytes": by_tokens[0],
            "kv_8192_tokens_bytes": by_tokens[-1],
            "kv_1_sequence_bytes": by_sequences[0],
            "kv_4_sequences_bytes": by_sequences[-1],
            "kv_n_batch_32_bytes": by_batch[0],
            "kv_n_batch_2048_bytes": by_batch[-1],
            "compute_n_batch_32_bytes": compute[0],
            "compute_n_batch_2048_bytes": compute[-1],
        },
    )


def c037(bench: Bench) -> Finding:
    """Wrong if the cache is one buffer, at least 90 % of it is resident when the context has been made, and generating
    adds at most a quarter of what a cache in segments would. Confirmed if generating adds half of that or more; else
    misleading."""
    growth = bench.part(CacheBench).growth()
    whole = len(growth.kv_buffers) == 1 and growth.context_bytes >= MOST * growth.kv_bytes
    if growth.decode_bytes >= 0.5 * growth.if_growing_bytes:
        verdict = "confirmed"
    else:
        verdict = "wrong" if whole and growth.decode_bytes <= 0.25 * growth.if_growing_bytes else "misleading"
    return Finding(
        verdict,
        f"llama.cpp reports {_counted(len(growth.kv_buffers), 'cache buffer')} of {fmt_bytes(sum(growth.kv_buffers))}; "
        f"{_steps(growth)}.",
        {"kv_buffers": len(growth.kv_buffers), **_sizes(growth)},
    )


def c044(bench: Bench) -> Finding:
    """llama.cpp's plans for Llama 2 13B at 8192 tokens. Confirmed if n_batch 2 and q8_0 both make the cache at least a
    tenth smaller and 8192 is the trained length; wrong if n_batch does not; else roughly right."""
    model, n = THIRTEEN_B, 8192
    usual, batch_of_2, q8 = bench.planned_kv_bytes(
        model,
        Settings(n_ctx=n),
        Settings(n_ctx=n, n_batch=2, n_ubatch=2),
        Settings(n_ctx=n, type_k="q8_0", type_v="q8_0"),
    )
    trained = int(bench.header(model).key("context_length"))
    by_batch, by_type = (1 - size / usual >= LITTLE for size in (batch_of_2, q8))
    return Finding(
        "wrong" if not by_batch else "confirmed" if by_type and trained == n else "roughly right",
        f"For {n} tokens of Llama 2 13B, which was trained for {trained}, llama.cpp plans {fmt_bytes(usual)} of cache, "
        f"{fmt_bytes(batch_of_2)} with n_batch 2, and {fmt_bytes(q8)} in q8_0.",
        {"kv_bytes": usual, "n_batch_2_bytes": batch_of_2, "q8_0_bytes": q8, "trained_tokens": trained},
    )


def c047(bench: Bench) -> Finding:
    """Named: "paged" occurs in llama.cpp's libraries. By demand: less than 90 % of the cache is resident when the
    context has been made, as pages would be. Confirmed if both, misleading if one, wrong if neither."""
    if not bench.in_libraries(b"llama_kv_cache"):
        raise Unsettled("the names of llama.cpp's own parts cannot be read in this build")
    growth, named = bench.part(CacheBench).growth(), bench.in_libraries(b"paged")
    by_demand = growth.context_bytes < MOST * growth.kv_bytes
    return Finding(
        ("wrong", "misleading", "confirmed")[named + by_demand],
        f'"Paged" occurs {"" if named else "nowhere "}in llama.cpp\'s libraries; {_steps(growth)}.',
        {"paged": "yes" if named else "no", **_sizes(growth)},
    )


def c048(bench: Bench) -> Finding:
    """Wrong if "paged" occurs nowhere in llama.cpp's libraries, so that there is nothing to switch off, and a token
    raises fewer than 100 page faults once all is in memory; misleading if there is no switch but a token raises more.
    With such a switch its effect would have to be measured."""
    if bench.in_libraries(b"paged"):
        raise Unsettled("this llama.cpp speaks of paging, so both ways would have to be run")
    growth = bench.part(CacheBench).growth()
    if growth.minor_faults is None or growth.major_faults is None:
        raise Unsettled("this system does not tell page faults of a process")
    each = (growth.minor_faults + growth.major_faults) / growth.n_tokens
    return Finding(
        "wrong" if each < BUSY_FAULTS else "misleading",
        f'"Paged" occurs nowhere in llama.cpp\'s libraries, and generating {growth.n_tokens} tokens raised '
        f"{growth.minor_faults} minor and {growth.major_faults} major page faults, {each:.2f} per token.",
        {
            "tokens": growth.n_tokens,
            "minor_faults": growth.minor_faults,
            "major_faults": growth.major_faults,
            "faults_per_token": round(each, 3),
        },
    )


def c049(bench: Bench) -> Finding:
    """Named: slot_info occurs in llama.cpp's libraries. Apart: tokens of one batch get cells that are not neighbours,
    so that each needs its own. Kept: a function of llama.h gives the record. Confirmed if all three; roughly right if
    it is named and the cells lie apart, but nothing gives it afterwards; misleading if it is named but a batch always
    gets neighbours; else wrong."""
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
    return Finding(
        verdict,
        f"slot_info occurs {'' if named else 'nowhere '}in llama.cpp's libraries; a batch of {at.step.n} tokens was "
        f"put into {_counted(pieces, 'run')} of cells ({at.note}), and {'a' if kept else 'no'} function gives the "
        f"record afterwards.",
        {"named": "yes" if named else "no", "runs_of_cells": pieces, "batch_tokens": at.step.n or 0},
    )


def c050(bench: Bench) -> Finding:
    """A batch that is longer than all empty cells. Wrong if llama_decode refuses it and no cell changes; confirmed if
    it is placed, and cells that were taken change hands; else roughly right."""
    before, after = next(
        (before, after) for before, after in _added(bench) if (before.cells == EMPTY).sum() < (after.step.n or 0)
    )
    free, overwritten = int((before.cells == EMPTY).sum()), (before.cells != EMPTY) & (before.cells != after.cells)
    changed = int((before.cells != after.cells).sum())
    if after.status == 1 and not changed:
        verdict = "wrong"
    else:
        verdict = "confirmed" if after.status == 0 and overwritten.any() else "roughly right"
    return Finding(
        verdict,
        f"With {free} of {len(after.cells)} cells empty, llama_decode answered {after.status} to {after.step.n} more "
        f"tokens, and {changed} cells changed.",
        {"cells": len(after.cells), "empty": free, "asked": after.step.n or 0, "status": after.status},
    )


def c051(bench: Bench) -> Finding:
    """Confirmed if at least 90 % of the cache is resident when the context has been made and generating adds at most a
    quarter of what a cache that grew with the text would; wrong if generating adds half of that or more; else roughly
    right."""
    growth = bench.part(CacheBench).growth()
    at_once = growth.context_bytes >= MOST * growth.kv_bytes
    if growth.decode_bytes >= 0.5 * growth.if_growing_bytes:
        verdict = "wrong"
    else:
        verdict = "confirmed" if at_once and growth.decode_bytes <= 0.25 * growth.if_growing_bytes else "roughly right"
    return Finding(
        verdict,
        f"{_steps(growth, first=True)}; the price is that ten tokens take as much.",
        _sizes(growth),
    )


def c055(bench: Bench) -> Finding:
    """Smaller: llama.cpp plans less for q8_0 than for f16, and less again for q4_0. Rounded: the model's predictions
    differ from those with an f16 cache by more than twice the error of measurement, and more with q4_0. Confirmed if
    both, misleading if the cache is smaller but nothing shows that it was rounded, else wrong."""
    f16, q8, q4 = bench.planned_kv_bytes(BUNDLED, *(Settings(type_k=name, type_v=name) for name in ("f16", *COMPARED)))
    seen = {name: bench.part(CacheBench).quality(name, name) for name in COMPARED}
    klds = {name: one.quality.kld_mean for name, one in seen.items()}
    smaller = q4 < q8 < f16
    rounded = klds["q4_0"] > klds["q8_0"] and all(_loses(one) for one in seen.values())
    plain = next((one for one in bench.cache_qualities if one.type_k == one.type_v == "q4_0" and not one.rotated), None)
    without = f" ({plain.quality.kld_mean:.3g} without rotation)" if plain else ""
    figures: dict[str, Figure] = {f"{name}_kld": round(kld, 6) for name, kld in klds.items()}
    if plain:
        figures["q4_0_kld_not_rotated"] = round(plain.quality.kld_mean, 6)
    return Finding(
        "wrong" if not smaller else "confirmed" if rounded else "misleading",
        f"For 512 tokens llama.cpp plans {fmt_bytes(f16)} of cache in f16, {fmt_bytes(q8)} in q8_0 and "
        f"{fmt_bytes(q4)} in q4_0, and over {seen['q8_0'].quality.n_tokens} tokens the predictions diverge from those "
        f"with f16 by {klds['q8_0']:.3g} (KLD) with q8_0 and {klds['q4_0']:.3g} with q4_0{without}.",
        {"f16_bytes": f16, "q8_0_bytes": q8, "q4_0_bytes": q4, **figures},
    )


def c056(bench: Bench) -> Finding:
    """Mean divergence (KLD) from an f16 cache in the first and the second half of a text. Confirmed if it rises with
    q8_0 and with q4_0, by more than twice its error; wrong if neither type costs more than that, so that nothing can
    build up; depends on machine if they cost something that does not rise with both: the claim says may, and one
    model and text do not rule that out."""
    seen = {name: bench.part(CacheBench).quality(name, name) for name in COMPARED}
    halves = {name: _halves(one) for name, one in seen.items()}
    rising = [late - early > 2 * error for early, late, error in halves.values()]
    if not any(_loses(one) for one in seen.values()):
        verdict = "wrong"
    else:
        verdict = "confirmed" if all(rising) else "depends on machine"
    listed = " and ".join(
        f"from {early:.3g} to {late:.3g} (±{error:.2g}) with {name}" for name, (early, late, error) in halves.items()
    )
    figures: dict[str, Figure] = {}
    for name, (early, late, error) in halves.items():
        figures |= {f"{name}_early_kld": round(early, 6), f"{name}_late_kld": round(late, 6)}
        figures[f"{name}_kld_error"] = round(error, 6)
    return Finding(
        verdict,
        f"From the first to the second half of {seen['q8_0'].quality.n_tokens} tokens the divergence (KLD) goes "
        f"{listed}.",
        figures,
    )


def c057(bench: Bench) -> Finding:
    """Speed kept with q8_0 at each depth: the time of a token with an f16 cache over that of one with q8_0 beside it.
    Confirmed if it is at least 95 % (98 %, give or take three points) at every depth, wrong if at none, else depends on
    machine: how much of the cache is read, and how fast this processor decodes it, decide. Twice the error counts."""
    kept = _kept(bench, "q8_0")
    return Finding(
        {(1, 0): "confirmed", (0, 1): "wrong", (1, 1): "depends on machine"}[_above_and_below(kept, 0.95)],
        f"With a q8_0 cache {_by_depth(kept)}.",
        _shares(kept),
    )


def c058(bench: Bench) -> Finding:
    """Speed kept with q4_0 at each depth, counted as for C057. Confirmed if it is below 70 % at every depth; wrong if
    at none, and it moves by less than ten points between the depths; else depends on machine: depth and processor
    decide."""
    kept = _kept(bench, "q4_0")
    shares = [share for share, _ in kept.values()]
    moves = max(shares) - min(shares) >= LITTLE
    above, below = _above_and_below(kept, 0.7)
    return Finding(
        "confirmed" if not above else "depends on machine" if below or moves else "wrong",
        f"With a q4_0 cache {_by_depth(kept)}.",
        _shares(kept),
    )


def c068(bench: Bench) -> Finding:
    """What llama.cpp says when a child that may have 4 GiB of addresses asks for a cache of 16 GiB. Confirmed if it
    speaks of bad_alloc, misleading if it fails with another message, wrong if it does not fail."""
    said = bench.part(CacheBench).refusal()
    killed = next(
        (run for run in bench.part(CacheBench).killed() if run.phase("load") and not run.phase("context")), None
    )
    beside = f"; under a cap of {fmt_bytes(killed.cap_bytes or 0)} the kernel killed it" if killed else ""
    if said is None:
        verdict, answer = "wrong", "it did not fail"
    else:
        verdict, answer = "confirmed" if "bad_alloc" in said else "misleading", f'llama.cpp said "{said.rstrip(".")}"'
    return Finding(
        verdict,
        f"Asked for a cache of {fmt_bytes(TOO_LARGE_BYTES)} with {fmt_bytes(ADDRESSES_BYTES)} of addresses, "
        f"{answer}{beside}.",
        {"said": said or "nothing", "killed_under_a_cap": "yes" if killed else "not tried"},
    )


def c069(bench: Bench) -> Finding:
    """A 4-bit model with an f16 cache, which is the default, and the memory that generating adds to it, as a share of
    the cache. Confirmed if it is half of it or more, wrong if less than a tenth, else roughly right."""
    growth = bench.part(CacheBench).growth()
    share = growth.decode_bytes / growth.kv_bytes
    need = bench.header(SEVEN_B).tensor_bytes + bench.part(CacheBench).kv_bytes(SEVEN_B, n_ctx=4096)
    return Finding(
        "confirmed" if share >= 0.5 else "wrong" if share < LITTLE else "roughly right",
        f"{_steps(growth, first=True)}, with an f16 cache beside 4-bit weights, which for a 7B at 4096 tokens take "
        f"{fmt_bytes(need)} together.",
        {**_sizes(growth), "needed_7b_bytes": need},
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check
    for check in (c034, c035, c037, c044, c047, c048, c049, c050, c051, c055, c056, c057, c058, c068, c069)
}


def _is_linear(wanted: Sequence[int], found: Sequence[int]) -> bool:
    each = [size / n for n, size in zip(wanted, found, strict=True)]
    return max(each) <= (1 + CLOSE) * min(each)


def _steps(growth: Growth, *, first: bool = False) -> str:
    """What memory did, in a clause."""
    return (
        f"{'M' if first else 'm'}aking {growth.model}'s context added {fmt_bytes(growth.context_bytes)}, of it the "
        f"cache for {growth.n_ctx} tokens ({fmt_bytes(growth.kv_bytes)}), and generating {growth.n_tokens} tokens "
        f"{fmt_bytes(growth.decode_bytes)}, where a cache that grew with them would have added "
        f"{fmt_bytes(growth.if_growing_bytes)}"
    )


def _sizes(growth: Growth) -> dict[str, Figure]:
    return {
        "kv_bytes": growth.kv_bytes,
        "context_bytes": growth.context_bytes,
        "decode_bytes": growth.decode_bytes,
        "if_growing_bytes": growth.if_growing_bytes,
    }


def _added(bench: Bench) -> list[tuple[Snapshot, Snapshot]]:
    """Before and after each batch that came to a cache in use."""
    trace = bench.part(CacheBench).slots()
    return [(before, after) for before, after in pairwise(trace) if after.step.op == "add"]


def _pieces(before: Snapshot, after: Snapshot) -> int:
    """Into how many unbroken runs of cells a batch was put."""
    taken = (before.cells == EMPTY) & (after.cells == after.step.seq)
    return int(np.count_nonzero(np.diff(np.concatenate(([False], taken)).astype(np.int8)) == 1))


def _loses(seen: CacheQuality) -> bool:
    return seen.quality.kld_mean > 2 * seen.quality.kld_mean_error


def _halves(seen: CacheQuality) -> tuple[float, float, float]:
    """Mean divergence in the first and second half of the positions, and the error of their difference."""
    middle = len(seen.kld_by_position) // 2
    if not middle:
        raise Unsettled("the divergence was measured at too few positions")
    means, errors = np.array(seen.kld_by_position), np.array(seen.kld_by_position_error)
    late = slice(middle, 2 * middle)
    spread = [float(np.sqrt(np.nansum(errors[half] ** 2))) / middle for half in (slice(middle), late)]
    return float(means[:middle].mean()), float(means[late].mean()), math.hypot(*spread)


def _kept(bench: Bench, name: str) -> dict[int, tuple[float, float]]:
    """The share of speed that is left with a cache type, and twice its error, for each depth.

    The types took turns, a token each, so each pair of neighbours met the same other work: their ratio is steadier than
    any of the times.
    """
    times = {(one.type_k, one.n_past): one.decode_ms for one in bench.part(CacheBench).depth()}
    kept = {}
    for n in sorted({n for _, n in times}):
        shares = [usual / ms for usual, ms in zip(times["f16", n], times[name, n], strict=False)]
        first, _, third = quantiles(shares, n=4)
        kept[n] = median(shares), 2 * (third - first) / math.sqrt(len(shares))
    return kept


def _above_and_below(kept: dict[int, tuple[float, float]], limit: float) -> tuple[bool, bool]:
    """Whether the share is above a limit at some depth, and whether it is below at some."""
    above = [share - error >= limit for share, error in kept.values()]
    below = [share + error < limit for share, error in kept.values()]
    if not (any(above) and any(below)) and not all(above) and not all(below):
        raise Unsettled("the times are too noisy to tell; try again when this computer has less to do")
    return any(above), any(below)


def _by_depth(kept: dict[int, tuple[float, float]]) -> str:
    listed = ", ".join(f"{share:.0%} (±{100 * error:.0f} points) after {n}" for n, (share, error) in kept.items())
    return f"this processor keeps so much of the speed with f16: {listed} tokens"


def _shares(kept: dict[int, tuple[float, float]]) -> dict[str, Figure]:
    found: dict[str, Figure] = {f"kept_after_{n}_share": round(share, 3) for n, (share, _) in kept.items()}
    return found | {f"error_after_{n}_share": round(error, 3) for n, (_, error) in kept.items()}


def _short(model: str) -> str:
    return model.partition(":")[0].replace("-", "_").replace(".", "_")


def _listing(values: dict[str, float], show: Callable[[float], str]) -> str:
    *most, last = [f"{show(value)} ({model.partition(':')[0]})" for model, value in values.items()]
    return f"{', '.join(most)} and {last}"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
