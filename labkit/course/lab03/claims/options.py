"""The checks of the claims about options: looked up in llama.cpp's installed libraries, and tried where they can be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.options import as_figures, listing, look_up
from labkit.course.claims.terms import BUNDLED, CLOSE, LITTLE, THIRTEEN_B
from labkit.course.lab03.bench import QUANTIZED, CacheBench
from labkit.gguf import TYPES
from labkit.settings import Settings
from labkit.units import fmt_bytes

BACKENDS = ("metal", "cuda", "rocm", "vulkan")


def c038(bench: Bench) -> Finding:
    """llama.cpp's plans for the bundled model with each quantized type for K and for V; whether its libraries say that
    a quantized V needs flash attention; and which of the five backends this build has. Confirmed if it accepts every
    type on all five without a condition; wrong if it accepts none; misleading if it accepts some; roughly right if
    it accepts all, with the condition or on the backends that can be seen here."""
    halves = {f"{half}={name}": Settings.of({f"type_{half}": name}) for half in ("k", "v") for name in QUANTIZED}
    plans = bench.planned(BUNDLED, *halves.values())
    refused = [name for name, plan in zip(halves, plans, strict=True) if plan.problem]
    needs = bench.in_libraries(b"quantized v cache requires flash_attn")
    kinds = bench.part(CacheBench).device_kinds()
    here = [name for name in ("cpu", *BACKENDS) if any(name in kind for kind in kinds)]
    if len(refused) == len(plans):
        verdict = "wrong"
    elif refused:
        verdict = "misleading"
    else:
        verdict = "confirmed" if not needs and len(here) == 1 + len(BACKENDS) else "roughly right"
    return Finding(
        verdict,
        f"llama.cpp accepts {len(plans) - len(refused)} of {len(plans)} quantized types for K and V "
        f"({', '.join(QUANTIZED)}) and says that a quantized V cache "
        f"{'requires' if needs else 'needs no'} flash attention; of {1 + len(BACKENDS)} backends this build has "
        f"{', '.join(here) or 'none'}.",
        {
            "tried": len(plans),
            "accepted": len(plans) - len(refused),
            "needs_flash_attention": "yes" if needs else "no",
            "backends": ", ".join(here),
        },
    )


def c059(bench: Bench) -> Finding:
    """Offered: a cache type with blocks of 128 elements. Better: normally distributed values rounded to 8 bits come out
    closer with one scale for 128 of them than for 64. Confirmed if both, misleading if one, wrong if neither."""
    sizes = sorted({TYPES[name.upper()].block_elems for name in QUANTIZED})
    errors = {n: bench.part(CacheBench).block_error(n) for n in (32, 64, 128, 256)}
    offered, better = 128 in sizes, errors[128] < errors[64]
    listed = ", ".join(f"{error:.2%} for {n}" for n, error in errors.items())
    return Finding(
        ("wrong", "misleading", "confirmed")[offered + better],
        f"The cache types have blocks of {' or '.join(map(str, sizes))} elements; rounding to 8 bits costs so much of "
        f"the spread, by elements that share a scale: {listed}.",
        {"block_elements": ", ".join(map(str, sizes)), **{f"error_{n}_share": round(e, 5) for n, e in errors.items()}},
    )


def c061(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --kv-cache-quantize, else wrong."""
    known = look_up(bench, "--kv-cache-quantize", "--cache-type-k", "--cache-type-v")
    sizes = [
        bench.part(CacheBench).kv_bytes(THIRTEEN_B, n_ctx=4096, type_k=name, type_v=name) for name in ("f16", "q8_0")
    ]
    return Finding(
        "confirmed" if known["--kv-cache-quantize"] else "wrong",
        f"In llama.cpp's library of options: {listing(known)}; a type is what makes the cache of Llama 2 13B at 4096 "
        f"tokens {fmt_bytes(sizes[1])} (q8_0) instead of {fmt_bytes(sizes[0])} (f16).",
        {"f16_bytes": sizes[0], "q8_0_bytes": sizes[1], **as_figures(known)},
    )


def c062(bench: Bench) -> Finding:
    """Confirmed if a child makes a smaller cache when LLAMA_KV_QUANTIZE is 1; else misleading if llama.cpp knows the
    variable all the same, wrong if it does not."""
    known = look_up(bench, "LLAMA_KV_QUANTIZE", "LLAMA_ARG_CACHE_TYPE_K", "LLAMA_ARG_CACHE_TYPE_V")
    usual, under = bench.part(CacheBench).kv_bytes(BUNDLED), bench.part(CacheBench).kv_bytes_under("LLAMA_KV_QUANTIZE")
    smaller, there = 1 - under / usual >= LITTLE, known["LLAMA_KV_QUANTIZE"]
    return Finding(
        "confirmed" if smaller else "misleading" if there else "wrong",
        f"With the variable set, {BUNDLED}'s cache for 512 tokens takes {fmt_bytes(under)} instead of "
        f"{fmt_bytes(usual)}; in llama.cpp's library of options: {listing(known)}.",
        {"usual_bytes": usual, "with_variable_bytes": under, **as_figures(known)},
    )


def c063(bench: Bench) -> Finding:
    """Known: llama.cpp's command-line tools know --offload-kv. Smaller: it plans at least a tenth less cache with
    offload_kqv than without. Confirmed if both, roughly right if smaller only, misleading if known only, else wrong."""
    known = look_up(bench, "--offload-kv", "--kv-offload")
    off, on = bench.planned_kv_bytes(
        THIRTEEN_B, Settings(n_ctx=4096, offload_kqv=False), Settings(n_ctx=4096, offload_kqv=True)
    )
    smaller = 1 - on / off >= LITTLE
    return Finding(
        {(1, 1): "confirmed", (0, 1): "roughly right", (1, 0): "misleading", (0, 0): "wrong"}[
            known["--offload-kv"], smaller
        ],
        f"For 4096 tokens of Llama 2 13B llama.cpp plans {fmt_bytes(on)} of cache with offload_kqv and "
        f"{fmt_bytes(off)} without; in its library of options: {listing(known)}.",
        {"on_bytes": on, "off_bytes": off, **as_figures(known)},
    )


def c064(bench: Bench) -> Finding:
    """Known: llama.cpp's command-line tools know --max-context. Smaller: at 2048 tokens it plans at least a tenth less
    cache than at 4096. Confirmed if both, misleading if known only, wrong if there is no such option."""
    known = look_up(bench, "--max-context", "--ctx-size")
    short, usual = bench.planned_kv_bytes(THIRTEEN_B, Settings(n_ctx=2048), Settings(n_ctx=4096))
    smaller = 1 - short / usual >= LITTLE
    return Finding(
        "wrong" if not known["--max-context"] else "confirmed" if smaller else "misleading",
        f"In llama.cpp's library of options: {listing(known)}; for Llama 2 13B it plans {fmt_bytes(short)} of cache "
        f"at 2048 tokens and {fmt_bytes(usual)} at 4096.",
        {"kv_2048_bytes": short, "kv_4096_bytes": usual, **as_figures(known)},
    )


def c065(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --ctx-size and the cache is in proportion to it within 2 %;
    roughly right if it is only smaller; wrong if it is not, or there is no such option."""
    known = look_up(bench, "--ctx-size")
    sizes = dict(
        zip((1024, 4096), bench.planned_kv_bytes(THIRTEEN_B, Settings(n_ctx=1024), Settings(n_ctx=4096)), strict=True)
    )
    ratio = sizes[4096] / sizes[1024]
    if not known["--ctx-size"] or ratio <= 1 + CLOSE:
        verdict = "wrong"
    else:
        verdict = "confirmed" if abs(ratio / 4 - 1) <= CLOSE else "roughly right"
    return Finding(
        verdict,
        f"In llama.cpp's library of options: {listing(known)}; for Llama 2 13B it plans {fmt_bytes(sizes[1024])} of "
        f"cache at 1024 tokens and {fmt_bytes(sizes[4096])} at 4096.",
        {"kv_1024_bytes": sizes[1024], "kv_4096_bytes": sizes[4096], **as_figures(known)},
    )


def c066(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know both options, and in its plans the type of K changes the bytes
    of K alone and that of V those of V alone; misleading if only one of the two is so; else wrong."""
    known = look_up(bench, "--cache-type-k", "--cache-type-v")
    plans = bench.planned(
        THIRTEEN_B, Settings(n_ctx=4096), *(Settings.of({"n_ctx": 4096, half: "q8_0"}) for half in HALVES)
    )
    if any(plan.problem for plan in plans):
        verdict, halves = "wrong", []
    else:
        halves = [[sum(getattr(one, f"{half[-1]}_bytes") for one in plan.caches) for half in HALVES] for plan in plans]
        (k, v), (k_of_k, v_of_k), (k_of_v, v_of_v) = halves
        own = k_of_k < k and v_of_k == v and k_of_v == k and v_of_v < v
        verdict = ("wrong", "misleading", "confirmed")[all(known.values()) + own]
    sizes = ", ".join(
        f"{fmt_bytes(k)} + {fmt_bytes(v)} {how}"
        for (k, v), how in zip(halves, ("in f16", "with K in q8_0", "with V in q8_0"), strict=False)
    )
    return Finding(
        verdict,
        f"For 4096 tokens of Llama 2 13B llama.cpp plans for K and V: {sizes or 'nothing, it refuses'}; in its "
        f"library of options: {listing(known)}.",
        {f"{name}_bytes": size for name, size in zip(("k", "v"), halves[0] if halves else (), strict=False)}
        | as_figures(known),
    )


def c067(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --n-gpu-layers and --cache-type-k, and each step from f16 to
    q8_0 to q4_0 makes the cache it plans at least a tenth smaller; roughly right if only one of the two is so; else
    wrong."""
    known = look_up(bench, "--n-gpu-layers", "--cache-type-k")
    names = ("f16", "q8_0", "q4_0")
    sizes = bench.planned_kv_bytes(THIRTEEN_B, *(Settings(n_ctx=4096, type_k=name, type_v=name) for name in names))
    falls = all(1 - after / before >= LITTLE for before, after in pairwise(sizes))
    listed = ", ".join(f"{fmt_bytes(size)} in {name}" for name, size in zip(names, sizes, strict=True))
    return Finding(
        ("wrong", "roughly right", "confirmed")[all(known.values()) + falls],
        f"For 4096 tokens of Llama 2 13B llama.cpp plans {listed}; in its library of options: {listing(known)}.",
        {f"{name}_bytes": size for name, size in zip(names, sizes, strict=True)} | as_figures(known),
    )


HALVES = ("type_k", "type_v")
CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check for check in (c038, c059, c061, c062, c063, c064, c065, c066, c067)
}
