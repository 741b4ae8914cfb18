"""Pictures of lab 04."""

from labkit.course.lab04.figures.crossing import crossing
from labkit.course.lab04.figures.layer_map import layer_map
from labkit.course.lab04.figures.offload import offload_plan, two_processes
from labkit.course.lab04.figures.offload_speed import offload_speed, what_if_devices
from labkit.course.lab04.figures.tuner_search import tuner_search
from labkit.planning.device_curves import CrossingRow, DeviceCurve

__all__ = [
    "CrossingRow",
    "DeviceCurve",
    "crossing",
    "layer_map",
    "offload_plan",
    "offload_speed",
    "tuner_search",
    "two_processes",
    "what_if_devices",
]
