"""Watch a measuring child until it ends, and put together the Run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Protocol

from labkit.engine.log import Buffer
from labkit.experiments.child.process import Child, how_it_ended, killed
from labkit.experiments.device import Loopback
from labkit.experiments.observed import Observed
from labkit.experiments.run import Run
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
        self.child, self.limit, self.device, self.blank = child, limit, device, blank
        self.tokens, self.progress, self.on_text = tokens, progress, on_text
        self.phase = "start"
        self.began: dict[str, float] = {}
        self.seen = Observed()
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
        t_s, on_device = now - self.child.started, self._sample_device()
        self.seen.add_sample(use, t_s=t_s, phase=self.phase, device_rss_anon_bytes=on_device)

    def _sample_device(self) -> int | None:
        """The device's anonymous memory; None where there is no device, or it has ended."""
        if self.device is None:
            return None
        with suppress(ProcessLookupError):
            use = self.device.use()
            if use.rss_anon_bytes is not None:  # a process that is ending has no figures
                self.seen.device_last = asdict(use)
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
                self.seen.add_phase(event, start_s=self.began[event["phase"]], end_s=at)
            case "buffers":
                self.seen.buffers += [Buffer(**values) for values in event["buffers"]]
            case "not-locked":
                self.seen.not_locked = True
            case "waiting" if self.companion is not None:
                self.companion.waiting(event["token"])
            case "token":
                if self.companion is not None:
                    self.companion.token(event)
                self.seen.add_token(event)
                if self.on_text and event["text"]:
                    self.on_text(event["text"])
                self._report(len(self.seen.decode_ms) / max(1, self.tokens))
            case "error":
                self.verdict = ("load-failed", event["reason"])
            case "done":
                self.verdict = ("ok", "")

    def _report(self, share: float) -> None:
        done, text = PHASE_SHARE[self.phase], self.phase
        if self.phase == "decode":
            done += share * (PHASE_SHARE["hold"] - done)
            text += f", token {len(self.seen.decode_ms)} of {self.tokens}"
        self.progress(done, text)

    def finish(self) -> Run:
        """Wait until the child has ended, and put together the Run."""
        status = self.child.wait()
        if self.limit is not None:
            self.cap_stats = self.limit.stats()
        outcome, reason = self._verdict(status)
        self.progress(1.0, outcome)
        idle = self.device.idle if self.device is not None else None
        ended = replace(self.blank, outcome=outcome, reason=reason, cap_how=self.limit.how if self.limit else None)
        return self.seen.onto(ended, stats=self.cap_stats, idle=idle)

    def _loss(self, how: str) -> str:
        """Why the run ended, where the loopback device did."""
        return f"the {LOOPBACK} device was lost in {self.phase}: {how}."

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
