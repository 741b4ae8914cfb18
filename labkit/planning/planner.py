"""Whether a model fits on a machine, which need not be this one; with how many layers on a device; and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from labkit import gguf, predict
from labkit.gguf import Header
from labkit.models import lookup
from labkit.planning.fitting import FITS, Choice, choose, host_ram
from labkit.planning.flags import flags
from labkit.planning.tuner import MARGIN_BYTES, experts_regex
from labkit.predict.hardware import Hardware
from labkit.predict.offload import Side, Split, offload
from labkit.predict.offload_speed import CROSSING_MS, Speeds, offload_ms, speeds_of
from labkit.settings import Settings, SettingsError
from labkit.units import fmt_bytes, parse_bytes


@dataclass(frozen=True)
class Advice:
    """A change that saves memory.

    Attributes:
        change: the settings to change.
        saves_bytes: on both sides together, with the same layers offloaded.
        cost: the drawback.
        then: the verdict and the number of layers with this change.
    """

    change: str
    saves_bytes: int
    cost: str
    then: str


@dataclass(frozen=True)
class Plan:
    """The plan for one model on one machine.

    Attributes:
        verdict: ``fits``; ``pages``: it runs, but the file does not stay in memory and is read again for every token;
            ``killed``: without swap, the memory that the kernel cannot take back exceeds what may be used.
        reason: why, in one sentence.
        assumptions: the machine and the settings that the plan is for.
        split: bytes on both sides.
        n_gpu_layers: the most that fit on the device; 0 without one.
        n_cpu_moe: of a mixture of experts, how many of the first blocks keep their experts on the host.
        decode_ms: least time per token, at the full bandwidth of each side; None where a bandwidth is not known.
        margin_bytes: of the host's memory that stay free with the whole file resident; negative if it does not fit.
        advice: changes that save memory, the largest saving first; empty if everything fits.
        flags: how to start each program with this plan, see ``flags``.
    """

    verdict: str
    reason: str
    assumptions: dict[str, Any]
    split: Split
    n_gpu_layers: int
    n_cpu_moe: int
    decode_ms: float | None
    margin_bytes: int
    advice: tuple[Advice, ...]
    flags: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether it fits, so that no page is read from the disk again."""
        return self.verdict == FITS

    def to_dict(self) -> dict[str, Any]:
        """As ``labkit plan --json`` prints it."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "assumptions": self.assumptions,
            "host": _sizes(self.split.host),
            "device": _sizes(self.split.devices[0]) if self.assumptions["vram_bytes"] else None,
            "n_gpu_layers": self.n_gpu_layers,
            "n_cpu_moe": self.n_cpu_moe,
            "hops": self.split.crossings,
            "decode_ms": self.decode_ms,
            "margin_bytes": self.margin_bytes,
            "advice": [asdict(one) for one in self.advice],
            "flags": self.flags,
        }

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.reason}"]
        sides = [self.split.host, *(self.split.devices if self.assumptions["vram_bytes"] else ())]
        for side in sides:
            parts = {
                "mapped file": side.mapped_bytes,
                "weights": side.heap_bytes if side.name == "host" else side.weights_bytes,
                "repacked": side.repack_bytes,
                "cache": side.kv_bytes + side.recurrent_bytes,
                "compute": side.compute_bytes + side.output_bytes,
            }
            listed = ", ".join(f"{name} {fmt_bytes(size)}" for name, size in parts.items() if size)
            lines.append(f"{side.name} {fmt_bytes(side.total_bytes)}: {listed or 'nothing'}")
        if self.assumptions["vram_bytes"]:
            lines.append(f"n_gpu_layers {self.n_gpu_layers} of {len(self.split.layers_on) + 1}")
        if self.decode_ms is not None:
            lines.append(f"at least {self.decode_ms:.1f} ms per token")
        lines += [f"- {a.change}: saves {fmt_bytes(a.saves_bytes)} ({a.cost}); then {a.then}" for a in self.advice]
        return "\n".join([*lines, *(f"{name}: {text}" for name, text in self.flags.items())])


def plan(
    model: str | Path | Header,
    *,
    ram: int | str,
    vram: int | str | None = None,
    device: Hardware | None = None,
    settings: Settings | None = None,
    margin: int | str = MARGIN_BYTES,
    host_bytes_per_s: float | None = None,
    n_past: int = 0,
    cpu_features: Iterable[str] | None = None,
) -> Plan:
    """Plan a model for a host with ``ram`` bytes to use and, if ``vram`` or ``device`` is given, one device.

    As many layers as fit go to the device: see ``tuner.tune``, and ``fitting.choose`` for mixtures of experts.

    Args:
        model: a path, ``smollm2``, ``SHAPE:QUANT``, or a header that was read.
        ram: bytes of the host's memory that the process may use.
        vram: the device's memory; by default that of ``device``.
        device: for its bandwidth and link. If it shares memory with the host, ``ram`` is for both sides.
        settings: how it is run, but for ``n_gpu_layers``, which is chosen here.
        margin: memory to leave free on the device.
        host_bytes_per_s: bandwidth of the host's memory; by default that of ``device`` where they share it.
        n_past: tokens in the context for which the time per token is computed.
        cpu_features: see ``predict.memory``.

    Raises:
        GGUFError, ModelError: there is no such model, or it cannot be read.
        SettingsError: the model cannot be run with these settings, see ``predict.check``.
        ValueError: a size is not one, or the margin leaves nothing of the device.
    """
    path = "model.gguf" if isinstance(model, Header) else lookup.find(model).path
    header = model if isinstance(model, Header) else gguf.read_header(path)
    base = replace(settings or Settings(), n_gpu_layers=0)
    predict.check(header, base)
    shared = device is not None and device.kind in ("unified", "integrated")
    ram_bytes = parse_bytes(ram)
    if vram is None and device is not None and device.kind != "memory":
        vram = device.gpu_bytes(ram_bytes)
    features = frozenset(cpu_features or ())
    # Metal uses the pages of the mapped file; every other card's backend offers page-locked host memory.
    maps = device is not None and device.name.startswith("apple")
    pinned_host = vram is not None and not maps
    if device is not None and device.kind != "discrete":
        host_bytes_per_s = host_bytes_per_s or float(device.bandwidth_bytes_per_s)

    def chosen_for(one: Settings) -> Choice:
        return choose(
            header,
            one,
            ram=ram_bytes,
            vram=None if vram is None else parse_bytes(vram),
            margin=parse_bytes(margin),
            shared=shared,
            maps=maps,
            cpu_features=features,
            pinned_host=pinned_host,
        )

    chosen = chosen_for(base)
    used = replace(base, n_gpu_layers=chosen.n_gpu_layers)

    def pinned_for(one: Settings) -> int:
        """Bytes on both sides with the chosen layers on the device, so that only the change itself counts."""
        split = offload(
            header,
            replace(one, n_gpu_layers=chosen.n_gpu_layers),
            on_cpu=experts_regex(chosen.n_cpu_moe),
            cpu_features=features,
            pinned_host=pinned_host,
        )
        pinned, _ = host_ram(header, one, split, shared=shared, maps=maps)
        return pinned + (0 if shared else sum(side.pinned_bytes for side in split.devices))

    assumptions = {
        "ram_bytes": ram_bytes,
        "vram_bytes": None if vram is None else parse_bytes(vram),
        "device_margin_bytes": None if vram is None else parse_bytes(margin),
        "device": device.name if device else None,
        "memory_shared": shared,
        "swap": False,
        "repacked": base.repack and not pinned_host and bool(features),
        "process_bytes": predict.PYTHON_ANON_BYTES,
        "n_ctx": base.n_ctx,
        "n_seq_max": base.n_seq_max,
        "type_k": base.type_k,
        "type_v": base.type_v,
        "flash_attn": base.flash_attn,
        "n_past": n_past,
        "compute_exact": chosen.split.compute_exact,
        "hop_ms": 0.0 if shared or vram is None else CROSSING_MS,
        "prompt_cache": "llama-server keeps up to 8 GiB of prompts in RAM besides, unless started with -cram 0",
    }
    return Plan(
        verdict=chosen.verdict,
        reason=chosen.reason,
        assumptions=assumptions,
        split=chosen.split,
        n_gpu_layers=chosen.n_gpu_layers,
        n_cpu_moe=chosen.n_cpu_moe,
        decode_ms=_decode_ms(chosen, device, host_bytes_per_s, n_past),
        margin_bytes=ram_bytes - chosen.needed_bytes,
        advice=() if chosen.done else _advice(header, base, chosen_for, pinned_for),
        flags=flags(path, used, n_layer=header.n_layer, n_cpu_moe=chosen.n_cpu_moe),
    )


def _decode_ms(chosen: Choice, device: Hardware | None, host: float | None, n_past: int) -> float | None:
    """Least milliseconds per token; None where it does not fit or a bandwidth is not known."""
    if chosen.verdict != FITS or host is None:
        return None
    if not chosen.n_gpu_layers:
        return offload_ms(chosen.split, Speeds(host, host), n_past=n_past)
    if device is None or device.kind == "memory":  # only the size of the card is known, not its bandwidth
        return None
    speeds = replace(speeds_of(device, host_bytes_per_s=host), host_bytes_per_s=host)
    return offload_ms(chosen.split, speeds, n_past=n_past)


def _advice(
    header: Header,
    base: Settings,
    chosen_for: Callable[[Settings], Choice],
    pinned_for: Callable[[Settings], int],
) -> tuple[Advice, ...]:
    """Changes of the settings that save memory, the largest saving first."""
    half, quarter = max(base.n_seq_max, base.n_ctx // 2), max(1, base.n_ubatch // 4)
    changes = [
        ("repack=False", replace(base, repack=False), "prompts on the CPU may get faster or slower: measure it"),
        ("load_mode=mmap", replace(base, load_mode="mmap"), "pages of the file can be dropped"),
        (f"n_ctx={half}", replace(base, n_ctx=half), "a shorter context"),
        (f"n_ubatch={quarter}", replace(base, n_ubatch=quarter), "slower prompts"),
    ]
    if base.flash_attn != "off" and base.type_k in ("f16", "f32", "bf16"):
        smaller = replace(base, type_k="q8_0", type_v="q8_0")
        changes.append(("type_k=q8_0, type_v=q8_0", smaller, "slightly less exact, needs flash attention"))

    found = []
    before = pinned_for(base)
    for change, settings, cost in changes:
        try:
            predict.check(header, settings)
        except SettingsError:
            continue
        saves = before - pinned_for(settings)
        if saves > 0:
            then = chosen_for(settings)
            outcome = then.verdict + (f", n_gpu_layers {then.n_gpu_layers}" if then.n_gpu_layers else "")
            outcome += f", n_cpu_moe {then.n_cpu_moe}" if then.n_cpu_moe else ""
            found.append(Advice(change, saves, cost, outcome))
    return tuple(sorted(found, key=lambda one: -one.saves_bytes))


def _sizes(side: Side) -> dict[str, int]:
    """The sizes of one side by field, and their sum."""
    names = [field.name for field in fields(side) if field.name.endswith("_bytes") and field.name != "read_bytes"]
    return {**{name: getattr(side, name) for name in names}, "total_bytes": side.total_bytes}
