"""Pictures of the labs: one function each, returning a matplotlib Figure; ``show`` puts one into a notebook."""

from labkit.figures.cliff import CliffPoint, cliff
from labkit.figures.image import png, show
from labkit.figures.layers import layer_faults
from labkit.figures.machine import machine_card
from labkit.figures.mechanisms import mechanisms
from labkit.figures.memory import where_the_model_is
from labkit.figures.residency import residency_strip
from labkit.figures.speed import SpeedRow, roofline, speed_check
from labkit.figures.timeline import timeline

__all__ = [
    "CliffPoint",
    "SpeedRow",
    "cliff",
    "layer_faults",
    "machine_card",
    "mechanisms",
    "png",
    "residency_strip",
    "roofline",
    "show",
    "speed_check",
    "timeline",
    "where_the_model_is",
]
