"""Other computers than this one, as the doctor sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit import doctor, engine
from labkit.engine import EngineInfo
from labkit.models import lookup
from labkit.system import caps
from labkit.system.caps import CapMethod
from labkit.system.machine import Machine, machine
from labkit.units import GiB

ENGINE = EngineInfo(engine.PINNED, True, (engine.Device("CPU", "AMD EPYC", "CPU", 8 * GiB),), ("avx2",), None)
WITH_CAPS = CapMethod("cgroup-v1", "a group of our own in cgroup v1")
NO_CAPS = CapMethod(None, "memory caps need Linux control groups")


def set_computer(
    monkeypatch: pytest.MonkeyPatch,
    *,
    info: EngineInfo = ENGINE,
    cap: CapMethod = WITH_CAPS,
    model: bool = True,
    ram: int = 16 * GiB,
    available: int | None = 12 * GiB,
) -> None:
    """Make ``doctor.examine`` see another computer, by default one on which everything works."""

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
