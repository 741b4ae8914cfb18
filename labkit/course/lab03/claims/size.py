"""The checks of the claims about the cache's size, by the kit's formula and published shapes."""

from __future__ import annotations

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding, joined
from labkit.course.claims.terms import CLOSE, EIGHT_B, NEAR, RAM_BYTES, SEVEN_B, SYSTEM_BYTES, THIRTEEN_B
from labkit.course.lab03.bench import QUANTIZED, CacheBench
from labkit.settings import Settings
from labkit.units import KiB, fmt_bytes

COMMAND, LONG = 4096, 8192  # tokens: of the articles' command, which is what Llama 2 was trained for, and of their text
ROOM_BYTES = RAM_BYTES - SYSTEM_BYTES


def c036(bench: Bench) -> Finding:
    """What the cache of Llama 2 13B adds when 4096 tokens become 8192, for f16 and each quantized type. Confirmed if a
    quantized one adds a tenth of itself at most; misleading if each doubles as f16 does, and only adds less; wrong if
    none adds less than f16; else roughly right."""
    sizes = {name: [_kv(bench, THIRTEEN_B, n_ctx, name) for n_ctx in (COMMAND, LONG)] for name in ("f16", *QUANTIZED)}
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
    show = Figures()
    show.keep(**{f"{name}_slope": round(slope, 5) for name, slope in slopes.items()})
    listed = [f"{fmt_bytes(added[name])} in {name} (×{slopes[name]:.5g})" for name in ("q8_0", "q5_1", "q4_0")]
    return show.finding(
        verdict,
        f"From {COMMAND} to {LONG} tokens the cache of Llama 2 13B grows by {show(f16_added_bytes=added['f16'])} in "
        f"f16, {joined(listed)}.",
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
    show = Figures()
    listed = [f"{name} {show(**{f'{name}_saved_share': round(share, 4)}):.1%}" for name, share in saved.items()]
    return show.finding(
        verdict, f"Of a cache of {fmt_bytes(f16)} in f16 the quantized types save: {', '.join(listed)}."
    )


def c040(bench: Bench) -> Finding:
    """What q8_0 leaves of an f16 cache, against 2.4 of 12 GB, which is a fifth. Confirmed within 2 points of that,
    roughly right within 10, else wrong."""
    f16, q8, q5, q4 = (_kv(bench, THIRTEEN_B, LONG, name) for name in ("f16", "q8_0", "q5_1", "q4_0"))
    left, off = q8 / f16, abs(q8 / f16 - 2.4 / 12)
    show = Figures()
    show.keep(left_share=left)
    return show.finding(
        "confirmed" if off <= CLOSE else "roughly right" if off <= NEAR else "wrong",
        f"In q8_0, 12 GB ({fmt_bytes(12e9)}) of f16 cache become {fmt_bytes(12e9 * left)}, not 2.4 GB "
        f"({fmt_bytes(2.4e9)}); Llama 2 13B takes {show(f16_bytes=f16)} at {LONG} tokens in f16, "
        f"{show(q8_0_bytes=q8)} in q8_0, {show(q5_1_bytes=q5)} in q5_1 and {show(q4_0_bytes=q4)} in q4_0.",
    )


def c041(bench: Bench) -> Finding:
    """The f16 cache of one layer of Llama 2 13B, against 0.5 GB, and of all layers, against 19 GB, at 8192 tokens.
    Confirmed if both are within 10 %, roughly right if one is, else wrong."""
    n_layer = bench.header(THIRTEEN_B).n_layer
    short, total = _kv(bench, THIRTEEN_B, COMMAND), _kv(bench, THIRTEEN_B, LONG)
    each = total / n_layer
    right = (abs(each / 0.5e9 - 1) <= NEAR) + (abs(total / 19e9 - 1) <= NEAR)
    show = Figures()
    return show.finding(
        ("wrong", "roughly right", "confirmed")[right],
        f"Llama 2 13B has {show(layers=n_layer)} layers with {fmt_bytes(short / n_layer)} of cache each at {COMMAND} "
        f"tokens and {show(layer_bytes=round(each))} at {LONG}, {show(total_bytes=total)} in all; 0.5 GB "
        f"({fmt_bytes(0.5e9)}) per layer would take {show(tokens_for_half_a_gb=int(0.5e9 / (each / LONG)))} tokens.",
    )


def c042(bench: Bench) -> Finding:
    """Two parts: Llama 2 13B's f16 cache is 6.4 GB within 10 %, and with Q5_K_M weights and the compute buffer more
    than 16 GiB less 2 for the system. Confirmed if both hold at 4096 tokens, which the article's command asks for;
    roughly right if both hold at 8192; misleading if one part holds at either; else wrong."""
    model = "llama-2-13b:Q5_K_M"
    sizes = {n_ctx: _kv(bench, model, n_ctx) for n_ctx in (COMMAND, LONG)}
    needs = {n_ctx: _needed(bench, model, n_ctx) for n_ctx in sizes}
    parts = {n_ctx: (abs(sizes[n_ctx] / 6.4e9 - 1) <= NEAR) + (needs[n_ctx] > ROOM_BYTES) for n_ctx in sizes}
    if parts[COMMAND] == 2:
        verdict = "confirmed"
    elif parts[LONG] == 2:
        verdict = "roughly right"
    else:
        verdict = "misleading" if any(parts.values()) else "wrong"
    show = Figures()
    return show.finding(
        verdict,
        f"The f16 cache of Llama 2 13B takes {show(kv_4096_bytes=sizes[COMMAND])} at {COMMAND} tokens and "
        f"{show(kv_8192_bytes=sizes[LONG])} at {LONG}, and with Q5_K_M weights and compute buffer "
        f"{show(needed_4096_bytes=needs[COMMAND])} and {show(needed_8192_bytes=needs[LONG])}, where "
        f"{fmt_bytes(ROOM_BYTES)} of 16 GiB are free.",
    )


def c043(bench: Bench) -> Finding:
    """Weights, f16 cache and compute buffer of Llama 2 13B Q4_K_M, against 14.8 GB. Confirmed if within 10 % at 4096
    tokens, which it was trained for; roughly right if only at 8192; else wrong."""
    at_command, at_long = (_needed(bench, THIRTEEN_B, n_ctx) for n_ctx in (COMMAND, LONG))
    near = [abs(size / 14.8e9 - 1) <= NEAR for size in (at_command, at_long)]
    show = Figures()
    return show.finding(
        "confirmed" if near[0] else "roughly right" if near[1] else "wrong",
        f"Weights, f16 cache and compute buffer of Llama 2 13B Q4_K_M take {show(needed_4096_bytes=at_command)} at "
        f"{COMMAND} tokens and {show(needed_8192_bytes=at_long)} at {LONG}, where the claim says 14.8 GB "
        f"({fmt_bytes(14.8e9)}).",
    )


def c045(bench: Bench) -> Finding:
    """The f16 cache of Llama 2 13B as a share of it and the Q4_K_M weights, at the 4096 tokens it was trained for.
    Confirmed if the cache is the larger by far, 60 % or more; roughly right from half on; else wrong."""
    weights, cache = bench.header(THIRTEEN_B).tensor_bytes, _kv(bench, THIRTEEN_B, COMMAND)
    share = cache / (weights + cache)
    up_to, of_8b = (_outweighed(bench, model) for model in (THIRTEEN_B, EIGHT_B))
    show = Figures()
    return show.finding(
        "confirmed" if share >= 0.6 else "roughly right" if share >= 0.5 else "wrong",
        f"At {COMMAND} tokens the f16 cache of Llama 2 13B is {fmt_bytes(cache)}, {show(cache_share=round(share, 4))} "
        f"of cache and Q4_K_M weights ({fmt_bytes(weights)}) together; the weights are the larger up to "
        f"{show(weights_larger_up_to_tokens=up_to)} tokens, and those of Llama 3.1 8B, whose heads share keys and "
        f"values, up to {show(the_same_of_8b_tokens=of_8b)}.",
    )


def c046(bench: Bench) -> Finding:
    """What Llama 2 13B saves at 4096 tokens: weights from F16 to Q4_K_M, cache from f16 to q8_0 and to q4_0. Confirmed
    if the weights save more than either cache type, roughly right if more than q8_0 only, else wrong."""
    f16, q4 = (bench.header(f"llama-2-13b:{quant}").tensor_bytes for quant in ("F16", "Q4_K_M"))
    cache = {name: _kv(bench, THIRTEEN_B, COMMAND, name) for name in ("f16", "q8_0", "q4_0")}
    saved = {name: cache["f16"] - cache[name] for name in ("q8_0", "q4_0")}
    more, show = [f16 - q4 > saving for saving in saved.values()], Figures()
    show.keep(weights_saved_bytes=f16 - q4, q8_0_saved_bytes=saved["q8_0"], q4_0_saved_bytes=saved["q4_0"])
    return show.finding(
        "confirmed" if all(more) else "roughly right" if more[0] else "wrong",
        f"For Llama 2 13B at {COMMAND} tokens, weights go from {fmt_bytes(f16)} to {fmt_bytes(q4)} in Q4_K_M, and the "
        f"cache from {fmt_bytes(cache['f16'])} to {fmt_bytes(cache['q8_0'])} in q8_0 or {fmt_bytes(cache['q4_0'])} in "
        "q4_0.",
    )


def c052(bench: Bench) -> Finding:
    """The f16 cache at 2048 tokens of models with 7 to 8 billion weights, against 1 to 1.5 GB (a tenth more or less).
    Confirmed if all are in that range, roughly right if some are, wrong if none is."""
    sizes = {
        name: _kv(bench, f"{name}:Q4_K_M", 2048) for name in ("llama-2-7b", "mistral-7b", EIGHT_B.partition(":")[0])
    }
    inside = sum((1 - NEAR) * 1e9 <= size <= (1 + NEAR) * 1.5e9 for size in sizes.values())
    show = Figures()
    listed = [f"{name} {show(**{f'{figure_name(name)}_bytes': size})}" for name, size in sizes.items()]
    return show.finding(
        "confirmed" if inside == len(sizes) else "roughly right" if inside else "wrong",
        f"At 2048 tokens in f16 the cache takes: {', '.join(listed)}; the claim says 1 to 1.5 GB ({fmt_bytes(1e9)} to "
        f"{fmt_bytes(1.5e9)}).",
    )


def c053(bench: Bench) -> Finding:
    """The f16 cache of Llama 2 7B at 1024 and 2048 tokens, against 0.5 and 0.75 GB. Confirmed if both are within 10 %,
    roughly right if within 30 %, else wrong."""
    short, long = (_kv(bench, SEVEN_B, n_ctx) for n_ctx in (1024, 2048))
    off = max(abs(0.5e9 / short - 1), abs(0.75e9 / long - 1))
    show = Figures()
    return show.finding(
        "confirmed" if off <= NEAR else "roughly right" if off <= 0.3 else "wrong",
        f"The f16 cache of Llama 2 7B takes {show(kv_1024_bytes=short)} at 1024 tokens and {show(kv_2048_bytes=long)} "
        f"at 2048, where the claim says 0.5 and 0.75 GB ({fmt_bytes(0.5e9)} and {fmt_bytes(0.75e9)}).",
    )


def c054(bench: Bench) -> Finding:
    """The cache of four models in q8_0, q5_1 and q4_0 from 2048 to 32,768 tokens, as far as it fits with Q4_K_M weights
    in 16 GiB less 2 for the system, against 3.5 GB. Confirmed if all are within 10 %, wrong if none is; depends on
    machine if some are, because model, length and type then decide, which the claim does not name."""
    hits, sizes = [], []
    for model in (SEVEN_B, THIRTEEN_B, EIGHT_B, "mistral-7b:Q4_K_M"):
        for n_ctx in (2048, 4096, 8192, 16384, 32768):
            for name in ("q8_0", "q5_1", "q4_0"):
                size = _kv(bench, model, n_ctx, name)
                if bench.header(model).tensor_bytes + size <= ROOM_BYTES:
                    sizes.append(size)
                    if abs(size / 3.5e9 - 1) <= NEAR:
                        hits.append(f"{model.partition(':')[0]} at {n_ctx} tokens in {name} ({fmt_bytes(size)})")
    such_as, show = f", such as {hits[0]}" if hits else "", Figures()
    return show.finding(
        "wrong" if not hits else "confirmed" if len(hits) == len(sizes) else "depends on machine",
        f"Of {show(caches=len(sizes))} quantized caches that fit in 16 GiB, {show(near=len(hits))} take about 3.5 GB "
        f"({fmt_bytes(3.5e9)}){such_as}; the smallest takes {show(least_bytes=min(sizes))} and the largest "
        f"{show(most_bytes=max(sizes))}.",
    )


def c060(bench: Bench) -> Finding:
    """What q8_0 saves of Llama 3.1 8B's cache: with one sequence of 32,768 tokens, with eight of 4096 at once, and with
    one of 4096. Confirmed if eight save at least twice what one long one does; roughly right if both save about the
    same, and more than the short one, because what was allocated decides; else wrong."""
    wanted = {"long": (32 * KiB, 1), "many": (32 * KiB, 8), "short": (4 * KiB, 1)}
    kv_bytes = bench.part(CacheBench).kv_bytes
    saved = {
        name: kv_bytes(EIGHT_B, n_ctx=n_ctx, n_seq_max=n_seq)
        - kv_bytes(EIGHT_B, n_ctx=n_ctx, n_seq_max=n_seq, type_k="q8_0", type_v="q8_0")
        for name, (n_ctx, n_seq) in wanted.items()
    }
    if saved["many"] >= 2 * saved["long"]:
        verdict = "confirmed"
    else:
        same = abs(saved["many"] / saved["long"] - 1) <= NEAR if saved["long"] else False
        verdict = "roughly right" if same and saved["long"] > 2 * saved["short"] else "wrong"
    show = Figures()
    return show.finding(
        verdict,
        f"For Llama 3.1 8B q8_0 saves {show(many_saved_bytes=saved['many'])} with eight sequences of 4096 tokens, "
        f"{show(long_saved_bytes=saved['long'])} with one of 32,768, and {show(short_saved_bytes=saved['short'])} "
        "with one of 4096, however few of these tokens are in use.",
    )


def figure_name(model: str) -> str:
    """A model's shape as part of a figure's name: ``llama_3_1_8b``."""
    return model.partition(":")[0].replace("-", "_").replace(".", "_")


def _kv(bench: Bench, model: str, n_ctx: int, name: str = "f16") -> int:
    """Bytes of a model's cache with K and V of one type."""
    return bench.part(CacheBench).kv_bytes(model, n_ctx=n_ctx, type_k=name, type_v=name)


def _needed(bench: Bench, model: str, n_ctx: int) -> int:
    """Weights, f16 cache and compute buffer, in bytes."""
    header = bench.header(model)
    compute, _ = predict.compute_bytes(header, Settings(n_ctx=n_ctx))
    return header.tensor_bytes + _kv(bench, model, n_ctx) + compute


def _outweighed(bench: Bench, model: str) -> int:
    """Up to how many tokens the weights are larger than the f16 cache."""
    return -(-bench.header(model).tensor_bytes * COMMAND // _kv(bench, model, COMMAND)) - 1
