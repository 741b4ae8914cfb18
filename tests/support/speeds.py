"""Rows of the speed check, with the figures that one machine gave."""

from __future__ import annotations

from labkit.course.figures import SpeedRow
from labkit.units import GiB, MiB

BANDWIDTH = 31.3 * GiB


def speed_row(label: str, read_bytes: float, predicted_ms: float | None, measured_ms: float | None) -> SpeedRow:
    return SpeedRow(label, int(read_bytes), read_bytes / BANDWIDTH * 1000, predicted_ms, measured_ms)


SMALL = speed_row("SmolLM2-135M Q4_1", 80 * MiB, 5.9, 6.2)

LARGE = speed_row("llama-2-7b Q4_K_M", 3.73 * GiB, 127.0, 128.0)
