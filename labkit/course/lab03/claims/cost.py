"""The checks of the claims about what the cache saves, and what a quantized one costs in quality and speed."""

from __future__ import annotations

import math
from statistics import median, quantiles
from typing import TYPE_CHECKING

import numpy as np

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding, joined
from labkit.course.claims.terms import BUNDLED, EIGHT_B, LITTLE, SEVEN_B, THIRTEEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab03.bench import COMPARED, CacheBench
from labkit.course.lab03.claims.size import figure_name
from labkit.settings import Settings

if TYPE_CHECKING:
    from labkit.quant.cache_quality import CacheQuality

Kept = dict[int, tuple[float, float]]  # the share of speed that is left and twice its error, by depth


def c034(bench: Bench) -> Finding:
    """Saves: a token after a filled cache takes less than a tenth of the time that filling the cache took. Much: at
    their trained lengths the f16 caches of Llama 2 7B and 13B and Llama 3.1 8B take a fifth of cache and Q4_K_M weights
    or more, and a cache that was made here is resident. Confirmed if it saves and takes much in all three, roughly
    right if it saves only, misleading if it takes much in all but saves nothing, else wrong."""
    cache, show = bench.part(CacheBench), Figures()
    growth, filled = cache.growth(), [one for one in cache.depth() if one.type_k == "f16"]
    last, fill_ms = max(filled, key=lambda one: one.n_past), 1000 * sum(one.fill_s for one in filled)
    saves = last.median_ms < LITTLE * fill_ms
    shares, each, of_all = [], [], []
    for model in (SEVEN_B, THIRTEEN_B, EIGHT_B):
        header, name = bench.header(model), model.partition(":")[0]
        trained = int(header.key("context_length"))
        kv = cache.kv_bytes(model, n_ctx=trained)
        shares.append(kv / (kv + header.tensor_bytes))
        each.append(f"{show(**{f'{figure_name(name)}_token_bytes': round(kv / trained)})} ({name})")
        of_all.append(f"{show(**{f'{figure_name(name)}_share': round(shares[-1], 4)})} ({name})")
    much = min(shares) >= 0.2 and growth.at_once
    return show.finding(
        {(1, 1): "confirmed", (1, 0): "roughly right", (0, 1): "misleading", (0, 0): "wrong"}[saves, much],
        f"A token after {show(depth_tokens=last.n_past)} others takes {show(token_ms=round(last.median_ms, 3))}, and "
        f"to compute these others again would take {show(fill_ms=round(fill_ms, 1))}; a token takes {joined(each)} of "
        f"cache, and at the trained lengths the cache is {joined(of_all)} of cache and weights.",
    )


def c055(bench: Bench) -> Finding:
    """Smaller: llama.cpp plans less for q8_0 than for f16, and less again for q4_0. Rounded: the model's predictions
    differ from those with an f16 cache by more than twice the error of measurement, and more with q4_0. Confirmed if
    both, misleading if the cache is smaller but nothing shows that it was rounded, else wrong."""
    cache, show = bench.part(CacheBench), Figures()
    f16, q8, q4 = bench.planned_kv_bytes(BUNDLED, *(Settings(type_k=name, type_v=name) for name in ("f16", *COMPARED)))
    seen = {name: cache.quality(name, name) for name in COMPARED}
    klds = {name: one.quality.kld_mean for name, one in seen.items()}
    rounded = klds["q4_0"] > klds["q8_0"] and all(_loses(one) for one in seen.values())
    plain = cache.known_quality("q4_0", "q4_0", rotated=False)
    without = f" ({show(q4_0_kld_not_rotated=round(plain.quality.kld_mean, 6)):.3g} without rotation)" if plain else ""
    return show.finding(
        "wrong" if not q4 < q8 < f16 else "confirmed" if rounded else "misleading",
        f"For 512 tokens llama.cpp plans {show(f16_bytes=f16)} of cache in f16, {show(q8_0_bytes=q8)} in q8_0 and "
        f"{show(q4_0_bytes=q4)} in q4_0, and over {seen['q8_0'].quality.n_tokens} tokens the predictions diverge "
        f"(KLD) from those with f16 by {show(q8_0_kld=round(klds['q8_0'], 6)):.3g} with q8_0 and "
        f"{show(q4_0_kld=round(klds['q4_0'], 6)):.3g} with q4_0{without}.",
    )


def c056(bench: Bench) -> Finding:
    """Mean divergence (KLD) from an f16 cache in the first and the second half of a text. Confirmed if it rises with
    q8_0 and with q4_0, by more than twice its error; wrong if neither type costs more than that, so that nothing can
    build up; depends on machine if they cost something that does not rise with both: the claim says may, and one model
    and text do not rule that out."""
    seen, show = {name: bench.part(CacheBench).quality(name, name) for name in COMPARED}, Figures()
    halves = {name: _halves(one) for name, one in seen.items()}
    rising = [late - early > 2 * error for early, late, error in halves.values()]
    if not any(_loses(one) for one in seen.values()):
        verdict = "wrong"
    else:
        verdict = "confirmed" if all(rising) else "depends on machine"
    listed = []
    for name, values in halves.items():
        names = (f"{name}_early_kld", f"{name}_late_kld", f"{name}_kld_error")
        early, late, error = (show(**{key: round(value, 6)}) for key, value in zip(names, values, strict=True))
        listed.append(f"from {early:.3g} to {late:.3g} (±{error:.2g}) with {name}")
    return show.finding(
        verdict,
        f"From the first to the second half of {seen['q8_0'].quality.n_tokens} tokens the divergence (KLD) changes "
        f"{joined(listed)}.",
    )


def c057(bench: Bench) -> Finding:
    """Speed kept with q8_0 at each depth: the time of a token with an f16 cache over that of one with q8_0 timed next
    to it. Confirmed if it is at least 95 % (98 %, give or take three points) at every depth, wrong if at none, else
    depends on machine: how much of the cache is read, and how fast this processor decodes it, decide. A depth counts
    only if it is off the limit by twice the error."""
    kept, show = _kept(bench, "q8_0"), Figures()
    return show.finding(
        {(1, 0): "confirmed", (0, 1): "wrong", (1, 1): "depends on machine"}[_above_and_below(kept, 0.95)],
        f"With a q8_0 cache {_by_depth(show, kept)}.",
    )


def c058(bench: Bench) -> Finding:
    """Speed kept with q4_0 at each depth, counted as for C057. Confirmed if it is below 70 % at every depth; wrong if
    at none, and it differs by less than ten points between the depths; else depends on machine: depth and processor
    decide."""
    kept, show = _kept(bench, "q4_0"), Figures()
    shares = [share for share, _ in kept.values()]
    above, below = _above_and_below(kept, 0.7)
    differs = below or max(shares) - min(shares) >= LITTLE
    return show.finding(
        "confirmed" if not above else "depends on machine" if differs else "wrong",
        f"With a q4_0 cache {_by_depth(show, kept)}.",
    )


def _loses(seen: CacheQuality) -> bool:
    """Whether a cache type costs more quality than the error of measurement explains."""
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


def _kept(bench: Bench, name: str) -> Kept:
    """The share of speed that is left with a cache type, and twice its error, for each depth.

    The types took turns, a token each, so other programs slowed both tokens of a pair alike: their ratio is steadier
    than either time.
    """
    times = {(one.type_k, one.n_past): one.decode_ms for one in bench.part(CacheBench).depth()}
    kept = {}
    for depth in sorted({depth for _, depth in times}):
        shares = [usual / ms for usual, ms in zip(times["f16", depth], times[name, depth], strict=False)]
        first, _, third = quantiles(shares, n=4)
        kept[depth] = median(shares), 2 * (third - first) / math.sqrt(len(shares))
    return kept


def _above_and_below(kept: Kept, limit: float) -> tuple[bool, bool]:
    """Whether the share is above a limit at some depth, and whether it is below at some."""
    above = [share - error >= limit for share, error in kept.values()]
    below = [share + error < limit for share, error in kept.values()]
    if not (any(above) and any(below)) and not all(above) and not all(below):
        raise Unsettled("the times vary too much to tell; try again when this computer has less to do")
    return any(above), any(below)


def _by_depth(show: Figures, kept: Kept) -> str:
    """What is left at each depth, in a clause."""
    listed = []
    for depth, (share, error) in kept.items():
        left = show(**{f"kept_after_{depth}_share": round(share, 3)})
        show.keep(**{f"error_after_{depth}_share": round(error, 3)})
        listed.append(f"{left} (±{100 * error:.0f} points) after {depth} tokens")
    return f"this processor keeps {joined(listed)} of the speed that it has with f16"
