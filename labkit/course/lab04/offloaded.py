"""Which layers are on a device, as the bytes there show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.experiments.run import Run
from labkit.gguf import Header
from labkit.predict.offload import offload
from labkit.predict.placement import place_tensors
from labkit.settings import LOOPBACK, Settings
from labkit.units import MiB

OUTPUT_FIRST = "the output layer, then the last blocks"


@dataclass(frozen=True)
class Offloaded:
    """Where a model's parts are, as llama.cpp reports its buffers, or as predicted where there is no device.

    Attributes:
        where: the device's name; empty if this is predicted.
        asked: n_gpu_layers.
        n_layer: blocks of the model.
        host_weights_bytes: of a mapped file, the span that stays on the host.
        grown_bytes: how much generating changed the memory of the device's process; None where that is not known.
        decode_ms: each token's time; empty if this is predicted.
    """

    model: str
    where: str
    asked: int
    n_layer: int
    device_weights_bytes: int
    device_kv_bytes: int
    host_weights_bytes: int
    host_kv_bytes: int
    grown_bytes: int | None = None
    decode_ms: tuple[float, ...] = ()

    @classmethod
    def of(cls, run: Run, n_layer: int) -> Offloaded:
        """What a run showed."""

        def held(kind: str, here: bool) -> int:
            return sum(b.bytes for b in run.buffers if b.kind == kind and _is_device(b.device, run.settings) == here)

        before, after = (getattr(run.phase(name), "device_rss_anon_bytes", None) for name in ("prefill", "decode"))
        return cls(
            model=run.model.name,
            where=f"the {name} device" if (name := run.settings.devices[0]) == LOOPBACK else f"the device {name}",
            asked=run.settings.n_gpu_layers,
            n_layer=n_layer,
            device_weights_bytes=held("model", True),
            device_kv_bytes=held("kv", True),
            host_weights_bytes=held("model", False),
            host_kv_bytes=held("kv", False),
            grown_bytes=None if before is None or after is None else after - before,
            decode_ms=run.timings.decode_ms,
        )

    @classmethod
    def predicted(cls, model: str, header: Header, settings: Settings) -> Offloaded:
        """What the kit predicts for a device that is not here."""
        split = offload(header, settings)
        (there,) = split.devices
        return cls(
            model=model,
            where="",
            asked=settings.n_gpu_layers,
            n_layer=header.n_layer,
            device_weights_bytes=there.weights_bytes,
            device_kv_bytes=there.kv_bytes,
            host_weights_bytes=split.host.mapped_bytes,
            host_kv_bytes=split.host.kv_bytes,
        )


def orders(header: Header, n: int) -> dict[str, int]:
    """Bytes of weights on a device after ``n`` layers moved there, by the order in which they might move."""
    host, there = (0,), (1,)
    stay = header.n_layer - n
    sides = {
        OUTPUT_FIRST: host * (stay + 1) + there * n,
        "the last blocks": host * stay + there * n + host,
        "the first blocks": there * n + host * (stay + 1),
        "the output layer, then the first blocks": there * (n - 1) + host * (stay + 1) + there,
    }
    return {order: weights_on_device(header, where) for order, where in sides.items()}


def weights_on_device(header: Header, sides: Sequence[int]) -> int:
    """Bytes of the weights on side 1."""
    placed = place_tensors(header, sides, (), n_sides=2)[1]
    return sum({one.tensor.name: one.tensor.nbytes for one in placed}.values())


def order_of(header: Header, seen: Offloaded) -> str | None:
    """In which order the layers moved; None if no order explains the bytes on the device, or more than one does."""
    off = {order: abs(size - seen.device_weights_bytes) for order, size in orders(header, seen.asked).items()}
    best, second = sorted(off, key=lambda order: off[order])[:2]
    # A backend may pad rows, and llama.cpp's log rounds to 0.01 MiB.
    tolerance = 0.001 * seen.device_weights_bytes + 0.01 * MiB
    return best if off[best] <= tolerance < off[second] else None


def _is_device(name: str, settings: Settings) -> bool:
    """Whether a buffer of that name is on a device; page-locked host memory has a device's name too, with ``_Host``."""
    return any(name.startswith(one) for one in settings.devices) and not name.endswith("_Host")
