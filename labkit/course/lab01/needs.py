"""What lab 01 wants of a computer."""

from __future__ import annotations

from labkit.course.readiness import LabCheck, forged_models
from labkit.doctor import Doctor


def check(found: Doctor) -> LabCheck:
    """Without memory caps, runs under a cap are recorded ones."""
    cap = found.caps
    paging = (
        f"caps work ({cap.how}), so the cliff and the kill are live"
        if cap.how
        else f"no caps ({cap.reason}), so the cliff and the kill are recorded runs"
    )
    return LabCheck(True, f"live, with SmolLM2 and {forged_models(found)}; {paging}.")
