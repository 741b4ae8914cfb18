"""The checks of the claims about how large quantized models are, from the headers of published ones."""

from __future__ import annotations

import re

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.terms import CLOSE, NEAR, SEVEN_B
from labkit.gguf.types import TYPES
from labkit.models.shapes import QUANTS
from labkit.settings import Settings
from labkit.units import fmt_bytes

SEVEN, THIRTEEN = "llama-2-7b", "llama-2-13b"
K_MIXTURES = tuple(quant for quant in QUANTS if re.match(r"Q\d_K", quant))
FOUR_BITS = tuple(quant for quant in QUANTS if quant.startswith(("Q4_", "IQ4_")))


def c021(bench: Bench) -> Finding:
    """Bytes per weight of Llama 2 7B Q4_K_M, and of the smallest type in it, below which no model can be. Wrong if 0.55
    is below the smallest, or more than 10 % from the whole; confirmed within 2 %, else roughly right."""
    return _per_weight(bench, "Q4_K_M", 0.55)


def c022(bench: Bench) -> Finding:
    """Bytes per weight of Llama 2 7B Q5_K_S, and of the smallest type in it, below which no model can be. Wrong if 0.65
    is below the smallest, or more than 10 % from the whole; confirmed within 2 %, else roughly right."""
    return _per_weight(bench, "Q5_K_S", 0.65)


def c023(bench: Bench) -> Finding:
    """How much of Llama 2 7B's size in F16 each K mixture leaves. Confirmed if all leave 35 % within 2 points, roughly
    right if some do, wrong if none does."""
    f16 = _weights(bench, SEVEN, "F16")
    left = {quant: _weights(bench, SEVEN, quant) / f16 for quant in K_MIXTURES}
    right, show = sum(abs(share - 0.35) <= 0.02 for share in left.values()), Figures()
    show.keep(**{f"{quant.lower()}_share": round(share, 4) for quant, share in left.items()})
    return show.finding(
        _how_many(right, len(left)),
        f"Of Llama 2 7B's {show(f16_bytes=f16)} in F16, Q4_K_M leaves {left['Q4_K_M']:.1%} and Q5_K_M "
        f"{left['Q5_K_M']:.1%}; {right} of {len(left)} K mixtures leave about 35%, and all of them "
        f"{min(left.values()):.0%} to {max(left.values()):.0%}.",
    )


def c024(bench: Bench) -> Finding:
    """What K mixtures save of Llama 2 7B in F16, the type in which models are published. Confirmed if all save 90 % or
    more, roughly right if some do, wrong if none does. What they save of F32 is given too and decides nothing."""
    f16 = _weights(bench, SEVEN, "F16")
    f32 = 4 * bench.header(f"{SEVEN}:F16").n_params
    sizes = {quant: _weights(bench, SEVEN, quant) for quant in K_MIXTURES}
    q4, least = sizes["Q4_K_M"], min(sizes, key=lambda quant: sizes[quant])
    show = Figures()
    show.keep(f32_bytes=f32, q4_k_m_bytes=q4, smallest_bytes=sizes[least])
    return show.finding(
        _how_many(sum(1 - size / f16 >= 0.9 for size in sizes.values()), len(sizes)),
        f"Of Llama 2 7B's {show(f16_bytes=f16)} in F16, Q4_K_M saves {1 - q4 / f16:.1%} and the smallest K mixture, "
        f"{least}, {1 - sizes[least] / f16:.1%}; of F32, which takes twice as much, they save {1 - q4 / f32:.1%} and "
        f"{1 - sizes[least] / f32:.1%}.",
    )


def c025(bench: Bench) -> Finding:
    """The weights of Llama 2 7B in Q4_K_M, the usual mixture, since the claim names none. Confirmed if 3.9 GB (units of
    1000³) are within 2 % of them, roughly right within 10 %, else wrong."""
    claimed, q4, small = 3.9e9, _weights(bench, SEVEN, "Q4_K_M"), _weights(bench, SEVEN, "Q4_K_S")
    show = Figures()
    return show.finding(
        _distance(abs(claimed / q4 - 1)),
        f"Llama 2 7B has {show(q4_k_m_bytes=q4)} of weights in Q4_K_M and {show(q4_k_s_bytes=small)} in Q4_K_S, where "
        f"the claim says 3.9 GB ({show(claimed_bytes=round(claimed))}).",
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
    larger, show = _weights(bench, "llama-3.1-8b", "Q4_K_M"), Figures()
    return show.finding(
        "confirmed" if max(off) <= CLOSE else "wrong" if min(off[:2]) > NEAR else "roughly right",
        f"Llama 2 7B Q4_K_M has {show(weights_bytes=weights)} of weights, {show(bytes_per_weight=round(each, 4)):.3f} "
        f"bytes each, and needs {show(needed_bytes=whole)} at 512 tokens, where the claim says 3.9 GB "
        f"({fmt_bytes(3.9e9)}), 0.55 bytes and 4.6 GB ({fmt_bytes(4.6e9)}); Llama 3.1 8B has "
        f"{show(**{'8b_bytes': larger})} of weights.",
    )


def c027(bench: Bench) -> Finding:
    """The weights of Llama 2 13B in Q4_K_M and Q5_K_M. Confirmed if 7.5 GB and 9 GB (units of 1000³) are both within 2
    % of them, roughly right if both are within 10 %, else wrong."""
    q4, q5 = (_weights(bench, THIRTEEN, quant) for quant in ("Q4_K_M", "Q5_K_M"))
    show = Figures()
    return show.finding(
        _distance(max(abs(7.5e9 / q4 - 1), abs(9e9 / q5 - 1))),
        f"Llama 2 13B has {show(q4_k_m_bytes=q4)} of weights in Q4_K_M and {show(q5_k_m_bytes=q5)} in Q5_K_M, where "
        f"the claim says 7.5 GB ({fmt_bytes(7.5e9)}) and 9 GB ({fmt_bytes(9e9)}).",
    )


def c076(bench: Bench) -> Finding:
    """Llama 2 7B in F16 and in Q8_0, the 8-bit type. Confirmed if 6.7 GB and 4.2 GB (units of 1000³) are within 10 % of
    them and 37 % within 3 points of what is saved; wrong if none of the three is; else misleading."""
    f16, q8 = (_weights(bench, SEVEN, quant) for quant in ("F16", "Q8_0"))
    n_params, saved = bench.header(f"{SEVEN}:F16").n_params, 1 - q8 / f16
    right = [abs(6.7e9 / f16 - 1) <= NEAR, abs(4.2e9 / q8 - 1) <= NEAR, abs(saved - 0.37) <= 0.03]
    show = Figures()
    return show.finding(
        "confirmed" if all(right) else "misleading" if any(right) else "wrong",
        f"Llama 2 7B takes {show(f16_bytes=f16)} in F16 and {show(q8_0_bytes=q8)} in Q8_0, "
        f"{show(saved_share=round(saved, 4))} less; the claim's 6.7 GB ({fmt_bytes(6.7e9)}) are "
        f"{6.7e9 * 8 / n_params:.1f} bits per weight, and its 4.2 GB ({fmt_bytes(4.2e9)}) are "
        f"{4.2e9 * 8 / n_params:.1f}.",
    )


def c077(bench: Bench) -> Finding:
    """What the 4-bit mixtures save of Llama 2 7B in Q8_0. Confirmed if all save 56 % within 3 points, roughly right if
    some do, wrong if none does."""
    header = bench.header(f"{SEVEN}:Q8_0")
    q8, bits = header.tensor_bytes, header.bpw or 0.0
    saved = {quant: 1 - _weights(bench, SEVEN, quant) / q8 for quant in FOUR_BITS}
    show = Figures()
    show.keep(**{f"{quant.lower()}_saved_share": round(share, 4) for quant, share in saved.items()})
    return show.finding(
        _how_many(sum(abs(share - 0.56) <= 0.03 for share in saved.values()), len(saved)),
        f"Of Llama 2 7B's {show(q8_0_bytes=q8)} in Q8_0, 4-bit mixtures save {min(saved.values()):.1%} to "
        f"{max(saved.values()):.1%} (Q4_K_M {saved['Q4_K_M']:.1%}); saving 56% would leave {0.44 * bits:.1f} bits per "
        "weight.",
    )


def _weights(bench: Bench, shape: str, quant: str) -> int:
    """Bytes of all tensors of a published model in a mixture."""
    return bench.header(f"{shape}:{quant}").tensor_bytes


def _distance(off: float) -> str:
    """The verdict on a claimed size that is off by this share."""
    return "confirmed" if off <= CLOSE else "roughly right" if off <= NEAR else "wrong"


def _how_many(right: int, of: int) -> str:
    """The verdict on a claim about several mixtures that holds for so many of them."""
    return "confirmed" if right == of else "roughly right" if right else "wrong"


def _per_weight(bench: Bench, quant: str, claimed: float) -> Finding:
    """Whether a mixture takes the claimed bytes per weight."""
    header = bench.header(f"{SEVEN}:{quant}")
    each = header.tensor_bytes / header.n_params
    smallest = min((TYPES[name] for name in header.types), key=lambda block: block.bpw)
    least, show = smallest.bpw / 8, Figures()
    return show.finding(
        "wrong" if claimed < least else _distance(abs(claimed / each - 1)),
        f"Llama 2 7B {quant} takes {show(bytes_per_weight=round(each, 4)):.3f} bytes per weight; the smallest type in "
        f"it, {smallest.name}, takes {smallest.block_bytes} bytes for {smallest.block_elems} weights, or "
        f"{show(least_bytes_per_weight=least)} for each; the claim says {claimed:g}.",
    )
