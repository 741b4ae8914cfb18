"""What works on this computer, and what to do about the rest."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from labkit import engine
from labkit.engine import EngineInfo
from labkit.models import lookup
from labkit.system import caps
from labkit.system.machine import Machine, machine
from labkit.units import GiB, fmt_bytes


@dataclass(frozen=True)
class LabCheck:
    """Whether a lab runs here (``ok``), and in one sentence what is live, recorded or missing."""

    ok: bool
    why: str


@dataclass(frozen=True)
class Doctor:
    """Findings. ``labs`` has an entry for each lab that exists, by its two digits."""

    machine: Machine
    engine: EngineInfo
    model: str | None
    model_problem: str | None
    caps: caps.CapMethod
    labs: dict[str, LabCheck]

    @property
    def ok(self) -> bool:
        """Whether every lab runs."""
        return all(check.ok for check in self.labs.values())

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract of ``labkit doctor --json``."""
        return {
            "machine": self.machine.to_dict(),
            "engine": asdict(self.engine),
            "model": self.model,
            "caps": {"how": self.caps.how, "live": self.caps.how is not None, "reason": self.caps.reason},
            "labs": {lab: asdict(check) for lab, check in self.labs.items()},
        }


def examine() -> Doctor:
    """Look at machine, engine, bundled model and memory caps; about a second, most of it importing llama_cpp."""
    here, built, cap = machine(), engine.info(), caps.available()
    name: str | None = None
    problem: str | None = None
    try:
        name = lookup.bundled().name
    except lookup.ModelError as error:
        problem = str(error)
    return Doctor(here, built, name, problem, cap, _labs(here, built, problem, cap))


def _labs(here: Machine, built: EngineInfo, problem: str | None, cap: caps.CapMethod) -> dict[str, LabCheck]:
    blocked = built.problem or problem
    if blocked:
        return {lab: LabCheck(False, blocked) for lab in ("00", "01", "02", "03", "04", "05")}
    large = (here.available_bytes or 0) >= 6 * GiB and here.profile == "full"
    size = "a forged 7B" if large else "smaller forged models, since memory is short"
    paging = (
        f"caps work ({cap.how}), so the cliff and the kill are live"
        if cap.how
        else f"no caps ({cap.reason}), so the cliff and the kill are recorded runs"
    )
    death = "a cache kills under a cap" if cap.how else f"no caps ({cap.reason}), so what a cap does is a recorded run"
    offload = (
        "live, with a second process as the device"
        if built.rpc
        else "recorded runs, since this build has no RPC backend (see Troubleshooting in README.md)"
    )
    lock = (
        "locking works"
        if here.ipc_lock or here.memlock_unlimited
        else f"up to {_size(here.memlock_bytes)} may be locked, so most locks fail softly, as the lab explains"
    )
    return {
        "00": LabCheck(True, f"live, with SmolLM2 and {size}."),
        "01": LabCheck(True, f"live, with SmolLM2 and {size}; {paging}."),
        "02": LabCheck(True, "live, with SmolLM2, which it quantizes to eight types."),
        "03": LabCheck(True, f"live, with SmolLM2 and dry runs of larger shapes; {death}."),
        "04": LabCheck(True, f"{offload}."),
        "05": LabCheck(True, f"{lock}; {'pressure is live' if cap.how else 'pressure is a recorded run'}."),
    }


def describe(found: Doctor) -> str:
    """The findings as text for a terminal."""
    here = found.machine
    limit = f"{_size(here.limit_bytes)} usable (limit: {here.limit_by})"
    devices = ", ".join(device.name for device in found.engine.devices) or "none"
    rpc = "yes" if found.engine.rpc else "no: this build has no RPC backend, so lab 04 will show recorded runs"
    lines = [
        f"machine   {_size(here.ram_bytes)} RAM, {limit}, {_size(here.available_bytes)} available, {here.cores} cores",
        f"profile   {here.profile} (LABKIT_PROFILE overrides)",
        f"engine    {found.engine.problem or f'llama-cpp-python {found.engine.version}, devices: {devices}'}",
        f"RPC       {rpc}",
        f"model     {found.model or found.model_problem}",
        f"caps      {found.caps.how or 'none'}: {found.caps.reason}",
    ]
    lines += [f"lab {lab}    {'ok' if check.ok else 'NO'}: {check.why}" for lab, check in sorted(found.labs.items())]
    return "\n".join(lines)


def _size(value: int | None) -> str:
    return "unknown" if value is None else fmt_bytes(value)
