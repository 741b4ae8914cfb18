"""Mixtures such as Q4_K_M: the type of most tensors, and the exceptions.

The rules are those of llama-quantize without an importance matrix: ``llama_tensor_get_type_impl`` in
src/llama-quant.cpp (llama.cpp 0c1e57098). To add a mixture, add an entry to the table; ``tensor_types.assign`` applies
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class ShapeError(ValueError):
    """There is no such shape or mixture; the message is one sentence that offers others."""


@dataclass(frozen=True)
class Traits:
    """What the rules use of a model besides its tensors' names and sizes.

    Attributes:
        arch: ``general.architecture``.
        n_layer: ``block_count``.
        n_gqa: query heads per key-value head of the first layer.
        n_expert: experts per layer, 0 for a dense model.
        tied: there is no output.weight; the output reuses token_embd.
    """

    arch: str
    n_layer: int
    n_gqa: int
    n_expert: int
    tied: bool

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp calls this a 70B model (LLM_TYPE_70B in src/models): it judges by the number of layers."""
        if self.arch == "llama":
            return self.n_layer == 80 and self.n_gqa != 1 and self.n_expert != 8
        return self.n_layer == {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(self.arch)


When = Callable[[int, int, Traits], bool]
"""Whether a rule applies to the i-th of n layers of this model."""


@dataclass(frozen=True)
class Mixture:
    """One mixture: the type of most tensors, and by role the rules for the others; the first that applies counts."""

    name: str
    ftype: int
    base: str
    rules: Mapping[str, Sequence[tuple[When, str]]] = field(default_factory=dict)


def use_more_bits(i: int, n: int) -> bool:
    """The first eighth of the layers, the last eighth, and every third in between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _always(i: int, n: int, t: Traits) -> bool:
    return True


def _more_bits(i: int, n: int, t: Traits) -> bool:
    return use_more_bits(i, n)


def _first(part: int) -> When:
    """A rule for the first ``1 / part`` of the layers."""
    return lambda i, n, t: i < n // part


def _grouped(i: int, n: int, t: Traits) -> bool:
    """Whether at least four query heads share a KV head."""
    return t.n_gqa >= 4


def _eight_experts(i: int, n: int, t: Traits) -> bool:
    return t.n_expert == 8


def _falcon(when: When = _always) -> When:
    """A rule for Falcon only."""
    return lambda i, n, t: t.arch == "falcon" and when(i, n, t)


def _not_falcon(when: When = _always) -> When:
    """A rule for all but Falcon."""
    return lambda i, n, t: t.arch != "falcon" and when(i, n, t)


_OUT_8 = (_not_falcon(_eight_experts), "Q5_K")

# ftype: enum llama_ftype in include/llama.h.
_MIXTURES = (
    Mixture("F16", 1, "F16"),
    Mixture("Q8_0", 7, "Q8_0"),
    Mixture("Q6_K", 18, "Q6_K"),
    Mixture("Q5_K_M", 17, "Q5_K", {"attn_v": [(_more_bits, "Q6_K")], "ffn_down": [(_more_bits, "Q6_K")]}),
    Mixture("Q5_K_S", 16, "Q5_K"),
    Mixture("Q5_1", 9, "Q5_1"),
    Mixture("Q5_0", 8, "Q5_0"),
    Mixture(
        "Q4_K_M",
        15,
        "Q4_K",
        {
            "attn_v": [(_more_bits, "Q6_K")],
            "ffn_down": [
                (_falcon(_first(16)), "Q6_K"),
                (_falcon(_more_bits), "Q5_K"),
                (_not_falcon(_more_bits), "Q6_K"),
            ],
            "attn_output": [_OUT_8],
        },
    ),
    Mixture(
        "Q4_K_S",
        14,
        "Q4_K",
        {
            "attn_v": [(lambda i, n, t: i < 4, "Q5_K")],
            "ffn_down": [(_not_falcon(_first(8)), "Q5_K")],
            "attn_output": [_OUT_8],
        },
    ),
    Mixture("Q4_1", 3, "Q4_1"),
    Mixture("Q4_0", 2, "Q4_0"),
    Mixture("MXFP4_MOE", 38, "MXFP4"),
    Mixture(
        "IQ4_NL",
        25,
        "IQ4_NL",
        {"attn_v": [(_grouped, "Q5_K")], "ffn_down": [(_first(8), "Q5_K")], "attn_output": [_OUT_8]},
    ),
    Mixture(
        "IQ4_XS",
        30,
        "IQ4_XS",
        {"attn_v": [(_grouped, "Q5_K")], "ffn_down": [(_first(8), "Q5_K")], "attn_output": [_OUT_8]},
    ),
    Mixture(
        "Q3_K_L",
        13,
        "Q3_K",
        {
            "attn_v": [(_always, "Q5_K")],
            "ffn_down": [(_falcon(), "Q4_K"), (_always, "Q5_K")],
            "attn_output": [(_falcon(), "Q4_K"), (_eight_experts, "Q3_K"), (_always, "Q5_K")],
        },
    ),
    Mixture(
        "Q3_K_M",
        12,
        "Q3_K",
        {
            "attn_v": [(lambda i, n, t: i < 2, "Q5_K"), (_always, "Q4_K")],
            "ffn_down": [(_first(16), "Q5_K"), (_not_falcon(), "Q4_K"), (_more_bits, "Q4_K")],
            "attn_output": [_OUT_8, (_not_falcon(), "Q4_K")],
        },
    ),
    Mixture("Q3_K_S", 11, "Q3_K", {"attn_output": [_OUT_8]}),
    Mixture(
        "Q2_K",
        10,
        "Q2_K",
        {
            "attn_v": [(_grouped, "Q4_K"), (_always, "Q3_K")],
            "ffn_down": [(_always, "Q3_K")],
            "attn_output": [_OUT_8, (_not_falcon(), "Q3_K")],
        },
    ),
)
MIXTURES: dict[str, Mixture] = {m.name: m for m in _MIXTURES}


def find(quant: str) -> Mixture:
    """The mixture of that name, in any case.

    Raises:
        ShapeError: there is none; the message lists those there are.
    """
    mixture = MIXTURES.get(quant.upper())
    if mixture is None:
        raise ShapeError(f"there is no mixture {quant!r}: choose one of {', '.join(MIXTURES)}.")
    return mixture
