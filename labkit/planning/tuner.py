"""How many layers fit on a device: the largest n_gpu_layers, found from predicted bytes on both sides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from labkit import predict
from labkit.gguf import Header
from labkit.models import lookup
from labkit.predict.hparams import number
from labkit.predict.offload import Split, offload
from labkit.predict.placement import EXPERTS
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes, parse_bytes

MARGIN_BYTES = GiB
"""Left free by default for what no buffer shows, such as a driver's own memory: llama.cpp's --fit-target."""


@dataclass(frozen=True)
class Tuned:
    """What fits on a device.

    Attributes:
        n_gpu_layers: the largest number that fits, the output layer counted; n_layer + 1 is everything.
        n_cpu_moe: of a mixture of experts, how many of the first blocks keep their experts on the host.
        split: both sides with these numbers.
        fits: whether the device holds its side, and the host's memory, if a limit was given, the other.
        reason: why, in one sentence.
        tried: each n_gpu_layers (or n_cpu_moe) that was computed, with the device's bytes.
    """

    n_gpu_layers: int
    n_cpu_moe: int
    split: Split
    fits: bool
    reason: str
    tried: tuple[tuple[int, int], ...]


def tune(
    model: str | Path | Header,
    *,
    vram: int | str,
    settings: Settings | None = None,
    margin: int | str = MARGIN_BYTES,
    ram: int | str | None = None,
    experts_on_cpu: bool = False,
    cpu_features: Iterable[str] | None = None,
    pinned_host: bool = False,
) -> Tuned:
    """The largest ``n_gpu_layers`` with which the device's side fits in ``vram`` less ``margin``.

    The device's side is its weights, with a copy of a tied embedding as the output layer; the cache of its layers,
    unless ``offload_kqv`` is off; and its compute buffer.

    Args:
        model: a path, ``smollm2``, ``SHAPE:QUANT``, or a header that was read.
        vram: the device's memory.
        settings: how it is run, but for ``n_gpu_layers``.
        margin: memory to leave free on the device.
        ram: the host's memory limit; None does not check the host.
        experts_on_cpu: of a mixture of experts, offload all layers and search the smallest ``n_cpu_moe`` instead.
        cpu_features: see ``predict.memory``.
        pinned_host: see ``offload``.

    Raises:
        GGUFError, ModelError: there is no such model, or it cannot be read.
        ValueError: a size is not one, the margin leaves nothing, or there are no experts.
    """
    header = model if isinstance(model, Header) else lookup.header(model)
    base = settings or Settings()
    total, spare = parse_bytes(vram), parse_bytes(margin)
    usable = total - spare
    if usable <= 0:
        raise ValueError(f"a margin of {fmt_bytes(spare)} leaves nothing of {fmt_bytes(total)}: give a smaller one.")
    n_layer, n_experts = header.n_layer, number(header, "expert_count")
    if experts_on_cpu and not n_experts:
        raise ValueError("this model has no experts to keep on the CPU: leave experts_on_cpu out.")

    def split(n_gpu_layers: int, n_cpu_moe: int) -> Split:
        return offload(
            header,
            replace(base, n_gpu_layers=n_gpu_layers),
            on_cpu=experts_regex(n_cpu_moe),
            cpu_features=cpu_features,
            pinned_host=pinned_host,
        )

    # In an order in which the device's bytes grow, so that the last that fits is found by bisection.
    choices = [(n, 0) for n in range(n_layer + 2)]
    if experts_on_cpu:
        choices = [(n_layer + 1, n) for n in range(n_layer, -1, -1)]
    splits: dict[int, Split] = {}

    def size(i: int) -> int:
        if i not in splits:
            splits[i] = split(*choices[i])
        return splits[i].devices[0].total_bytes

    best = bisect_right(range(len(choices)), usable, key=size) - 1
    fitting = best >= 0
    best = max(best, 0)
    size(best)
    chosen, (n_gpu_layers, n_cpu_moe) = splits[best], choices[best]
    left = f"{fmt_bytes(usable)} ({fmt_bytes(total)} less {fmt_bytes(spare)} to spare)"
    if not fitting:
        reason = f"the device would need {fmt_bytes(size(0))} even with all experts on the host, and has {left}."
    elif best == 0 and not experts_on_cpu:
        reason = f"no layer fits: the output layer alone needs {fmt_bytes(size(1))} on the device, which has {left}."
    elif best == len(choices) - 1:
        reason = f"everything fits: {fmt_bytes(size(best))} of {left}."
    else:
        more = "the experts of one more layer" if experts_on_cpu else "one more layer"
        reason = f"it takes {fmt_bytes(size(best))} of {left}; {more} would make it {fmt_bytes(size(best + 1))}."
    needed = chosen.host.pinned_bytes + predict.PYTHON_ANON_BYTES
    host_fits = ram is None or needed <= parse_bytes(ram)
    if ram is not None and not host_fits:
        reason = (
            f"the host needs {fmt_bytes(needed)} that the kernel cannot take back, and may use "
            f"{fmt_bytes(parse_bytes(ram))}; on the device, {reason}"
        )
    tried = tuple((choices[i][1 if experts_on_cpu else 0], size(i)) for i in sorted(splits))
    return Tuned(n_gpu_layers, n_cpu_moe, chosen, fitting and host_fits, reason, tried)


def experts_regex(n_cpu_moe: int) -> tuple[str, ...]:
    """The regular expressions of ``--n-cpu-moe``: the experts' weights of the first blocks (common/arg.cpp)."""
    return tuple(rf"blk\.{i}{EXPERTS}" for i in range(n_cpu_moe))
