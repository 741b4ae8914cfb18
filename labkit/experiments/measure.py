"""Run a model in a child process, under a memory cap if asked, and return a ``Run`` however the child ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit import gguf, predict
from labkit.engine import cpu_features, version_problem
from labkit.experiments import dry_run, preflight
from labkit.experiments.child.measurement import Job
from labkit.experiments.child.process import Child
from labkit.experiments.device import DeviceError, Loopback
from labkit.experiments.device import problem as device_problem
from labkit.experiments.run import DeviceUse, ModelInfo, Run
from labkit.experiments.watch import Companion, Watch
from labkit.gguf import Header
from labkit.models import lookup
from labkit.predict import Predicted
from labkit.predict.offload import Side, offload, on_host
from labkit.progress import Progress, bar
from labkit.settings import LOOPBACK, Settings, SettingsError
from labkit.system import memlock as memlock_limit
from labkit.system import probe
from labkit.system.caps import Cap
from labkit.system.machine import Machine, machine, usable_cores
from labkit.units import fmt_bytes, parse_bytes

SAMPLE_HZ = 50.0
PAGE_LOCKING = ("CUDA", "ROCm", "Vulkan", "SYCL")  # backends that offer page-locked host memory, see ``offload``
FIND_SHARE = 0.3  # of the progress bar: finding the model, which may mean forging it


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement; ``run`` holds what was measured until then. Its processes have ended."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.reason)
        self.run = run


def measure(
    model: str | Path,
    *,
    cap: int | str | None = None,
    memlock: int | str | None = None,
    tokens: int = 8,
    prompt: str | None = None,
    prompt_tokens: int = 8,
    layers: bool = False,
    evict: str | None = None,
    hold_s: float = 0.0,
    timeout_s: float = 300.0,
    sample_hz: float = SAMPLE_HZ,
    progress: Progress | None = None,
    on_text: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
    bandwidth_bytes_per_s: float | None = None,
    device_memory: int | str | None = None,
    companion: Companion | None = None,
    **settings: Any,
) -> Run:
    """Load a model in a child process, decode, and report what it took and what was predicted.

    Args:
        model: a path, ``smollm2``, or ``SHAPE:QUANT`` for a forged one (``llama-2-7b:Q4_K_M``; ``…:filled`` for one
            with real bytes on disk).
        cap: memory limit of the child, in bytes or as ``"600MiB"``; the file's cached pages are dropped first, since a
            page counts for whoever reads it first.
        memlock: RLIMIT_MEMLOCK of the child, in bytes or as ``"8MiB"``; it also gives up CAP_IPC_LOCK.
        tokens: how many to decode one by one.
        prompt: text to answer, always with the likeliest token; without it, ids spread over the vocabulary are decoded.
        prompt_tokens: length of the first batch when there is no prompt.
        layers: note time and faults per layer.
        evict: before each token, drop the model's pages: ``"readahead"`` leaves the kernel's reading ahead on,
            ``"random"`` turns it off (MADV_RANDOM). Linux only.
        hold_s: keep everything loaded for so many seconds after decoding.
        timeout_s: end the child after so many seconds.
        sample_hz: how often per second the child's memory is read.
        progress: called with a fraction and a text; by default a bar appears in a notebook or terminal.
        on_text: called with each piece of text as it is generated.
        bandwidth_bytes_per_s: of the memory; with it, the least time per token is predicted too.
        cancel: when set, the child is ended and the outcome is ``interrupted``.
        device_memory: size of the loopback device's memory, in bytes or as ``"2GiB"``; with ``devices=("loopback",)``.
            The device is started for this run, on as many threads as the host.
        companion: what runs beside the measurement; see ``labkit.experiments.pressure``.
        **settings: any of ``Settings``' fields, by llama.cpp's names.

    Returns:
        A Run. Being killed, refused or timed out is an outcome, not an exception.

    Raises:
        SettingsError: a setting is unknown, out of range or contradicts another.
        GGUFError, ModelError: there is no such model, or it cannot be read.
        Interrupted: Ctrl-C.
    """
    wanted = Settings.of(settings)
    cap_bytes = None if cap is None else parse_bytes(cap)
    vram_bytes = None if device_memory is None else parse_bytes(device_memory)
    memlock_bytes = None if memlock is None else parse_bytes(memlock)
    preflight.check_settings(
        wanted, tokens=tokens, prompt_tokens=prompt_tokens, evict=evict, cap_bytes=cap_bytes, vram_bytes=vram_bytes
    )
    if prompt and (layers or evict):
        raise SettingsError("layers and evict need made-up tokens: leave prompt out.")
    if prompt and companion:
        raise SettingsError("a ballast needs made-up tokens: leave prompt out.")
    if sample_hz <= 0 or hold_s < 0:
        raise SettingsError(f"sample_hz is {sample_hz} and hold_s {hold_s}: write a rate above 0 and a time from 0.")
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar(f"measuring {Path(model).name}"))
        found = lookup.find(model, progress=lambda share, text: report(FIND_SHARE * share, text))
        header = gguf.read_header(found.path)
        predict.check_types(header, wanted)
        here = machine()
        planned = dry_run.compute_bytes(found.path, header, wanted)
        expected = _expected(
            header, wanted, here, prompt_tokens=prompt_tokens, cap_bytes=cap_bytes, planned_compute_bytes=planned
        )
        predicted, on_loopback = expected.host, expected.loopback
        if bandwidth_bytes_per_s:
            read = predict.bytes_per_token(header, wanted)
            ms = predict.decode_ms(read, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
            predicted = replace(predicted, decode_ms=ms)
        threads, use, pinned = wanted.n_threads or usable_cores(), None, 0
        if on_loopback:
            use = DeviceUse(LOOPBACK, vram_bytes, threads, predicted_bytes=on_loopback.total_bytes)
            pinned = min(on_loopback.pinned_bytes, vram_bytes or on_loopback.pinned_bytes)
        blank = Run(
            model=ModelInfo(found.name, str(found.path), header.arch, header.file_bytes, found.forged),
            settings=wanted,
            outcome="refused",
            reason="",
            predicted=predicted,
            device=use,
            cap_bytes=cap_bytes,
            evict=evict,
            memlock_bytes=memlock_bytes,
            machine=here.to_dict(),
        )
        refusal = (
            version_problem()
            or (device_problem() if on_loopback else None)
            or (memlock_limit.problem(memlock_bytes) if memlock_bytes is not None else None)
            or preflight.refusal(predicted, wanted, cap_bytes, here, loopback_pinned_bytes=pinned, companion=companion)
            or predict.too_long(header, wanted)
        )
        if refusal:
            return replace(blank, reason=refusal)
        device = None
        if on_loopback:
            try:
                device = stack.enter_context(Loopback(memory=vram_bytes, n_threads=threads))
            except DeviceError as error:
                return replace(blank, reason=str(error))
        job = Job(
            path=str(found.path),
            settings=wanted.to_dict(),
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            layers=layers,
            evict=evict,
            hold_s=hold_s,
            memlock_bytes=memlock_bytes,
            pauses=tuple(companion.pauses) if companion else (),
            device_endpoint=device.endpoint if device else None,
            device_pid=device.pid if device else None,
        )
        limit = None
        if cap_bytes is not None:
            kept = probe.evict(found.path).after_bytes
            if kept is not None and kept > 0.05 * header.file_bytes:
                blank = replace(blank, caution=_uncounted(kept))
            limit = stack.enter_context(Cap(cap_bytes))
        if companion is not None:
            stack.callback(companion.close)
            companion.start(limit)
        child = stack.enter_context(
            Child("labkit.experiments.child.measurement:in_child", job.to_dict(), wrap=limit.command if limit else None)
        )
        watch = Watch(child, limit, device, blank, tokens=tokens, progress=report, on_text=on_text, companion=companion)
        try:
            watch.until_end(timeout_s=timeout_s, interval_s=1 / sample_hz, cancel=cancel)
        except KeyboardInterrupt:
            watch.stop("interrupted", "it was stopped from the keyboard.")
            raise Interrupted(watch.finish()) from None
        return watch.finish()


@dataclass(frozen=True)
class _Expected:
    """What is predicted: for the host's process, and for the loopback device where it is used."""

    host: Predicted
    loopback: Side | None


def _expected(
    header: Header,
    wanted: Settings,
    here: Machine,
    *,
    prompt_tokens: int,
    cap_bytes: int | None,
    planned_compute_bytes: int | None,
) -> _Expected:
    """The prediction of a run's memory on this machine."""
    whole = predict.memory(
        header,
        wanted,
        cpu_features=cpu_features(),
        prompt_tokens=prompt_tokens,
        cap_bytes=cap_bytes,
        page_bytes=here.page_bytes,
        planned_compute_bytes=planned_compute_bytes,
    )
    if not wanted.devices:
        return _Expected(whole, None)
    split = offload(
        header,
        wanted,
        n_devices=len(wanted.devices),
        cpu_features=cpu_features(),
        pinned_host=any(name.startswith(PAGE_LOCKING) for name in wanted.devices),
        page_bytes=here.page_bytes,
    )
    host = on_host(whole, split, header, wanted, prompt_tokens=prompt_tokens, cap_bytes=cap_bytes)
    loopback = split.devices[wanted.devices.index(LOOPBACK)] if LOOPBACK in wanted.devices else None
    return _Expected(host, loopback)


def _uncounted(kept_bytes: int) -> str:
    """A caution where pages of the file could not be dropped before the run."""
    return (
        f"{fmt_bytes(kept_bytes)} of the file stayed in the page cache, most likely mapped by another process; "
        "the cap does not count them."
    )
