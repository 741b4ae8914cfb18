"""Which labs run on this computer. Each lab's folder says in ``needs.check`` what it wants of the computer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from labkit import doctor
from labkit.course import offers
from labkit.doctor import Doctor
from labkit.units import GiB


@dataclass(frozen=True)
class LabCheck:
    """Whether a lab runs here (``ok``), and in one sentence what is live, recorded or missing."""

    ok: bool
    why: str


@dataclass(frozen=True)
class Readiness:
    """What was found here, and for each lab, by its two digits, whether it runs."""

    found: Doctor
    labs: dict[str, LabCheck]

    @property
    def ok(self) -> bool:
        """Whether every lab runs."""
        return all(check.ok for check in self.labs.values())

    def to_dict(self) -> dict[str, Any]:
        """As ``labkit doctor --json`` prints it."""
        return {**self.found.to_dict(), "labs": {lab: asdict(check) for lab, check in self.labs.items()}}

    def __str__(self) -> str:
        lines = [f"lab {lab}    {'ok' if check.ok else 'NO'}: {check.why}" for lab, check in sorted(self.labs.items())]
        return "\n".join([str(self.found), *lines])


def examine() -> Readiness:
    """Look at this computer (``doctor.examine``) and ask every lab whether it runs here."""
    found = doctor.examine()
    checks = {}
    for needs in offers.modules("needs"):
        lab = needs.__name__.split(".")[-2].removeprefix("lab")
        checks[lab] = LabCheck(False, found.problem) if found.problem else needs.check(found)
    return Readiness(found, checks)


def forged_models(found: Doctor) -> str:
    """The large model that labs 00 and 01 run here, in words."""
    large = (found.machine.available_bytes or 0) >= 6 * GiB and found.machine.profile == "full"
    return "a forged 7B" if large else "smaller forged models, since memory is short"
