"""What lab 04 wants of a computer."""

from __future__ import annotations

from labkit.course.readiness import LabCheck
from labkit.doctor import Doctor


def check(found: Doctor) -> LabCheck:
    """Without llama.cpp's RPC backend there is no loopback device, and its runs are recorded ones."""
    if found.engine.rpc:
        return LabCheck(True, "live, with a second process as the device.")
    return LabCheck(True, "recorded runs, since this build has no RPC backend (see Troubleshooting in README.md).")
