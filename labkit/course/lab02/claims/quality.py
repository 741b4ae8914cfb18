"""The checks of the claims about what quantizing costs in quality, measured on the bundled model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.terms import BUNDLED, SEVEN_B
from labkit.course.lab02.bench import QuantBench
from labkit.gguf.types import TYPES

if TYPE_CHECKING:
    from labkit.quant.quality import Quality


def c028(bench: Bench) -> Finding:
    """How many weights of Llama 2 7B Q4_K_M have more bits than most; and whether llama.cpp gives the trained weights
    of the bundled model other types than those of a file of the same shape that is all zeros. Wrong if no weight has
    more bits; confirmed if some do and the types depend on the weights; roughly right if they do not, because then the
    types follow a rule by name and position, whatever the weights are."""
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
    show = Figures()
    return show.finding(
        "wrong" if not higher else "confirmed" if differ else "roughly right",
        f"In Llama 2 7B Q4_K_M {show(higher_share=round(share, 4)):.1%} of the weights are "
        f"{' or '.join(higher) or 'of a larger type'} and most are {most}; ffn_down has the larger type in "
        f"{show(ffn_down_higher=down)} of {header.n_layer} layers; with trained weights and with zeros, llama.cpp "
        f"gives {show(tensors_differ=differ)} of {show(tensors=len(trained))} tensors different types.",
    )


def c029(bench: Bench) -> Finding:
    """The bundled model in Q4_K_M, made with an importance matrix and without, compared with its F16. Confirmed if it
    relies on the matrix: without it, less than three quarters of the likeliest next tokens stay the same. Else
    misleading if the matrix lowers the divergence (KLD) by more than twice the error of measurement, and wrong if it
    does not."""
    plain, weighted = (bench.part(QuantBench).quality("Q4_K_M", imatrix=with_one) for with_one in (False, True))
    lower = plain.kld_mean - weighted.kld_mean
    helps = lower > 2 * math.hypot(plain.kld_mean_error, weighted.kld_mean_error)
    show = Figures()
    return show.finding(
        "confirmed" if plain.top1 < 0.75 else "misleading" if helps else "wrong",
        f"In Q4_K_M {BUNDLED} keeps {show(plain_top1_share=round(plain.top1, 3))} of F16's likeliest next tokens "
        f"without an importance matrix and {show(imatrix_top1_share=round(weighted.top1, 3))} with one, and the "
        f"divergence (KLD) is {show(plain_kld=round(plain.kld_mean, 4)):.3f} and "
        f"{show(imatrix_kld=round(weighted.kld_mean, 4)):.3f} over {plain.n_tokens} tokens.",
    )


def c030(bench: Bench) -> Finding:
    """The bundled model in Q4_K_M compared with its F16, without an importance matrix. Confirmed if perplexity rises by
    at most 2 % and at least 95 % of the likeliest next tokens stay the same; wrong if it rises by more than 20 % or
    less than three quarters stay the same; else roughly right. A larger model loses less."""
    seen = bench.part(QuantBench).quality("Q4_K_M")
    rise = _rise(seen)
    if rise <= 0.02 and seen.top1 >= 0.95:
        verdict = "confirmed"
    else:
        verdict = "wrong" if rise > 0.2 or seen.top1 < 0.75 else "roughly right"
    show = Figures()
    show.keep(kld=round(seen.kld_mean, 4))
    return show.finding(
        verdict,
        f"In Q4_K_M, {BUNDLED}'s perplexity over {seen.n_tokens} tokens rises by "
        f"{show(perplexity_rise_share=round(rise, 4)):.1%}, from {seen.reference_perplexity:.1f} in F16 (made from "
        f"its Q4_1) to {seen.perplexity:.1f}, and {show(top1_share=round(seen.top1, 3))} of the likeliest next tokens "
        "stay the same.",
    )


def c104(bench: Bench) -> Finding:
    """What two 4-bit mixtures, Q4_K_M and Q4_0, cost the bundled model by two measures: the rise of perplexity, and the
    share of likeliest next tokens that change. Confirmed if all four are within 1 point of 2.3 %. Depends on machine if
    the largest is twice the smallest or more, so that model, mixture and measure decide, which the claim does not name.
    Else wrong."""
    seen = {quant: bench.part(QuantBench).quality(quant) for quant in ("Q4_K_M", "Q4_0")}
    costs = [cost for quality in seen.values() for cost in (_rise(quality), 1 - quality.top1)]
    if all(abs(cost - 0.023) <= 0.01 for cost in costs):
        verdict = "confirmed"
    else:
        verdict = "depends on machine" if max(costs) >= 2 * min(costs) else "wrong"
    show = Figures()
    listed = []
    for quant, quality in seen.items():
        rise = show(**{f"{quant.lower()}_perplexity_rise_share": round(_rise(quality), 4)})
        changed = show(**{f"{quant.lower()}_changed_share": round(1 - quality.top1, 4)})
        listed.append(f"{quant} raises perplexity by {rise:.1%} and changes {changed:.1%} of the likeliest next tokens")
    return show.finding(verdict, f"On {BUNDLED}, without any GPU, {', and '.join(listed)}, where the claim says 2.3%.")


def _rise(quality: Quality) -> float:
    """The rise of perplexity, as a share."""
    return quality.perplexity / quality.reference_perplexity - 1
