"""Controls of lab 04."""

from labkit.course.lab04.panels.offload import Offload
from labkit.course.lab04.panels.offload_run import OffloadRun
from labkit.course.lab04.panels.tuner import Tuner

__all__ = ["Offload", "OffloadRun", "Tuner"]
