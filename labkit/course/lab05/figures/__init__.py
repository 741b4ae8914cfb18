"""Pictures of lab 05."""

from labkit.course.lab05.figures.boundary import boundary
from labkit.course.lab05.figures.latency import first_token, latency
from labkit.course.lab05.figures.lock import what_is_locked
from labkit.course.lab05.figures.lock_budget import lock_budget

__all__ = [
    "boundary",
    "first_token",
    "latency",
    "lock_budget",
    "what_is_locked",
]
