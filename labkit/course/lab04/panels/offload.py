"""A panel around offload: which layers leave, and what both sides hold then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ipywidgets as widgets

from labkit import gguf, predict
from labkit.course import figures
from labkit.course.panelkit import WIDE, draw, image, refuse, say, set_range
from labkit.models.forge import header_bytes
from labkit.planning.device_curves import Named, room_of, speeds_of
from labkit.predict import Speeds, Split, hardware
from labkit.settings import Settings, SettingsError
from labkit.units import GiB, fmt_bytes, fmt_ms, parse_bytes

MODELS = (
    "llama-2-13b:Q4_K_M",
    "llama-2-7b:Q4_K_M",
    "llama-3.1-8b:Q4_K_M",
    "llama-3.2-1b:Q4_K_M",
    "qwen3-30b-a3b:Q4_K_M",
    "llama-2-70b:Q4_K_M",
)
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
CONTEXTS = tuple(512 << n for n in range(7))
CACHES = ("f16", "q8_0", "q4_0")
_HOST = "ddr4-3200"


@lru_cache
def header(model: str) -> gguf.Header:
    """Of a shape and file type such as ``llama-2-13b:Q4_K_M``."""
    shape, _, quant = model.partition(":")
    return gguf.read_header(header_bytes(shape, quant))


@lru_cache
def most_bytes(model: str) -> int:
    """The most that one side holds with up to 8,192 tokens of context, for an axis that no control moves."""
    known = header(model)
    chosen = Settings(n_ctx=min(8192, known.key("context_length", 8192)))
    ends = [predict.offload(known, replace(chosen, n_gpu_layers=n)) for n in (0, -1)]
    return max(max(split.host.total_bytes, split.devices[0].total_bytes) for split in ends)


def wide(control: Any, width: str) -> Any:
    """The control, in a width of its own."""
    control.layout.width = width
    return control


class Offload:
    """Choose how many layers leave, and see which they are and what both sides hold. Nothing is run.

    Args:
        models: names such as ``llama-2-13b:Q4_K_M``; no file is needed.
        devices: names from ``hardware.names()``, those with shared memory with their RAM.
        host_bytes_per_s: bandwidth of the host's memory beside a discrete device; by default two channels of DDR4-3200.
        ram: of the host beside a discrete device.
    """

    def __init__(
        self,
        models: Sequence[str] = MODELS,
        *,
        devices: Sequence[Named] = DEVICES,
        host_bytes_per_s: float | None = None,
        ram: int | str = "16GiB",
    ) -> None:
        self._host = host_bytes_per_s or float(hardware.get(_HOST).bandwidth_bytes_per_s)
        self._ram = parse_bytes(ram)
        named = [(each, None) if isinstance(each, str) else (each[0], parse_bytes(each[1])) for each in devices]
        self.model = widgets.Dropdown(options=list(models), description="model", style=WIDE)
        self.device = widgets.Dropdown(
            options=[(_title(name, ram), (name, ram)) for name, ram in named], description="device", style=WIDE
        )
        self.n_ctx = widgets.Dropdown(
            options=[(f"{n:,}", n) for n in CONTEXTS], value=4096, description="n_ctx", style=WIDE
        )
        self.cache = widgets.Dropdown(options=list(CACHES), description="cache", style=WIDE)
        self.layers = widgets.IntSlider(
            value=0, min=0, max=self._every, description="n_gpu_layers", continuous_update=False, style=WIDE
        )
        self.kqv = widgets.Checkbox(value=True, description="offload_kqv", indent=False)
        for control, width in ((self.device, "300px"), (self.n_ctx, "130px"), (self.cache, "120px")):
            wide(control, width)
        wide(self.layers, "480px")
        self.image = image()
        self.text = widgets.HTML("")
        self.model.observe(lambda change: self._resize(), names="value")
        for control in (self.device, self.n_ctx, self.cache, self.kqv):
            control.observe(lambda change: self._draw(), names="value")
        self.layers.observe(self._layers_moved, names="value")
        self._draw()
        rows = [[self.model, self.device], [self.layers, self.kqv], [self.n_ctx, self.cache]]
        self.view = widgets.VBox([*(widgets.HBox(row) for row in rows), self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    @property
    def _every(self) -> int:
        return header(self.model.value).n_layer + 1

    def _layers_moved(self, change: Any) -> None:
        self._draw()

    def _resize(self) -> None:
        """Fit the slider to the model, with nothing left."""
        set_range(self.layers, most=self._every, value=0, seen_by=self._layers_moved)
        self._draw()

    def _draw(self) -> None:
        known = header(self.model.value)
        name, ram = self.device.value
        device = hardware.get(name)
        chosen = Settings(
            n_ctx=self.n_ctx.value,
            type_k=self.cache.value,
            type_v=self.cache.value,
            offload_kqv=self.kqv.value,
            n_gpu_layers=self.layers.value,
        )
        try:
            predict.check(known, chosen)
        except SettingsError as error:
            refuse(self.image, self.text, error)
            return
        discrete = device.kind == "discrete"
        split = predict.offload(known, chosen, pinned_host=True)
        room = room_of(device, ram_bytes=ram)
        # The axis depends on the model alone: what the other controls change must not change it too.
        shown = figures.offload_plan(
            split,
            known,
            vram_bytes=room,
            ram_bytes=self._ram if discrete else None,
            top_bytes=int(1.15 * most_bytes(self.model.value)),
        )
        draw(self.image, figures.png(shown))
        speeds = speeds_of(device, host_bytes_per_s=self._host)
        self.text.value = "".join(say(line) for line in self._lines(split, room, speeds, ram))

    def _lines(self, split: Split, room: int, speeds: Speeds, ram: int | None) -> list[str]:
        device, host = split.devices[0].total_bytes, split.host.total_bytes
        both = f"host {_parts(split.host)}; device {_parts(split.devices[0])}"
        side = "less" if device <= room else "more"
        spared = " (1 GiB left free)" if ram is None else ""
        free = f"{fmt_bytes(abs(room - device))} {side} than the device's {fmt_bytes(room)}{spared}"
        # Shared memory holds both sides.
        needed, have = (host, self._ram) if ram is None else (host + device, ram)
        whose = "The host's side takes" if ram is None else "Both sides together take"
        ms = predict.offload_ms(split, speeds)
        if device > room:
            said = "It would not load"
        elif needed > have:
            said = f"{whose} {fmt_bytes(needed)} and the RAM is {fmt_bytes(have)}: it would read from disk or be killed"
        else:
            said = f"At best {fmt_ms(ms)} per token, {1000 / ms:.1f} tokens/s (predicted for this device, not measured)"
        crossed = f"{split.hops} hops, {fmt_bytes(split.hop_bytes)} cross for each token"
        return [
            f"n_gpu_layers {split.n_gpu_layers} of {self._every}: {both}, {free}.",
            f"{said}; {crossed if split.hops else 'nothing crosses'}.",
        ]


def _title(name: str, ram: int | None) -> str:
    device = hardware.get(name)
    size = device.vram_bytes or ram or device.ram_bytes[-1]
    return device.title if f"{size // GiB} GB" in device.title else f"{device.title}, {size // GiB} GiB"


def _parts(side: predict.Side) -> str:
    parts = {
        "mapped": side.mapped_bytes,
        "weights": side.heap_bytes if side.name == "host" else side.weights_bytes,
        "cache": side.kv_bytes + side.recurrent_bytes,
        "buffers": side.compute_bytes + side.output_bytes,
    }
    said = " + ".join(f"{name} {fmt_bytes(size)}" for name, size in parts.items() if size)
    return f"{fmt_bytes(side.total_bytes)} ({said})" if said else "nothing"
