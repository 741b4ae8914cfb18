"""The checks of the claims about the cache: each in the world as we know it, and in worlds where it is otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from support.claim_rules import ToldBench, assert_can_say_more_than_one_thing, assert_follows, assert_stays_open

from labkit import predict
from labkit.course import claims
from labkit.course.claims.bench import Bench
from labkit.course.claims.growth import Growth
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab02.bench import QuantBench
from labkit.course.lab03 import bench as lab03_bench
from labkit.course.lab03 import short_memory
from labkit.course.lab03.bench import CacheBench
from labkit.course.lab03.claims import CHECKS
from labkit.engine.internals.slot_maps import EMPTY
from labkit.engine.log import Buffer, KVCache
from labkit.experiments.cache_slots import Snapshot, Step, add, demo_trace, remove
from labkit.experiments.depth import DepthSpeed
from labkit.experiments.dry_run import Planned
from labkit.experiments.run import ModelInfo, Phase, Run, Timings
from labkit.gguf import TYPES, GGMLType, Header
from labkit.quant.cache_quality import CacheQuality
from labkit.quant.quality import Quality
from labkit.settings import Settings
from labkit.units import MiB

OPTIONS = frozenset((
    "--cache-type-k", "--cache-type-v", "--ctx-size", "--kv-offload", "--n-gpu-layers", "LLAMA_ARG_CACHE_TYPE_K",
    "LLAMA_ARG_CACHE_TYPE_V",
))  # fmt: skip
WORDS = frozenset((b"llama_kv_cache", b"llama_kv_cells", b"slot_info", b"quantized v cache requires flash_attn"))
TRAINED_8192 = "as if trained for 8192"
Sizes = Callable[[str, Settings], int]


def by_formula(model: str, settings: Settings) -> int:
    return predict.kv_bytes(header_of(model), settings)


@cache
def header_of(model: str) -> Header:
    if model != TRAINED_8192:
        return Bench().header(model)
    header = Bench().header("llama-2-13b:Q4_K_M")
    return replace(header, metadata={**header.metadata, "llama.context_length": 8192})


def growth(*, at_once: float = 1.02, grown: float = 0.05, n_buffers: int = 1, faults: int | None = 52) -> Growth:
    """A run of 183 tokens; by default as seen: all there at once, and next to nothing later.

    Args:
        at_once: share of the cache that is resident when the context has been made.
        grown: memory added while generating, as a share of what a growing cache would add.
    """
    kv, n_ctx, n_tokens = 45 * MiB, 2048, 183
    seen = Growth("smollm2", n_ctx, n_tokens, kv, (kv // n_buffers,) * n_buffers, round(at_once * kv), 0, faults, 0)
    return replace(seen, decode_bytes=round(grown * seen.if_growing_bytes))


def quality(
    name: str, kld: float, *, error: float = 0.0002, halves: tuple[float, float] = (1.0, 1.0), rotated: bool = True
) -> CacheQuality:
    """A cache type for K and V; ``halves`` are the divergence in the first and second half, as shares of ``kld``."""
    bins = tuple(share * kld for share in halves for _ in range(4))
    of = Quality(36.0, 36.0, kld, error, 3 * kld, 0.95, 255, 1.0)
    return CacheQuality(name, name, rotated, rotated, rotated, of, 32, bins, (error,) * 8)


def speeds(
    kept: Mapping[str, tuple[float, ...]], *, ms: tuple[float, ...] = (6.7, 11.6), fill_s: float = 5.0
) -> list[DepthSpeed]:
    """Times with f16 at depths 0 and 1024, and with other types by the share of speed they keep there."""
    return [
        DepthSpeed(name, name, "on", depth, tuple(base / share * (1 + 0.01 * i) for i in range(8)), depth, fill_s)
        for name, shares in {"f16": (1.0, 1.0), **kept}.items()
        for depth, base, share in zip((0, 1024), ms, shares, strict=True)
    ]


def snapshot(step: Step, cells: Iterable[int], status: int = 0) -> Snapshot:
    array = np.array(list(cells), np.int64)
    used = int((array != EMPTY).sum())
    return Snapshot(step, status, array, np.where(array == EMPTY, -1, 0), used, (0,), {}, "as told")


def slot_map(*, split: bool = True, full: str = "refused") -> list[Snapshot]:
    """Three sequences of 60, the second is removed, one of 70 comes, then one batch too many.

    Args:
        split: whether the 70 fill the hole first.
        full: ``refused``, ``overwrites`` the oldest as a ring would, or ``half`` of it is placed.
    """
    free, two = [EMPTY] * 76, [0] * 60 + [1] * 60 + [2] * 60 + [EMPTY] * 76
    hole = [0] * 60 + [EMPTY] * 60 + [2] * 60 + free
    filled = [0] * 60 + [3] * 60 + [2] * 60 + [3] * 10 + [EMPTY] * 66 if split else hole[:180] + [3] * 70 + [EMPTY] * 6
    n_free = filled.count(EMPTY)
    placed = [2 if cell == EMPTY else cell for cell in filled]
    last = {
        "refused": (filled, 1),
        "overwrites": ([2] * 30 + placed[30:], 0),
        "half": (placed, 1),
    }[full]
    return [
        snapshot(add(2, 60), two),
        snapshot(remove(1), hole),
        snapshot(add(3, 70), filled),
        snapshot(add(2, n_free + 30), *last),
    ]


class ToldCache(CacheBench):
    """Memory, errors and refusals as the world has them."""

    bench: World

    def kv_bytes(self, model: str, **settings: Any) -> int:
        return self.bench.kv(model, Settings.of(settings))

    def growth(self) -> Growth:
        return self.bench.grown

    def refusal(self) -> str | None:
        return self.bench.said

    def kv_bytes_under(self, variable: str) -> int:
        return self.bench.under

    def device_kinds(self) -> frozenset[str]:
        return self.bench.kinds

    def block_error(self, n: int) -> float:
        return self.bench.error(n)


class World(ToldBench):
    """Figures as told; by default those of this world. Nothing is measured.

    Args:
        kv: the cache of a model with settings, by the kit's formula.
        plan: what llama.cpp plans instead of what the formula says; with None it refuses.
        same: models that are as another one is here.
        options, words: what llama.cpp's libraries have.
    """

    told: ClassVar = {CacheBench: ToldCache}

    def __init__(
        self,
        *,
        kv: Sizes = by_formula,
        plan: Callable[[Settings], Settings | None] = lambda settings: settings,
        same: Mapping[str, str] = {},
        grown: Growth | None = None,
        options: Iterable[str] = OPTIONS,
        words: Iterable[bytes] = WORDS,
        qualities: Iterable[CacheQuality] | None = None,
        timed: list[DepthSpeed] | None = None,
        slots: list[Snapshot] | None = None,
        said: str | None = "llama.cpp cannot make this context: insufficient memory.",
        under: int = 11_796_480,
        kinds: Iterable[str] = ("cpu amd epyc",),
        error: Callable[[int], float] = lambda n: 0.005 * n**0.1,
    ) -> None:
        super().__init__()
        self.kv, self._plan, self.same, self.grown = kv, plan, same, grown or growth()
        self._options, self._words, self.said, self.under = set(options), set(words), said, under
        self.kinds, self.error = frozenset(kinds), error
        seen = [quality("q8_0", 0.0037), quality("q4_0", 0.04, error=0.002)] if qualities is None else qualities
        self.cache_qualities = list(seen)
        self.depth_speeds = timed or speeds({"q8_0": (0.98, 0.89), "q4_0": (0.97, 0.6)})
        self.slot_maps = [slots or slot_map()]

    def header(self, model: str) -> Header:
        return header_of(self.same.get(model, model))

    def planned(self, model: str, *settings: Settings) -> tuple[Planned, ...]:
        return tuple(self._one(model, one) for one in settings)

    def _one(self, model: str, settings: Settings) -> Planned:
        really = self._plan(settings)
        if really is None:
            return Planned(settings, problem="llama.cpp is not in the mood.")
        header = self.header(model)
        found = predict.kv.cache(header, really)
        cells = predict.kv.streams_and_cells(really)[1]
        one = KVCache(cells, header.n_layer, really.type_k, really.type_v, found.k_bytes, found.v_bytes)
        return Planned(settings, found.kv_bytes, 0, 1000 * really.n_ubatch, 0, (one,))

    def in_libraries(self, word: bytes) -> bool:
        return word in self._words

    def has_option(self, name: str) -> bool:
        return name in self._options


@dataclass(frozen=True)
class Case:
    """A world, and the verdict that follows there; the first case of a claim is the world as we know it."""

    id: str
    verdict: str
    bench: Callable[[], World] = World
    types: dict[str, GGMLType] = field(default_factory=dict)


def scaled(factor: float, **only: Any) -> Sizes:
    """A formula that gives so many times the bytes, for these settings only."""

    def kv(model: str, settings: Settings) -> int:
        hit = all(getattr(settings, name) == value for name, value in only.items())
        return round(by_formula(model, settings) * (factor if hit else 1))

    return kv


def fixed(**sizes: int) -> Sizes:
    """The same size whatever the number of tokens, by the type of K."""
    return lambda model, settings: sizes.get(settings.type_k, by_formula(model, settings))


def planning(**changes: Any) -> Callable[[], World]:
    """llama.cpp plans as if some settings had been others."""
    return lambda: World(plan=lambda settings: replace(settings, **changes))


def by_batch(settings: Settings) -> Settings:
    return replace(settings, n_ctx=settings.n_ctx * settings.n_batch // 32)  # padding hides nothing of it


def by_small_batch(settings: Settings) -> Settings:
    return replace(settings, n_ctx=4096) if settings.n_batch == 2 else settings


def without(*names: str) -> frozenset[str]:
    return OPTIONS - set(names)


def refusing(*names: str, half: str = "type_v") -> Callable[[], World]:
    return lambda: World(plan=lambda settings: None if getattr(settings, half) in names else settings)


def by_sequence(settings: Settings) -> Settings:
    return replace(settings, n_ctx=2048, n_seq_max=1) if settings.n_seq_max > 1 else settings


LOSSLESS = (quality("q8_0", 0.0, error=0), quality("q4_0", 0.0, error=0))
RISING = (quality("q8_0", 0.004, halves=(0.5, 1.5)), quality("q4_0", 0.04, halves=(0.5, 1.5)))
BIG_BLOCKS = {"Q8_0": replace(TYPES["Q8_0"], block_elems=128, block_bytes=130)}
FULL_CACHE = "llama-2-70b:Q4_K_M"
ALL_BACKENDS = ("cpu", "metal", "cuda0", "rocm0", "vulkan0")

CASES = [
    Case("C034", "confirmed"),
    Case("C034", "misleading", lambda: World(timed=speeds({"q8_0": (1, 1), "q4_0": (1, 1)}, fill_s=0.01))),
    Case("C034", "roughly right", lambda: World(kv=scaled(0.1))),
    Case("C034", "wrong", lambda: World(kv=scaled(0.1), timed=speeds({"q8_0": (1, 1), "q4_0": (1, 1)}, fill_s=0.01))),
    Case("C035", "roughly right"),
    Case("C035", "confirmed", lambda: World(plan=by_batch)),
    Case("C035", "misleading", lambda: World(plan=by_sequence)),
    Case("C035", "wrong", planning(n_ctx=512)),
    Case("C036", "misleading"),
    Case("C036", "confirmed", lambda: World(kv=fixed(q4_0=MiB))),
    Case("C036", "wrong", lambda: World(kv=lambda model, s: by_formula(model, replace(s, type_k="f16", type_v="f16")))),
    Case("C036", "roughly right", lambda: World(kv=scaled(1.3, type_k="q8_0", n_ctx=8192))),
    Case("C037", "wrong"),
    Case("C037", "confirmed", lambda: World(grown=growth(at_once=0.1, grown=1))),
    Case("C037", "misleading", lambda: World(grown=growth(n_buffers=4))),
    Case("C038", "roughly right"),
    Case("C038", "confirmed", lambda: World(words=WORDS - {b"quantized v cache requires flash_attn"},
                                            kinds=ALL_BACKENDS)),
    Case("C038", "roughly right", lambda: World(kinds=ALL_BACKENDS)),
    Case("C038", "misleading", refusing("q5_1", "q5_0")),
    Case("C038", "wrong", lambda: World(plan=lambda settings: None)),
    Case("C039", "roughly right"),
    Case("C039", "confirmed", lambda: World(kv=scaled(0.9, type_k="q8_0"))),
    Case("C039", "misleading", lambda: World(kv=scaled(1.2, type_k="q8_0"))),
    Case("C039", "wrong", lambda: World(kv=lambda model, s: by_formula(model, replace(s, type_k="f16", type_v="f16")))),
    Case("C040", "wrong"),
    Case("C040", "confirmed", lambda: World(kv=scaled(0.4, type_k="q8_0"))),
    Case("C040", "roughly right", lambda: World(kv=scaled(0.5, type_k="q8_0"))),
    Case("C041", "wrong"),
    Case("C041", "confirmed", lambda: World(kv=scaled(2.9))),
    Case("C041", "roughly right", lambda: World(kv=scaled(3.2))),
    Case("C042", "roughly right"),
    Case("C042", "confirmed", lambda: World(kv=scaled(2, n_ctx=4096))),
    Case("C042", "misleading", lambda: World(same={"llama-2-13b:Q5_K_M": "llama-2-7b:Q4_K_M"},
                                             kv=scaled(1))),
    Case("C042", "wrong", lambda: World(kv=scaled(0.1))),
    Case("C043", "roughly right"),
    Case("C043", "confirmed", lambda: World(kv=scaled(2.2, n_ctx=4096))),
    Case("C043", "wrong", lambda: World(same={"llama-2-13b:Q4_K_M": "llama-2-7b:Q4_K_M"})),
    Case("C044", "wrong"),
    Case("C044", "roughly right", lambda: World(plan=by_small_batch)),
    Case("C044", "confirmed", lambda: World(plan=by_small_batch, same={"llama-2-13b:Q4_K_M": TRAINED_8192})),
    Case("C045", "wrong"),
    Case("C045", "confirmed", lambda: World(kv=scaled(4))),
    Case("C045", "roughly right", lambda: World(kv=scaled(2.5))),
    Case("C046", "confirmed"),
    Case("C046", "wrong", lambda: World(same={"llama-2-13b:F16": "llama-2-13b:Q5_K_M"}, kv=scaled(2))),
    Case("C046", "roughly right", lambda: World(same={"llama-2-13b:F16": "llama-2-13b:Q5_K_M"}, kv=scaled(0.8))),
    Case("C047", "wrong"),
    Case("C047", "misleading", lambda: World(words=WORDS | {b"paged"})),
    Case("C047", "misleading", lambda: World(grown=growth(at_once=0.1))),
    Case("C047", "confirmed", lambda: World(words=WORDS | {b"paged"}, grown=growth(at_once=0.1, grown=1))),
    Case("C048", "wrong"),
    Case("C048", "misleading", lambda: World(grown=growth(faults=50_000))),
    Case("C049", "roughly right"),
    Case("C049", "confirmed", lambda: World(words=WORDS | {b"llama_kv_cache_view"})),
    Case("C049", "misleading", lambda: World(slots=slot_map(split=False))),
    Case("C049", "wrong", lambda: World(words=WORDS - {b"slot_info"})),
    Case("C050", "wrong"),
    Case("C050", "confirmed", lambda: World(slots=slot_map(full="overwrites"))),
    Case("C050", "roughly right", lambda: World(slots=slot_map(full="half"))),
    Case("C051", "confirmed"),
    Case("C051", "wrong", lambda: World(grown=growth(at_once=0.1, grown=1))),
    Case("C051", "roughly right", lambda: World(grown=growth(at_once=0.5))),
    Case("C052", "roughly right"),
    Case("C052", "confirmed", lambda: World(kv=lambda model, settings: 1200 * 10**6)),
    Case("C052", "wrong", lambda: World(kv=scaled(0.5))),
    Case("C053", "wrong"),
    Case("C053", "confirmed", lambda: World(kv=scaled(0.7, n_ctx=2048))),
    Case("C053", "roughly right", lambda: World(kv=scaled(0.9, n_ctx=2048))),
    Case("C054", "depends on machine"),
    Case("C054", "confirmed", lambda: World(kv=lambda model, settings: 3500 * 10**6)),
    Case("C054", "wrong", lambda: World(kv=lambda model, settings: 500 * 10**6)),
    Case("C055", "confirmed"),
    Case("C055", "misleading", lambda: World(qualities=LOSSLESS)),
    Case("C055", "misleading", lambda: World(qualities=(quality("q8_0", 0.04), quality("q4_0", 0.004)))),
    Case("C055", "wrong", planning(type_k="f16", type_v="f16")),
    Case("C056", "depends on machine"),
    Case("C056", "confirmed", lambda: World(qualities=RISING)),
    Case("C056", "depends on machine", lambda: World(qualities=(RISING[0], quality("q4_0", 0.04)))),
    Case("C056", "wrong", lambda: World(qualities=LOSSLESS)),
    Case("C057", "depends on machine"),
    Case("C057", "confirmed", lambda: World(timed=speeds({"q8_0": (0.99, 1.1), "q4_0": (1, 1)}))),
    Case("C057", "wrong", lambda: World(timed=speeds({"q8_0": (0.9, 0.8), "q4_0": (1, 1)}))),
    Case("C058", "depends on machine"),
    Case("C058", "depends on machine", lambda: World(timed=speeds({"q8_0": (1, 1), "q4_0": (1, 1.3)}))),
    Case("C058", "confirmed", lambda: World(timed=speeds({"q8_0": (1, 1), "q4_0": (0.65, 0.5)}))),
    Case("C058", "wrong", lambda: World(timed=speeds({"q8_0": (1, 1), "q4_0": (0.95, 0.9)}))),
    Case("C059", "wrong"),
    Case("C059", "misleading", World, BIG_BLOCKS),
    Case("C059", "misleading", lambda: World(error=lambda n: 1 / n)),
    Case("C059", "confirmed", lambda: World(error=lambda n: 1 / n), BIG_BLOCKS),
    Case("C060", "roughly right"),
    Case("C060", "confirmed", lambda: World(kv=scaled(2.5, n_seq_max=8))),
    Case("C060", "wrong", lambda: World(kv=fixed(q8_0=0, f16=MiB))),
    Case("C061", "wrong"),
    Case("C061", "confirmed", lambda: World(options=OPTIONS | {"--kv-cache-quantize"})),
    Case("C062", "wrong"),
    Case("C062", "misleading", lambda: World(options=OPTIONS | {"LLAMA_KV_QUANTIZE"})),
    Case("C062", "confirmed", lambda: World(under=6 * MiB)),
    Case("C063", "wrong"),
    Case("C063", "misleading", lambda: World(options=OPTIONS | {"--offload-kv"})),
    Case("C063", "roughly right", lambda: World(plan=lambda s: replace(s, n_ctx=1024) if s.offload_kqv else s)),
    Case("C063", "confirmed", lambda: World(options=OPTIONS | {"--offload-kv"},
                                            plan=lambda s: replace(s, n_ctx=1024) if s.offload_kqv else s)),
    Case("C064", "wrong"),
    Case("C064", "confirmed", lambda: World(options=OPTIONS | {"--max-context"})),
    Case("C064", "misleading", lambda: World(options=OPTIONS | {"--max-context"},
                                             plan=lambda settings: replace(settings, n_ctx=4096))),
    Case("C065", "confirmed"),
    Case("C065", "wrong", planning(n_ctx=4096)),
    Case("C065", "wrong", lambda: World(options=without("--ctx-size"))),
    Case("C065", "roughly right", lambda: World(plan=lambda settings: replace(settings, n_ctx=settings.n_ctx + 2048))),
    Case("C066", "confirmed"),
    Case("C066", "misleading", lambda: World(options=without("--cache-type-v"))),
    Case("C066", "misleading", lambda: World(plan=lambda settings: replace(settings, type_v=settings.type_k))),
    Case("C066", "wrong", refusing("q8_0")),
    Case("C067", "confirmed"),
    Case("C067", "roughly right", lambda: World(options=without("--n-gpu-layers"))),
    Case("C067", "roughly right", planning(type_k="f16", type_v="f16")),
    Case("C067", "wrong", lambda: World(options=(), plan=lambda s: replace(s, type_k="f16", type_v="f16"))),
    Case("C068", "misleading"),
    Case("C068", "confirmed", lambda: World(said="std::bad_alloc")),
    Case("C068", "wrong", lambda: World(said=None)),
    Case("C069", "wrong"),
    Case("C069", "confirmed", lambda: World(grown=growth(grown=8))),
    Case("C069", "roughly right", lambda: World(grown=growth(grown=3))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.verdict}".replace(" ", "-"))
def test_the_verdict_follows_from_the_figures(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.course.lab03.claims.options.TYPES", {**TYPES, **case.types})
    assert_follows(CHECKS[case.id](case.bench()), case.verdict)


def test_each_claim_of_lab_03_has_a_check_that_can_say_more_than_one_thing() -> None:
    assert_can_say_more_than_one_thing("03", CHECKS, CASES)


@pytest.mark.parametrize(
    ("name", "world", "reason"),
    [
        ("C035", lambda: World(plan=lambda settings: None), "not in the mood"),
        ("C047", lambda: World(words=()), "names of llama.cpp's own parts"),
        ("C048", lambda: World(words=WORDS | {b"paged"}), "both ways"),
        ("C048", lambda: World(grown=growth(faults=None)), "page faults"),
        ("C049", lambda: World(words=(b"slot_info",)), "names of llama.cpp's own parts"),
        ("C057", lambda: World(timed=[replace(one, decode_ms=(5, 9, 7) if one.type_k == "f16" else (9, 5, 7))
                                      for one in speeds({"q8_0": (1, 1), "q4_0": (1, 1)})]), "vary too much"),
    ],
)  # fmt: skip
def test_figures_that_decide_nothing_leave_a_claim_open(name: str, world: Callable[[], World], reason: str) -> None:
    (row,) = claims.settle(name, bench=world())
    assert_stays_open(row, reason)


def test_what_slows_all_types_alike_changes_no_share_of_speed() -> None:
    quiet = speeds({"q8_0": (0.98, 0.89), "q4_0": (0.97, 0.6)})
    stalls = (1, 3, 1, 9, 2, 1, 5, 1)
    busy = [replace(one, decode_ms=tuple(np.multiply(one.decode_ms, stalls))) for one in quiet]
    for name in ("C057", "C058"):
        assert CHECKS[name](World(timed=busy)) == CHECKS[name](World(timed=quiet))


class Libraries(Bench):
    """llama.cpp's libraries say what they are told to."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.__dict__["_libraries"] = b"".join(word.lower().encode() + b"\0" for word in words)


def test_an_absent_option_means_something_only_where_others_are_found() -> None:
    known = ("--batch-size", "LLAMA_ARG_BATCH", "--cache-type-k")
    assert Libraries(*known).has_option("--cache-type-k") and not Libraries(*known).has_option("--kv-cache-quantize")
    assert not Libraries(*known).has_option("--cache-type")  # the beginning of another is no option
    for words in ((), ("llama_decode",), ("--batch-size", "--kv-cache-quantize")):
        with pytest.raises(Unsettled):
            Libraries(*words).has_option("--kv-cache-quantize")
    rows = claims.settle("C061", "C062", "C063", "C064", "C065", "C066", "C067", bench=Libraries("llama_decode"))
    assert {row.verdict for row in rows} == {"open"}
    assert {row.source for row in rows} == {
        "not settled here: this build of llama.cpp comes without the library that lists its options"
    }


def run(n_tokens: int = 200, **changes: Any) -> Run:
    settings = Settings(n_ctx=2048)
    need = predict.memory(header_of("smollm2"), settings, cpu_features=())
    anon = {"load": 40, "context": 86, "prefill": 87, "decode": 88}
    phases = tuple(
        Phase(name, 0, 1, mib * MiB, 0, None, 0, 1000 + 10 * mib, 3, 0) for name, mib in anon.items()
    )  # fmt: skip
    of = Run(
        model=ModelInfo("smollm2", "", "llama", 1, False),
        settings=settings,
        outcome="ok",
        reason="",
        predicted=need,
        buffers=(Buffer("CPU", "kv", need.kv_bytes), Buffer("CPU", "compute", 7)),
        timings=Timings(decode_ms=(7.0,) * n_tokens),
        phases=phases,
    )
    return replace(of, **changes)


def test_a_run_that_would_show_growth_is_taken_as_it_is() -> None:
    large = run(model=replace(run().model, name="llama-2-7b:F16"))
    bench = Bench(
        [large, run(n_tokens=10), run(settings=Settings(n_ctx=2048, type_k="q8_0")), run(cap_bytes=MiB), run()]
    )
    seen = bench.part(CacheBench).growth()
    assert (seen.n_tokens, seen.context_bytes, seen.decode_bytes) == (200, 46 * MiB, MiB)
    assert (seen.kv_bytes, seen.kv_buffers) == (45 * MiB, (45 * MiB,))
    assert (seen.minor_faults, seen.major_faults) == (10, 0)
    assert seen.if_growing_bytes == 45 * MiB * 200 // 2048
    assert bench.used == [run()]


def test_growth_is_measured_long_enough_to_be_seen() -> None:
    asked: list[dict[str, Any]] = []

    def measure(model: str, *, tokens: int, progress: Any, **settings: Any) -> Run:
        asked.append({"model": model, "tokens": tokens, **settings})
        return run(n_tokens=tokens, settings=Settings.of(settings))

    cache = Bench(measure=measure).part(CacheBench)
    assert cache.growth() == cache.growth()
    (how,) = asked
    assert cache.growth().if_growing_bytes >= lab03_bench.GROWTH_BYTES
    assert (how["model"], how["n_ctx"], how["n_threads"]) == ("smollm2", 2048, 1)


def test_a_system_that_does_not_tell_memory_leaves_growth_open() -> None:
    blind = tuple(replace(phase, rss_anon_bytes=None) for phase in run().phases)
    with pytest.raises(Unsettled, match="rss anon"):
        Bench([run(phases=blind)]).part(CacheBench).growth()


def test_what_a_lab_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is missing is measured once, small, on one thread."""
    made: list[tuple[str, Any]] = []

    def compare(model: Path, *, pairs: Any, rotation: Any, **how: Any) -> tuple[CacheQuality, ...]:
        made.append(("quality", pairs))
        assert how["threads"] == 1 and rotation == (True,)
        return tuple(quality(name, 0.01) for name, _ in pairs)

    def time(model: Path, *, types: Any, **how: Any) -> tuple[DepthSpeed, ...]:
        made.append(("depth", types))
        assert how["threads"] == 1
        return tuple(speeds({"q8_0": (1, 1), "q4_0": (1, 1)}))

    def fill(trace: Any, **how: Any) -> tuple[Snapshot, ...]:
        made.append(("slots", tuple(trace)))
        return tuple(slot_map())

    # Package attributes of these names may be the functions, so the modules are asked for by name.
    monkeypatch.setattr(import_module("labkit.quant.cache_quality"), "cache_quality", compare)
    monkeypatch.setattr(import_module("labkit.experiments.depth"), "speed_at_depth", time)
    monkeypatch.setattr(import_module("labkit.experiments.cache_slots"), "slot_map", fill)
    bench = Bench()
    cache = bench.part(CacheBench)
    for _ in range(2):
        assert cache.quality("q4_0", "q4_0").type_k == "q4_0" and cache.quality("q8_0", "q8_0")
        assert len(cache.depth()) == 6 and len(cache.slots()) == 4
    assert made == [
        ("quality", [("q4_0", "q4_0"), ("q8_0", "q8_0")]),
        ("depth", ("f16", "q8_0", "q4_0")),
        ("slots", demo_trace()),
    ]
    assert bench.looked

    given = Bench()
    given.cache_qualities = [quality("q8_0", 0.5), quality("q4_0", 0.6)]
    given.depth_speeds = speeds({"q8_0": (1, 1), "q4_0": (1, 1), "q5_1": (1, 1)})
    given.slot_maps = [slot_map()[:2], slot_map(full="overwrites")]
    made.clear()
    cache = given.part(CacheBench)
    assert cache.quality("q8_0", "q8_0").quality.kld_mean == 0.5
    assert {one.type_k for one in cache.depth()} == {"f16", "q8_0", "q4_0"}
    assert cache.slots() is given.slot_maps[1]
    assert not made


def test_speeds_without_flash_attention_or_at_one_depth_do_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = speeds({"q8_0": (0.9, 0.9), "q4_0": (1, 1)})
    monkeypatch.setattr(import_module("labkit.experiments.depth"), "speed_at_depth", lambda *given, **how: enough)
    for some in (enough[::2], [replace(one, flash_attn="off") for one in enough], enough[:5]):
        bench = Bench()
        bench.depth_speeds = some
        assert bench.part(CacheBench).depth() == tuple(enough)


def test_a_variable_is_set_for_the_child_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def measure(model: str, **how: Any) -> Run:
        seen.append(os.environ.get("LABKIT_TEST_VARIABLE"))
        return run()

    for before in (None, "7"):
        if before:
            monkeypatch.setenv("LABKIT_TEST_VARIABLE", before)
        assert Bench(measure=measure).part(CacheBench).kv_bytes_under("LABKIT_TEST_VARIABLE") == 45 * MiB
        assert os.environ.get("LABKIT_TEST_VARIABLE") == before
    assert seen == ["1", "1"]


def test_a_run_that_fails_leaves_the_variable_open() -> None:
    bench = Bench(measure=lambda *given, **how: run(outcome="load-failed", reason="no.", phases=()))
    with pytest.raises(Unsettled, match="did not finish context: load-failed, no"):
        bench.part(CacheBench).kv_bytes_under("X")


def test_a_killed_run_is_told_beside_the_refusal() -> None:
    world = World()
    world.runs = [run(outcome="oom-killed", cap_bytes=600 * MiB, phases=run().phases[:1])]
    assert "600 MiB the kernel killed it" in CHECKS["C068"](world).evidence
    assert "killed" not in CHECKS["C068"](World()).evidence


def test_the_quality_without_rotation_is_told_if_it_is_there() -> None:
    rows = (quality("q8_0", 0.004), quality("q4_0", 0.04), quality("q4_0", 0.3, rotated=False))
    found = CHECKS["C055"](World(qualities=rows))
    assert "0.3 without rotation" in found.evidence and found.figures["q4_0_kld_not_rotated"] == 0.3


def test_errors_of_blocks_are_those_of_ggml() -> None:
    bench = Bench().part(CacheBench)
    assert bench.block_error(32) == pytest.approx(Bench().part(QuantBench).rounding_error("Q8_0"), rel=0.02)
    errors = [bench.block_error(n) for n in (32, 64, 128, 256)]
    assert errors == sorted(errors)


def test_where_addresses_cannot_be_limited_a_claim_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = SimpleNamespace(stdout="", stderr="", returncode=-9)
    monkeypatch.setattr(short_memory.subprocess, "run", lambda *given, **how: dead)
    (row,) = claims.settle("C068")
    assert row.verdict == "open" and "status -9: it wrote no reason" in row.source
    monkeypatch.setattr(short_memory, "sys", SimpleNamespace(platform="win32"))
    (row,) = claims.settle("C068")
    assert row.verdict == "open" and "only Linux" in row.source


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the addresses of a process")
def test_a_cache_that_fits_is_made_and_a_larger_one_refused(smollm2_path: Path) -> None:
    settings = Settings(n_ctx=512, n_threads=1, repack=False)
    assert short_memory.refusal(smollm2_path, settings, addresses_bytes=lab03_bench.ADDRESSES_BYTES) is None
    said = Bench().part(CacheBench).refusal()
    assert said is not None and "memory" in said and "bad_alloc" not in said


@pytest.mark.live
def test_live_what_llama_cpp_plans_and_knows() -> None:
    """All that a dry run, a header or a library settles; the rest takes time and is settled by lab 03."""
    slow = {"C034", "C037", "C047", "C048", "C049", "C050", "C051", "C055", "C056", "C057", "C058", "C062", "C069"}
    for row in claims.settle(*(name for name in CHECKS if name not in slow)):
        assert row.verdict == claims.get(row.id).expected, row.evidence
        assert row.source in ("measured here", "computed") and row.figures


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells anonymous from file-backed memory")
def test_live_a_cache_is_made_at_once() -> None:
    for row in claims.settle("C037", "C047", "C048", "C051", "C062", "C069"):
        assert row.verdict == claims.get(row.id).expected, row.evidence
        assert row.source == "measured here"


@pytest.mark.live
def test_live_cells() -> None:
    for row in claims.settle("C049", "C050"):
        assert row.verdict == claims.get(row.id).expected, row.evidence
