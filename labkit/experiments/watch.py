"""Watch a measuring child until it ends, and put together the Run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from statistics import median
from typing import Any, Protocol

from labkit.engine.log import Buffer
from labkit.experiments.child.process import Child, how_it_ended, killed
from labkit.experiments.device import Loopback
from labkit.experiments.run import DeviceUse, LayerStep, Measured, Phase, Run, Sample, Timings
from labkit.progress import Progress
from labkit.settings import LOOPBACK
from labkit.system import probe
from labkit.system.caps import Cap, CapStats
from labkit.system.machine import available_bytes
from labkit.units import fmt_bytes

ABORT_SHARE = 0.1  # of what was available at the start; the child is ended when less than this is left
CHECK_INTERVAL_S = 0.2  # between checks of the cap, the time limit, the cancel event and the machine's memory
DEVICE_END_S = 1.0  # from when the connections of a process close until the process itself has ended
# How far a progress bar is when each phase begins.
PHASE_SHARE = {"start": 0.3, "load": 0.35, "context": 0.45, "prefill": 0.5, "decode": 0.55, "hold": 0.99}
_SHARED = tuple(f.name for f in fields(Sample) if f.name not in ("t_s", "phase", "device_rss_anon_bytes"))


class Companion(Protocol):
    """What runs beside a measurement, such as the ballast of ``pressure``.

    Attributes:
        pauses: numbers of the tokens before which the child waits until ``may_resume`` is true.
        inside_bytes: what it takes under the run's cap, for the check before the start.
        outside_bytes: what it takes elsewhere.
        problem: why the run must stop, once there is a reason.
    """

    pauses: Sequence[int]
    inside_bytes: int
    outside_bytes: int
    problem: str | None

    def start(self, limit: Cap | None) -> None:
        """Called with the run's cap before the child is started."""

    def waiting(self, token: int) -> None:
        """Called when the child waits before a token."""

    def token(self, event: Mapping[str, Any]) -> None:
        """Called with each token's event."""

    def may_resume(self) -> bool:
        """Whether the waiting child may go on; called at each sample."""
        ...

    def close(self) -> None:
        """Called when the measurement has ended, however it did."""


class Watch:
    """Reads a child's events and samples its memory until it ends, then puts together the Run."""

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
        companion: Companion | None = None,
    ) -> None:
        self.companion = companion
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
        self.device_last: dict[str, Any] = {}  # the device's figures at the last sample
        self.device_ends: dict[str, dict[str, Any]] = {}  # and at the end of each phase
        self.text = ""
        self.verdict: tuple[str, str] | None = None
        self.cap_stats: CapStats | None = None
        self.oom_kills_before = probe.system_oom_kills()

    def until_end(self, *, timeout_s: float, interval_s: float, cancel: threading.Event | None) -> None:
        """Read events and take samples until the child closes its end."""
        next_sample = next_check = 0.0
        while True:
            now = time.monotonic()
            if now >= next_sample:
                next_sample = now + interval_s
                self._sample(now)
            if self.companion is not None and self.companion.may_resume():
                self.child.resume()
            if now >= next_check:
                next_check = now + CHECK_INTERVAL_S
                self._check_limits(now, timeout_s, cancel)
            try:
                event = self.child.events.get(timeout=max(0.001, min(next_sample, next_check) - time.monotonic()))
            except queue.Empty:
                continue
            if event is None:
                return
            self._take(event)

    def stop(self, outcome: str, reason: str) -> None:
        """End the child now and keep the outcome and its reason."""
        if self.verdict is None:
            self.verdict = (outcome, reason)
        self.child.kill()

    def _check_limits(self, now: float, timeout_s: float, cancel: threading.Event | None) -> None:
        """Stop the child where it was cancelled, takes too long, lost its device, or leaves the machine no memory."""
        if self.limit is not None:
            self.cap_stats = self.limit.stats()
        lost = self.device.lost() if self.device is not None else None
        if cancel is not None and cancel.is_set():
            self.stop("interrupted", "it was cancelled.")
        elif self.companion is not None and self.companion.problem:
            self.stop("interrupted", self.companion.problem)
        elif lost:
            self.stop("device-lost", self._loss(lost))
        elif now - self.child.started > timeout_s:
            self.stop(
                "timed-out", f"it was still in {self.phase} after {timeout_s:.0f} s; raise timeout_s to wait longer."
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
        t_s, on_device = now - self.child.started, self._sample_device()
        self.samples.append(Sample(t_s=t_s, phase=self.phase, device_rss_anon_bytes=on_device, **values))

    def _sample_device(self) -> int | None:
        """The device's anonymous memory; None where there is no device, or it has ended."""
        if self.device is None:
            return None
        with suppress(ProcessLookupError):
            use = self.device.use()
            if use.rss_anon_bytes is not None:  # a process that is ending has no figures
                self.device_last = asdict(use)
            return use.rss_anon_bytes
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
            case "waiting" if self.companion is not None:
                self.companion.waiting(event["token"])
            case "token":
                if self.companion is not None:
                    self.companion.token(event)
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
        """Wait until the child has ended, and put together the Run."""
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
        """A caution where n_gpu_layers did nothing: llama.cpp accepts it on a build without any device."""
        n, models = self.blank.settings.n_gpu_layers, [b for b in self.buffers if b.kind == "model"]
        if n == 0 or not models or any(not buffer.device.startswith("CPU") for buffer in models):
            return ""
        return (
            f"n_gpu_layers={n} had no effect, since there is no device for them: labkit doctor lists the devices of "
            f"this build, and devices=('{LOOPBACK}',) starts one."
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
        """A caution where the kernel refused the lock, which llama.cpp only logs."""
        if not self.not_locked:
            return ""
        wanted = fmt_bytes(self.blank.predicted.locked_bytes)
        got = None if measured is None else measured.locked_bytes
        held = "not all" if got is None else fmt_bytes(got)
        return f"llama.cpp could not lock what it was asked to and went on: {held} of {wanted} are locked."

    def _verdict(self, status: int) -> tuple[str, str]:
        """The outcome and its reason."""
        ended = self.verdict and self.verdict[0] in ("interrupted", "timed-out", "device-lost")
        if status and not ended and self.device is not None:
            # Where the device ended, ggml aborts the child, before it could report an error.
            lost = self.device.lost(within_s=0.0 if self.verdict else DEVICE_END_S)
            if lost:
                return "device-lost", self._loss(lost)
        if self.verdict and (ended or status == 0 or (self.verdict[0] != "ok" and not killed(status))):
            return self.verdict
        if not killed(status):
            said = self.child.last_stderr_line()
            return "load-failed", how_it_ended(status, said, what="the engine", phase=self.phase)
        # The cap's own count distinguishes its kill from others; where it cannot be read, the cap is the likely cause.
        if self.limit is not None and self.cap_stats is not None and self.cap_stats.oom_kills != 0:
            size = fmt_bytes(self.limit.limit_bytes)
            return "oom-killed", f"the kernel killed it in {self.phase}: its cap of {size} is too small."
        if (probe.system_oom_kills() or 0) > (self.oom_kills_before or 0):
            return "oom-killed", f"the kernel killed it in {self.phase}: the machine had no memory left."
        return "interrupted", f"something outside killed it in {self.phase} (signal 9)."

    def _measured(self) -> Measured | None:
        """The child's figures at the end of decode, or at the last sample that has any; None where there is none."""
        last = next((p for p in reversed(self.phases) if p.name in ("decode", "hold")), None)
        running = [sample for sample in self.samples if sample.rss_anon_bytes is not None]  # not while it was ending
        seen: Sequence[Phase | Sample] = [last] if last else running[-1:] or self.samples[-1:]
        if not seen:
            return None
        end = self.phases[-1] if last else seen[0]
        stats = self.cap_stats
        rows: list[Phase | Sample] = [*self.samples, *self.phases]
        totals = [
            row.rss_anon_bytes + row.rss_file_bytes
            for row in rows
            if row.rss_anon_bytes is not None and row.rss_file_bytes is not None
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
