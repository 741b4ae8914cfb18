"""Will it fit, on which side, and how fast at best: a plan for a machine, which need not be this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit import gguf, models, predict
from labkit.fitting import FITS, Choice, choose
from labkit.flags import flags
from labkit.gguf import Header
from labkit.hardware import Hardware
from labkit.predict.offload import Side, Split, offload
from labkit.predict.offload_speed import Speeds, offload_ms
from labkit.settings import Settings
from labkit.tuner import MARGIN_BYTES, experts_regex
from labkit.units import fmt_bytes, parse_bytes

HOP_MS = 0.02  # of a graphics card: tens of microseconds to start work there and wait for it; not measured here


@dataclass(frozen=True)
class Advice:
    """One change. ``saves_bytes`` on both sides together, with the same layers offloaded; ``then`` what comes of it."""

    change: str
    saves_bytes: int
    cost: str
    then: str


@dataclass(frozen=True)
class Plan:
    """An answer.

    Attributes:
        verdict: ``fits``; ``pages``: it runs, but the file does not stay in memory and is read again for every token;
            ``killed``: the host needs more that the kernel cannot take back than it may use, without swap.
        reason: one sentence: what decided.
        assumptions: what the answer holds for.
        split: bytes on both sides.
        n_gpu_layers: the most that the device holds; 0 without one.
        n_cpu_moe: of a mixture of experts, how many blocks keep their experts on the host.
        decode_ms: least time per token, at the full bandwidth of each side; None where a bandwidth is not known.
        margin_bytes: of the host's memory, left with all of the file in it; negative if it does not fit.
        advice: changes that help, largest first; empty where everything fits.
        flags: how to start it so, see ``flags``.
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
        """Whether it runs at memory speed."""
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
            "hops": self.split.hops,
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
            said = ", ".join(f"{name} {fmt_bytes(size)}" for name, size in parts.items() if size)
            lines.append(f"{side.name} {fmt_bytes(side.total_bytes)}: {said or 'nothing'}")
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

    The layers that leave are the most that fit: see ``tune``, and ``fitting.choose`` for mixtures of experts.

    Args:
        model: a path, ``smollm2``, ``SHAPE:QUANT``, or a header that was read.
        ram: what the process may use of the host's memory.
        vram: the device's memory; by default that of ``device``.
        device: for its bandwidth and link. One that shares memory with the host has ``ram`` in common with it.
        settings: how it is run; ``n_gpu_layers`` is chosen here.
        margin: to leave free on the device.
        host_bytes_per_s: bandwidth of the host's memory; by default that of ``device`` where they share it.
        n_past: tokens in the context when the time per token is told.
        cpu_features: see ``predict.memory``.

    Raises:
        GGUFError, ModelError: there is no such model, or it cannot be read.
        ValueError: a size is not one, or the margin leaves nothing of the device.
    """
    path = "model.gguf" if isinstance(model, Header) else models.find(model).path
    header = model if isinstance(model, Header) else gguf.read_header(path)
    shared = device is not None and device.kind in ("unified", "integrated")
    ram_bytes = parse_bytes(ram)
    if vram is None and device is not None and device.kind != "memory":
        vram = device.gpu_bytes(ram_bytes)
    features = frozenset(cpu_features or ())
    # Page-locked host memory comes with every discrete card's backend but not with Metal's.
    pinned_host = vram is not None and not (device is not None and device.name.startswith("apple"))
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
            cpu_features=features,
            pinned_host=pinned_host,
        )

    base = replace(settings or Settings(), n_gpu_layers=0)
    chosen = chosen_for(base)
    used = replace(base, n_gpu_layers=chosen.n_gpu_layers)
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
        "hop_ms": 0.0 if shared or vram is None else HOP_MS,
        "prompt_cache": "llama-server keeps up to 8 GiB of prompts in RAM besides, unless started with -cram 0",
    }
    return Plan(
        verdict=chosen.verdict,
        reason=chosen.reason,
        assumptions=assumptions,
        split=chosen.split,
        n_gpu_layers=chosen.n_gpu_layers,
        n_cpu_moe=chosen.n_cpu_moe,
        decode_ms=_decode_ms(chosen, device, host_bytes_per_s, assumptions, n_past),
        margin_bytes=ram_bytes - chosen.needed_bytes,
        advice=_advice(header, base, chosen, chosen_for),
        flags=flags(path, used, n_layer=header.n_layer, n_cpu_moe=chosen.n_cpu_moe),
    )


def _decode_ms(
    chosen: Choice, device: Hardware | None, host: float | None, assumptions: dict[str, Any], n_past: int
) -> float | None:
    if chosen.verdict != FITS or host is None or (chosen.n_gpu_layers and device is None):
        return None
    if device is None or not chosen.n_gpu_layers:
        return offload_ms(chosen.split, Speeds(host, host), n_past=n_past)
    link = float(device.link_bytes_per_s or "inf")
    speeds = Speeds(host, float(device.bandwidth_bytes_per_s), link, assumptions["hop_ms"])
    return offload_ms(chosen.split, speeds, n_past=n_past)


def _advice(
    header: Header, base: Settings, chosen: Choice, chosen_for: Callable[[Settings], Choice]
) -> tuple[Advice, ...]:
    if chosen.done:
        return ()
    cost_of = {
        "repack=False": "prompts on the CPU take another time: measure it",
        "load_mode=mmap": "pages of the file can be dropped",
        "type_k=q8_0, type_v=q8_0": "slightly less exact, needs flash attention",
        f"n_ctx={base.n_ctx // 2}": "half the context",
        f"n_ubatch={base.n_ubatch // 4}": "slower prompts",
    }
    changed = {
        "repack=False": replace(base, repack=False),
        "load_mode=mmap": replace(base, load_mode="mmap"),
        f"n_ctx={base.n_ctx // 2}": replace(base, n_ctx=max(1, base.n_ctx // 2)),
        f"n_ubatch={base.n_ubatch // 4}": replace(base, n_ubatch=max(1, base.n_ubatch // 4)),
    }
    if base.flash_attn != "off" and base.type_k in ("f16", "f32", "bf16"):
        changed["type_k=q8_0, type_v=q8_0"] = replace(base, type_k="q8_0", type_v="q8_0")

    found = []
    before = _pinned(chosen.split)
    for change, settings in changed.items():
        if settings == base:
            continue
        then = chosen_for(settings)
        # The same layers, so that the saving is the change's own.
        same = offload(
            header,
            replace(settings, n_gpu_layers=chosen.n_gpu_layers),
            on_cpu=experts_regex(chosen.n_cpu_moe),
        )
        saves = before - _pinned(same)
        if change == "repack=False":
            saves = chosen.split.host.repack_bytes
        elif change == "load_mode=mmap" and base.load_mode == "mmap+mlock":
            saves = chosen.split.host.mapped_bytes
        if saves > 0:
            outcome = then.verdict + (f", n_gpu_layers {then.n_gpu_layers}" if then.n_gpu_layers else "")
            outcome += f", n_cpu_moe {then.n_cpu_moe}" if then.n_cpu_moe else ""
            found.append(Advice(change, saves, cost_of[change], outcome))
    return tuple(sorted(found, key=lambda one: -one.saves_bytes))


def _pinned(split: Split) -> int:
    """What changes of settings change; repacking is looked at apart, since it depends on the CPU."""
    return split.host.pinned_bytes - split.host.repack_bytes + sum(side.pinned_bytes for side in split.devices)


def _sizes(side: Side) -> dict[str, int]:
    """A side's fields that are memory, and their sum."""
    read = ("name", "read_bytes", "cache_token_bytes")
    return {
        **{name: value for name, value in asdict(side).items() if name not in read},
        "total_bytes": side.total_bytes,
    }
