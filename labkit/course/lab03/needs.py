"""What lab 03 wants of a computer."""

from __future__ import annotations

from labkit.course.readiness import LabCheck
from labkit.doctor import Doctor


def check(found: Doctor) -> LabCheck:
    """Without memory caps, the run that a cap kills is a recorded one."""
    cap = found.caps
    kill = (
        "a cap kills a run with a large cache"
        if cap.how
        else f"no caps ({cap.reason}), so what a cap does is a recorded run"
    )
    return LabCheck(True, f"live, with SmolLM2 and dry runs of larger shapes; {kill}.")
