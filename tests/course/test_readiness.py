"""Which labs run, on this computer and on others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.computers import ENGINE, NO_CAPS, set_computer

import labkit as lk
from labkit.course.offers import labs
from labkit.course.readiness import examine, forged_models
from labkit.doctor import size
from labkit.engine import EngineInfo
from labkit.units import GiB

LABS = [lab.removeprefix("lab") for lab in labs()]


@pytest.mark.live
def test_every_lab_runs_on_this_computer() -> None:
    found = lk.examine()
    assert found.ok and list(found.labs) == LABS


def test_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch)
    values = json.loads(json.dumps(examine().to_dict()))
    assert set(values) == {"machine", "engine", "model", "caps", "labs"}
    assert list(values["labs"]) == LABS
    assert all(check["ok"] is True and set(check) == {"ok", "why"} for check in values["labs"].values())


def test_the_text_has_a_line_for_each_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch)
    found = examine()
    lines = str(found).splitlines()
    assert [line.partition(":")[0] for line in lines[6:]] == [f"lab {lab}    ok" for lab in LABS]
    assert max(map(len, lines)) < 300


@pytest.mark.parametrize("missing", ["engine", "model"])
def test_a_missing_engine_or_model_stops_every_lab(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    info = EngineInfo(None, False, (), (), "llama-cpp-python is not installed: run `uv sync`.")
    set_computer(monkeypatch, info=info if missing == "engine" else ENGINE, model=missing != "model")
    found = examine()
    problem = found.found.problem
    assert not found.ok and problem is not None
    assert all(check.why == problem and not check.ok for check in found.labs.values())
    assert f"lab 00    NO: {problem}" in str(found)


@pytest.mark.parametrize(
    ("ram", "available", "large"),
    [
        (16 * GiB, 12 * GiB, True),
        (16 * GiB, 5 * GiB, False),
        (8 * GiB, 7 * GiB, False),
        (2 * GiB, GiB, False),
        (16 * GiB, None, False),
    ],
)
def test_a_small_machine_gets_smaller_models(
    monkeypatch: pytest.MonkeyPatch, ram: int, available: int | None, large: bool
) -> None:
    set_computer(monkeypatch, ram=ram, available=available)
    found = examine()
    assert found.ok and ("7B" in forged_models(found.found)) is large
    assert all(forged_models(found.found) in found.labs[lab].why for lab in ("00", "01"))


def test_without_caps_runs_under_a_cap_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch, cap=NO_CAPS)
    found = examine()
    assert found.ok and all("recorded run" in found.labs[lab].why for lab in ("01", "03", "05"))
    assert all(NO_CAPS.reason in found.labs[lab].why for lab in ("01", "03"))
    set_computer(monkeypatch)
    assert not any("recorded" in check.why for check in examine().labs.values())


def test_without_rpc_lab_04_shows_recorded_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch, info=replace(ENGINE, rpc=False))
    found = examine()
    assert found.labs["04"].ok and "recorded runs" in found.labs["04"].why


def test_a_limit_on_locked_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit import doctor

    set_computer(monkeypatch)
    here = doctor.machine()
    small = replace(here, ipc_lock=False, memlock_bytes=64 << 10, memlock_unlimited=False)
    monkeypatch.setattr(doctor, "machine", lambda: small)
    assert size(64 << 10) in examine().labs["05"].why
    monkeypatch.setattr(doctor, "machine", lambda: replace(small, ipc_lock=True))
    assert size(64 << 10) not in examine().labs["05"].why
