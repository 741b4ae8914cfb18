"""The checks of the claims about quantization: what a GGUF file holds, how many bits a weight takes, what they buy.

Most figures follow from headers, which ``shapes`` computes for any published model. How a block is built shows when its
bits are changed one by one and ggml decodes it. What a mixture costs in quality is measured on the bundled model.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.ledger import Figure
from labkit.course.claims.terms import BUNDLED, CLOSE, NEAR, SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab02.bench import QuantBench
from labkit.gguf.types import DEFAULT_ALIGNMENT, TYPES, VALUE_TYPES, GGMLType
from labkit.models.shapes import QUANTS
from labkit.settings import Settings
from labkit.units import KiB, fmt_bytes

if TYPE_CHECKING:
    from labkit.quant.quality import Quality

PAGE_BYTES = 4 * KiB
SEVEN, THIRTEEN = "llama-2-7b", "llama-2-13b"
K_MIXTURES = tuple(quant for quant in QUANTS if re.match(r"Q\d_K", quant))
FOUR_BITS = tuple(quant for quant in QUANTS if quant.startswith(("Q4_", "IQ4_")))
BACKENDS = ("cuda", "metal", "vulkan", "gpu", "backend", "device")


def c017(bench: Bench) -> Finding:
    """Three parts of a K-blob: tensors of the bundled model that start on a 4 KiB page, K-quant blocks that fill a page
    without a rest, and the word in llama.cpp's libraries. Confirmed if every tensor starts on a page, every block fits
    and the word is there; wrong if no tensor starts on a page, no block fits and the word is not there; else
    misleading."""
    header = bench.header(BUNDLED)
    on_page = sum(tensor.offset % PAGE_BYTES == 0 for tensor in header.tensors)
    blocks = _k_types(bench)
    fitting = sum(PAGE_BYTES % block.block_bytes == 0 for block in blocks)
    named = any(bench.in_libraries(word) for word in (b"kblob", b"k-blob", b"k_blob", b"knowledge blob"))
    if on_page == len(header.tensors) and fitting == len(blocks) and named:
        verdict = "confirmed"
    else:
        verdict = "misleading" if on_page or fitting or named else "wrong"
    q4, aligned = TYPES["Q4_K"].block_bytes, sum(tensor.offset % DEFAULT_ALIGNMENT == 0 for tensor in header.tensors)
    return Finding(
        verdict,
        f"Of {BUNDLED}'s {len(header.tensors)} tensors {on_page} start on a page of {PAGE_BYTES} bytes and {aligned} "
        f"at a multiple of {DEFAULT_ALIGNMENT}; {fitting} of {len(blocks)} K-quant blocks fill a page, one of Q4_K "
        f'with its {q4} bytes fitting {PAGE_BYTES / q4:.2f} times; "K-blob" occurs {"" if named else "nowhere "}in llama.cpp\'s '
        f"libraries.",
        {
            "tensors": len(header.tensors),
            "tensors_on_a_page": on_page,
            "tensors_at_32_bytes": aligned,
            "k_blocks_that_fit": fitting,
            "named": "yes" if named else "no",
        },
    )


def c018(bench: Bench) -> Finding:
    """The tensor table of the bundled model, read as plain fields: length and bytes of the name, number of dimensions,
    64 bits for each, type, 64 bits for the offset. Wrong if these fields end where the data's padding begins: nothing
    is compressed and no byte is left for sizes. Misleading if that needs 8 more bytes per tensor, a size. Confirmed if
    neither reading ends there and zlib cannot shorten the table either."""
    head = bench.part(QuantBench).head(BUNDLED)
    start, n = _table_start(head)
    table = head[start:]
    shorter = len(zlib.compress(table, 9)) / len(table)
    plain, sized = (_reads_to_the_end(head, start, n, extra) for extra in (0, 8))
    if not plain and not sized and shorter < 1 - NEAR:
        raise Unsettled("the tensor table has other fields than those that are known")
    if plain or sized:
        fields = f"plain fields {'without' if plain else 'and 8 bytes for'} a size, the offset in 64 bits"
    else:
        fields = "fields that cannot be read as they are"
    return Finding(
        "wrong" if plain else "misleading" if sized else "confirmed",
        f"The table's {fmt_bytes(len(table))} are {n} entries of {fields}, and zlib would leave {shorter:.0%} of them.",
        {"tensors": n, "table_bytes": len(table), "zlib_share": round(shorter, 3)},
    )


def c019(bench: Bench) -> Finding:
    """The smallest group of weights that shares a field, for each type that a mixture uses: how many weights of a
    block change with one bit of that field. Confirmed if it is 32 or 64 for all types, roughly
    right if for some, wrong if for none."""
    groups = {block.name: min(_groups(bench, block)) for block in _quantized(bench)}
    right = [name for name, size in groups.items() if size in (32, 64)]
    blocks = {block.name: block.block_elems for block in _quantized(bench)}
    return Finding(
        "confirmed" if len(right) == len(groups) else "roughly right" if right else "wrong",
        f"Weights share a scale by {_listing(groups)}; a block as a whole has {_listing(blocks)} weights.",
        {f"{name.lower()}_group": size for name, size in groups.items()},
    )


def c020(bench: Bench) -> Finding:
    """Bits per weight spent on fields that weights share, for each type that a mixture uses: one changed bit of a
    shared field changes several weights of the decoded block. Confirmed if every type shares some and spends at most 1
    bit on it, wrong if one shares nothing, else roughly right."""
    spent = {block.name: _shared_bits(bench, block) for block in _quantized(bench)}
    q4, most = TYPES["Q4_K"], max(spent, key=lambda name: spent[name])
    values = q4.bpw - spent["Q4_K"]
    return Finding(
        "wrong" if min(spent.values()) <= 0 else "confirmed" if spent[most] <= 1 else "roughly right",
        f"Of Q4_K's {q4.bpw:g} bits per weight {values:g} are the weight's own and {spent['Q4_K']:g} are scales and "
        f"minima that a block shares, and no type spends more than {spent[most]:g} ({most}); with a 16-bit scale for "
        f"each weight Q4_K would take {values + 16:g} bits, more than F16.",
        {f"{name.lower()}_shared_bpw": bits for name, bits in spent.items()},
    )


def c021(bench: Bench) -> Finding:
    """Bytes per weight of Llama 2 7B Q4_K_M, and of the smallest type in it, which is as low as any model can come.
    Wrong if 0.55 is below the smallest, or more than 10 % from the whole; confirmed within 2 %, else roughly right."""
    return _per_weight(bench, "Q4_K_M", 0.55)


def c022(bench: Bench) -> Finding:
    """Bytes per weight of Llama 2 7B Q5_K_S, and of the smallest type in it, which is as low as any model can come.
    Wrong if 0.65 is below the smallest, or more than 10 % from the whole; confirmed within 2 %, else roughly right."""
    return _per_weight(bench, "Q5_K_S", 0.65)


def c023(bench: Bench) -> Finding:
    """What K mixtures leave of Llama 2 7B in F16. Confirmed if all leave 35 % within 2 points, roughly right if some
    do, wrong if none does."""
    f16 = _weights(bench, SEVEN, "F16")
    left = {quant: _weights(bench, SEVEN, quant) / f16 for quant in K_MIXTURES}
    right = [quant for quant, share in left.items() if abs(share - 0.35) <= 0.02]
    return Finding(
        _how_many(len(right), len(left)),
        f"Of Llama 2 7B's {fmt_bytes(f16)} in F16, Q4_K_M leaves {left['Q4_K_M']:.1%} and Q5_K_M {left['Q5_K_M']:.1%}; "
        f"{len(right)} of {len(left)} K mixtures leave about 35%, and all together {min(left.values()):.0%} to "
        f"{max(left.values()):.0%}.",
        {"f16_bytes": f16, **{f"{quant.lower()}_share": round(share, 4) for quant, share in left.items()}},
    )


def c024(bench: Bench) -> Finding:
    """What K mixtures save of Llama 2 7B in F16, as models are published. Confirmed if all save 90 % or more, roughly
    right if some do, wrong if none does. F32 is told beside it and decides nothing."""
    f16 = _weights(bench, SEVEN, "F16")
    f32 = 4 * bench.header(f"{SEVEN}:F16").n_params
    sizes = {quant: _weights(bench, SEVEN, quant) for quant in K_MIXTURES}
    least = min(sizes, key=lambda quant: sizes[quant])
    enough = sum(1 - size / f16 >= 0.9 for size in sizes.values())
    return Finding(
        _how_many(enough, len(sizes)),
        f"Of Llama 2 7B's {fmt_bytes(f16)} in F16, Q4_K_M saves {1 - sizes['Q4_K_M'] / f16:.1%} and the smallest K "
        f"mixture, {least}, {1 - sizes[least] / f16:.1%}; counted from F32, which is twice that, they save "
        f"{1 - sizes['Q4_K_M'] / f32:.1%} and {1 - sizes[least] / f32:.1%}.",
        {"f16_bytes": f16, "f32_bytes": f32, "q4_k_m_bytes": sizes["Q4_K_M"], "smallest_bytes": sizes[least]},
    )


def c025(bench: Bench) -> Finding:
    """The weights of Llama 2 7B in Q4_K_M, the usual mixture, since the claim names none. Confirmed if 3.9 GB (units of
    1000³) are within 2 % of them, roughly right within 10 %, else wrong."""
    claimed, q4, small = 3.9e9, _weights(bench, SEVEN, "Q4_K_M"), _weights(bench, SEVEN, "Q4_K_S")
    return Finding(
        _distance(abs(claimed / q4 - 1)),
        f"Llama 2 7B has {fmt_bytes(q4)} of weights in Q4_K_M and {fmt_bytes(small)} in Q4_K_S, where the claim says "
        f"3.9 GB ({fmt_bytes(claimed)}).",
        {"q4_k_m_bytes": q4, "q4_k_s_bytes": small, "claimed_bytes": round(claimed)},
    )


def c026(bench: Bench) -> Finding:
    """Three figures of Llama 2 7B Q4_K_M: its weights, bytes per weight, and what running it at 512 tokens needs
    (predicted, repack off). Confirmed if both sizes and the bytes per weight are within 2 %, wrong if neither size is
    within 10 %, else roughly right."""
    header = bench.header(SEVEN_B)
    need = predict.memory(header, Settings(repack=False), cpu_features=())
    weights, whole = header.tensor_bytes, need.mapped_bytes + need.anon_floor_bytes
    each = weights / header.n_params
    off = [abs(claimed / actual - 1) for claimed, actual in ((3.9e9, weights), (4.6e9, whole), (0.55, each))]
    larger = _weights(bench, "llama-3.1-8b", "Q4_K_M")
    return Finding(
        "confirmed" if max(off) <= CLOSE else "wrong" if min(off[:2]) > NEAR else "roughly right",
        f"Llama 2 7B Q4_K_M has {fmt_bytes(weights)} of weights, {each:.3f} bytes each, and needs {fmt_bytes(whole)} "
        f"at 512 tokens, where the claim says 3.9 GB ({fmt_bytes(3.9e9)}), 0.55 bytes and 4.6 GB ({fmt_bytes(4.6e9)}); "
        f"Llama 3.1 8B has {fmt_bytes(larger)} of weights.",
        {"weights_bytes": weights, "bytes_per_weight": round(each, 4), "needed_bytes": whole, "8b_bytes": larger},
    )


def c027(bench: Bench) -> Finding:
    """The weights of Llama 2 13B in Q4_K_M and Q5_K_M. Confirmed if 7.5 GB and 9 GB (units of 1000³) are both within
    2 % of them, roughly right if both are within 10 %, else wrong."""
    q4, q5 = (_weights(bench, THIRTEEN, quant) for quant in ("Q4_K_M", "Q5_K_M"))
    off = max(abs(7.5e9 / q4 - 1), abs(9e9 / q5 - 1))
    return Finding(
        _distance(off),
        f"Llama 2 13B has {fmt_bytes(q4)} of weights in Q4_K_M and {fmt_bytes(q5)} in Q5_K_M, where the claim says "
        f"7.5 GB ({fmt_bytes(7.5e9)}) and 9 GB ({fmt_bytes(9e9)}).",
        {"q4_k_m_bytes": q4, "q5_k_m_bytes": q5},
    )


def c028(bench: Bench) -> Finding:
    """How many weights of Llama 2 7B Q4_K_M have more bits than most; and whether llama.cpp, asked in a dry run, gives
    the trained weights of the bundled model other types than a file of the same shape that is all zeros. Wrong if no
    weight has more bits; confirmed if some do and the types depend on the weights; roughly right if they do not: it
    is a rule by name and place, and no weight is looked at."""
    header = bench.header(SEVEN_B)
    weights: dict[str, int] = {}
    for tensor in header.tensors:
        if len(tensor.dims) > 1:
            weights[tensor.type] = weights.get(tensor.type, 0) + tensor.n_elements
    most = max(weights, key=lambda name: weights[name])
    higher = [name for name in weights if TYPES[name].bpw > TYPES[most].bpw]
    share = sum(weights[name] for name in higher) / sum(weights.values())
    trained, zeros = (bench.part(QuantBench).types_given(model, "Q4_K_M") for model in (BUNDLED, "smollm2-135m:F16"))
    differ = sum(zeros.get(name) != given for name, given in trained.items())
    down = sum(tensor.type in higher for tensor in header.tensors if "ffn_down" in tensor.name)
    return Finding(
        "wrong" if not higher else "confirmed" if differ else "roughly right",
        f"In Llama 2 7B Q4_K_M {share:.1%} of the weights are {' or '.join(higher) or 'higher'} and most are {most}, "
        f"ffn_down in {down} of {header.n_layer} layers; with trained weights and with zeros, llama.cpp gives "
        f"{differ} of {len(trained)} tensors different types.",
        {"higher_share": round(share, 4), "ffn_down_higher": down, "tensors": len(trained), "tensors_differ": differ},
    )


def c029(bench: Bench) -> Finding:
    """The bundled model in Q4_K_M, made with an importance matrix and without, beside its F16. Confirmed if it relies
    on the matrix: without it, less than three quarters of the likeliest next tokens stay the same. Else misleading if
    the matrix lowers the divergence (KLD) by more than twice the error of measurement, and wrong if it does not."""
    plain, weighted = bench.part(QuantBench).quality("Q4_K_M"), bench.part(QuantBench).quality("Q4_K_M", imatrix=True)
    lower = plain.kld_mean - weighted.kld_mean
    helps = lower > 2 * math.hypot(plain.kld_mean_error, weighted.kld_mean_error)
    return Finding(
        "confirmed" if plain.top1 < 0.75 else "misleading" if helps else "wrong",
        f"In Q4_K_M {BUNDLED} keeps {plain.top1:.0%} of F16's likeliest next tokens without an importance matrix and "
        f"{weighted.top1:.0%} with one, and KLD is {plain.kld_mean:.3f} and {weighted.kld_mean:.3f} over "
        f"{plain.n_tokens} tokens.",
        {
            "plain_kld": round(plain.kld_mean, 4),
            "imatrix_kld": round(weighted.kld_mean, 4),
            "plain_top1_share": round(plain.top1, 3),
            "imatrix_top1_share": round(weighted.top1, 3),
        },
    )


def c030(bench: Bench) -> Finding:
    """The bundled model in Q4_K_M beside its F16, without an importance matrix. Confirmed if perplexity rises by at
    most 2 % and at least 95 % of the likeliest next tokens stay the same; wrong if it rises by more than 20 % or less
    than three quarters stay; else roughly right. A larger model loses less."""
    seen = bench.part(QuantBench).quality("Q4_K_M")
    rise = _rise(seen)
    if rise <= 0.02 and seen.top1 >= 0.95:
        verdict = "confirmed"
    else:
        verdict = "wrong" if rise > 0.2 or seen.top1 < 0.75 else "roughly right"
    return Finding(
        verdict,
        f"In Q4_K_M, {BUNDLED}'s perplexity over {seen.n_tokens} tokens rises by {rise:.1%}, from "
        f"{seen.reference_perplexity:.1f} in F16 (made from its Q4_1) to {seen.perplexity:.1f}, and {seen.top1:.0%} of "
        f"the likeliest next tokens stay the same.",
        {"perplexity_rise_share": round(rise, 4), "kld": round(seen.kld_mean, 4), "top1_share": round(seen.top1, 3)},
    )


def c031(bench: Bench) -> Finding:
    """The error of normally distributed weights that ggml has rounded to Q4_K, as a share of their spread. As
    many bits cannot come closer than 2 to the power of minus the bits, whatever the code (Shannon). Confirmed if the
    error is below that: a limit breaks. Misleading if not: memory is bought with precision, as by any rounding. Wrong
    if Q4_K saves nothing against F16."""
    block = TYPES["Q4_K"]
    error, limit = bench.part(QuantBench).rounding_error("Q4_K"), 2**-block.bpw
    saves = block.bpw < TYPES["F16"].bpw
    return Finding(
        "wrong" if not saves else "confirmed" if error < limit else "misleading",
        f"Q4_K stores a weight in {block.bpw:g} bits instead of 16 and gives it back with an error of {error:.1%} of "
        f"the weights' spread, where no code of as many bits comes below {limit:.1%}.",
        {"bpw": block.bpw, "error_share": round(error, 4), "limit_share": round(limit, 4)},
    )


def c032(bench: Bench) -> Finding:
    """Moves: "migrat" occurs in llama.cpp's libraries. Neutral: no key of the bundled model's metadata names a backend.
    Kept: this CPU re-lays no weight of a 7B Q4_K_M (predicted). Confirmed if it moves and blocks are kept, roughly
    right if it moves only, misleading if it does not but the file is neutral, wrong if neither."""
    keys = list(bench.header(BUNDLED).metadata)
    naming = [key for key in keys if any(word in key.lower() for word in BACKENDS)]
    moves, relaid = bench.in_libraries(b"migrat"), bench.part(QuantBench).repacked_bytes(SEVEN_B)
    still = "wrong" if naming else "misleading"
    return Finding(
        still if not moves else "roughly right" if relaid else "confirmed",
        f'"Migrat" occurs {"" if moves else "nowhere "}in llama.cpp\'s libraries, and {len(naming)} of {len(keys)} '
        f"metadata keys of {BUNDLED} name a backend; when it loads a 7B Q4_K_M, this CPU re-lays {fmt_bytes(relaid)} "
        f"of its {fmt_bytes(bench.header(SEVEN_B).tensor_bytes)}.",
        {
            "migrates": "yes" if moves else "no",
            "keys": len(keys),
            "keys_naming_backends": len(naming),
            "relaid_bytes": relaid,
        },
    )


def c033(bench: Bench) -> Finding:
    """What the bundled model's metadata says about paging and about the type of the cache, and what can be done with
    the one file: mapping it, and caches of f16 and of q8_0 (llama.cpp's dry run). Confirmed if the metadata has both,
    roughly right if it has one; misleading if it has neither but both can be done, so that they are choices at run
    time; wrong if they cannot be done at all."""
    keys = list(bench.header(BUNDLED).metadata)
    paging = [key for key in keys if re.search(r"pag(e|ing)|mmap|mlock|load_mode", key)]
    cache = [key for key in keys if re.search(r"cache|\btype_[kv]\b|kv_type", key)]
    f16, q8 = bench.planned_kv_bytes(BUNDLED, *(Settings(type_k=name, type_v=name) for name in ("f16", "q8_0")))
    works = bench.can_map(BUNDLED) and q8 < f16
    inside = bool(paging) + bool(cache)
    return Finding(
        "confirmed" if inside == 2 else "roughly right" if inside else "misleading" if works else "wrong",
        f"Of {BUNDLED}'s {len(keys)} metadata keys {len(paging)} speak of paging and {len(cache)} of a cache type; the "
        f"one file runs with a cache of {fmt_bytes(f16)} in f16 or {fmt_bytes(q8)} in q8_0 for 512 tokens.",
        {"keys": len(keys), "paging_keys": len(paging), "cache_keys": len(cache), "f16_bytes": f16, "q8_0_bytes": q8},
    )


def c076(bench: Bench) -> Finding:
    """Llama 2 7B in F16 and in Q8_0, the 8-bit type. Confirmed if 6.7 GB and 4.2 GB (units of 1000³) are within 10 % of
    them and 37 % within 3 points of what is saved; wrong if none of the three is; else misleading."""
    f16, q8 = (_weights(bench, SEVEN, quant) for quant in ("F16", "Q8_0"))
    n, saved = bench.header(f"{SEVEN}:F16").n_params, 1 - q8 / f16
    right = [abs(6.7e9 / f16 - 1) <= NEAR, abs(4.2e9 / q8 - 1) <= NEAR, abs(saved - 0.37) <= 0.03]
    return Finding(
        "confirmed" if all(right) else "misleading" if any(right) else "wrong",
        f"Llama 2 7B takes {fmt_bytes(f16)} in F16 and {fmt_bytes(q8)} in Q8_0, {saved:.0%} less; the claim's 6.7 GB "
        f"({fmt_bytes(6.7e9)}) are {6.7e9 * 8 / n:.1f} bits per weight and its 4.2 GB ({fmt_bytes(4.2e9)}) "
        f"{4.2e9 * 8 / n:.1f}.",
        {"f16_bytes": f16, "q8_0_bytes": q8, "saved_share": round(saved, 4)},
    )


def c077(bench: Bench) -> Finding:
    """What the 4-bit mixtures save of Llama 2 7B in Q8_0. Confirmed if all save 56 % within 3 points, roughly right if
    some do, wrong if none does."""
    header = bench.header(f"{SEVEN}:Q8_0")
    q8, bits = header.tensor_bytes, header.bpw or 0.0
    saved = {quant: 1 - _weights(bench, SEVEN, quant) / q8 for quant in FOUR_BITS}
    right = sum(abs(share - 0.56) <= 0.03 for share in saved.values())
    return Finding(
        _how_many(right, len(saved)),
        f"Of Llama 2 7B's {fmt_bytes(q8)} in Q8_0, 4-bit mixtures save {min(saved.values()):.1%} to "
        f"{max(saved.values()):.1%} (Q4_K_M {saved['Q4_K_M']:.1%}); 56% would leave {0.44 * bits:.1f} bits per "
        f"weight.",
        {"q8_0_bytes": q8, **{f"{quant.lower()}_saved_share": round(share, 4) for quant, share in saved.items()}},
    )


def c104(bench: Bench) -> Finding:
    """What two 4-bit mixtures, Q4_K_M and Q4_0, cost the bundled model by two measures: the rise of perplexity, and the
    share of likeliest next tokens that change. Confirmed if all four are within 1 point of 2.3 %. Depends on machine if
    the largest is twice the smallest or more, so that model, mixture and measure, which the claim leaves open, decide.
    Else wrong."""
    seen = {quant: bench.part(QuantBench).quality(quant) for quant in ("Q4_K_M", "Q4_0")}
    costs = [cost for quality in seen.values() for cost in (_rise(quality), 1 - quality.top1)]
    if all(abs(cost - 0.023) <= 0.01 for cost in costs):
        verdict = "confirmed"
    else:
        verdict = "depends on machine" if max(costs) >= 2 * min(costs) else "wrong"
    listed = " and ".join(
        f"{quant} raises perplexity by {_rise(quality):.1%} and changes {1 - quality.top1:.1%} of the likeliest tokens"
        for quant, quality in seen.items()
    )
    figures: dict[str, Figure] = {}
    for quant, quality in seen.items():
        figures[f"{quant.lower()}_perplexity_rise_share"] = round(_rise(quality), 4)
        figures[f"{quant.lower()}_changed_share"] = round(1 - quality.top1, 4)
    return Finding(
        verdict,
        f"On {BUNDLED}, without any GPU, {listed}, where the claim says 2.3%.",
        figures,
    )


def c127(bench: Bench) -> Finding:
    """The K-quants that mixtures use, by the bits of their integers, as in their names. Confirmed if these go from 4 to
    8, wrong if none lies there, else misleading."""
    blocks = _k_types(bench)
    bits = [int(block.name[1]) for block in blocks]
    if not any(4 <= n <= 8 for n in bits):
        verdict = "wrong"
    else:
        verdict = "confirmed" if (min(bits), max(bits)) == (4, 8) else "misleading"
    listed = ", ".join(f"{block.name} {block.bpw:g}" for block in blocks)
    q8 = TYPES["Q8_0"]
    return Finding(
        verdict,
        f"Bits per weight of the K-quants that files use: {listed}; 8 bits are Q8_0, with {q8.bpw:g} in the older "
        f"block of {q8.block_elems}, and no file type uses Q8_K.",
        {f"{block.name.lower()}_bpw": block.bpw for block in blocks},
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check
    for check in (
        *(c017, c018, c019, c020, c021, c022, c023, c024, c025, c026, c027, c028, c029, c030, c031, c032, c033),
        *(c076, c077, c104, c127),
    )
}


def _rise(quality: Quality) -> float:
    return quality.perplexity / quality.reference_perplexity - 1


def _weights(bench: Bench, shape: str, quant: str) -> int:
    """Bytes of all tensors of a published model in a mixture."""
    return bench.header(f"{shape}:{quant}").tensor_bytes


def _distance(off: float) -> str:
    """What being off by this share makes of a claimed size."""
    return "confirmed" if off <= CLOSE else "roughly right" if off <= NEAR else "wrong"


def _how_many(right: int, of: int) -> str:
    return "confirmed" if right == of else "roughly right" if right else "wrong"


def _per_weight(bench: Bench, quant: str, claimed: float) -> Finding:
    header = bench.header(f"{SEVEN}:{quant}")
    each = header.tensor_bytes / header.n_params
    smallest = min((TYPES[name] for name in header.types), key=lambda block: block.bpw)
    least = smallest.bpw / 8
    return Finding(
        "wrong" if claimed < least else _distance(abs(claimed / each - 1)),
        f"Llama 2 7B {quant} takes {each:.3f} bytes per weight, and the smallest type in it, {smallest.name}, "
        f"{smallest.block_bytes} bytes for {smallest.block_elems} weights, or {least:g}; the claim says {claimed:g}.",
        {"bytes_per_weight": round(each, 4), "least_bytes_per_weight": least},
    )


def _quantized(bench: Bench) -> list[GGMLType]:
    """The types that the mixtures give to weights, smallest first."""
    names = {name for quant in QUANTS for name in bench.header(f"{SEVEN}:{quant}").types}
    blocks = [TYPES[name] for name in names if TYPES[name].block_elems > 1]
    return sorted(blocks, key=lambda block: (block.bpw, block.name))


def _k_types(bench: Bench) -> list[GGMLType]:
    return [block for block in _quantized(bench) if re.fullmatch(r"Q\d_K", block.name)]


def _groups(bench: Bench, block: GGMLType) -> list[int]:
    """How many weights each shared byte of a block changes."""
    groups = [n for n in bench.part(QuantBench).weights_changed(block.name) if n > 1]
    if not groups:
        raise Unsettled(f"no byte of a {block.name} block changes more than one weight")
    return groups


def _shared_bits(bench: Bench, block: GGMLType) -> float:
    """Bits per weight in bytes that change more than one weight."""
    return 8 * sum(n > 1 for n in bench.part(QuantBench).weights_changed(block.name)) / block.block_elems


def _listing(sizes: dict[str, int]) -> str:
    """``32 (Q4_0, Q8_0) or 256 (Q4_K)``."""
    names: dict[int, list[str]] = {}
    for name, size in sizes.items():
        names.setdefault(size, []).append(name)
    return " or ".join(f"{size} ({', '.join(names[size])})" for size in sorted(names))


def _table_start(head: bytes) -> tuple[int, int]:
    """Where the tensor table of a GGUF begins, and its number of entries. Metadata before it is skipped."""
    n_tensors, n_keys = struct.unpack_from("<QQ", head, 8)
    at = 24
    for _ in range(n_keys):
        at = _after_text(head, at)
        at = _after_value(head, at + 4, *struct.unpack_from("<I", head, at))
    return at, n_tensors


def _after_text(head: bytes, at: int) -> int:
    return at + 8 + int(struct.unpack_from("<Q", head, at)[0])


def _after_value(head: bytes, at: int, kind: int) -> int:
    code = VALUE_TYPES[kind].code
    if code:
        return at + len(struct.pack(f"<{code}", 0))
    if VALUE_TYPES[kind].name == "str":
        return _after_text(head, at)
    item, n = struct.unpack_from("<IQ", head, at)
    at += 12
    for _ in range(n):
        at = _after_value(head, at, item)
    return at


def _reads_to_the_end(head: bytes, at: int, n: int, extra: int) -> bool:
    """Whether ``n`` table entries with so many bytes more than the known fields end at the padding before the data."""
    try:
        for _ in range(n):
            after = _after_text(head, at)
            head[at + 8 : after].decode("ascii")
            (n_dims,) = struct.unpack_from("<I", head, after)
            at = after + 4 + 8 * n_dims + 4 + 8 + extra  # count, dimensions, type, offset
    except (struct.error, UnicodeDecodeError):
        return False
    return 0 <= len(head) - at < DEFAULT_ALIGNMENT and not any(head[at:])
