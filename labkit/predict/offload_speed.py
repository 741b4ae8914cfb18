"""Time per token of a model partly on a device: each side reads its weights, and data crosses between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.predict.offload import Side, Split

if TYPE_CHECKING:
    from labkit.predict.hardware import Hardware

CROSSING_MS = 0.02  # assumed, of a graphics card: tens of microseconds to start a computation and wait for it


@dataclass(frozen=True)
class Speeds:
    """Speeds of a host, its devices and the link between them.

    Attributes:
        host_bytes_per_s: at which the host reads weights and cache.
        device_bytes_per_s: the same for a device.
        link_bytes_per_s: between them.
        crossing_ms: time of each crossing besides moving its bytes: to start the other side and to wait for it.
    """

    host_bytes_per_s: float
    device_bytes_per_s: float
    link_bytes_per_s: float = math.inf
    crossing_ms: float = 0.0


def speeds_of(device: Hardware, *, host_bytes_per_s: float) -> Speeds:
    """Full bandwidth of both sides and the link; where host and device share their memory, crossings take no time."""
    here = float(device.bandwidth_bytes_per_s)
    if device.kind == "discrete":
        return Speeds(host_bytes_per_s, here, float(device.link_bytes_per_s or math.inf), CROSSING_MS)
    return Speeds(here, here)


def offload_ms(split: Split, speeds: Speeds, *, n_past: int = 0) -> float:
    """Milliseconds to decode one token.

    Σ over sides of bytes read / bandwidth, plus crossings × crossing_ms, plus crossing_bytes / link. The sides compute
    one after the other. The time to compute and the mask are left out. This does not hold for prompts: a device may
    compute large batches with weights from the host (``op_offload``).
    """
    host = read_bytes(split.host, n_past) / speeds.host_bytes_per_s
    devices = sum(read_bytes(side, n_past) for side in split.devices) / speeds.device_bytes_per_s
    return (
        host + devices + split.crossing_bytes / speeds.link_bytes_per_s
    ) * 1000 + split.crossings * speeds.crossing_ms


def read_bytes(side: Side, n_past: int = 0) -> int:
    """Bytes of weights and cache that one token reads on this side after ``n_past`` others."""
    return side.read_bytes + sum(layer.read_bytes(n_past) for layer in side.caches)


def calibrate(
    on_host: tuple[Split, float],
    on_device: tuple[Split, float],
    *,
    more_crossings: tuple[Split, float] | None = None,
    link_bytes_per_s: float = math.inf,
    crossing_ms: float = 0.0,
    n_past: int = 0,
) -> Speeds:
    """Speeds from measured times per token.

    Args:
        on_host: everything on the host (n_gpu_layers 0), and its milliseconds per token.
        on_device: everything on the device (n_layer + 1), and its milliseconds.
        more_crossings: another, with more crossings, as with ``offload_kqv`` off; from it ``crossing_ms`` is found.
        link_bytes_per_s: of the link, to count the time of the bytes that cross separately.
        crossing_ms: used without ``more_crossings``; with 0, the device's bandwidth contains the time of crossings.
        n_past: tokens in the context when the times were measured.

    Raises:
        ValueError: a time is not above zero, or the measurements contradict each other.
    """
    if min(ms for _, ms in (on_host, on_device, more_crossings or on_host)) <= 0:
        raise ValueError("a time per token must be more than 0 ms.")
    host_speed = read_bytes(on_host[0].host, n_past) / on_host[1] * 1000
    speeds = Speeds(host_speed, math.inf, link_bytes_per_s)

    def device_ms(measured: tuple[Split, float]) -> float:
        """Milliseconds that remain for the device and the crossings."""
        return measured[1] - offload_ms(measured[0], speeds, n_past=n_past)

    reads = sum(read_bytes(side, n_past) for side in on_device[0].devices)
    if more_crossings is not None:
        # Two equations with two unknowns: reads / speed + crossings × crossing_ms = device_ms.
        other = sum(read_bytes(side, n_past) for side in more_crossings[0].devices)
        slope = more_crossings[0].crossings * reads - on_device[0].crossings * other
        if slope <= 0:
            raise ValueError("more_crossings must have more crossings for its bytes than on_device has.")
        crossing_ms = max(0.0, (device_ms(more_crossings) * reads - device_ms(on_device) * other) / slope)
    left = device_ms(on_device) - on_device[0].crossings * crossing_ms
    if left <= 0:
        raise ValueError("the crossings alone would take longer than the whole token did: give a smaller crossing_ms.")
    return replace(speeds, device_bytes_per_s=reads / left * 1000, crossing_ms=crossing_ms)
