"""What lab 02 wants of a computer."""

from __future__ import annotations

from labkit.course.readiness import LabCheck
from labkit.doctor import Doctor


def check(found: Doctor) -> LabCheck:
    """It runs wherever llama.cpp does."""
    return LabCheck(True, "live, with SmolLM2, which it quantizes to eight types.")
