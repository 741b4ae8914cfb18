"""Time per token on devices one does not have, layer by layer, and what crosses to them: predictions, nothing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from labkit.gguf import Header
from labkit.models.tensor_types import layer_of
from labkit.planning.tuner import MARGIN_BYTES
from labkit.predict import hardware
from labkit.predict.hardware import Hardware
from labkit.predict.offload import Split, offload
from labkit.predict.offload_speed import HOP_MS, offload_ms
from labkit.predict.offload_speed import speeds_of as speeds_of
from labkit.settings import Settings
from labkit.units import GiB, parse_bytes

Named = str | tuple[str, str]
"""A device's name, or its name and the RAM it is sold with: ``("apple-m2", "16GiB")``."""


@dataclass(frozen=True)
class DeviceCurve:
    """Predicted time per token on one device, for each n_gpu_layers that it can hold.

    Attributes:
        label: the device's name.
        ms: milliseconds by n_gpu_layers; empty where nothing fits.
        n_layer: of the model; ``n_layer + 1`` is everything.
        memory_bytes: what the device can give.
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
    """One thing that takes time between host and device.

    Attributes:
        label: what it is.
        ms: how long it takes.
        how: ``claimed``, ``predicted`` or ``measured``.
        bytes: what crosses; None where that is not known.
    """

    label: str
    ms: float
    how: str = "predicted"
    bytes: int | None = None


def room_of(device: Hardware, *, ram_bytes: int | None = None, margin_bytes: int = MARGIN_BYTES) -> int:
    """Bytes that may go to a device: its memory less a margin, or of shared memory what its GPU gets.

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
    """Rows for ``figures.what_if_devices``: least time per token for each ``n_gpu_layers`` that a device can hold.

    Args:
        header: the model's.
        devices: by name.
        host_bytes_per_s: bandwidth of the host's memory beside a discrete device; a unified one has its own.
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
        room, speeds = room_of(device, ram_bytes=ram), speeds_of(device, host_bytes_per_s=host_bytes_per_s)
        have = ram or (device.ram_bytes[-1] if device.ram_bytes else None)
        ms = {
            split.n_gpu_layers: offload_ms(split, speeds, n_past=n_past)
            for split in splits
            if split.devices[0].total_bytes <= room
            # Shared memory has to hold the other side too.
            and (device.kind == "discrete" or have is None or _together(split) <= have)
        }
        label = device.title.removeprefix("NVIDIA ").removeprefix("GeForce ")
        label = label if have is None else f"{label}, {have / GiB:g} GiB"
        rows.append(DeviceCurve(label, ms, header.n_layer, room))
    return tuple(rows)


def _together(split: Split) -> int:
    return split.host.total_bytes + sum(side.total_bytes for side in split.devices)


def crossing_rows(
    header: Header,
    split: Split,
    *,
    link_bytes_per_s: float,
    hop_ms: float = HOP_MS,
    claimed_ms: float | None = 5.0,
    measured_hop_ms: float | None = None,
) -> tuple[CrossingRow, ...]:
    """Rows for ``figures.crossing``: what one token sends over the link, and what a layer's weights would take.

    Args:
        header: the model's.
        split: with layers on a device.
        link_bytes_per_s: of the link, one way.
        hop_ms: what each crossing costs besides its bytes.
        claimed_ms: time per layer that someone claims; None leaves the row out.
        measured_hop_ms: of the loopback device.
    """

    def over(size: int) -> float:
        return size / link_bytes_per_s * 1000

    hidden = 4 * int(header.key("embedding_length", 0))
    largest = max(sum(t.nbytes for t in header.tensors if layer_of(t.name) == i) for i in range(header.n_layer))
    rows = [CrossingRow("per layer, as the articles claim", claimed_ms, "claimed")] if claimed_ms is not None else []
    rows += [
        CrossingRow("one hop with starting work", over(hidden) + hop_ms, "predicted", hidden),
        CrossingRow("of which: moving the bytes", over(hidden), "predicted", hidden),
        CrossingRow(
            f"all {split.hops} hops of a token",
            over(split.hop_bytes) + split.hops * hop_ms,
            "predicted",
            split.hop_bytes,
        ),
    ]
    if measured_hop_ms is not None:
        rows.append(CrossingRow("one hop to the loopback device", measured_hop_ms, "measured", hidden))
    rows.append(CrossingRow("a layer's weights, if they crossed", over(largest), "predicted", largest))
    return tuple(rows)
