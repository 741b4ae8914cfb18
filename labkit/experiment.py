"""Run a model in a child process, under a memory cap if asked, and come back with a ``Run`` whatever happens to it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from labkit import _memlock, dryrun, gguf, models, predict, probe
from labkit.caps import Cap, CapStats
from labkit.caps import available as cap_available
from labkit.childprocess import Child
from labkit.device import DeviceError, Loopback
from labkit.device import problem as device_problem
from labkit.engine import cpu_features, usable_cores, version_problem
from labkit.enginelog import Buffer
from labkit.machine import Machine, available_bytes, machine
from labkit.predict import Predicted
from labkit.predict.offload import offload, on_host
from labkit.progress import Progress, bar
from labkit.run import DeviceUse, LayerStep, Measured, ModelInfo, Phase, Run, Sample, Timings
from labkit.settings import LOOPBACK, Settings, SettingsError
from labkit.units import fmt_bytes, parse_bytes

SAMPLE_HZ = 50.0
SAFE_SHARE = 0.8  # of the available memory; a run that may need more could push the machine itself
ABORT_SHARE = 0.1  # of what was available at the start; the child is stopped when less than this is left
LOOK_S = 0.2  # how often the cap, the time limit, the cancel button and the machine's memory are looked at
PAGE_LOCKING = ("CUDA", "ROCm", "Vulkan", "SYCL")  # backends that offer page-locked host memory, see ``offload``
DYING_S = 1.0  # between the end of a process's connections and its own
EVICTIONS = (None, "readahead", "random")
# How far a progress bar is when the model has been found (or written), and when each phase begins.
FIND_SHARE = 0.3
PHASE_SHARE = {"start": 0.3, "load": 0.35, "context": 0.45, "prefill": 0.5, "decode": 0.55, "hold": 0.99}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement; ``run`` holds what there was until then. Nothing of it is left running."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.reason)
        self.run = run


class Beside(Protocol):
    """What happens next to a measurement, such as ``labkit.pressure``'s ballast.

    Attributes:
        pauses: numbers of the tokens before which the child waits until ``look`` lets it go on.
        inside_bytes: what it takes under the run's cap, for the check before the start.
        outside_bytes: what it takes elsewhere.
        problem: why the run must stop, once there is a reason.
    """

    pauses: Sequence[int]
    inside_bytes: int
    outside_bytes: int
    problem: str | None

    def enter(self, limit: Cap | None) -> None: ...

    def waiting(self, token: int) -> None: ...

    def token(self, event: Mapping[str, Any]) -> None: ...

    def look(self) -> bool: ...

    def close(self) -> None: ...


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
    beside: Beside | None = None,
    **settings: Any,
) -> Run:
    """Load a model in a child process, decode, and report what it took beside what was predicted.

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
        hold_s: stay resident for so long after decoding.
        timeout_s: give up after so many seconds.
        sample_hz: how often the child is looked at.
        progress: called with a fraction and a text; by default a bar appears in a notebook or terminal.
        on_text: called with each piece of text as it is generated.
        bandwidth_bytes_per_s: of the memory; with it, the least time per token is predicted too.
        cancel: when set, the child is ended and the outcome is ``interrupted``.
        device_memory: size of the loopback device's memory, in bytes or as ``"2GiB"``; with ``devices=("loopback",)``.
            The device is started for this run, on as many threads as the host.
        beside: what goes on next to the run; see ``labkit.pressure``.
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
    _check(wanted, tokens=tokens, prompt_tokens=prompt_tokens, evict=evict, cap_bytes=cap_bytes, vram_bytes=vram_bytes)
    if prompt and (layers or evict):
        raise SettingsError("layers and evict look at made-up tokens only: leave prompt out.")
    if prompt and beside:
        raise SettingsError("a ballast comes and goes between made-up tokens only: leave prompt out.")
    if sample_hz <= 0 or hold_s < 0:
        raise SettingsError(f"sample_hz is {sample_hz} and hold_s {hold_s}: write a rate above 0 and a time from 0.")
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar(f"measuring {Path(model).name}"))
        found = models.find(model, progress=lambda share, text: report(FIND_SHARE * share, text))
        header = gguf.read_header(found.path)
        predict.check_types(header, wanted)
        here = machine()
        predicted = predict.memory(
            header,
            wanted,
            cpu_features=cpu_features(),
            prompt_tokens=prompt_tokens,
            cap_bytes=cap_bytes,
            page_bytes=here.page_bytes,
            planned_compute_bytes=dryrun.compute_bytes(found.path, header, wanted),
        )
        if bandwidth_bytes_per_s:
            read = predict.bytes_per_token(header, wanted)
            ms = predict.decode_ms(read, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
            predicted = replace(predicted, decode_ms=ms)
        threads = wanted.n_threads or usable_cores()
        on_loopback = LOOPBACK in wanted.devices
        use, lent = None, 0
        if wanted.devices:
            split = offload(
                header,
                wanted,
                n_devices=len(wanted.devices),
                cpu_features=cpu_features(),
                pinned_host=any(name.startswith(PAGE_LOCKING) for name in wanted.devices),
                page_bytes=here.page_bytes,
            )
            predicted = on_host(predicted, split, header, wanted, prompt_tokens=prompt_tokens, cap_bytes=cap_bytes)
            if on_loopback:  # it lives in the same memory
                there = split.devices[wanted.devices.index(LOOPBACK)]
                use = DeviceUse(LOOPBACK, vram_bytes, threads, predicted_bytes=there.total_bytes)
                lent = there.pinned_bytes if vram_bytes is None else min(there.pinned_bytes, vram_bytes)
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
        refusal = version_problem() or (device_problem() if on_loopback else None)
        refusal = refusal or (_memlock.problem(memlock_bytes) if memlock_bytes is not None else None)
        refusal = refusal or _refusal(predicted, wanted, cap_bytes, here, lent=lent, beside=beside)
        if refusal := refusal or predict.too_long(header, wanted):
            return replace(blank, reason=refusal)
        device = None
        if on_loopback:
            try:
                device = stack.enter_context(Loopback(memory=vram_bytes, n_threads=threads))
            except DeviceError as error:
                return replace(blank, reason=str(error))
        job = {
            "path": str(found.path),
            "settings": wanted.to_dict(),
            "prompt": prompt,
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "layers": layers,
            "evict": evict,
            "hold_s": hold_s,
            "device": None if device is None else {"endpoint": device.endpoint, "pid": device.pid},
            "memlock_bytes": memlock_bytes,
            "pauses": list(beside.pauses) if beside else [],
        }
        limit = None
        if cap_bytes is not None:
            kept = probe.evict(found.path).after_bytes
            if kept is not None and kept > 0.05 * header.file_bytes:
                blank = replace(blank, caution=_uncounted(kept))
            limit = stack.enter_context(Cap(cap_bytes))
        if beside is not None:
            stack.callback(beside.close)
            beside.enter(limit)
        child = stack.enter_context(Child(job, wrap=limit.command if limit else None))
        watch = _Watch(child, limit, device, blank, tokens=tokens, progress=report, on_text=on_text, beside=beside)
        try:
            watch.until_end(timeout_s=timeout_s, interval_s=1 / sample_hz, cancel=cancel)
        except KeyboardInterrupt:
            watch.stop("interrupted", "it was stopped from the keyboard.")
            raise Interrupted(watch.finish()) from None
        return watch.finish()


def _check(
    wanted: Settings,
    *,
    tokens: int,
    prompt_tokens: int,
    evict: str | None,
    cap_bytes: int | None,
    vram_bytes: int | None,
) -> None:
    for name, value, least in (("tokens", tokens, 0), ("prompt_tokens", prompt_tokens, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SettingsError(f"{name} is {value!r}: write a whole number from {least}.")
    if evict not in EVICTIONS:
        raise SettingsError(f"evict is {evict!r}: choose 'readahead', 'random' or None.")
    if evict and "mmap" not in wanted.load_mode:
        raise SettingsError(f"evict={evict!r} needs load_mode='mmap': without a mapping there are no pages to drop.")
    if tokens + prompt_tokens > wanted.n_ctx:
        raise SettingsError(
            f"{prompt_tokens} + {tokens} tokens do not fit in n_ctx={wanted.n_ctx}: raise n_ctx or decode fewer."
        )
    if cap_bytes is not None and cap_bytes <= 0:
        raise SettingsError("cap must be more than 0 bytes.")
    if vram_bytes is not None and LOOPBACK not in wanted.devices:
        raise SettingsError(f"device_memory is the size of the loopback device: write devices=('{LOOPBACK}',) too.")
    if vram_bytes is not None and vram_bytes <= 0:
        raise SettingsError("device_memory must be more than 0 bytes.")
    if wanted.devices.count(LOOPBACK) > 1:
        raise SettingsError(f"devices names {LOOPBACK} twice: there is one.")


def _refusal(
    predicted: Predicted,
    wanted: Settings,
    cap_bytes: int | None,
    here: Machine,
    *,
    lent: int,
    beside: Beside | None,
) -> str | None:
    """Why this run must not start, or None. A run that dies alone is fine; one that takes the machine along is not."""
    if cap_bytes is not None:
        method = cap_available()
        if method.how is None:
            return f"no memory cap is possible here: {method.reason}"
    if here.available_bytes is None:
        return None
    pinned = predicted.anon_floor_bytes + min(predicted.locked_bytes, predicted.mapped_bytes)  # heap is in the floor
    elsewhere = lent  # a cap holds the host's process alone, and what is inside with it
    if beside is not None:
        pinned += beside.inside_bytes
        elsewhere += beside.outside_bytes
    worst = elsewhere + (pinned if cap_bytes is None else min(pinned, cap_bytes))
    safe = int(SAFE_SHARE * here.available_bytes)
    if worst <= safe:
        return None
    parts = {
        "no repacking (repack=False, --no-repack)": predicted.repack_bytes,
        "load_mode=mmap": max(predicted.heap_bytes, predicted.locked_bytes),
        "a smaller n_ctx or cache type": predicted.kv_bytes + predicted.compute_bytes,
        "fewer layers on the loopback device (n_gpu_layers)": lent,
    }
    if beside is not None:
        parts["a smaller ballast"] = beside.inside_bytes + beside.outside_bytes
    helps = max(parts, key=lambda name: parts[name])  # name the largest part, so that the advice does help
    room = safe - elsewhere
    die = f", or let it die safely under a cap of at most {fmt_bytes(room)}" if room > 0 else ""
    return (
        f"it would need {fmt_bytes(worst)} that the kernel cannot take back, and {fmt_bytes(here.available_bytes)} are "
        f"available: choose {helps}{die}."
    )


def _uncounted(kept_bytes: int) -> str:
    return (
        f"{fmt_bytes(kept_bytes)} of the file stayed in the page cache, most likely mapped by another process; "
        "the cap does not count them."
    )


class _Watch:
    """Looks at a child until it ends, and makes a Run of what was seen."""

    def __init__(
        self,
        child: Child,
        limit: Cap | None,
        device: Loopback | None,
        blank: Run,
        *,
        tokens: int,
        progress: Progress,
        on_text: Callable[[str], None] | None,
        beside: Beside | None = None,
    ) -> None:
        self.beside = beside
        self.not_locked = False
        self.child, self.limit, self.device, self.blank = child, limit, device, blank
        self.tokens, self.progress, self.on_text = tokens, progress, on_text
        self.phase = "start"
        self.began: dict[str, float] = {}
        self.phases: list[Phase] = []
        self.buffers: list[Buffer] = []
        self.decode_ms: list[float] = []
        self.layers: list[LayerStep] = []
        self.samples: list[Sample] = []
        self.device_last: dict[str, Any] = {}  # the device's figures when it was last looked at
        self.device_ends: dict[str, dict[str, Any]] = {}  # and at the end of each phase
        self.text = ""
        self.verdict: tuple[str, str] | None = None
        self.cap_stats: CapStats | None = None
        self.oom_kills_before = probe.system_oom_kills()

    def until_end(self, *, timeout_s: float, interval_s: float, cancel: threading.Event | None) -> None:
        """Read events and take samples until the child closes its end."""
        next_sample = next_look = 0.0
        while True:
            now = time.monotonic()
            if now >= next_sample:
                next_sample = now + interval_s
                self._sample(now)
            if self.beside is not None and self.beside.look():
                self.child.go_on()
            if now >= next_look:
                next_look = now + LOOK_S
                self._mind_the_machine(now, timeout_s, cancel)
            try:
                event = self.child.events.get(timeout=max(0.001, min(next_sample, next_look) - time.monotonic()))
            except queue.Empty:
                continue
            if event is None:
                return
            self._take(event)

    def stop(self, outcome: str, reason: str) -> None:
        """End the child now and remember why."""
        if self.verdict is None:
            self.verdict = (outcome, reason)
        self.child.kill()

    def _mind_the_machine(self, now: float, timeout_s: float, cancel: threading.Event | None) -> None:
        if self.limit is not None:
            self.cap_stats = self.limit.stats()
        lost = self.device.lost() if self.device is not None else None
        if cancel is not None and cancel.is_set():
            self.stop("interrupted", "it was cancelled.")
        elif self.beside is not None and self.beside.problem:
            self.stop("interrupted", self.beside.problem)
        elif lost:
            self.stop("device-lost", self._loss(lost))
        elif now - self.child.started > timeout_s:
            self.stop(
                "timed-out", f"it was still in {self.phase} after {timeout_s:.0f} s; give it longer with timeout_s."
            )
        else:
            left, before = available_bytes(), self.blank.machine.get("available_bytes")
            if left is not None and before and left < ABORT_SHARE * before:
                self.stop(
                    "interrupted", f"only {fmt_bytes(left)} of memory was left on this machine, so it was stopped."
                )

    def _sample(self, now: float) -> None:
        try:
            use = probe.process(self.child.pid)
        except ProcessLookupError:
            return
        values = {name: getattr(use, name) for name in _SHARED}
        there = self._look_at_device()
        self.samples.append(
            Sample(t_s=now - self.child.started, phase=self.phase, device_rss_anon_bytes=there, **values)
        )

    def _look_at_device(self) -> int | None:
        if self.device is None:
            return None
        with suppress(ProcessLookupError):
            use = asdict(self.device.use())
            if use["rss_anon_bytes"] is not None:  # a dying process has no figures
                self.device_last = use
            return use["rss_anon_bytes"]  # type: ignore[no-any-return]
        return None

    def _take(self, event: dict[str, Any]) -> None:
        at = event["t"] - self.child.started
        match event["event"]:
            case "begin":
                self.phase = event["phase"]
                self.began[self.phase] = at
                self._report(0.0)
            case "end":
                use = event["use"]
                values = {name: use[name] for name in (*_SHARED, "pss_bytes")}
                if event["device"]:
                    self.device_ends[event["phase"]] = event["device"]
                    values["device_rss_anon_bytes"] = event["device"]["rss_anon_bytes"]
                self.phases.append(Phase(name=event["phase"], start_s=self.began[event["phase"]], end_s=at, **values))
            case "buffers":
                self.buffers += [Buffer(**values) for values in event["buffers"]]
            case "not-locked":
                self.not_locked = True
            case "waiting" if self.beside is not None:
                self.beside.waiting(event["token"])
            case "token":
                if self.beside is not None:
                    self.beside.token(event)
                self.decode_ms.append(event["ms"])
                self.layers += [LayerStep(**row) for row in event["layers"]]
                self.text += event["text"]
                if self.on_text and event["text"]:
                    self.on_text(event["text"])
                self._report(len(self.decode_ms) / max(1, self.tokens))
            case "error":
                self.verdict = ("load-failed", event["reason"])
            case "done":
                self.verdict = ("ok", "")

    def _report(self, share: float) -> None:
        done, text = PHASE_SHARE[self.phase], self.phase
        if self.phase == "decode":
            done += share * (PHASE_SHARE["hold"] - done)
            text += f", token {len(self.decode_ms)} of {self.tokens}"
        self.progress(done, text)

    def finish(self) -> Run:
        """Wait for the child to be gone and put everything together."""
        status = self.child.wait()
        if self.limit is not None:
            self.cap_stats = self.limit.stats()
        outcome, reason = self._verdict(status)
        measured = self._measured()
        self.progress(1.0, outcome)
        ended = {phase.name: phase for phase in self.phases}
        return replace(
            self.blank,
            outcome=outcome,
            reason=reason,
            cap_how=self.limit.how if self.limit else None,
            measured=measured,
            device=self._device_use(),
            buffers=tuple(self.buffers),
            timings=Timings(
                **{
                    f"{name}_s": p.end_s - p.start_s
                    for name in ("load", "context", "prefill")
                    if (p := ended.get(name))
                },
                decode_ms=tuple(self.decode_ms),
            ),
            samples=tuple(self.samples),
            phases=tuple(self.phases),
            layers=tuple(self.layers),
            text=self.text,
            caution=" ".join(filter(None, (self.blank.caution, self._unlocked(measured), self._without_effect()))),
        )

    def _without_effect(self) -> str:
        """What was asked for and quietly ignored: llama.cpp takes n_gpu_layers on a build without any device."""
        n, models = self.blank.settings.n_gpu_layers, [b for b in self.buffers if b.kind == "model"]
        if n == 0 or not models or any(not buffer.device.startswith("CPU") for buffer in models):
            return ""
        return (
            f"n_gpu_layers={n} had no effect, since there is no device for them; labkit doctor lists those of this "
            f"build, and devices=('{LOOPBACK}',) stands in for one."
        )

    def _device_use(self) -> DeviceUse | None:
        if self.device is None or self.blank.device is None:
            return None
        ends = self.device_ends
        seen = ends.get("hold") or ends.get("decode") or self.device_last
        peaks = [use.get("peak_rss_bytes") for use in (*ends.values(), self.device_last)]
        return replace(
            self.blank.device,
            idle_rss_anon_bytes=self.device.idle.rss_anon_bytes,
            rss_anon_bytes=seen.get("rss_anon_bytes"),
            rss_file_bytes=seen.get("rss_file_bytes"),
            peak_rss_bytes=max((peak for peak in peaks if peak is not None), default=None),
        )

    def _loss(self, how: str) -> str:
        return f"the {LOOPBACK} device was lost in {self.phase}: {how}."

    def _unlocked(self, measured: Measured | None) -> str:
        """What llama.cpp says in a line of its log and nowhere else."""
        if not self.not_locked:
            return ""
        wanted = fmt_bytes(self.blank.predicted.locked_bytes)
        got = None if measured is None else measured.locked_bytes
        held = "not all" if got is None else fmt_bytes(got)
        return f"llama.cpp could not lock what it was asked to and went on: {held} of {wanted} are locked."

    def _verdict(self, status: int) -> tuple[str, str]:
        ended = self.verdict and self.verdict[0] in ("interrupted", "timed-out", "device-lost")
        if status and not ended and self.device is not None:
            lost = self.device.lost(within_s=DYING_S)  # ggml aborts the child when the device does not answer
            if lost:
                return "device-lost", self._loss(lost)
        if self.verdict and self.verdict[0] != "ok" and status != -9:
            return self.verdict
        if status == 0 and self.verdict:
            return self.verdict
        if self.verdict and ended:
            return self.verdict
        killed = status in (-9, 137)
        # The cap's own count tells its kill from anyone else's; where it cannot be read, the cap is the likely one.
        if killed and self.limit is not None and self.cap_stats is not None and self.cap_stats.oom_kills != 0:
            return "oom-killed", (
                f"the kernel killed it in {self.phase}: its cap of {fmt_bytes(self.limit.limit_bytes)} is too small."
            )
        if killed and (probe.system_oom_kills() or 0) > (self.oom_kills_before or 0):
            return "oom-killed", f"the kernel killed it in {self.phase}: the machine had no memory left."
        if killed:
            return "interrupted", f"something outside killed it in {self.phase} (signal 9)."
        said = self.child.last_words()
        return "load-failed", f"the engine ended in {self.phase} with status {status}: {said or 'it said nothing'}"

    def _measured(self) -> Measured | None:
        last = next((p for p in reversed(self.phases) if p.name in ("decode", "hold")), None)
        alive = [sample for sample in self.samples if sample.rss_anon_bytes is not None]  # a dying one has no figures
        seen: Sequence[Phase | Sample] = [last] if last else alive[-1:] or self.samples[-1:]
        if not seen:
            return None
        end = self.phases[-1] if last else seen[0]
        stats = self.cap_stats
        looks: list[Phase | Sample] = [*self.samples, *self.phases]
        totals = [
            look.rss_anon_bytes + look.rss_file_bytes
            for look in looks
            if look.rss_anon_bytes is not None and look.rss_file_bytes is not None
        ]
        return Measured(
            rss_anon_bytes=seen[0].rss_anon_bytes,
            rss_file_bytes=seen[0].rss_file_bytes,
            peak_rss_bytes=max(totals, default=None),
            locked_bytes=seen[0].locked_bytes,
            minor_faults=end.minor_faults,
            major_faults=end.major_faults,
            read_bytes=end.read_bytes,
            decode_ms=median(self.decode_ms) if self.decode_ms else None,
            cap_peak_bytes=stats.peak_bytes if stats else None,
            cap_oom_kills=stats.oom_kills if stats else None,
        )


_SHARED = tuple(f.name for f in fields(Sample) if f.name not in ("t_s", "phase", "device_rss_anon_bytes"))
