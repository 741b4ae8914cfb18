"""What the doctor finds, on this computer and on others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.computers import ENGINE, NO_CAPS, WITH_CAPS, set_computer

from labkit import engine
from labkit.doctor import examine
from labkit.engine import EngineInfo
from labkit.system import caps


@pytest.mark.live
def test_this_computer() -> None:
    found = examine()
    assert found.problem is None and found.model is not None and found.model.endswith(".gguf")
    assert found.caps == caps.available()


def test_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch)
    values = json.loads(json.dumps(examine().to_dict()))
    assert set(values) == {"machine", "engine", "model", "caps"}
    assert {"version", "rpc", "devices"} <= set(values["engine"])
    assert values["engine"]["devices"][0]["name"] == "CPU"
    assert values["caps"] == {"how": "cgroup-v1", "live": True, "reason": WITH_CAPS.reason}
    assert values["machine"]["profile"] == "full"


def test_without_caps_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch, cap=NO_CAPS)
    found = examine()
    assert found.problem is None and not found.to_dict()["caps"]["live"]
    assert f"caps      none: {NO_CAPS.reason}" in str(found)


def test_a_missing_engine_is_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "llama-cpp-python is not installed: run `uv sync`."
    set_computer(monkeypatch, info=EngineInfo(None, False, (), (), problem))
    found = examine()
    assert found.problem == problem
    assert f"engine    {problem}" in str(found)


def test_a_missing_model_is_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch, model=False)
    found = examine()
    assert found.model is None and found.problem == found.model_problem is not None
    assert f"model     {found.model_problem}" in str(found)


def test_the_text_has_a_line_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    set_computer(monkeypatch)
    found = examine()
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == ["machine", "profile", "engine", "RPC", "model", "caps"]
    assert "16.0 GiB RAM, 16.0 GiB usable (limit: MemTotal), 12.0 GiB available" in lines[0]
    assert f"llama-cpp-python {engine.PINNED}, devices: CPU" in lines[2]
    unknown = replace(found, machine=replace(found.machine, ram_bytes=None, limit_bytes=None, available_bytes=None))
    assert "unknown RAM, unknown usable" in str(unknown)
    assert "RPC       no: " in str(replace(found, engine=replace(ENGINE, rpc=False)))
