"""Time per token of a model partly on a device: each side reads its share, and data crosses between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.predict.offload import Side, Split

if TYPE_CHECKING:
    from labkit.predict.hardware import Hardware

HOP_MS = 0.02  # of a graphics card: tens of microseconds to start work there and wait for it; not measured here


@dataclass(frozen=True)
class Speeds:
    """How fast a host, its devices and what lies between are.

    Attributes:
        host_bytes_per_s: at which the host reads weights and cache.
        device_bytes_per_s: the same for a device.
        link_bytes_per_s: between them.
        hop_ms: what each crossing costs besides its bytes: starting work on the other side and waiting for it.
    """

    host_bytes_per_s: float
    device_bytes_per_s: float
    link_bytes_per_s: float = math.inf
    hop_ms: float = 0.0


def speeds_of(device: Hardware, *, host_bytes_per_s: float) -> Speeds:
    """Full bandwidth of both sides and the link; a device that shares the host's memory has nothing to cross."""
    here = float(device.bandwidth_bytes_per_s)
    if device.kind == "discrete":
        return Speeds(host_bytes_per_s, here, float(device.link_bytes_per_s or math.inf), HOP_MS)
    return Speeds(here, here)


def offload_ms(split: Split, speeds: Speeds, *, n_past: int = 0) -> float:
    """Milliseconds to decode one token.

    Σ over sides of bytes read / bandwidth, plus hops × hop_ms, plus bytes crossing / link. The sides do not overlap: a
    token passes through one after the other. Computing and the mask are left out. Prefill follows another rule: a
    device may compute large batches from weights on the host (``op_offload``).
    """
    host = read_bytes(split.host, n_past) / speeds.host_bytes_per_s
    devices = sum(read_bytes(side, n_past) for side in split.devices) / speeds.device_bytes_per_s
    return (host + devices + split.hop_bytes / speeds.link_bytes_per_s) * 1000 + split.hops * speeds.hop_ms


def read_bytes(side: Side, n_past: int = 0) -> int:
    """Bytes of weights and cache that one token reads on this side after ``n_past`` others."""
    return side.read_bytes + sum(layer.read_bytes(n_past) for layer in side.caches)


def calibrate(
    on_host: tuple[Split, float],
    on_device: tuple[Split, float],
    *,
    with_hops: tuple[Split, float] | None = None,
    link_bytes_per_s: float = math.inf,
    hop_ms: float = 0.0,
    n_past: int = 0,
) -> Speeds:
    """Speeds from measured times per token.

    Args:
        on_host: everything on the host (n_gpu_layers 0), and its milliseconds per token.
        on_device: everything on the device (n_layer + 1), and its milliseconds.
        with_hops: another, with more hops, as with ``offload_kqv`` off; from it ``hop_ms`` is found.
        link_bytes_per_s: of the link, if its bytes are to count apart from its hops.
        hop_ms: where there is no ``with_hops``; 0 leaves the hops' cost in the device's bandwidth.
        n_past: tokens in the context when it was measured.

    Raises:
        ValueError: a time is not above zero, or the measurements contradict each other.
    """
    if min(ms for _, ms in (on_host, on_device, with_hops or on_host)) <= 0:
        raise ValueError("a time per token must be more than 0 ms.")
    host_speed = read_bytes(on_host[0].host, n_past) / on_host[1] * 1000
    speeds = Speeds(host_speed, math.inf, link_bytes_per_s)

    def device_ms(measured: tuple[Split, float]) -> float:
        """What is left for the device and the hops."""
        return measured[1] - offload_ms(measured[0], speeds, n_past=n_past)

    reads = sum(read_bytes(side, n_past) for side in on_device[0].devices)
    if with_hops is not None:
        # reads / speed + hops × hop_ms = device_ms, twice
        other = sum(read_bytes(side, n_past) for side in with_hops[0].devices)
        slope = with_hops[0].hops * reads - on_device[0].hops * other
        if slope <= 0:
            raise ValueError("with_hops must have more hops for its bytes than on_device has.")
        hop_ms = max(0.0, (device_ms(with_hops) * reads - device_ms(on_device) * other) / slope)
    left = device_ms(on_device) - on_device[0].hops * hop_ms
    if left <= 0:
        raise ValueError("the hops alone would take longer than everything on the device was measured to take.")
    return replace(speeds, device_bytes_per_s=reads / left * 1000, hop_ms=hop_ms)
