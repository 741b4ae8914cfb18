"""What lab 05 wants of a computer."""

from __future__ import annotations

from labkit.course.readiness import LabCheck
from labkit.doctor import Doctor, size


def check(found: Doctor) -> LabCheck:
    """A small limit on locked memory makes most locks fail; without memory caps, runs under pressure are recorded."""
    here = found.machine
    lock = (
        "locking works"
        if here.ipc_lock or here.memlock_unlimited
        else f"{size(here.memlock_bytes)} may be locked, so most locks fail and the run goes on, as the lab explains"
    )
    return LabCheck(True, f"{lock}; {'pressure is live' if found.caps.how else 'pressure is a recorded run'}.")
