"""The checks of the claims about offloading: each in the world as we know it, and in worlds where it is otherwise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.claim_rules import ToldBench, assert_can_say_more_than_one_thing, assert_follows, assert_stays_open, never

from labkit import predict
from labkit.course import claims
from labkit.course.claims.bench import Bench
from labkit.course.claims.terms import MAPPED
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab04 import bench as lab04_bench
from labkit.course.lab04 import link_count
from labkit.course.lab04.bench import DEVICE_MODEL, KINDS, OffloadBench
from labkit.course.lab04.claims import CHECKS
from labkit.course.lab04.link_count import Crossed
from labkit.course.lab04.offloaded import OUTPUT_FIRST, Offloaded, order_of, orders
from labkit.engine import Device, EngineInfo
from labkit.engine.log import Buffer
from labkit.experiments import device
from labkit.experiments.run import DeviceUse, ModelInfo, Phase, Run, Timings
from labkit.gguf import Header
from labkit.predict import hardware
from labkit.predict.hardware import Hardware
from labkit.predict.offload import Split
from labkit.settings import Settings
from labkit.units import GiB, MiB

OPTIONS = frozenset((
    "--n-gpu-layers", "LLAMA_ARG_N_GPU_LAYERS", "--fit", "--op-offload", "--kv-offload", "--kv-unified",
))  # fmt: skip
WORDS = frozenset((b"llama-server", b"llama-cli"))
BACKENDS = frozenset(("virtgpu", "metal", "cuda", "vulkan", "sycl", "hip", "cann", "opencl", "ggml_cpu_has_avx2",
                      "ggml_cpu_has_avx512"))  # fmt: skip
Change = Callable[[Offloaded], Offloaded]


@cache
def header_of(model: str) -> Header:
    return Bench().header(model)


def run(
    model: str = DEVICE_MODEL,
    n_gpu_layers: int = 20,
    *,
    ms: float = 5.0,
    memory_bytes: int | None = None,
    grown: int | None = 0,
    **changes: Any,
) -> Run:
    """A run with a loopback device whose buffers are as predicted."""
    settings = Settings(repack=False, n_threads=1, n_gpu_layers=n_gpu_layers, devices=("loopback",))
    settings = replace(settings, **changes.pop("settings", {}))
    split = predict.offload(header_of(model), settings)
    (there,) = split.devices
    buffers = (
        Buffer("CPU_Mapped", "model", split.host.mapped_bytes),
        Buffer("loopback", "model", there.weights_bytes),
        Buffer("CPU", "kv", split.host.kv_bytes),
        Buffer("loopback", "kv", there.kv_bytes),
        Buffer("loopback_Host", "kv", 0),
    )
    names = ("load", "context", "prefill", "decode")
    levels = [None if grown is None else 90 * MiB + (grown if name == "decode" else 0) for name in names]
    of = Run(
        model=ModelInfo(model, "", "llama", 1, True),
        settings=settings,
        outcome="ok",
        reason="",
        predicted=predict.memory(header_of(model), settings, cpu_features=()),
        device=DeviceUse("loopback", memory_bytes, 1),
        buffers=buffers,
        timings=Timings(decode_ms=(ms,) * 8),
        phases=tuple(
            Phase(name, 0, 1, 0, 0, None, 0, 0, 0, 0, level) for name, level in zip(names, levels, strict=True)
        ),
    )
    return replace(of, **changes)


def of_kind(kind: str, **how: Any) -> Offloaded:
    _, n_gpu_layers, with_cache = KINDS[kind]
    settings = {"offload_kqv": with_cache}
    return Offloaded.of(run(n_gpu_layers=n_gpu_layers, settings=settings, **how), header_of(DEVICE_MODEL).n_layer)


def speeds(q8: float = 45.0, q4: float = 34.0) -> dict[str, float]:
    return {"Q8_0": q8, "Q4_K_M": q4}


class ToldOffload(OffloadBench):
    """Devices and times as the world has them."""

    bench: World

    def offloads(self, *kinds: str) -> tuple[Offloaded, ...]:
        return tuple(self.bench.seen.get(kind, lambda one: one)(of_kind(kind)) for kind in kinds)

    def overfull(self) -> Run:
        return run(n_gpu_layers=99, memory_bytes=48 * MiB, **self.bench.too_much)

    def crossed(self) -> tuple[Crossed, Split]:
        return Crossed(16, round(16 * self.bench.crossing)), self.split(DEVICE_MODEL, 20)

    def split(self, model: str, n_gpu_layers: int, **how: Any) -> Split:
        return self.bench.splits(super().split(model, n_gpu_layers, **how))

    def spread(self, n_layer: int, shares: Sequence[float]) -> tuple[int, ...]:
        return self.bench.counts

    def hardware(self, *kinds: str) -> tuple[Hardware, ...]:
        return tuple(self.bench.chips(one) for one in super().hardware(*kinds))

    def gpu_share(self, name: str = "apple-m2", ram_bytes: int = 16 * GiB) -> tuple[str, int, int]:
        return "Apple M2", self.bench.share, ram_bytes

    def ggml_has(self, word: str) -> bool:
        return word in self.bench.backends

    def fastest_ms(self, *names: str, settings: Settings) -> tuple[float, ...]:
        assert settings == MAPPED
        return tuple(self.bench.ms[name.partition(":")[2]] for name in names)


class World(ToldBench):
    """Figures as told; by default those of this world. Nothing is measured.

    Args:
        seen: changes what a run of a kind shows.
        too_much: what becomes of a run that asks for more than the device holds.
        crossing: bytes that cross the link for each token.
        splits: changes a predicted split of a model.
        counts: how several devices share the layers.
        chips: changes a device of the catalogue.
        share: of 16 GiB, what a GPU may have.
        options, words, backends: what llama.cpp's libraries have.
        ms: of each token, by quantization.
        same: models that are as another one is here.
    """

    told: ClassVar = {OffloadBench: ToldOffload}

    def __init__(
        self,
        *,
        seen: Mapping[str, Change] = {},
        too_much: Mapping[str, Any] = {"outcome": "load-failed", "reason": "it has no room."},
        crossing: float = 220_000,
        splits: Callable[[Split], Split] = lambda split: split,
        counts: Sequence[int] = (25, 8),
        chips: Callable[[Hardware], Hardware] = lambda chip: chip,
        share: int = round(16 * GiB * 2 / 3),
        options: Iterable[str] = OPTIONS,
        words: Iterable[bytes] = WORDS,
        backends: Iterable[str] = BACKENDS,
        ms: Mapping[str, float] = speeds(),
        same: Mapping[str, str] = {},
    ) -> None:
        super().__init__()
        self.seen, self.too_much, self.crossing, self.splits = seen, too_much, crossing, splits
        self.counts, self.chips, self.share, self.ms, self.same = tuple(counts), chips, share, ms, same
        self._options, self._words, self.backends = set(options), set(words), set(backends)

    def header(self, model: str) -> Header:
        return header_of(self.same.get(model, model))

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


def having(**changes: Any) -> Change:
    return lambda one: replace(one, **changes)


def leaving(order: str) -> Mapping[str, Change]:
    """Layers leave in another order."""
    size = orders(header_of(DEVICE_MODEL), 20)[order]
    return {"part": having(device_weights_bytes=size)}


def on_host(**changes: Any) -> Callable[[Split], Split]:
    return lambda split: replace(split, host=replace(split.host, **changes))


def without_cache(split: Split) -> Split:
    return replace(split, devices=tuple(replace(side, kv_bytes=0) for side in split.devices))


def apart(*names: str) -> Callable[[Hardware], Hardware]:
    """These chips get a memory of their own behind a link; without names, all Apple chips do."""

    def change(one: Hardware) -> Hardware:
        if not one.name.startswith("apple") or (names and one.name not in names):
            return one
        return replace(one, kind="discrete", vram_bytes=8 * GiB, link_bytes_per_s=10**9)

    return change


def bandwidth(bytes_per_s: int) -> Callable[[Hardware], Hardware]:
    return lambda one: replace(one, bandwidth_bytes_per_s=bytes_per_s, kind="discrete", link_bytes_per_s=10**11)


def slower_link(bytes_per_s: int) -> Callable[[Hardware], Hardware]:
    return lambda one: replace(one, link_bytes_per_s=bytes_per_s)


BLOCKS_ONLY = 76_723_200  # less than the blocks and half of the output layer
FAST = {"none": having(decode_ms=(9.0,)), "all": having(decode_ms=(1.0,))}
SLOW = {"none": having(decode_ms=(9.0,)), "all": having(decode_ms=(9.0,))}

CASES = [
    Case("C070", "roughly right"),
    Case("C070", "confirmed", lambda: World(seen=leaving("the last blocks"))),
    Case("C070", "misleading", lambda: World(seen=leaving("the first blocks"))),
    Case("C070", "wrong", lambda: World(seen=leaving("the output layer, then the first blocks"))),
    Case("C071", "misleading"),
    Case("C071", "confirmed", lambda: World(seen={"all": having(device_weights_bytes=BLOCKS_ONLY)})),
    Case("C071", "wrong", lambda: World(seen={"all": having(host_weights_bytes=0)})),
    Case("C072", "roughly right"),
    Case("C072", "confirmed", lambda: World(same={"llama-2-7b:Q4_K_M": "llama-2-70b:Q4_K_M",
                                                  "llama-2-13b:Q4_K_M": "llama-2-70b:Q4_K_M"})),
    Case("C072", "wrong", lambda: World(same={"llama-2-7b:Q4_K_M": "smollm2-135m:Q4_K_M"})),
    Case("C073", "wrong"),
    Case("C073", "confirmed", lambda: World(options=OPTIONS | {"--cpu-offload"})),
    Case("C074", "wrong"),
    Case("C074", "confirmed", lambda: World(options=OPTIONS | {"LLAMA_CPU_OFFLOAD_LAYERS"})),
    Case("C075", "wrong"),
    Case("C075", "confirmed", lambda: World(words=WORDS | {b"gpt-main"})),
    Case("C078", "misleading"),
    Case("C078", "wrong", lambda: World(options=OPTIONS - {"--fit"})),
    Case("C078", "confirmed", lambda: World(too_much={})),
    Case("C079", "misleading"),
    Case("C079", "wrong", lambda: World(options=OPTIONS - {"--op-offload"})),
    Case("C079", "roughly right", lambda: World(crossing=5 * MiB)),
    Case("C079", "confirmed", lambda: World(crossing=25 * MiB)),
    Case("C080", "roughly right"),
    Case("C080", "confirmed", lambda: World(seen={"part": having(grown_bytes=-20 * MiB)})),
    Case("C080", "misleading", lambda: World(counts=(17, 16), seen={"part": having(grown_bytes=20 * MiB)})),
    Case("C080", "wrong", lambda: World(counts=(17, 16))),
    Case("C081", "wrong"),
    Case("C081", "misleading", lambda: World(options=OPTIONS | {"--offload", "--unified"})),
    Case("C081", "misleading", lambda: World(seen={"all, cache kept": having(device_weights_bytes=0)})),
    Case("C081", "confirmed", lambda: World(options=OPTIONS | {"--offload", "--unified"},
                                            seen={"all, cache kept": having(device_weights_bytes=0)})),
    Case("C082", "wrong"),
    Case("C082", "misleading", lambda: World(seen=leaving("the first blocks"))),
    Case("C082", "misleading", lambda: World(splits=on_host(weights_bytes=4_500_000_000))),
    Case("C082", "confirmed", lambda: World(seen=leaving("the output layer, then the first blocks"),
                                            splits=on_host(weights_bytes=4_500_000_000))),
    Case("C083", "wrong"),
    Case("C083", "misleading", lambda: World(options=OPTIONS | {"--unified"})),
    Case("C083", "confirmed", lambda: World(options=OPTIONS | {"--unified", "--offload"})),
    Case("C083", "wrong", lambda: World(options=OPTIONS | {"--unified", "--offload"}, backends=())),
    Case("C084", "misleading"),
    Case("C084", "wrong", lambda: World(splits=without_cache)),
    Case("C084", "roughly right", lambda: World(seen={"none": having(device_kv_bytes=MiB)})),
    Case("C084", "confirmed", lambda: World(seen={"none": having(device_kv_bytes=MiB)},
                                            splits=lambda split: replace(split, crossings=2))),
    Case("C085", "roughly right"),
    Case("C085", "confirmed", lambda: World(seen={"a few too many": having(device_weights_bytes=MiB)})),
    Case("C085", "wrong", lambda: World(seen={"far too many": having(device_weights_bytes=MiB)})),
    Case("C086", "roughly right"),
    Case("C086", "roughly right", lambda: World(ms=speeds(45.0, 27.4))),
    Case("C086", "wrong", lambda: World(ms=speeds(45.0, 44.0))),
    Case("C086", "misleading", lambda: World(ms=speeds(45.0, 20.0))),
    Case("C086", "confirmed", lambda: World(same={"llama-3.2-1b:Q4_K_M": "llama-3.2-1b:Q6_K"})),
    Case("C087", "wrong"),
    Case("C087", "roughly right", lambda: World(chips=slower_link(15_000_000))),
    Case("C087", "confirmed", lambda: World(
        chips=slower_link(15_000_000),
        splits=lambda split: replace(split, crossings=20, crossing_bytes=1_484_800))),
    Case("C088", "confirmed"),
    Case("C088", "misleading", lambda: World(chips=apart("apple-m1"))),
    Case("C088", "wrong", lambda: World(chips=apart())),
    Case("C089", "wrong"),
    Case("C089", "misleading", lambda: World(chips=apart("apple-m1"))),
    Case("C089", "misleading", lambda: World(share=15 * GiB)),
    Case("C089", "confirmed", lambda: World(chips=apart())),
    Case("C090", "misleading"),
    Case("C090", "confirmed", lambda: World(share=14 * GiB)),
    Case("C090", "wrong", lambda: World(chips=apart("apple-m2"))),
    Case("C091", "confirmed"),
    Case("C091", "roughly right", lambda: World(backends=BACKENDS - {"cuda"})),
    Case("C091", "roughly right", lambda: World(backends=BACKENDS - {"ggml_cpu_has_avx512"})),
    Case("C091", "wrong", lambda: World(backends={"vulkan"})),
    Case("C129", "depends on machine"),
    Case("C129", "confirmed", lambda: World(seen=FAST, chips=bandwidth(10**12))),
    Case("C129", "depends on machine", lambda: World(seen=SLOW, chips=bandwidth(10**12))),
    Case("C129", "wrong", lambda: World(seen=SLOW, chips=bandwidth(10**11))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("labkit.course.lab04.claims.speed.machine", lambda: SimpleNamespace(profile="full"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.verdict}".replace(" ", "-"))
def test_the_verdict_follows_from_the_figures(case: Case) -> None:
    assert_follows(CHECKS[case.id](case.bench()), case.verdict)


def test_each_claim_of_lab_04_has_a_check_that_can_say_more_than_one_thing() -> None:
    assert_can_say_more_than_one_thing("04", CHECKS, CASES)


@pytest.mark.parametrize(
    ("name", "world", "reason"),
    [
        ("C070", lambda: World(seen={"part": having(device_weights_bytes=12_345_678)}), "do not tell which layers"),
        ("C075", lambda: World(words=()), "names its programs"),
        ("C078", lambda: World(too_much={"outcome": "timed-out", "reason": "slow."}), "timed-out, slow"),
        ("C080", lambda: World(seen={"part": having(grown_bytes=None)}), "on a loopback device only"),
        ("C082", lambda: World(seen={"part": having(device_weights_bytes=1)}), "do not tell which layers"),
    ],
)
def test_figures_that_decide_nothing_leave_a_claim_open(name: str, world: Callable[[], World], reason: str) -> None:
    (row,) = claims.settle(name, bench=world())
    assert_stays_open(row, reason)


@pytest.mark.parametrize("n", [1, 4, 20, 30])
def test_the_order_of_leaving_is_told_from_bytes(n: int) -> None:
    header = header_of(DEVICE_MODEL)
    sizes = orders(header, n)
    for order, size in sizes.items():
        seen = replace(of_kind("part"), asked=n, device_weights_bytes=size + 5000)
        twins = [name for name in sizes if sizes[name] == size]
        assert order_of(header, seen) == (order if len(twins) == 1 else None)
    assert sizes[OUTPUT_FIRST] == predict.offload(header, Settings(n_gpu_layers=n)).devices[0].weights_bytes


def test_runs_of_one_model_that_a_lab_has_serve_and_their_device_is_told_from_the_host() -> None:
    one = "llama-3.2-1b:Q4_K_M"
    mine = [run(one, n, grown=3) for n in (0, 8, 17)]
    capped = [run(cap_bytes=MiB), run(caution="busy"), run(phases=()), run(n_gpu_layers=0, settings={"devices": ()})]
    bench = Bench([*capped, *mine], measure=never)
    offload = bench.part(OffloadBench)
    (part,) = offload.offloads("part")
    split = predict.offload(header_of(one), mine[1].settings)
    assert (part.model, part.asked, part.n_layer, part.grown_bytes) == (one, 8, 16, 3)
    assert (part.device_weights_bytes, part.device_kv_bytes) == (
        split.devices[0].weights_bytes,
        split.devices[0].kv_bytes,
    )
    assert (part.host_weights_bytes, part.host_kv_bytes) == (split.host.mapped_bytes, split.host.kv_bytes)
    none, everything = offload.offloads("none", "all")
    assert (none.asked, everything.asked) == (0, 17)
    assert bench.used == [mine[1], mine[0], mine[2]]


def test_what_is_missing_is_measured_once_with_one_model() -> None:
    asked: list[tuple[int, bool]] = []

    def measure(model: str, *, tokens: int, progress: Any, **settings: Any) -> Run:
        assert (model, settings["n_threads"], settings["devices"]) == (DEVICE_MODEL, 1, ["loopback"])
        asked.append((settings["n_gpu_layers"], settings["offload_kqv"]))
        return run(n_gpu_layers=asked[-1][0], settings={"offload_kqv": asked[-1][1]})

    bench = Bench([run("llama-3.2-1b:Q4_K_M", 17)], measure=measure)
    offload = bench.part(OffloadBench)
    offload.device_name = "loopback"
    for _ in range(2):
        on, off = offload.offloads("all", "all, cache kept")
        assert {on.model, off.model} == {DEVICE_MODEL} and off.device_kv_bytes == 0 < on.device_kv_bytes
        few, many = offload.offloads("a few too many", "far too many")
        assert few.asked < many.asked and few.device_weights_bytes == many.device_weights_bytes
    assert sorted(asked) == [(33, True), (99, False), (99, True)]


def test_without_a_device_bytes_are_predicted_and_the_rest_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "problem", lambda: "no RPC in this build.")
    monkeypatch.setattr(link_count, "Loopback", raising(device.DeviceError("no RPC in this build.")))
    names = ("C070", "C071", "C078", "C079", "C080", "C081", "C082", "C084", "C085", "C129")
    bench = Bench(measure=never)
    bench.recorded = []
    rows = {row.id: row for row in claims.settle(*names, bench=bench)}
    assert {name for name, row in rows.items() if row.verdict == "open"} == {"C078", "C079", "C080"}
    assert "no RPC in this build" in rows["C078"].source and "no RPC in this build" in rows["C079"].source
    for name in ("C070", "C071", "C082", "C084", "C085"):
        assert rows[name].verdict == claims.get(name).expected
        assert "would be on the device" in rows[name].evidence and rows[name].source == "computed"
    assert rows["C129"].source == "recorded from makers' figures (datasets/devices.json)"


def test_without_a_device_recorded_runs_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "problem", lambda: "no RPC in this build.")
    label = {"machine": "Abacus", "date": "2026-11-29", "command": "labkit measure"}
    full = run(n_gpu_layers=99, memory_bytes=48 * MiB, outcome="load-failed", reason="no room.", phases=())
    old = [replace(one, recorded=label) for one in (run(), full)]
    for row in claims.settle("C070", "C078", "C080", bench=Bench(old, measure=never)):
        assert row.verdict == claims.get(row.id).expected
        assert row.source.startswith("recorded on") and row.date == "2026-11-29"


def test_a_gpu_of_the_build_serves_where_there_is_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Device("CPU", "a CPU", "CPU", GiB), Device("CUDA0", "a card", "GPU", GiB))
    monkeypatch.setattr(device, "problem", lambda: "no RPC in this build.")
    monkeypatch.setattr(lab04_bench.engine, "info", lambda: EngineInfo("0", False, found, (), None))
    assert Bench().part(OffloadBench).device_name == "CUDA0"


def test_on_a_mac_its_own_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Device("MTL0", "Apple M4 Pro", "GPU", 16 * GiB),)
    monkeypatch.setattr(lab04_bench.engine, "info", lambda: EngineInfo("0", False, found, (), None))
    monkeypatch.setattr(lab04_bench, "machine", lambda: SimpleNamespace(ram_bytes=24 * GiB))
    bench = Bench()
    assert bench.part(OffloadBench).gpu_share() == ("Apple M4 Pro", 16 * GiB, 24 * GiB)
    assert bench.looked and not bench.cited


def test_elsewhere_the_rule_of_the_catalogue_is_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab04_bench.engine, "info", lambda: EngineInfo("0", False, (), (), None))
    bench = Bench()
    assert bench.part(OffloadBench).gpu_share() == ("Apple M2", hardware.get("apple-m2").gpu_bytes(16 * GiB), 16 * GiB)
    assert bench.cited and not bench.looked
    bench.cite("a log")
    bench.cite("a log")
    assert bench.cited == f"{lab04_bench.MAKERS} and a log"
    bench.begin()
    assert not bench.cited


def test_models_take_turns_and_the_fastest_token_counts() -> None:
    asked: list[str] = []

    def measure(model: str, *, tokens: int, **how: Any) -> Run:
        assert how["n_threads"] == 1
        asked.append(model)
        return run(n_gpu_layers=0, timings=Timings(decode_ms=(9.0, next(times))))

    times = iter((50.0, 30.0, 90.0, 31.0, 51.0, 60.0))
    bench = Bench(measure=measure)
    offload = bench.part(OffloadBench)
    assert offload.fastest_ms("a", "b", settings=MAPPED) == (9.0, 9.0)
    assert asked == ["a", "b"] * 3 and len(bench.used) == 6
    assert offload.fastest_ms("a", "b", settings=MAPPED) == (9.0, 9.0) and len(asked) == 6


def test_enough_runs_that_are_there_are_not_made_again() -> None:
    made = [replace(run(ms=ms), settings=replace(MAPPED, n_threads=1)) for ms in (5.0, 5.1, 6.0)]
    other = [run(ms=1.0), replace(made[0], caution="busy", timings=Timings(decode_ms=(2.0,)))]
    bench = Bench([*other, *made], measure=never)
    assert bench.part(OffloadBench).fastest_ms(DEVICE_MODEL, settings=MAPPED) == (5.0,) and bench.used == made


def test_times_that_no_two_rounds_agree_on_settle_nothing() -> None:
    def measuring(*times: float) -> Callable[..., Run]:
        each = iter(times)
        return lambda model, **how: run(n_gpu_layers=0, timings=Timings(decode_ms=(next(each),)))

    def fastest_ms(measure: Callable[..., Run]) -> tuple[float, ...]:
        return Bench(measure=measure).part(OffloadBench).fastest_ms("a", settings=MAPPED)

    assert fastest_ms(measuring(9.0, 5.0, 5.2)) == (5.0,)
    with pytest.raises(Unsettled, match="vary too much"):
        fastest_ms(measuring(9.0, 5.0, 7.0))
    with pytest.raises(Unsettled, match="did not finish: refused, no room"):
        fastest_ms(lambda model, **how: run(outcome="refused", reason="no room."))


def test_a_run_that_asks_for_what_fits_shows_nothing_of_too_much() -> None:
    fits, full = run(memory_bytes=GiB), run(n_gpu_layers=99, memory_bytes=48 * MiB, outcome="load-failed")
    bench = Bench([run(), fits, full], measure=never)
    assert bench.part(OffloadBench).overfull() is full and bench.used == [full]


def test_ggml_is_asked_only_where_it_can_answer() -> None:
    bench = Bench().part(OffloadBench)
    bench.__dict__["_ggml"] = b"ggml_backend_load_all\0metal\0ggml_cpu_has_avx512_vnni\0"
    assert bench.ggml_has("metal") and not bench.ggml_has("ggml_cpu_has_avx512") and not bench.ggml_has("cuda")
    bench.__dict__["_ggml"] = b"metal\0"
    with pytest.raises(Unsettled, match="do not list"):
        bench.ggml_has("metal")


def test_a_relay_hands_on_and_counts_all_bytes() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        there, _ = server.accept()
        with there:
            while data := there.recv(1 << 16):
                there.sendall(data[: len(data) // 2 or 1])

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with link_count.Relay(f"127.0.0.1:{server.getsockname()[1]}") as relay:
        host, port = relay.endpoint.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b"x" * 1000)
            back = 0
            while back < 500:
                back += len(client.recv(1 << 16))
        assert relay.n_bytes == 1000 + back
    thread.join(timeout=5)
    server.close()
    assert not thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=1)


@pytest.mark.live
def test_a_run_that_does_not_get_through_counts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if device.problem():
        pytest.skip("this build has no RPC backend")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    settings = Settings(n_gpu_layers=1, devices=("loopback",), n_threads=1)
    with pytest.raises(link_count.LinkError, match="cannot load"):
        link_count.crossed(broken, settings, tokens=1)


@pytest.mark.live
def test_live_lab_04_comes_out_as_expected() -> None:
    """All but the speed of two quantizations, which takes a model of 1.2 GiB and is settled by the lab."""
    rows = claims.settle(*(name for name in CHECKS if name != "C086"))
    for row in rows:
        if row.verdict != "open" or not device.problem():
            assert row.verdict == claims.get(row.id).expected, row.evidence
            assert row.figures and row.source


def raising(error: Exception) -> Callable[..., Any]:
    def refuse(*given: Any, **how: Any) -> Any:
        raise error

    return refuse
