"""Pictures of lab 00."""

from labkit.course.lab00.figures.machine import machine_card
from labkit.course.lab00.figures.mechanisms import mechanisms
from labkit.course.lab00.figures.speed import SpeedRow, roofline, speed_check

__all__ = [
    "SpeedRow",
    "machine_card",
    "mechanisms",
    "roofline",
    "speed_check",
]
