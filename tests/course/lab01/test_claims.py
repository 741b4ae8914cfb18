"""The checks of the claims about mmap: each in the world as we know it, and in worlds where it is otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.claim_rules import ToldBench, assert_can_say_more_than_one_thing, assert_follows, assert_stays_open
from support.claim_runs import HEADERS, Counting, fake_run, set_machine

from labkit.course import claims
from labkit.course.claims.bench import Bench
from labkit.course.claims.terms import BUNDLED, MAPPED, PAGED, SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab01 import bench as lab01_bench
from labkit.course.lab01 import storage
from labkit.course.lab01.bench import COPIED, ONE_B, PagingBench, is_capped
from labkit.course.lab01.claims import CHECKS, fits, resident
from labkit.course.lab01.claims.resident import DEFAULT
from labkit.course.lab01.storage import Storage
from labkit.experiments.run import Run, Timings
from labkit.settings import Settings
from labkit.system.bandwidth import Disk
from labkit.system.machine import machine
from labkit.system.mapping import Touch
from labkit.units import GiB, MiB


def touch(pages: int, *, ms: float, major: int, read: float) -> Touch:
    return Touch(4096 * pages, pages, ms, 1, major, round(read * 4096 * pages))


def fake_storage(*, faults: float = 1.0, read: float = 1.0, cold_ms: float = 80.0, disk: float = 2e9) -> Storage:
    """A disk; by default each of 1000 cold pages faults, is read, and takes 80 µs, and a warm one takes 0.2 µs."""
    alone = touch(1000, ms=cold_ms, major=round(1000 * faults), read=read)
    return Storage(
        alone, touch(20_000, ms=40, major=1, read=read), touch(20_000, ms=4, major=0, read=0), Disk(
            cold_bytes_per_s=disk, warm_bytes_per_s=1e10, bytes_read=MiB, reason=None
        ),
    )  # fmt: skip


class ToldPaging(PagingBench):
    """A disk as told."""

    bench: FakeBench

    def storage(self) -> Storage:
        assert self.bench.seen is not None
        return self.bench.seen


class FakeBench(ToldBench):
    """Figures as told; measuring is an error."""

    told: ClassVar = {PagingBench: ToldPaging}

    def __init__(self, *runs: Run, storage: Storage | None = None, can_map: bool = True, says: bool = False) -> None:
        super().__init__(*runs)
        self.seen, self._can_map, self._says = storage, can_map, says

    def can_map(self, model: str) -> bool:
        return self._can_map

    def in_libraries(self, word: bytes) -> bool:
        return self._says


@dataclass(frozen=True)
class Case:
    """A world, and the verdict that follows there; the first case of a claim is the world as we know it."""

    id: str
    verdict: str
    bench: Callable[[], FakeBench]
    ram_bytes: int = 16 * GiB
    top_32_bit_bytes: int = 3 * GiB


def pair(model: str = ONE_B, *, copied_file: dict[str, Any] | None = None, **mapped: Any) -> FakeBench:
    return FakeBench(fake_run(model, **mapped), fake_run(model, COPIED, **(copied_file or {})))


def one(model: str, settings: Settings = MAPPED, **how: Any) -> FakeBench:
    return FakeBench(fake_run(model, settings, **how))


def cliff(*, free: dict[str, Any] | None = None, **capped: Any) -> FakeBench:
    values = {"ms": (330.0,) * 3, "read": 0.9, "cap_share": 0.7, **capped}
    return FakeBench(fake_run(PAGED, **{"ms": (40.0,) * 3, **(free or {})}), fake_run(PAGED, **values))


def reading(read: float = 0.0, **disk: Any) -> FakeBench:
    return FakeBench(fake_run(BUNDLED, read=read), fake_run(SEVEN_B), storage=fake_storage(**disk))


KV_7B = 512 * 1024  # per token, f16
NEEDED_7B = 0.982  # a token reads all but the embedding

CASES = [
    Case("C001", "confirmed", pair),
    Case("C001", "wrong", lambda: pair(span=0, file=0, copied=1)),
    Case("C001", "misleading", lambda: pair(copied=1)),
    Case("C001", "roughly right", lambda: pair(span=0.3, file=0.3)),
    Case("C002", "misleading", lambda: one(SEVEN_B)),
    Case("C002", "confirmed", lambda: one(SEVEN_B, file=0.1)),
    Case("C002", "roughly right", lambda: one(SEVEN_B, file=0.7)),
    Case("C002", "wrong", lambda: one(SEVEN_B, file=0.1, copied=1)),
    Case("C003", "misleading", lambda: one(SEVEN_B)),
    Case("C003", "confirmed", lambda: one(SEVEN_B, file=0.1, file_after=NEEDED_7B)),
    Case("C003", "roughly right", lambda: one(SEVEN_B, file=0.1, file_after=0.5)),
    Case("C004", "confirmed", lambda: FakeBench(storage=fake_storage())),
    Case("C004", "wrong", lambda: FakeBench(storage=fake_storage(faults=0, read=0))),
    Case("C004", "roughly right", lambda: FakeBench(storage=fake_storage(read=0))),
    Case("C005", "misleading", lambda: one(BUNDLED)),
    Case("C005", "confirmed", lambda: one(BUNDLED, file_after=0.6)),
    Case("C005", "roughly right", lambda: one(BUNDLED, file_after=0.95)),
    Case("C006", "misleading", cliff),
    Case("C006", "wrong", lambda: cliff(outcome="oom-killed", ms=())),
    Case("C006", "confirmed", lambda: cliff(read=0.02, ms=(45.0,) * 3)),
    Case("C006", "roughly right", lambda: cliff(read=0.9, ms=(45.0,) * 3)),
    Case("C007", "wrong", lambda: one(BUNDLED)),
    Case("C007", "confirmed", lambda: one(BUNDLED, file=0.03)),
    Case("C007", "misleading", lambda: one(BUNDLED, file=0.5)),
    Case("C008", "wrong", lambda: one(SEVEN_B, DEFAULT)),
    Case("C008", "confirmed", lambda: one(SEVEN_B, Settings(), file=0.43, copied=-0.75)),
    Case("C008", "roughly right", lambda: one(SEVEN_B, Settings(), file=0.55, copied=-0.75)),
    Case("C009", "wrong", lambda: one(SEVEN_B, DEFAULT)),
    Case("C009", "misleading", lambda: one(SEVEN_B, DEFAULT, peak_bytes=13 * GiB)),
    Case("C009", "confirmed", lambda: one(SEVEN_B, DEFAULT, peak_bytes=13 * GiB, file=0.001)),
    Case("C010", "wrong", lambda: one(SEVEN_B)),
    Case("C010", "confirmed", lambda: one(SEVEN_B, kv=0, grown_bytes=8 * KV_7B)),
    Case("C010", "roughly right", lambda: one(SEVEN_B, kv=0.5, grown_bytes=3 * KV_7B)),
    Case("C011", "wrong", pair),
    Case("C011", "confirmed", lambda: pair(copied_file={"ms": (180.0,) * 8})),
    Case("C012", "roughly right", reading),
    Case("C012", "confirmed", lambda: reading(read=1)),
    Case("C012", "depends on machine", lambda: reading(cold_ms=0.5)),
    Case("C012", "wrong", lambda: reading(read=1, cold_ms=0.5)),
    Case("C013", "depends on machine", reading),
    Case("C013", "depends on machine", lambda: reading(disk=1.2e9)),
    Case("C013", "confirmed", lambda: reading(read=1, disk=1.2e9)),
    Case("C013", "roughly right", lambda: reading(read=1)),
    Case("C014", "misleading", reading),
    Case("C014", "roughly right", lambda: reading(read=1)),
    Case("C014", "confirmed", lambda: reading(read=1), ram_bytes=8 * GiB),
    Case("C015", "roughly right", FakeBench),
    Case("C015", "confirmed", lambda: FakeBench(can_map=False)),
    Case("C015", "misleading", lambda: FakeBench(can_map=False), top_32_bit_bytes=8 * GiB),
    Case("C015", "wrong", FakeBench, top_32_bit_bytes=8 * GiB),
    Case("C016", "wrong", FakeBench),
    Case("C016", "misleading", lambda: FakeBench(says=True)),
    Case("C016", "confirmed", lambda: FakeBench(says=True), ram_bytes=8 * GiB),
]


@pytest.fixture(autouse=True)
def _roomy_machine_and_own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    set_machine(monkeypatch)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.verdict}".replace(" ", "-"))
def test_the_verdict_follows_from_the_figures(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "RAM_BYTES", case.ram_bytes)
    monkeypatch.setattr(fits, "TOP_32_BIT_BYTES", case.top_32_bit_bytes)
    assert_follows(CHECKS[case.id](case.bench()), case.verdict)


def test_each_claim_of_lab_01_has_a_check_that_can_say_more_than_one_thing() -> None:
    assert_can_say_more_than_one_thing("01", CHECKS, CASES)


def test_residency_that_ignores_a_small_active_set_is_wrong_not_misleading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "_needed_share", lambda bench, model: 0.1)
    assert CHECKS["C003"](one(SEVEN_B)).verdict == "wrong"


@pytest.mark.parametrize(
    ("name", "bench", "reason"),
    [
        ("C001", lambda: pair(copied_file={"copied": -0.9}), "anonymous memory"),
        ("C006", lambda: cliff(free={"ms": (40.0, 300.0, 40.0)}, ms=(60.0,) * 3), "vary too much"),
        ("C011", lambda: pair(ms=(50.0, 100.0) * 4), "vary too much"),
        ("C013", lambda: FakeBench(storage=replace(fake_storage(), disk=Disk(
            cold_bytes_per_s=None, warm_bytes_per_s=1, bytes_read=1, reason="it is a film"))), "it is a film"),
    ],
)  # fmt: skip
def test_figures_that_decide_nothing_leave_a_claim_open(name: str, bench: Callable[[], FakeBench], reason: str) -> None:
    (row,) = claims.settle(name, bench=bench())
    assert_stays_open(row, reason)


def test_a_figure_that_the_system_does_not_tell_leaves_a_claim_open() -> None:
    run = fake_run(SEVEN_B)
    blind = replace(run, phases=tuple(replace(phase, rss_file_bytes=None) for phase in run.phases))
    (row,) = claims.settle("C002", bench=FakeBench(blind))
    assert row.verdict == "open" and "rss file bytes" in row.evidence


def test_a_smaller_model_is_scaled_by_what_it_added(monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, "small", 6 * GiB)
    found = CHECKS["C008"](one(ONE_B, DEFAULT))
    file = HEADERS.header(SEVEN_B).file_bytes
    assert "scaled" in found.evidence
    assert found.figures["rss_file_bytes"] == pytest.approx(21 * MiB + file, rel=0.02)


def test_times_are_compared_between_runs_with_the_same_threads() -> None:
    measure = Counting()
    bench = Bench([fake_run(ONE_B, Settings(repack=False, n_threads=2)), fake_run(ONE_B, COPIED)], measure=measure)
    CHECKS["C011"](bench)
    assert [(how["load_mode"], how["n_threads"]) for _, how in measure.asked] == [("none", 2)]


def test_loading_is_enough_for_claims_about_loading() -> None:
    run = fake_run(SEVEN_B, DEFAULT, outcome="interrupted")
    loaded = replace(run, phases=run.phases[:2], timings=Timings(load_s=0.5))
    assert CHECKS["C008"](FakeBench(loaded)).verdict == "wrong"


def test_the_cap_is_set_to_a_share_of_the_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab01_bench.caps, "available", lambda: SimpleNamespace(how="cgroup-v1", reason="here"))
    measure = Counting(read=0.9)
    free, capped = Bench(measure=measure).part(PagingBench).capped(share=0.7, least=0.6, most=0.8)
    need = free.predicted.mapped_bytes + free.predicted.rss_anon_bytes
    assert [(model, how["cap"]) for model, how in measure.asked] == [(PAGED, None), (PAGED, int(0.7 * need))]
    assert capped.cap_bytes == int(0.7 * need)


def test_without_caps_a_recorded_pair_settles_the_claim_and_says_where_from(monkeypatch: pytest.MonkeyPatch) -> None:
    none = SimpleNamespace(how=None, reason="memory caps need Linux control groups")
    monkeypatch.setattr(lab01_bench.caps, "available", lambda: none)
    (row,) = claims.settle("C006", bench=FakeBench(fake_run(BUNDLED)))
    # A recorded pair may come with the kit; without one the reason stands.
    assert row.source.startswith("recorded on ") or "Linux control groups" in row.source
    label = {"machine": "Abacus", "date": "2026-11-29", "command": "labkit measure"}
    other = cliff()
    pairs = [replace(run, recorded=label) for run in other.given]
    (row,) = claims.settle("C006", bench=FakeBench(*pairs))
    assert row.verdict == "misleading" and row.date == "2026-11-29"
    assert row.source == "recorded on Abacus, 2 cores, 16.0 GiB on 2026-11-29"


def test_a_sparse_file_under_a_cap_shows_nothing_about_the_disk() -> None:
    sparse = fake_run(ONE_B, cap_share=0.7, ms=(50.0,) * 3)
    assert not is_capped(sparse, 0.6, 0.8, 2)
    assert is_capped(fake_run(PAGED, cap_share=0.7, ms=(50.0,) * 3), 0.6, 0.8, 2)


def test_needs_of_a_13b_are_those_of_the_ledger() -> None:
    """10.45 GiB of weights and cache, by hand: 5120 x 2 x 2 bytes x 40 layers x 4096 tokens."""
    header = HEADERS.header("llama-2-13b:Q4_K_M")
    found = CHECKS["C016"](FakeBench()).figures["f16_cache_bytes"]
    cache = 5120 * 2 * 2 * 40 * 4096
    assert 0 < found - (header.tensor_bytes + cache) < 256 * MiB  # compute and output buffers, and Python


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops a file's pages on request")
def test_a_copy_is_read_cold_and_nothing_is_left(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 4096 * 8)  # 8 MiB
    folder = tmp_path / "folder"
    try:
        seen = storage.examine(source, folder=folder, progress=lambda share, text: None)
    except storage.StorageError as error:
        pytest.skip(str(error))
    assert seen.alone.nbytes == storage.ALONE_BYTES and seen.cold.nbytes == seen.warm.nbytes == 8 * MiB
    assert seen.alone.major_faults >= seen.cold.major_faults >= 1 and seen.warm.major_faults == 0
    assert seen.warm.read_bytes == 0 and seen.cold.read_bytes >= 8 * MiB
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(storage.StorageError):
        storage.examine(tmp_path / "file", folder=tmp_path / "file", progress=lambda share, text: None)


def test_unsettled_storage_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def examine(source: Path, **how: Any) -> Storage:
        calls.append(source)
        raise storage.StorageError("no disk")

    monkeypatch.setattr(lab01_bench.storage, "examine", examine)
    bench = Bench()
    for _ in range(2):
        with pytest.raises(Unsettled, match="no disk"):
            bench.part(PagingBench).storage()
    assert len(calls) == 1


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells file-backed from anonymous memory")
def test_live_on_the_bundled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_PROFILE", "tiny")
    monkeypatch.setattr(lab01_bench, "machine", machine)
    rows = claims.settle("C001", "C003", "C005", "C007", "C010")
    for row in rows:
        assert row.verdict == claims.get(row.id).expected, row.evidence
        assert row.source == "measured here" and row.figures
