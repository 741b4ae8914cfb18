"""The checks of the claims about the cache's size. Most follow from the kit's formula and published shapes.

What needs llama.cpp is in ``checks_03_use`` (how it uses its cache) and ``checks_03_options`` (what it can
be asked for). ``CHECKS`` has all of lab 03.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.terms import CLOSE, EIGHT_B, NEAR, RAM_BYTES, SEVEN_B, SYSTEM_BYTES, THIRTEEN_B
from labkit.course.lab03.bench import QUANTIZED, CacheBench
from labkit.settings import Settings
from labkit.units import KiB, fmt_bytes

COMMAND, LONG = 4096, 8192  # tokens: of the articles' command, which is what Llama 2 was trained for, and of their text
ROOM_BYTES = RAM_BYTES - SYSTEM_BYTES


def c036(bench: Bench) -> Finding:
    """What the cache of Llama 2 13B adds when 4096 tokens become 8192, for f16 and each quantized type. Confirmed if a
    quantized one adds next to nothing, a tenth of itself at most; misleading if each adds in proportion, only less than
    f16; wrong if none adds less than f16; else roughly right."""
    sizes = {name: [_kv(bench, THIRTEEN_B, n, name) for n in (COMMAND, LONG)] for name in ("f16", *QUANTIZED)}
    added = {name: after - before for name, (before, after) in sizes.items()}
    rise = {name: after / before - 1 for name, (before, after) in sizes.items()}
    slopes = {name: added[name] / added["f16"] for name in QUANTIZED}
    if min(rise[name] for name in QUANTIZED) <= NEAR:
        verdict = "confirmed"
    elif min(slopes.values()) >= 1:
        verdict = "wrong"
    else:
        proportional = all(abs(rise[name] - 1) <= CLOSE for name in QUANTIZED)
        verdict = "misleading" if proportional and max(slopes.values()) < 1 else "roughly right"
    return Finding(
        verdict,
        f"From {COMMAND} to {LONG} tokens the cache of Llama 2 13B grows by {fmt_bytes(added['f16'])} in f16, "
        f"{fmt_bytes(added['q8_0'])} in q8_0 (×{slopes['q8_0']:.5g}), {fmt_bytes(added['q5_1'])} in q5_1 "
        f"(×{slopes['q5_1']:.5g}) and {fmt_bytes(added['q4_0'])} in q4_0 (×{slopes['q4_0']:.5g}).",
        {"f16_added_bytes": added["f16"], **{f"{name}_slope": round(slope, 5) for name, slope in slopes.items()}},
    )


def c039(bench: Bench) -> Finding:
    """What each quantized type saves of Llama 2 13B's f16 cache. Confirmed if all save half or more; roughly right if
    some do and none saves less than 45 %; wrong if none saves half; else misleading."""
    f16 = _kv(bench, THIRTEEN_B, LONG)
    saved = {name: 1 - _kv(bench, THIRTEEN_B, LONG, name) / f16 for name in QUANTIZED}
    least, most = min(saved.values()), max(saved.values())
    if least >= 0.5:
        verdict = "confirmed"
    elif most < 0.5:
        verdict = "wrong"
    else:
        verdict = "roughly right" if least >= 0.45 else "misleading"
    listed = ", ".join(f"{name} {share:.1%}" for name, share in saved.items())
    return Finding(
        verdict,
        f"Of a cache of {fmt_bytes(f16)} in f16 the quantized types save: {listed}.",
        {f"{name}_saved_share": round(share, 4) for name, share in saved.items()},
    )


def c040(bench: Bench) -> Finding:
    """What q8_0 leaves of an f16 cache, against 2.4 of 12 GB, which is a fifth. Confirmed within 2 points of that,
    roughly right within 10, else wrong."""
    f16, q8, q5, q4 = (_kv(bench, THIRTEEN_B, LONG, name) for name in ("f16", "q8_0", "q5_1", "q4_0"))
    left, off = q8 / f16, abs(q8 / f16 - 2.4 / 12)
    return Finding(
        "confirmed" if off <= CLOSE else "roughly right" if off <= NEAR else "wrong",
        f"In q8_0, 12 GB ({fmt_bytes(12e9)}) of f16 cache become {fmt_bytes(12e9 * left)}, not 2.4 GB "
        f"({fmt_bytes(2.4e9)}); Llama 2 13B takes {fmt_bytes(f16)} at {LONG} tokens in f16, {fmt_bytes(q8)} in q8_0, "
        f"{fmt_bytes(q5)} in q5_1 and {fmt_bytes(q4)} in q4_0.",
        {"left_share": left, "f16_bytes": f16, "q8_0_bytes": q8, "q5_1_bytes": q5, "q4_0_bytes": q4},
    )


def c041(bench: Bench) -> Finding:
    """The f16 cache of one layer of Llama 2 13B, against 0.5 GB, and of all, against 19 GB, at 8192 tokens. Confirmed
    if both are within 10 %, roughly right if one is, else wrong."""
    n_layer = bench.header(THIRTEEN_B).n_layer
    short, total = _kv(bench, THIRTEEN_B, COMMAND), _kv(bench, THIRTEEN_B, LONG)
    each = total / n_layer
    tokens = int(0.5e9 / (each / LONG))
    right = (abs(each / 0.5e9 - 1) <= NEAR) + (abs(total / 19e9 - 1) <= NEAR)
    return Finding(
        ("wrong", "roughly right", "confirmed")[right],
        f"Llama 2 13B has {n_layer} layers with {fmt_bytes(short / n_layer)} of cache each at {COMMAND} tokens and "
        f"{fmt_bytes(each)} at {LONG}, {fmt_bytes(total)} in all; 0.5 GB ({fmt_bytes(0.5e9)}) per layer would take "
        f"{tokens:,} tokens.",
        {"layers": n_layer, "layer_bytes": round(each), "total_bytes": total, "tokens_for_half_a_gb": tokens},
    )


def c042(bench: Bench) -> Finding:
    """Two parts: Llama 2 13B's f16 cache is 6.4 GB within 10 %, and with Q5_K_M weights and the compute buffer more
    than 16 GiB less 2 for the system. Confirmed if both hold at 4096 tokens, which its command asks for; roughly right
    if both hold at 8192; misleading if one part holds at either; else wrong."""
    model = "llama-2-13b:Q5_K_M"
    sizes = {n: _kv(bench, model, n) for n in (COMMAND, LONG)}
    needs = {n: _needed(bench, model, n) for n in sizes}
    parts = {n: (abs(sizes[n] / 6.4e9 - 1) <= NEAR) + (needs[n] > ROOM_BYTES) for n in sizes}
    if parts[COMMAND] == 2:
        verdict = "confirmed"
    elif parts[LONG] == 2:
        verdict = "roughly right"
    else:
        verdict = "misleading" if any(parts.values()) else "wrong"
    return Finding(
        verdict,
        f"The f16 cache of Llama 2 13B takes {fmt_bytes(sizes[COMMAND])} at {COMMAND} tokens and "
        f"{fmt_bytes(sizes[LONG])} at {LONG}, and with Q5_K_M weights and compute buffer {fmt_bytes(needs[COMMAND])} "
        f"and {fmt_bytes(needs[LONG])}, where {fmt_bytes(ROOM_BYTES)} of 16 GiB are free.",
        {
            "kv_4096_bytes": sizes[COMMAND],
            "kv_8192_bytes": sizes[LONG],
            "needed_4096_bytes": needs[COMMAND],
            "needed_8192_bytes": needs[LONG],
        },
    )


def c043(bench: Bench) -> Finding:
    """Weights, f16 cache and compute buffer of Llama 2 13B Q4_K_M, against 14.8 GB. Confirmed if within 10 % at 4096
    tokens, which it was trained for; roughly right if only at 8192; else wrong."""
    at_command, at_long = (_needed(bench, THIRTEEN_B, n) for n in (COMMAND, LONG))
    near = [abs(size / 14.8e9 - 1) <= NEAR for size in (at_command, at_long)]
    return Finding(
        "confirmed" if near[0] else "roughly right" if near[1] else "wrong",
        f"Weights, f16 cache and compute buffer of Llama 2 13B Q4_K_M take {fmt_bytes(at_command)} at {COMMAND} tokens "
        f"and {fmt_bytes(at_long)} at {LONG}, where the claim says 14.8 GB ({fmt_bytes(14.8e9)}).",
        {"needed_4096_bytes": at_command, "needed_8192_bytes": at_long},
    )


def c045(bench: Bench) -> Finding:
    """The f16 cache of Llama 2 13B as a share of it and the Q4_K_M weights, at the 4096 tokens it was trained for.
    Confirmed if the cache is the larger by far, 60 % or more; roughly right from half; else wrong."""
    weights, cache = bench.header(THIRTEEN_B).tensor_bytes, _kv(bench, THIRTEEN_B, COMMAND)
    share = cache / (weights + cache)
    crossing, later = (_outweighed(bench, model) for model in (THIRTEEN_B, EIGHT_B))
    return Finding(
        "confirmed" if share >= 0.6 else "roughly right" if share >= 0.5 else "wrong",
        f"At {COMMAND} tokens the f16 cache of Llama 2 13B is {fmt_bytes(cache)}, {share:.0%} of cache and Q4_K_M "
        f"weights ({fmt_bytes(weights)}); the weights are the larger up to {crossing:,} tokens, and with the shared "
        f"heads of Llama 3.1 8B up to {later:,}.",
        {"cache_share": round(share, 4), "weights_larger_up_to_tokens": crossing, "the_same_of_8b_tokens": later},
    )


def c046(bench: Bench) -> Finding:
    """What Llama 2 13B saves at 4096 tokens: weights from F16 to Q4_K_M, cache from f16 to q8_0 and to q4_0. Confirmed
    if the weights save more than either cache type, roughly right if more than q8_0 only, else wrong."""
    f16, q4 = (bench.header(f"llama-2-13b:{quant}").tensor_bytes for quant in ("F16", "Q4_K_M"))
    cache = {name: _kv(bench, THIRTEEN_B, COMMAND, name) for name in ("f16", "q8_0", "q4_0")}
    saved = {name: cache["f16"] - cache[name] for name in ("q8_0", "q4_0")}
    more = [f16 - q4 > saving for saving in saved.values()]
    return Finding(
        "confirmed" if all(more) else "roughly right" if more[0] else "wrong",
        f"For Llama 2 13B at {COMMAND} tokens, weights go from {fmt_bytes(f16)} to {fmt_bytes(q4)} in Q4_K_M, and the "
        f"cache from {fmt_bytes(cache['f16'])} to {fmt_bytes(cache['q8_0'])} in q8_0 or {fmt_bytes(cache['q4_0'])} in "
        f"q4_0.",
        {
            "weights_saved_bytes": f16 - q4,
            "q8_0_saved_bytes": saved["q8_0"],
            "q4_0_saved_bytes": saved["q4_0"],
        },
    )


def c052(bench: Bench) -> Finding:
    """The f16 cache at 2048 tokens of models with 7 to 8 billion weights, against 1 to 1.5 GB (a tenth more or less).
    Confirmed if all lie there, roughly right if some do, wrong if none does."""
    sizes = {
        name: _kv(bench, f"{name}:Q4_K_M", 2048) for name in ("llama-2-7b", "mistral-7b", EIGHT_B.partition(":")[0])
    }
    inside = sum((1 - NEAR) * 1e9 <= size <= (1 + NEAR) * 1.5e9 for size in sizes.values())
    listed = ", ".join(f"{name} {fmt_bytes(size)}" for name, size in sizes.items())
    return Finding(
        "confirmed" if inside == len(sizes) else "roughly right" if inside else "wrong",
        f"At 2048 tokens in f16 the cache takes: {listed}; the claim says 1 to 1.5 GB ({fmt_bytes(1e9)} to "
        f"{fmt_bytes(1.5e9)}).",
        {f"{name.replace('-', '_').replace('.', '_')}_bytes": size for name, size in sizes.items()},
    )


def c053(bench: Bench) -> Finding:
    """The f16 cache of Llama 2 7B at 1024 and 2048 tokens, against 0.5 and 0.75 GB. Confirmed if both are within 10 %,
    roughly right if within 30 %, else wrong."""
    sizes = [_kv(bench, SEVEN_B, n) for n in (1024, 2048)]
    off = max(abs(claimed / size - 1) for claimed, size in zip((0.5e9, 0.75e9), sizes, strict=True))
    return Finding(
        "confirmed" if off <= NEAR else "roughly right" if off <= 0.3 else "wrong",
        f"The f16 cache of Llama 2 7B takes {fmt_bytes(sizes[0])} at 1024 tokens and {fmt_bytes(sizes[1])} at 2048, "
        f"where the claim says 0.5 and 0.75 GB ({fmt_bytes(0.5e9)} and {fmt_bytes(0.75e9)}).",
        {"kv_1024_bytes": sizes[0], "kv_2048_bytes": sizes[1]},
    )


def c054(bench: Bench) -> Finding:
    """The cache of four models in q8_0, q5_1 and q4_0 from 2048 to 32,768 tokens, as far as it fits beside Q4_K_M
    weights in 16 GiB less 2 for the system, against 3.5 GB. Confirmed if all are within 10 %, wrong if none is; depends
    on machine if some are, since model, length and type, which the claim leaves open, decide."""
    hits, sizes = [], []
    for model in (SEVEN_B, THIRTEEN_B, EIGHT_B, "mistral-7b:Q4_K_M"):
        for n in (2048, 4096, 8192, 16384, 32768):
            for name in ("q8_0", "q5_1", "q4_0"):
                size = _kv(bench, model, n, name)
                if bench.header(model).tensor_bytes + size <= ROOM_BYTES:
                    sizes.append(size)
                    if abs(size / 3.5e9 - 1) <= NEAR:
                        hits.append(f"{model.partition(':')[0]} at {n} in {name} ({fmt_bytes(size)})")
    near = f"such as {hits[0]}" if hits else "none of them"
    return Finding(
        "wrong" if not hits else "confirmed" if len(hits) == len(sizes) else "depends on machine",
        f"Of {len(sizes)} quantized caches that fit in 16 GiB, {len(hits)} take about 3.5 GB ({fmt_bytes(3.5e9)}), "
        f"{near}; they go from {fmt_bytes(min(sizes))} to {fmt_bytes(max(sizes))}.",
        {"caches": len(sizes), "near": len(hits), "least_bytes": min(sizes), "most_bytes": max(sizes)},
    )


def c060(bench: Bench) -> Finding:
    """What q8_0 saves of Llama 3.1 8B's cache: with one sequence of 32,768 tokens, with eight of 4096 at once, and with
    one of 4096. Confirmed if eight save at least twice what one long one does; roughly right if both save about the
    same, and more than the short one: what was allocated decides; else wrong."""
    wanted = {"long": (32 * KiB, 1), "many": (32 * KiB, 8), "short": (4 * KiB, 1)}
    saved = {
        name: bench.part(CacheBench).kv_bytes(EIGHT_B, n_ctx=n, n_seq_max=n_seq)
        - bench.part(CacheBench).kv_bytes(EIGHT_B, n_ctx=n, n_seq_max=n_seq, type_k="q8_0", type_v="q8_0")
        for name, (n, n_seq) in wanted.items()
    }
    if saved["many"] >= 2 * saved["long"]:
        verdict = "confirmed"
    else:
        same = abs(saved["many"] / saved["long"] - 1) <= NEAR if saved["long"] else False
        verdict = "roughly right" if same and saved["long"] > 2 * saved["short"] else "wrong"
    return Finding(
        verdict,
        f"For Llama 3.1 8B q8_0 saves {fmt_bytes(saved['many'])} with eight sequences of 4096 tokens, "
        f"{fmt_bytes(saved['long'])} with one of 32,768, and {fmt_bytes(saved['short'])} with one of 4096, however few "
        f"of these tokens are in use.",
        {f"{name}_saved_bytes": size for name, size in saved.items()},
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check for check in (c036, c039, c040, c041, c042, c043, c045, c046, c052, c053, c054, c060)
}


def _kv(bench: Bench, model: str, n_ctx: int, name: str = "f16") -> int:
    return bench.part(CacheBench).kv_bytes(model, n_ctx=n_ctx, type_k=name, type_v=name)


def _needed(bench: Bench, model: str, n_ctx: int) -> int:
    """Weights, f16 cache and compute buffer."""
    header = bench.header(model)
    compute, _ = predict.compute_bytes(header, Settings(n_ctx=n_ctx))
    return header.tensor_bytes + _kv(bench, model, n_ctx) + compute


def _outweighed(bench: Bench, model: str) -> int:
    """Up to how many tokens the weights are larger than the f16 cache."""
    return -(-bench.header(model).tensor_bytes * COMMAND // _kv(bench, model, COMMAND)) - 1
