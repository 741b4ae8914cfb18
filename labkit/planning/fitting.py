"""Whether a model fits: the layers on a device, and whether the host's memory holds the others."""

from __future__ import annotations

from dataclasses import dataclass

from labkit import predict
from labkit.gguf import Header
from labkit.planning.tuner import Tuned, tune
from labkit.predict.hparams import number
from labkit.predict.offload import Split, offload
from labkit.settings import Settings
from labkit.units import fmt_bytes

FITS, PAGES, KILLED = "fits", "pages", "killed"


@dataclass(frozen=True)
class Choice:
    """The chosen number of layers, and whether the model fits then.

    Attributes:
        verdict: see ``planner.Plan``.
        reason: why, in one sentence.
        split: bytes on both sides.
        n_gpu_layers, n_cpu_moe: see ``tuner.Tuned``.
        needed_bytes: of the host's memory, with all of the mapped file resident.
        vram_bytes: memory of the device; None without one.
    """

    verdict: str
    reason: str
    split: Split
    n_gpu_layers: int
    n_cpu_moe: int
    needed_bytes: int
    vram_bytes: int | None

    @property
    def done(self) -> bool:
        """Whether no change could help: it fits, and if there is a device all layers are on it."""
        all_offloaded = self.n_gpu_layers > len(self.split.layers_on) and not self.n_cpu_moe
        return self.verdict == FITS and (self.vram_bytes is None or all_offloaded)


def choose(
    header: Header,
    settings: Settings,
    *,
    ram: int,
    vram: int | None,
    margin: int,
    shared: bool,
    maps: bool,
    cpu_features: frozenset[str],
    pinned_host: bool,
) -> Choice:
    """Offload as many layers as fit on the device, and check whether the others fit on the host.

    A mixture of experts that does not fit as a whole is also tried with all layers on the device and some experts on
    the host. The way with which a token reads less from the host's memory is chosen.

    Args:
        header: the model's.
        settings: how it is run.
        ram: bytes the process may use of the host's memory.
        vram: bytes of the device's memory; None without one.
        margin: bytes of it to leave free.
        shared: whether the device's memory is the host's.
        maps: see ``host_ram``.
        cpu_features: see ``predict.memory``.
        pinned_host: see ``offload``.
    """
    n_gpu_layers = n_cpu_moe = 0
    on_device = ""
    if vram is None:
        split = offload(header, settings, cpu_features=cpu_features)
    else:

        def tuned(experts_on_cpu: bool) -> Tuned:
            return tune(
                header,
                vram=vram,
                settings=settings,
                margin=0 if shared else margin,
                experts_on_cpu=experts_on_cpu,
                cpu_features=cpu_features,
                pinned_host=pinned_host,
            )

        best = tuned(False)
        if number(header, "expert_count") and best.n_gpu_layers <= header.n_layer:
            other = tuned(True)
            if other.fits and other.split.host.read_bytes < best.split.host.read_bytes:
                best = other
        split, n_gpu_layers, n_cpu_moe = best.split, best.n_gpu_layers, best.n_cpu_moe
        on_device = f"; on the device, {best.reason}"
    pinned, mapped = host_ram(header, settings, split, shared=shared, maps=maps)
    pinned += predict.PYTHON_ANON_BYTES
    have = f"{fmt_bytes(ram)} may be used"
    if pinned > ram:
        verdict, why = KILLED, f"{fmt_bytes(pinned)} of RAM are needed that the kernel cannot take back, and {have}"
    elif pinned + mapped > ram:
        verdict = PAGES
        why = f"{fmt_bytes(pinned + mapped)} of RAM are needed with the mapped file, and {have}"
    else:
        verdict, why = FITS, f"{fmt_bytes(pinned + mapped)} of RAM are needed, and {have}"
    return Choice(verdict, why + (on_device or "."), split, n_gpu_layers, n_cpu_moe, pinned + mapped, vram)


def host_ram(header: Header, settings: Settings, split: Split, *, shared: bool, maps: bool) -> tuple[int, int]:
    """Bytes of the host's memory: those that the kernel cannot take back without swap, and pages of the file.

    Args:
        header: the model's.
        settings: how it is run.
        split: the model on both sides.
        shared: whether the device's memory is the host's.
        maps: whether the device uses the pages of the mapped file, as Metal does (ggml's ``buffer_from_host_ptr``);
            CUDA, Vulkan and SYCL copy weights into buffers of their own, in shared memory, too.
    """
    pinned, mapped = split.host.pinned_bytes, split.host.mapped_bytes
    if shared and split.n_gpu_layers:
        pinned += sum(side.pinned_bytes for side in split.devices)
        if maps and settings.load_mode in ("auto", "mmap", "mmap+mlock"):
            # The weights of both sides are pages of the mapped file, those of a tied embedding the same ones.
            pinned -= sum(side.weights_bytes for side in split.devices)
            mapped = header.tensor_bytes
    return (pinned + mapped, 0) if settings.load_mode == "mmap+mlock" else (pinned, mapped)
