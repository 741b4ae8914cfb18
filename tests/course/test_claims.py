"""The claim ledger: verdicts come with their sources; records survive; the report shows both."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.claim_rules import ToldBench
from support.claim_runs import Counting, fake_run, set_machine

from labkit.course import claims
from labkit.course.claims import Settled
from labkit.course.claims.bench import Bench, Part
from labkit.course.claims.finding import Figure, Figures, in_unit, joined
from labkit.course.claims.options import known_names
from labkit.course.claims.rules import checks
from labkit.course.claims.terms import MAPPED, SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab01.bench import ONE_B
from labkit.experiments.run import LayerStep, Run
from labkit.settings import Settings
from labkit.units import GiB, MiB


@pytest.fixture(autouse=True)
def _roomy_machine_and_own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    set_machine(monkeypatch)


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


def test_a_run_that_did_not_get_far_enough_is_not_repeated_and_its_reason_is_told() -> None:
    measure = Counting(outcome="refused", phases=())
    rows = claims.settle("C002", "C003", bench=Bench(measure=measure))
    assert len(measure.asked) == 1
    assert {row.verdict for row in rows} == {"open"} and "refused, it was told to" in rows[1].source


def test_a_recorded_run_serves_only_where_none_can_be_measured() -> None:
    label = {"machine": "Abacus", "date": "2026-11-29", "command": "labkit measure"}
    old = fake_run(SEVEN_B, recorded=label)
    (row,) = claims.settle("C002", bench=Bench([old], measure=Counting()))
    assert row.source == "measured here"
    (row,) = claims.settle("C002", bench=Bench([old], measure=Counting(outcome="refused", phases=())))
    assert row.verdict == "misleading" and row.source.startswith("recorded on Abacus")


def test_runs_that_belong_together_are_there_or_measured_or_recorded() -> None:
    label = {"machine": "Abacus", "date": "2026-11-29", "command": "labkit measure"}
    old, new = fake_run(SEVEN_B, recorded=label), fake_run(ONE_B)

    def obtain(*given: Run, lives: bool) -> list[Run]:
        bench = Bench(given, measure=lambda model, **how: new)
        bench.__dict__["recorded"] = [run for run in given if run.recorded]

        def measure() -> str:
            if lives:
                bench.live(ONE_B, MAPPED)
            return "there is no abacus here."

        assert bench.obtain(lambda runs: runs[:1], measure) == bench.used
        return bench.used

    assert obtain(new, old, lives=False) == [new]
    assert obtain(old, lives=True) == [new]
    assert obtain(old, lives=False) == [old]
    with pytest.raises(Unsettled, match=r"^there is no abacus here$"):
        obtain(lives=False)


def test_a_bench_has_one_part_of_each_kind() -> None:
    class One(Part):
        pass

    class Other(Part):
        pass

    bench = Bench()
    assert bench.part(One) is bench.part(One) and bench.part(One).bench is bench
    assert type(bench.part(Other)) is Other and Bench().part(One) is not bench.part(One)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("kv_bytes", 4096, "4.00 KiB"),
        ("link_bytes_per_s", 3 * MiB, "3.00 MiB/s"),
        ("token_ms", 0.5, "0.50 ms"),
        ("load_s", 0.0125, "12.5 ms"),
        ("saved_share", 0.469, "47%"),
        ("read_share", 0.0012, "0.12%"),
        ("read_share", 0, "0%"),
        ("tokens", 4096, "4096"),
        ("tokens", 37_482, "37,482"),
        ("bpw", 4.5, "4.5"),
        ("outcome", "ok", "ok"),
    ],
)
def test_the_end_of_a_name_says_how_a_figure_is_shown(name: str, value: Figure, text: str) -> None:
    assert in_unit(name, value) == text
    show = Figures()
    assert f"{show(**{name: value})}" == str(show(**{name: value})) == text
    assert show.values == {name: value}


def test_figures_of_a_sentence_are_kept_once_and_as_they_are() -> None:
    show = Figures()
    found = show.finding("wrong", f"It is {show(saved_share=0.4688):.1%} of {show(all_bytes=1024)}.")
    show.keep(known=True, named=False)
    assert found.evidence == "It is 46.9% of 1.00 KiB."
    assert found.figures == {"saved_share": 0.4688, "all_bytes": 1024, "known": "yes", "named": "no"}


def test_names_are_listed_in_a_phrase_and_kept() -> None:
    show = Figures()
    assert known_names(show, {"--a-b": True, "LLAMA_C": True, "--d": False}) == "--a-b and LLAMA_C but not --d"
    assert show.values == {"a_b": "yes", "llama_c": "yes", "d": "no"}
    assert known_names(show, {"--d": False, "--e": False}) == "no --d and no --e"
    assert known_names(show, {"--a": True}) == "--a" and joined(["a", "b", "c"], "or") == "a, b or c"


def test_unknown_claims_are_refused_and_later_labs_named() -> None:
    with pytest.raises(ValueError, match="ids run from C001 to C130"):
        claims.settle("C999")
    later = next(claim for claim in claims.all() if claim.id not in checks())
    (row,) = claims.settle(later.id.lower(), bench=ToldBench())
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
    monkeypatch.setattr(
        "labkit.course.claims.commands.settle", lambda *ids, **how: tuple(replace(ROW, id=name) for name in ids)
    )
    shown = claims.settle_lab("05")
    assert [row.id for row in shown.rows] == [claim.id for claim in claims.all() if claim.lab == "05"] != []
    assert list(claims.recorded().values()) == list(shown.rows)
    with pytest.raises(ValueError, match="two digits"):
        claims.settle_lab("99")


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
