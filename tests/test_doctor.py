"""What the doctor says, on this computer and on others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from labkit import doctor, engine
from labkit.doctor import Doctor, describe, examine
from labkit.engine import EngineInfo
from labkit.models import lookup
from labkit.system import caps
from labkit.system.caps import CapMethod
from labkit.system.machine import Machine, machine
from labkit.units import GiB

ENGINE = EngineInfo(engine.PINNED, True, (engine.Device("CPU", "AMD EPYC", "CPU", 8 * GiB),), ("avx2",), None)
WITH_CAPS = CapMethod("cgroup-v1", "a group of our own in cgroup v1")
NO_CAPS = CapMethod(None, "memory caps need Linux control groups")


def on(
    monkeypatch: pytest.MonkeyPatch,
    *,
    info: EngineInfo = ENGINE,
    cap: CapMethod = WITH_CAPS,
    model: bool = True,
    ram: int = 16 * GiB,
    available: int | None = 12 * GiB,
) -> Doctor:
    """The doctor on another computer."""

    def here() -> Machine:
        return replace(machine(), ram_bytes=ram, limit_bytes=ram, limit_by="MemTotal", available_bytes=available)

    monkeypatch.delenv("LABKIT_PROFILE", raising=False)
    monkeypatch.setattr(doctor, "machine", here)
    monkeypatch.setattr(engine, "info", lambda: info)
    monkeypatch.setattr(caps, "available", lambda: cap)
    if not model:

        def missing() -> None:
            raise lookup.ModelError("the bundled model is not installed: run `uv sync`.")

        monkeypatch.setattr(lookup, "bundled", missing)
    return examine()


def test_this_computer() -> None:
    found = examine()
    assert found.ok and found.engine.problem is None and found.model is not None and found.model.endswith(".gguf")
    assert found.caps == caps.available()
    assert {"00", "01"} <= set(found.labs)


def test_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    values = json.loads(json.dumps(on(monkeypatch).to_dict()))
    assert {"machine", "engine", "model", "caps", "labs"} <= set(values)
    assert {"version", "rpc", "devices"} <= set(values["engine"])
    assert values["engine"]["devices"][0]["name"] == "CPU"
    assert values["caps"] == {"how": "cgroup-v1", "live": True, "reason": WITH_CAPS.reason}
    assert all(set(check) == {"ok", "why"} for check in values["labs"].values())
    assert values["machine"]["profile"] == "full"


def test_a_large_machine_with_caps_is_all_live(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(monkeypatch)
    assert found.ok
    assert found.labs["00"].why == "live, with SmolLM2 and a forged 7B."
    assert "a forged 7B; caps work (cgroup-v1), so the cliff and the kill are live." in found.labs["01"].why


@pytest.mark.parametrize(
    ("ram", "available"), [(16 * GiB, 5 * GiB), (8 * GiB, 7 * GiB), (2 * GiB, GiB), (16 * GiB, None)]
)
def test_a_small_machine_gets_smaller_models(monkeypatch: pytest.MonkeyPatch, ram: int, available: int | None) -> None:
    found = on(monkeypatch, ram=ram, available=available)
    assert found.ok and "smaller forged models" in found.labs["00"].why


def test_without_caps_the_kill_is_a_recorded_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(monkeypatch, cap=NO_CAPS)
    assert found.ok and not found.to_dict()["caps"]["live"]
    assert f"no caps ({NO_CAPS.reason}), so the cliff and the kill are recorded runs" in found.labs["01"].why
    assert f"caps      none: {NO_CAPS.reason}" in describe(found)


def test_a_missing_engine_stops_every_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "llama-cpp-python is not installed: run `uv sync`."
    found = on(monkeypatch, info=EngineInfo(None, False, (), (), problem))
    assert not found.ok and all(check.why == problem and not check.ok for check in found.labs.values())
    text = describe(found)
    assert f"engine    {problem}" in text and f"lab 00    NO: {problem}" in text


def test_a_missing_model_stops_every_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(monkeypatch, model=False)
    assert not found.ok and found.model is None
    assert found.labs["00"].why == "the bundled model is not installed: run `uv sync`."
    assert "model     the bundled model is not installed" in describe(found)


def test_the_text_has_a_line_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(monkeypatch)
    lines = describe(found).splitlines()
    words = [line.split()[0] for line in lines]
    assert words[:6] == ["machine", "profile", "engine", "RPC", "model", "caps"]
    assert len(lines) == 6 + len(found.labs) and max(map(len, lines)) < 300
    assert "16.0 GiB RAM, 16.0 GiB usable (limit: MemTotal), 12.0 GiB available" in lines[0]
    assert f"llama-cpp-python {engine.PINNED}, devices: CPU" in lines[2]
    unknown = replace(found, machine=replace(found.machine, ram_bytes=None, limit_bytes=None, available_bytes=None))
    assert "unknown RAM, unknown usable" in describe(unknown)
    assert "RPC       no: this build has no RPC backend" in describe(replace(found, engine=replace(ENGINE, rpc=False)))
