"""A panel that shows which layers are offloaded, and what host and device hold then."""

from __future__ import annotations

from collections.abc import Sequence

from labkit import predict
from labkit.course import figures
from labkit.course.lab04.panels.models import CONTEXTS, MODELS, most_bytes
from labkit.course.panelkit import CACHES, Panel, check, choice, less_or_more, slider, sum_of
from labkit.models import lookup
from labkit.planning.device_curves import Named, usable_bytes
from labkit.predict import Speeds, Split, hardware
from labkit.predict.offload_speed import speeds_of
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes, fmt_ms, parse_bytes

DEVICES: tuple[Named, ...] = (
    "rtx-4060",
    "rtx-3060-12gb",
    "rtx-4060-ti-16gb",
    "rtx-4090",
    "rtx-5090",
    "rx-7900-xtx",
    "arc-b580",
    "h100-sxm",
    ("apple-m2", "16GiB"),
    ("apple-m4-pro", "24GiB"),
    ("apple-m2-ultra", "192GiB"),
    ("strix-halo", "128GiB"),
    ("radeon-780m", "32GiB"),
    ("jetson-orin-nano-super", "8GiB"),
)
HOST = "ddr4-3200"


class Offload(Panel):
    """Choose how many layers are offloaded, and see which they are and what host and device hold. Nothing is run.

    Args:
        models: names such as ``llama-2-13b:Q4_K_M``; no file is needed.
        devices: names from ``hardware.names()``; those with shared memory with the size of their RAM.
        host_bytes_per_s: bandwidth of the host's memory beside a discrete device; by default two channels of DDR4-3200.
        ram: of the host beside a discrete device, in bytes or as ``"16GiB"``.
    """

    def __init__(
        self,
        models: Sequence[str] = MODELS,
        *,
        devices: Sequence[Named] = DEVICES,
        host_bytes_per_s: float | None = None,
        ram: int | str = "16GiB",
    ) -> None:
        self._host = host_bytes_per_s or float(hardware.get(HOST).bandwidth_bytes_per_s)
        self._ram = parse_bytes(ram)
        named = [(each, None) if isinstance(each, str) else (each[0], parse_bytes(each[1])) for each in devices]
        self.model = choice("model", models)
        self.device = choice("device", [(_title(name, ram), (name, ram)) for name, ram in named], width="300px")
        self.layers = slider("n_gpu_layers", most=self._n_layers)
        self.kqv = check("offload_kqv", value=True)
        self.n_ctx = choice("n_ctx", CONTEXTS, value=4096, width="130px")
        self.cache = choice("cache", CACHES, width="120px")
        super().__init__([self.model, self.device], [self.layers, self.kqv], [self.n_ctx, self.cache])
        self.on_change(self._choose_model, self.model)
        self.on_change(self.redraw, self.device, self.layers, self.kqv, self.n_ctx, self.cache)
        self.redraw()

    @property
    def _n_layers(self) -> int:
        """Layers that can be offloaded: all blocks and the output layer."""
        return lookup.header(self.model.value).n_layer + 1

    def _choose_model(self) -> None:
        """Let the slider go up to the model's number of layers, and offload none."""
        self.fit(self.layers, most=self._n_layers, value=0)
        self.redraw()

    def draw(self) -> None:
        known = lookup.header(self.model.value)
        name, ram = self.device.value
        device = hardware.get(name)
        chosen = Settings(
            n_ctx=self.n_ctx.value,
            type_k=self.cache.value,
            type_v=self.cache.value,
            offload_kqv=self.kqv.value,
            n_gpu_layers=self.layers.value,
        )
        predict.check(known, chosen)
        split = predict.offload(known, chosen, pinned_host=True)
        room = usable_bytes(device, ram_bytes=ram)
        # The axis depends on the model alone, so that the picture shows what the other controls change.
        figure = figures.offload_plan(
            split,
            known,
            vram_bytes=room,
            ram_bytes=self._ram if device.kind == "discrete" else None,
            top_bytes=int(1.15 * most_bytes(self.model.value)),
        )
        self.show(figure)
        speeds = speeds_of(device, host_bytes_per_s=self._host)
        self.write(self._sizes(split, room, shared=ram is not None), self._speed(split, room, speeds, ram))

    def _sizes(self, split: Split, room: int, *, shared: bool) -> str:
        """What host and device hold, and how far that is from the device's memory."""
        host, device = split.host, split.devices[0]
        free = "" if shared else " (1 GiB left free)"
        return (
            f"n_gpu_layers {split.n_gpu_layers} of {self._n_layers}: host {_parts(host)}; device {_parts(device)}, "
            f"{less_or_more(device.total_bytes, room)} than the device's {fmt_bytes(room)}{free}."
        )

    def _speed(self, split: Split, room: int, speeds: Speeds, ram: int | None) -> str:
        """Whether this runs, how fast at best, and what crosses between host and device for each token.

        Args:
            ram: of a device that shares its memory with the host; None for a discrete one.
        """
        host, device = split.host.total_bytes, split.devices[0].total_bytes
        needed, have = (host, self._ram) if ram is None else (host + device, ram)
        ms = predict.offload_ms(split, speeds)
        if device > room:
            said = "The device's memory is too small, so the model does not load"
        elif needed > have:
            whose = "The host needs" if ram is None else "Host and device together need"
            said = (
                f"{whose} {fmt_bytes(needed)} and the RAM is {fmt_bytes(have)}: the model reads weights from the disk "
                "again and again, or is killed"
            )
        else:
            said = f"At best {fmt_ms(ms)} per token, {1000 / ms:.1f} tokens/s (predicted for this device, not measured)"
        crossed = f"{split.crossings} crossings with {fmt_bytes(split.crossing_bytes)} per token"
        return f"{said}; {crossed if split.crossings else 'nothing crosses between host and device'}."


def _title(name: str, ram: int | None) -> str:
    """A device's name with the size of its memory."""
    device = hardware.get(name)
    size = device.vram_bytes or ram or device.ram_bytes[-1]
    return device.title if f"{size // GiB} GB" in device.title else f"{device.title}, {size // GiB} GiB"


def _parts(side: predict.Side) -> str:
    """What one side holds: the sum, and its parts."""
    parts = {
        "mapped": side.mapped_bytes,
        "weights": side.heap_bytes if side.name == "host" else side.weights_bytes,
        "cache": side.kv_bytes + side.recurrent_bytes,
        "buffers": side.compute_bytes + side.output_bytes,
    }
    return f"{fmt_bytes(side.total_bytes)} ({sum_of(parts)})" if side.total_bytes else "nothing"
