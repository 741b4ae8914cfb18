"""What lab 00 wants of a computer."""

from __future__ import annotations

from labkit.course.readiness import LabCheck, forged_models
from labkit.doctor import Doctor


def check(found: Doctor) -> LabCheck:
    """It runs wherever llama.cpp does."""
    return LabCheck(True, f"live, with SmolLM2 and {forged_models(found)}.")
