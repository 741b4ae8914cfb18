"""Pictures of lab 01; labs 03 and 05 use its timeline too."""

from labkit.course.lab01.figures.cliff import cliff
from labkit.course.lab01.figures.layers import layer_faults
from labkit.course.lab01.figures.memory import where_the_model_is
from labkit.course.lab01.figures.residency import residency_strip, resident_pages
from labkit.course.lab01.figures.timeline import timeline
from labkit.experiments.cap_sweep import CliffPoint

__all__ = [
    "CliffPoint",
    "cliff",
    "layer_faults",
    "residency_strip",
    "resident_pages",
    "timeline",
    "where_the_model_is",
]
