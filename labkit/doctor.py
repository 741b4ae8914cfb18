"""What works on this computer: its memory, llama.cpp, the bundled model, and memory caps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from labkit import engine
from labkit.engine import EngineInfo
from labkit.models import lookup
from labkit.system import caps
from labkit.system.machine import Machine, machine
from labkit.units import fmt_bytes


@dataclass(frozen=True)
class Doctor:
    """What was found.

    Attributes:
        model: name of the bundled model's file; None where it is missing.
        model_problem: one sentence then, else None.
    """

    machine: Machine
    engine: EngineInfo
    model: str | None
    model_problem: str | None
    caps: caps.CapMethod

    @property
    def problem(self) -> str | None:
        """One sentence if no model can be run here, else None."""
        return self.engine.problem or self.model_problem

    def to_dict(self) -> dict[str, Any]:
        """As ``labkit doctor --json`` prints it, without the labs."""
        return {
            "machine": self.machine.to_dict(),
            "engine": asdict(self.engine),
            "model": self.model,
            "caps": {"how": self.caps.how, "live": self.caps.how is not None, "reason": self.caps.reason},
        }

    def __str__(self) -> str:
        here = self.machine
        ram, available = size(here.ram_bytes), size(here.available_bytes)
        devices = ", ".join(device.name for device in self.engine.devices) or "none"
        lines = [
            f"machine   {ram} RAM, {size(here.limit_bytes)} usable (limit: {here.limit_by}), {available} available, "
            f"{here.cores} cores",
            f"profile   {here.profile} (LABKIT_PROFILE overrides)",
            f"engine    {self.engine.problem or f'llama-cpp-python {self.engine.version}, devices: {devices}'}",
            f"RPC       {'yes' if self.engine.rpc else 'no: this build has no RPC backend'}",
            f"model     {self.model or self.model_problem}",
            f"caps      {self.caps.how or 'none'}: {self.caps.reason}",
        ]
        return "\n".join(lines)


def examine() -> Doctor:
    """Look at machine, engine, bundled model and memory caps; about a second, most of it importing llama_cpp."""
    here, built, cap = machine(), engine.info(), caps.available()
    try:
        return Doctor(here, built, lookup.bundled().name, None, cap)
    except lookup.ModelError as error:
        return Doctor(here, built, None, str(error), cap)


def size(value: int | None) -> str:
    """Bytes as text; ``unknown`` for None."""
    return "unknown" if value is None else fmt_bytes(value)
