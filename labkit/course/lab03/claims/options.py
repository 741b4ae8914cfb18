"""The checks of the claims about options: looked up in llama.cpp's installed libraries, and tried in its dry runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding, joined
from labkit.course.claims.options import known_names, look_up
from labkit.course.claims.terms import BUNDLED, CLOSE, LITTLE, THIRTEEN_B
from labkit.course.lab03.bench import QUANTIZED, CacheBench
from labkit.gguf import TYPES
from labkit.settings import Settings
from labkit.units import fmt_bytes

BACKENDS = ("metal", "cuda", "rocm", "vulkan")
HALVES = ("type_k", "type_v")


def c035(bench: Bench) -> Finding:
    """llama.cpp's plans for Llama 2 13B: for 512 to 8192 tokens, for 1 to 4 sequences of 2048 each, and for n_batch
    from 32 to 2048. Linear means in proportion within 2 %. Confirmed if the cache is linear in tokens, sequences and
    n_batch; roughly right if in all but n_batch, which is what llama.cpp calls the batch size; misleading if in tokens
    only; else wrong."""
    tokens, sequences, batches = (512, 1024, 2048, 4096, 8192), (1, 2, 4), (32, 128, 512, 2048)
    by_tokens = bench.planned_kv_bytes(THIRTEEN_B, *(Settings(n_ctx=n) for n in tokens))
    by_sequences = bench.planned_kv_bytes(THIRTEEN_B, *(Settings(n_ctx=2048 * n, n_seq_max=n) for n in sequences))
    planned = bench.planned(THIRTEEN_B, *(Settings(n_ctx=2048, n_batch=n, n_ubatch=n) for n in batches))
    by_batch, compute = [plan.kv_bytes or 0 for plan in planned], [plan.compute_bytes or 0 for plan in planned]
    if not _is_linear(tokens, by_tokens):
        verdict = "wrong"
    elif not _is_linear(sequences, by_sequences):
        verdict = "misleading"
    else:
        verdict = "confirmed" if _is_linear(batches, by_batch) else "roughly right"
    show = Figures()
    return show.finding(
        verdict,
        f"llama.cpp plans {show(kv_512_tokens_bytes=by_tokens[0])} for {tokens[0]} tokens of Llama 2 13B and "
        f"{show(kv_8192_tokens_bytes=by_tokens[-1])} for {tokens[-1]}, {show(kv_1_sequence_bytes=by_sequences[0])} "
        f"for one sequence of 2048 and {show(kv_4_sequences_bytes=by_sequences[-1])} for {sequences[-1]}; with "
        f"n_batch from {batches[0]} to {batches[-1]} the cache changes from {show(kv_n_batch_32_bytes=by_batch[0])} "
        f"to {show(kv_n_batch_2048_bytes=by_batch[-1])} and the compute buffer from "
        f"{show(compute_n_batch_32_bytes=compute[0])} to {show(compute_n_batch_2048_bytes=compute[-1])}.",
    )


def c038(bench: Bench) -> Finding:
    """llama.cpp's plans for the bundled model with each quantized type for K and for V; whether its libraries contain
    the message that a quantized V needs flash attention; and which of the five backends this build has. Confirmed if it
    accepts every type on all five without that condition; wrong if it accepts none; misleading if it accepts some;
    roughly right if it accepts all, with the condition or on the backends that can be tried here."""
    halves = {f"{half}={name}": Settings.of({f"type_{half}": name}) for half in ("k", "v") for name in QUANTIZED}
    plans = bench.planned(BUNDLED, *halves.values())
    accepted = sum(not plan.problem for plan in plans)
    needs = bench.in_libraries(b"quantized v cache requires flash_attn")
    kinds = bench.part(CacheBench).device_kinds()
    here = [name for name in ("cpu", *BACKENDS) if any(name in kind for kind in kinds)]
    if not accepted:
        verdict = "wrong"
    elif accepted < len(plans):
        verdict = "misleading"
    else:
        verdict = "confirmed" if not needs and len(here) == 1 + len(BACKENDS) else "roughly right"
    show = Figures()
    show.keep(needs_flash_attention=needs, backends=", ".join(here))
    return show.finding(
        verdict,
        f"llama.cpp accepts {show(accepted=accepted)} of {show(tried=len(plans))} settings with a quantized K or V "
        f"({', '.join(QUANTIZED)}); by its messages a quantized V cache {'requires' if needs else 'needs no'} flash "
        f"attention; of {1 + len(BACKENDS)} backends this build has {', '.join(here) or 'none'}.",
    )


def c044(bench: Bench) -> Finding:
    """llama.cpp's plans for Llama 2 13B at 8192 tokens. Confirmed if n_batch 2 and q8_0 both make the cache at least a
    tenth smaller and 8192 is the trained length; wrong if n_batch does not; else roughly right."""
    usual = Settings(n_ctx=8192)
    others = Settings(n_ctx=8192, n_batch=2, n_ubatch=2), Settings(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    f16, batch_of_2, q8 = bench.planned_kv_bytes(THIRTEEN_B, usual, *others)
    trained = int(bench.header(THIRTEEN_B).key("context_length"))
    by_batch, by_type = (1 - size / f16 >= LITTLE for size in (batch_of_2, q8))
    show = Figures()
    return show.finding(
        "wrong" if not by_batch else "confirmed" if by_type and trained == usual.n_ctx else "roughly right",
        f"For {usual.n_ctx} tokens of Llama 2 13B, which was trained for {show(trained_tokens=trained)}, llama.cpp "
        f"plans {show(kv_bytes=f16)} of cache, {show(n_batch_2_bytes=batch_of_2)} with n_batch 2, and "
        f"{show(q8_0_bytes=q8)} in q8_0.",
    )


def c059(bench: Bench) -> Finding:
    """Offered: a cache type with blocks of 128 elements. Better: normally distributed values are rounded to 8 bits with
    a smaller error if 128 of them share a scale than if 64 do. Confirmed if both, misleading if one, wrong if
    neither."""
    sizes = sorted({TYPES[name.upper()].block_elems for name in QUANTIZED})
    errors = {size: bench.part(CacheBench).block_error(size) for size in (32, 64, 128, 256)}
    offered, better = 128 in sizes, errors[128] < errors[64]
    show = Figures()
    show.keep(block_elements=", ".join(map(str, sizes)))
    listed = [f"{show(**{f'error_{size}_share': round(error, 5)}):.2%} for {size}" for size, error in errors.items()]
    return show.finding(
        ("wrong", "misleading", "confirmed")[offered + better],
        f"The cache types have blocks of {' or '.join(map(str, sizes))} elements; the error of rounding to 8 bits, as "
        f"a share of the values' spread and by how many values share a scale, is {', '.join(listed)}.",
    )


def c061(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --kv-cache-quantize, else wrong."""
    known = look_up(bench, "--kv-cache-quantize", "--cache-type-k", "--cache-type-v")
    kv_bytes = bench.part(CacheBench).kv_bytes
    f16, q8 = (kv_bytes(THIRTEEN_B, n_ctx=4096, type_k=name, type_v=name) for name in ("f16", "q8_0"))
    show = Figures()
    return show.finding(
        "confirmed" if known["--kv-cache-quantize"] else "wrong",
        f"llama.cpp's list of options has {known_names(show, known)}; setting K and V to q8_0 makes the cache of "
        f"Llama 2 13B at 4096 tokens {show(q8_0_bytes=q8)} instead of {show(f16_bytes=f16)} in f16.",
    )


def c062(bench: Bench) -> Finding:
    """Confirmed if a child makes a smaller cache when LLAMA_KV_QUANTIZE is 1; else misleading if llama.cpp knows the
    variable all the same, wrong if it does not."""
    known = look_up(bench, "LLAMA_KV_QUANTIZE", "LLAMA_ARG_CACHE_TYPE_K", "LLAMA_ARG_CACHE_TYPE_V")
    cache, show = bench.part(CacheBench), Figures()
    usual, under = cache.kv_bytes(BUNDLED), cache.kv_bytes_under("LLAMA_KV_QUANTIZE")
    smaller = 1 - under / usual >= LITTLE
    return show.finding(
        "confirmed" if smaller else "misleading" if known["LLAMA_KV_QUANTIZE"] else "wrong",
        f"With the variable set, {BUNDLED}'s cache for 512 tokens takes {show(with_variable_bytes=under)} instead of "
        f"{show(usual_bytes=usual)}; llama.cpp's list of variables has {known_names(show, known)}.",
    )


def c063(bench: Bench) -> Finding:
    """Known: llama.cpp's command-line tools know --offload-kv. Smaller: it plans at least a tenth less cache with
    offload_kqv than without. Confirmed if both, roughly right if smaller only, misleading if known only, else wrong."""
    known = look_up(bench, "--offload-kv", "--kv-offload")
    off, on = bench.planned_kv_bytes(THIRTEEN_B, *(Settings(n_ctx=4096, offload_kqv=kqv) for kqv in (False, True)))
    there, smaller, show = known["--offload-kv"], 1 - on / off >= LITTLE, Figures()
    return show.finding(
        {(1, 1): "confirmed", (0, 1): "roughly right", (1, 0): "misleading", (0, 0): "wrong"}[there, smaller],
        f"For 4096 tokens of Llama 2 13B llama.cpp plans {show(on_bytes=on)} of cache with offload_kqv and "
        f"{show(off_bytes=off)} without; its list of options has {known_names(show, known)}.",
    )


def c064(bench: Bench) -> Finding:
    """Known: llama.cpp's command-line tools know --max-context. Smaller: at 2048 tokens llama.cpp plans at least a
    tenth less cache than at 4096. Confirmed if both, misleading if known only, wrong if there is no such option."""
    known = look_up(bench, "--max-context", "--ctx-size")
    short, usual = bench.planned_kv_bytes(THIRTEEN_B, Settings(n_ctx=2048), Settings(n_ctx=4096))
    smaller, show = 1 - short / usual >= LITTLE, Figures()
    return show.finding(
        "wrong" if not known["--max-context"] else "confirmed" if smaller else "misleading",
        f"llama.cpp's list of options has {known_names(show, known)}; for Llama 2 13B it plans "
        f"{show(kv_2048_bytes=short)} of cache at 2048 tokens and {show(kv_4096_bytes=usual)} at 4096.",
    )


def c065(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --ctx-size and the cache is in proportion to it within 2 %;
    roughly right if it is only smaller; wrong if it is not, or there is no such option."""
    known = look_up(bench, "--ctx-size")
    short, usual = bench.planned_kv_bytes(THIRTEEN_B, Settings(n_ctx=1024), Settings(n_ctx=4096))
    if not known["--ctx-size"] or usual / short <= 1 + CLOSE:
        verdict = "wrong"
    else:
        verdict = "confirmed" if abs(usual / short / 4 - 1) <= CLOSE else "roughly right"
    show = Figures()
    return show.finding(
        verdict,
        f"llama.cpp's list of options has {known_names(show, known)}; for Llama 2 13B it plans "
        f"{show(kv_1024_bytes=short)} of cache at 1024 tokens and {show(kv_4096_bytes=usual)} at 4096.",
    )


def c066(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know both options, and in its plans the type of K changes the bytes
    of K alone and that of V those of V alone; misleading if only one of the two is so; else wrong."""
    known, show = look_up(bench, "--cache-type-k", "--cache-type-v"), Figures()
    others = (Settings.of({"n_ctx": 4096, half: "q8_0"}) for half in HALVES)
    plans = bench.planned(THIRTEEN_B, Settings(n_ctx=4096), *others)
    if any(plan.problem for plan in plans):
        verdict, listed = "wrong", "nothing, because it refuses"
    else:
        halves = [[sum(getattr(one, f"{half[-1]}_bytes") for one in plan.caches) for half in HALVES] for plan in plans]
        (k, v), (k_of_k, v_of_k), (k_of_v, v_of_v) = halves
        own = k_of_k < k and v_of_k == v and k_of_v == k and v_of_v < v
        verdict = ("wrong", "misleading", "confirmed")[all(known.values()) + own]
        listed = (
            f"{show(k_bytes=k)} + {show(v_bytes=v)} in f16, {fmt_bytes(k_of_k)} + {fmt_bytes(v_of_k)} with K in q8_0, "
            f"{fmt_bytes(k_of_v)} + {fmt_bytes(v_of_v)} with V in q8_0"
        )
    return show.finding(
        verdict,
        f"For 4096 tokens of Llama 2 13B llama.cpp plans for K and V: {listed}; its list of options has "
        f"{known_names(show, known)}.",
    )


def c067(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --n-gpu-layers and --cache-type-k, and each step from f16 to
    q8_0 to q4_0 makes the cache it plans at least a tenth smaller; roughly right if only one of the two is so; else
    wrong."""
    known, show = look_up(bench, "--n-gpu-layers", "--cache-type-k"), Figures()
    names = ("f16", "q8_0", "q4_0")
    sizes = bench.planned_kv_bytes(THIRTEEN_B, *(Settings(n_ctx=4096, type_k=name, type_v=name) for name in names))
    falls = all(1 - after / before >= LITTLE for before, after in pairwise(sizes))
    listed = [f"{show(**{f'{name}_bytes': size})} in {name}" for name, size in zip(names, sizes, strict=True)]
    return show.finding(
        ("wrong", "roughly right", "confirmed")[all(known.values()) + falls],
        f"For 4096 tokens of Llama 2 13B llama.cpp plans {joined(listed)}; its list of options has "
        f"{known_names(show, known)}.",
    )


def _is_linear(wanted: Sequence[int], found: Sequence[int]) -> bool:
    """Whether sizes are in proportion to what was asked for."""
    each = [size / asked for asked, size in zip(wanted, found, strict=True)]
    return max(each) <= (1 + CLOSE) * min(each)
