"""The claim ledger: verdicts follow from figures and change with them; records survive; the report shows both."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit import predict
from labkit.course import claims
from labkit.course.claims import Settled
from labkit.course.claims import bench as bench_module
from labkit.course.claims.bench import MAPPED, ONE_B, PAGED, REAL, SEVEN_B, Bench, Unsettled
from labkit.course.lab01 import claims as checks_01
from labkit.course.lab01 import storage
from labkit.course.lab01.claims import CHECKS, COPIED, DEFAULT
from labkit.course.lab01.storage import Storage
from labkit.engine.log import Buffer
from labkit.experiments.run import LayerStep, Measured, ModelInfo, Phase, Run, Timings
from labkit.settings import Settings
from labkit.system.bandwidth import Disk
from labkit.system.machine import machine
from labkit.system.mapping import Touch
from labkit.units import GiB, MiB

HEADERS = Bench()


def fake_run(
    model: str,
    settings: Settings = MAPPED,
    *,
    file: float = 1.0,
    file_after: float | None = None,
    copied: float = 0.0,
    span: float = 1.0,
    kv: float = 1.0,
    grown_bytes: int = 0,
    read: float = 0.0,
    ms: tuple[float, ...] = (100.0,) * 8,
    peak_bytes: int | None = None,
    cap_share: float | None = None,
    outcome: str = "ok",
    **changes: Any,
) -> Run:
    """A run on a machine that behaves as told; by default as predicted.

    Args:
        file, file_after: share of the mapping resident after loading and after decoding.
        copied: share of the weights that loading copied, beyond what the settings say.
        span: share of the mapping that the engine reports.
        kv: share of the cache resident when the context is made.
        grown_bytes: anonymous memory added by decoding.
        read: share of the weights read from disk per token.
    """
    header = HEADERS.header(model)
    need = predict.memory(header, settings, cpu_features={"avx2"})
    anon = 24 * MiB + need.heap_bytes + need.repack_bytes + round(copied * need.weights_bytes)
    resident = 21 * MiB + round(file * need.mapped_bytes)
    last = resident if file_after is None else 21 * MiB + round(file_after * need.mapped_bytes)
    cache = anon + round(kv * need.kv_bytes)
    rows = {
        "start": (24 * MiB, 21 * MiB, 0),
        "load": (anon, resident, 0),
        "context": (cache, resident, 0),
        "prefill": (cache, last, 0),
        "decode": (cache + grown_bytes, last, round(read * need.weights_bytes * len(ms))),
    }
    measured = Measured(cache, last, peak_bytes or cache + last, 0, 0, 0, 0, ms[0] if ms else None)
    run = Run(
        model=ModelInfo(model, "", "llama", header.file_bytes, True),
        settings=settings,
        outcome=outcome,
        reason="" if outcome == "ok" else "it was told to.",
        predicted=need,
        measured=measured,
        cap_bytes=None if cap_share is None else int(cap_share * (need.mapped_bytes + need.rss_anon_bytes)),
        buffers=(Buffer("CPU_Mapped", "model", round(span * need.mapped_bytes)),),
        timings=Timings(load_s=0.5, decode_ms=ms),
        phases=tuple(Phase(name, 0, 1, a, f, None, 0, 0, r // MiB, r) for name, (a, f, r) in rows.items()),
        machine={"cpu_name": "Abacus", "cores": 2, "limit_bytes": 16 * GiB},
    )
    return replace(run, **changes)


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


class FakeBench(Bench):
    """Figures as told; measuring is an error."""

    def __init__(
        self, *runs: Run, storage: Storage | None = None, can_map: bool = True, says: bool = False, **world: Any
    ) -> None:
        super().__init__(runs, measure=self._never)
        self._seen, self._can_map, self._says = storage, can_map, says

    def _never(self, model: str, **how: Any) -> Run:
        raise AssertionError(f"a run of {model} was given, so none of {how} should be measured")

    def storage(self) -> Storage:
        assert self._seen is not None
        return self._seen

    def can_map(self, model: str) -> bool:
        return self._can_map

    def engine_says(self, word: bytes) -> bool:
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
    return FakeBench(fake_run(REAL, read=read), fake_run(SEVEN_B), storage=fake_storage(**disk))


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
    Case("C005", "misleading", lambda: one(REAL)),
    Case("C005", "confirmed", lambda: one(REAL, file_after=0.6)),
    Case("C005", "roughly right", lambda: one(REAL, file_after=0.95)),
    Case("C006", "misleading", cliff),
    Case("C006", "wrong", lambda: cliff(outcome="oom-killed", ms=())),
    Case("C006", "confirmed", lambda: cliff(read=0.02, ms=(45.0,) * 3)),
    Case("C006", "roughly right", lambda: cliff(read=0.9, ms=(45.0,) * 3)),
    Case("C007", "wrong", lambda: one(REAL)),
    Case("C007", "confirmed", lambda: one(REAL, file=0.03)),
    Case("C007", "misleading", lambda: one(REAL, file=0.5)),
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
    roomy = SimpleNamespace(profile="full", available_bytes=20 * GiB)
    monkeypatch.setattr(bench_module, "machine", lambda: roomy)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.verdict}".replace(" ", "-"))
def test_the_verdict_follows_from_the_figures(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_01, "SIXTEEN_BYTES", case.ram_bytes)
    monkeypatch.setattr(checks_01, "TOP_32_BIT_BYTES", case.top_32_bit_bytes)
    found = CHECKS[case.id](case.bench())
    assert found.verdict == case.verdict, found.evidence
    assert found.evidence.endswith(".") and any(letter.isdigit() for letter in found.evidence)
    assert found.figures


def test_each_claim_of_lab_01_has_a_check_that_can_say_more_than_one_thing() -> None:
    assert list(CHECKS) == [claim.id for claim in claims.all() if claim.lab == "01"]
    for name in CHECKS:
        verdicts = [case.verdict for case in CASES if case.id == name]
        assert verdicts[0] == claims.get(name).expected
        assert len(set(verdicts)) >= 2
        for verdict in verdicts:
            assert verdict in claims.rule(name).lower(), f"the rule of {name} does not say when it is {verdict}"


def test_residency_that_ignores_a_small_active_set_is_wrong_not_misleading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_01, "_needed_share", lambda bench, model: 0.1)
    assert CHECKS["C003"](one(SEVEN_B)).verdict == "wrong"


@pytest.mark.parametrize(
    ("name", "bench", "reason"),
    [
        ("C001", lambda: pair(copied_file={"copied": -0.9}), "anonymous memory"),
        ("C006", lambda: cliff(free={"ms": (40.0, 300.0, 40.0)}, ms=(60.0,) * 3), "noisy"),
        ("C011", lambda: pair(ms=(50.0, 100.0) * 4), "noisy"),
        ("C013", lambda: FakeBench(storage=replace(fake_storage(), disk=Disk(
            cold_bytes_per_s=None, warm_bytes_per_s=1, bytes_read=1, reason="it is a film"))), "it is a film"),
    ],
)  # fmt: skip
def test_figures_that_decide_nothing_leave_a_claim_open(name: str, bench: Callable[[], FakeBench], reason: str) -> None:
    (row,) = claims.settle(name, bench=bench())
    assert row.verdict == "open" and reason in row.source and row.source.startswith("not settled here: ")
    assert not row.surprise


def test_a_figure_that_the_system_does_not_tell_leaves_a_claim_open() -> None:
    run = fake_run(SEVEN_B)
    blind = replace(run, phases=tuple(replace(phase, rss_file_bytes=None) for phase in run.phases))
    (row,) = claims.settle("C002", bench=FakeBench(blind))
    assert row.verdict == "open" and "rss file bytes" in row.evidence


def test_a_smaller_model_is_scaled_by_what_it_added(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(profile="small", available_bytes=6 * GiB)
    monkeypatch.setattr(bench_module, "machine", lambda: small)
    found = CHECKS["C008"](one(ONE_B, DEFAULT))
    file = HEADERS.header(SEVEN_B).file_bytes
    assert "scaled" in found.evidence
    assert found.figures["rss_file_bytes"] == pytest.approx(21 * MiB + file, rel=0.02)


class Counting:
    """A stand-in for measure that counts, and says what it was asked."""

    def __init__(self, **how: Any) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.how = how

    def __call__(self, model: str, *, tokens: int, progress: Any, cap: int | None = None, **settings: Any) -> Run:
        self.asked.append((model, {"tokens": tokens, "cap": cap, **settings}))
        progress(0.5, "half way")
        run = fake_run(model, Settings.of(settings), **{"ms": (100.0,) * tokens, **self.how})
        return run if cap is None else replace(run, cap_bytes=cap)


def test_what_is_missing_is_measured_once_for_all_claims() -> None:
    measure = Counting()
    rows = claims.settle("C002", "C003", "C010", bench=Bench(measure=measure))
    assert [model for model, _ in measure.asked] == [SEVEN_B]
    assert measure.asked[0][1]["repack"] is False and measure.asked[0][1]["n_threads"] == 1
    assert {row.source for row in rows} == {"measured here"}


def test_given_runs_are_used_whatever_their_threads_but_not_if_something_was_done_to_them() -> None:
    given = fake_run(ONE_B, Settings(repack=False, n_threads=2))
    measure = Counting()
    (row,) = claims.settle("C002", bench=Bench([given], measure=measure))
    assert not measure.asked and ONE_B in row.evidence
    for spoilt in (
        replace(given, caution="a stranger held pages"),
        replace(given, layers=(LayerStep(0, 0, 1.0, 0, 0, 0),)),
        replace(given, cap_bytes=GiB),
    ):
        measure = Counting()
        claims.settle("C002", bench=Bench([spoilt], measure=measure))
        assert [model for model, _ in measure.asked] == [SEVEN_B]


def test_times_are_compared_between_runs_with_the_same_threads() -> None:
    measure = Counting()
    bench = Bench([fake_run(ONE_B, Settings(repack=False, n_threads=2)), fake_run(ONE_B, COPIED)], measure=measure)
    CHECKS["C011"](bench)
    assert [(how["load_mode"], how["n_threads"]) for _, how in measure.asked] == [("none", 2)]


def test_a_run_that_did_not_get_far_enough_is_not_repeated_and_its_reason_is_told() -> None:
    measure = Counting(outcome="refused", phases=())
    rows = claims.settle("C002", "C003", bench=Bench(measure=measure))
    assert len(measure.asked) == 1
    assert {row.verdict for row in rows} == {"open"} and "refused, it was told to" in rows[1].source


def test_loading_is_enough_for_claims_about_loading() -> None:
    run = fake_run(SEVEN_B, DEFAULT, outcome="interrupted")
    loaded = replace(run, phases=run.phases[:2], timings=Timings(load_s=0.5))
    assert CHECKS["C008"](FakeBench(loaded)).verdict == "wrong"


def test_the_cap_is_set_to_a_share_of_the_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module.caps, "available", lambda: SimpleNamespace(how="cgroup-v1", reason="here"))
    measure = Counting(read=0.9)
    free, capped = Bench(measure=measure).capped(share=0.7, least=0.6, most=0.8)
    need = free.predicted.mapped_bytes + free.predicted.rss_anon_bytes
    assert [(model, how["cap"]) for model, how in measure.asked] == [(PAGED, None), (PAGED, int(0.7 * need))]
    assert capped.cap_bytes == int(0.7 * need)


def test_without_caps_a_recorded_pair_settles_the_claim_and_says_where_from(monkeypatch: pytest.MonkeyPatch) -> None:
    none = SimpleNamespace(how=None, reason="memory caps need Linux control groups")
    monkeypatch.setattr(bench_module.caps, "available", lambda: none)
    (row,) = claims.settle("C006", bench=FakeBench(fake_run(REAL)))
    # A recorded pair may come with the kit; without one the reason stands.
    assert row.source.startswith("recorded on ") or "Linux control groups" in row.source
    label = {"machine": "Abacus", "date": "2026-11-29", "command": "labkit measure"}
    other = cliff()
    pairs = [replace(run, recorded=label) for run in other._given]
    (row,) = claims.settle("C006", bench=FakeBench(*pairs))
    assert row.verdict == "misleading" and row.date == "2026-11-29"
    assert row.source == "recorded on Abacus, 2 cores, 16.0 GiB on 2026-11-29"


def test_a_recorded_run_serves_only_where_none_can_be_measured() -> None:
    label = {"machine": "Abacus", "date": "2026-11-29", "command": "labkit measure"}
    old = fake_run(SEVEN_B, recorded=label)
    (row,) = claims.settle("C002", bench=Bench([old], measure=Counting()))
    assert row.source == "measured here"
    (row,) = claims.settle("C002", bench=Bench([old], measure=Counting(outcome="refused", phases=())))
    assert row.verdict == "misleading" and row.source.startswith("recorded on Abacus")


def test_unknown_claims_are_refused_and_later_labs_named() -> None:
    with pytest.raises(ValueError, match="ids run from C001 to C130"):
        claims.settle("C999")
    later = next(claim for claim in claims.all() if claim.id not in claims.checks())
    (row,) = claims.settle(later.id.lower(), bench=FakeBench())
    evidence = f"Not settled here: lab {later.lab} settles it."
    assert (row.id, row.verdict, row.evidence) == (later.id, "open", evidence)


def test_a_verdict_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="not a verdict"):
        Settled("C001", "true", "It is.")


ROW = Settled("C001", "confirmed", "Seen.", {"a_bytes": 1}, "Abacus", "2026-11-29", "measured here")


def test_records_merge_and_open_replaces_nothing(tmp_path: Path) -> None:
    claims.record([ROW, Settled("C002", "open", "Not settled here: no.")])
    claims.record([replace(ROW, verdict="open"), Settled("C002", "wrong", "Seen.")])
    kept = claims.recorded()
    assert kept["C001"] == ROW and kept["C002"].verdict == "wrong"
    claims.record([replace(ROW, verdict="wrong")])
    assert claims.recorded()["C001"].verdict == "wrong"
    assert [path.name for path in claims.records_path().parent.iterdir()] == ["claims.json"]


def test_a_lab_settles_its_claims_and_keeps_the_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "settle", lambda *ids, **how: tuple(replace(ROW, id=name) for name in ids))
    shown = claims.settle_lab("05")
    assert [row.id for row in shown.rows] == [claim.id for claim in claims.all() if claim.lab == "05"] != []
    assert list(claims.recorded().values()) == list(shown.rows)
    with pytest.raises(ValueError, match="two digits"):
        claims.settle_lab("99")


def test_a_sparse_file_under_a_cap_shows_nothing_about_the_disk() -> None:
    sparse = fake_run(ONE_B, cap_share=0.7, ms=(50.0,) * 3)
    assert not bench_module._is_capped(sparse, 0.6, 0.8, 2)
    assert bench_module._is_capped(fake_run(PAGED, cap_share=0.7, ms=(50.0,) * 3), 0.6, 0.8, 2)


@pytest.mark.parametrize("text", ["{", "[]", '{"claims": [{"id": "C001"}]}', '{"claims": [1]}', "\0", "null"])
def test_a_damaged_record_is_one_warning_and_a_fresh_start(text: str) -> None:
    claims.records_path().parent.mkdir(parents=True)
    claims.records_path().write_text(text)
    with pytest.warns(UserWarning, match="is damaged") as caught:
        claims.record([ROW])
    assert len(caught) == 1
    assert claims.recorded() == {"C001": ROW}


def test_records_of_another_version_are_read_as_far_as_they_are_known() -> None:
    claims.record([ROW])
    values = json.loads(claims.records_path().read_text())
    values["claims"][0]["mood"] = "good"
    values["claims"].append({"id": "C999", "verdict": "wrong", "evidence": ""})
    claims.records_path().write_text(json.dumps(values))
    assert claims.recorded() == {"C001": ROW}


def test_the_report_says_in_words_what_was_found_and_what_was_expected() -> None:
    shown = claims.report([ROW, replace(ROW, verdict="wrong", evidence="1 < 2 & more.")])
    text, table = str(shown), shown._repr_html_()
    assert "✓ confirmed" in text and "✗ wrong" in text and "Seen." in text and "[measured here]" in text
    assert "Expected confirmed, found wrong." in text and text.count("Expected") == 1
    assert "1 &lt; 2 &amp; more." in table and table.count("<tr>") == 3 and "expected confirmed, found wrong" in table
    assert repr(shown) == text
    bundle = shown._repr_mimebundle_()
    assert bundle["text/html"] == table
    assert bundle["text/plain"] == "2 claims: 1 confirmed, 1 wrong; print it for all."


def test_the_listing_shows_records_and_names_the_lab_for_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    claims.record([ROW])
    assert claims.command([], topic="mmap") == 0
    shown = capsys.readouterr().out
    assert "✓ confirmed" in shown and "Lab 01 settles it." in shown and "C017" not in shown
    assert claims.command([], as_json=True) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 130
    assert {"id", "topic", "verdict", "lab", "evidence", "figures"} <= set(rows[0])
    assert rows[0]["figures"] == {"a_bytes": 1} and rows[129]["verdict"] == "open"


def test_the_command_settles_and_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert claims.command(["c016"], as_json=True) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["verdict"], row["source"]) == ("C016", "wrong", "computed")
    assert claims.recorded()["C016"].verdict == "wrong"


def test_the_command_refuses_what_does_not_exist() -> None:
    with pytest.raises(ValueError, match="C999"):
        claims.command(["C999"])
    with pytest.raises(ValueError, match="choose one of"):
        claims.command([], topic="weather")


def test_a_terminal_without_check_marks_still_gets_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    claims.record([ROW])
    claims.command([])
    out.flush()
    assert b"? confirmed" in out.buffer.getvalue()


def test_needs_of_a_13b_are_those_of_the_ledger() -> None:
    """10.45 GiB of weights and cache, by hand: 5120 x 2 x 2 bytes x 40 layers x 4096 tokens."""
    header = HEADERS.header("llama-2-13b:Q4_K_M")
    found = CHECKS["C016"](FakeBench()).figures["f16_cache_bytes"]
    cache = 5120 * 2 * 2 * 40 * 4096
    assert 0 < found - (header.tensor_bytes + cache) < 256 * MiB  # compute and output buffers, and Python


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

    monkeypatch.setattr(bench_module.storage, "examine", examine)
    bench = Bench()
    for _ in range(2):
        with pytest.raises(Unsettled, match="no disk"):
            bench.storage()
    assert len(calls) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells file-backed from anonymous memory")
def test_live_on_the_bundled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_PROFILE", "tiny")
    monkeypatch.setattr(bench_module, "machine", machine)
    rows = claims.settle("C001", "C003", "C005", "C007", "C010")
    for row in rows:
        assert row.verdict == claims.get(row.id).expected, row.evidence
        assert row.source == "measured here" and row.figures
