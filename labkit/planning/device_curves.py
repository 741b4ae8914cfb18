"""Predicted time per token on common devices for each number of layers, and the time of crossings to a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from labkit.gguf import Header
from labkit.models.tensor_types import layer_of
from labkit.planning.tuner import MARGIN_BYTES
from labkit.predict import hardware
from labkit.predict.hardware import Hardware
from labkit.predict.offload import Split, offload
from labkit.predict.offload_speed import CROSSING_MS, offload_ms, speeds_of
from labkit.settings import Settings
from labkit.units import GiB, parse_bytes

Named = str | tuple[str, str]
"""A device's name, or its name and its RAM, as in ``("apple-m2", "16GiB")``."""


@dataclass(frozen=True)
class DeviceCurve:
    """Predicted time per token on one device, for each n_gpu_layers that it can hold.

    Attributes:
        label: the device's name.
        ms: milliseconds by n_gpu_layers; empty where nothing fits.
        n_layer: of the model; ``n_layer + 1`` is everything.
        memory_bytes: of the device, less the margin.
    """

    label: str
    ms: Mapping[int, float]
    n_layer: int
    memory_bytes: int

    @property
    def most(self) -> int | None:
        """The largest n_gpu_layers that fits; None if none does."""
        return max(self.ms, default=None)

    @property
    def whole(self) -> bool:
        """Whether all of the model fits."""
        return self.most == self.n_layer + 1


@dataclass(frozen=True)
class CrossingRow:
    """The time that moving something between host and device takes.

    Attributes:
        label: what is moved.
        ms: milliseconds.
        how: ``claimed``, ``predicted`` or ``measured``.
        bytes: that cross; None where they are not known.
    """

    label: str
    ms: float
    how: str = "predicted"
    bytes: int | None = None


def usable_bytes(device: Hardware, *, ram_bytes: int | None = None, margin_bytes: int = MARGIN_BYTES) -> int:
    """Bytes that may be put on a device: its own memory less a margin, or its share of the host's memory.

    Raises:
        HardwareError: it has no GPU.
    """
    return device.gpu_bytes(ram_bytes) - (margin_bytes if device.kind == "discrete" else 0)


def device_curves(
    header: Header,
    devices: Sequence[Named],
    *,
    host_bytes_per_s: float,
    settings: Settings | None = None,
    n_past: int = 0,
) -> tuple[DeviceCurve, ...]:
    """Rows for ``figures.what_if_devices``: least time per token for each ``n_gpu_layers`` that fits on a device.

    Args:
        header: the model's.
        devices: by name.
        host_bytes_per_s: bandwidth of the memory of a host with a discrete device; a unified one has its own.
        settings: how it is run; ``n_gpu_layers`` does not count.
        n_past: tokens in the context.

    Raises:
        HardwareError: there is no such device, or it has no GPU.
    """
    base = settings or Settings()
    splits = [offload(header, replace(base, n_gpu_layers=n), pinned_host=True) for n in range(header.n_layer + 2)]
    rows = []
    for named in devices:
        name, ram = (named, None) if isinstance(named, str) else (named[0], parse_bytes(named[1]))
        device = hardware.get(name)
        usable, speeds = usable_bytes(device, ram_bytes=ram), speeds_of(device, host_bytes_per_s=host_bytes_per_s)
        have = ram or (device.ram_bytes[-1] if device.ram_bytes else None)
        ms = {
            split.n_gpu_layers: offload_ms(split, speeds, n_past=n_past)
            for split in splits
            if split.devices[0].total_bytes <= usable
            # Shared memory must hold the host's side, too.
            and (device.kind == "discrete" or have is None or _together(split) <= have)
        }
        label = device.title.removeprefix("NVIDIA ").removeprefix("GeForce ")
        label = label if have is None else f"{label}, {have / GiB:g} GiB"
        rows.append(DeviceCurve(label, ms, header.n_layer, usable))
    return tuple(rows)


def _together(split: Split) -> int:
    """Bytes of all sides."""
    return split.host.total_bytes + sum(side.total_bytes for side in split.devices)


def crossing_rows(
    header: Header,
    split: Split,
    *,
    link_bytes_per_s: float,
    crossing_ms: float = CROSSING_MS,
    claimed_ms: float | None = 5.0,
    measured_crossing_ms: float | None = None,
) -> tuple[CrossingRow, ...]:
    """Rows for ``figures.crossing``: what one token sends over the link, and what a layer's weights would take.

    Args:
        header: the model's.
        split: with layers on a device.
        link_bytes_per_s: of the link, one way.
        crossing_ms: time of each crossing besides moving its bytes.
        claimed_ms: time per layer that articles claim; None leaves the row out.
        measured_crossing_ms: time of a crossing to the loopback device; None leaves the row out.
    """

    def over(size: int) -> float:
        return size / link_bytes_per_s * 1000

    hidden = 4 * int(header.key("embedding_length", 0))
    largest = max(sum(t.nbytes for t in header.tensors if layer_of(t.name) == i) for i in range(header.n_layer))
    rows = [CrossingRow("per layer, as the articles claim", claimed_ms, "claimed")] if claimed_ms is not None else []
    rows += [
        CrossingRow("one crossing, with the wait", over(hidden) + crossing_ms, "predicted", hidden),
        CrossingRow("of which: moving the bytes", over(hidden), "predicted", hidden),
        CrossingRow(
            f"all {split.crossings} crossings of a token",
            over(split.crossing_bytes) + split.crossings * crossing_ms,
            "predicted",
            split.crossing_bytes,
        ),
    ]
    if measured_crossing_ms is not None:
        rows.append(CrossingRow("one crossing to the loopback device", measured_crossing_ms, "measured", hidden))
    rows.append(CrossingRow("a layer's weights, if they crossed", over(largest), "predicted", largest))
    return tuple(rows)
