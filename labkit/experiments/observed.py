"""What a measuring child has reported and its samples have shown, and the figures of a Run that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any

from labkit.engine.log import Buffer
from labkit.experiments.run import DeviceUse, LayerStep, Measured, Phase, Run, Sample, Timings
from labkit.settings import LOOPBACK
from labkit.system.caps import CapStats
from labkit.system.probe import ProcessUse
from labkit.units import fmt_bytes

_SHARED = tuple(f.name for f in fields(Sample) if f.name not in ("t_s", "phase", "device_rss_anon_bytes"))


@dataclass
class Observed:
    """Collected while the child runs.

    Attributes:
        not_locked: the kernel refused to lock pages.
        device_last: the loopback device's figures at the last sample.
        device_ends: the same at the end of each phase.
    """

    phases: list[Phase] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    layers: list[LayerStep] = field(default_factory=list)
    decode_ms: list[float] = field(default_factory=list)
    text: str = ""
    not_locked: bool = False
    device_last: dict[str, Any] = field(default_factory=dict)
    device_ends: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_sample(self, use: ProcessUse, *, t_s: float, phase: str, device_rss_anon_bytes: int | None) -> None:
        """Add the child's figures at one moment."""
        values = {name: getattr(use, name) for name in _SHARED}
        self.samples.append(Sample(t_s=t_s, phase=phase, device_rss_anon_bytes=device_rss_anon_bytes, **values))

    def add_phase(self, event: Mapping[str, Any], *, start_s: float, end_s: float) -> None:
        """Add a phase that has ended, from its event."""
        values = {name: event["use"][name] for name in (*_SHARED, "pss_bytes")}
        if event["device"]:
            self.device_ends[event["phase"]] = event["device"]
            values["device_rss_anon_bytes"] = event["device"]["rss_anon_bytes"]
        self.phases.append(Phase(name=event["phase"], start_s=start_s, end_s=end_s, **values))

    def add_token(self, event: Mapping[str, Any]) -> None:
        """Add a decoded token, from its event."""
        self.decode_ms.append(event["ms"])
        self.layers += [LayerStep(**row) for row in event["layers"]]
        self.text += event["text"]

    def onto(self, blank: Run, *, stats: CapStats | None, idle: ProcessUse | None) -> Run:
        """The Run with all that was observed.

        Args:
            blank: has everything that was known before the child was started.
            stats: of its cap.
            idle: of the loopback device, before anything was put on it.
        """
        took = {f"{p.name}_s": p.end_s - p.start_s for p in self.phases if p.name in ("load", "context", "prefill")}
        measured = self._measured(stats)
        return replace(
            blank,
            measured=measured,
            device=None if blank.device is None or idle is None else self._device_use(blank.device, idle),
            buffers=tuple(self.buffers),
            timings=Timings(**took, decode_ms=tuple(self.decode_ms)),
            samples=tuple(self.samples),
            phases=tuple(self.phases),
            layers=tuple(self.layers),
            text=self.text,
            caution=" ".join(
                filter(None, (blank.caution, self._unlocked(blank, measured), self._without_effect(blank)))
            ),
        )

    def _measured(self, stats: CapStats | None) -> Measured | None:
        """The child's figures at the end of decode, or at the last sample that has any; None where there is none."""
        last = next((p for p in reversed(self.phases) if p.name in ("decode", "hold")), None)
        running = [sample for sample in self.samples if sample.rss_anon_bytes is not None]  # not while it was ending
        seen: Sequence[Phase | Sample] = [last] if last else running[-1:] or self.samples[-1:]
        if not seen:
            return None
        end = self.phases[-1] if last else seen[0]
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

    def _device_use(self, device: DeviceUse, idle: ProcessUse) -> DeviceUse:
        """The loopback device's figures at the end of decode, or at the last sample."""
        ends = self.device_ends
        seen = ends.get("hold") or ends.get("decode") or self.device_last
        peaks = [use.get("peak_rss_bytes") for use in (*ends.values(), self.device_last)]
        return replace(
            device,
            idle_rss_anon_bytes=idle.rss_anon_bytes,
            rss_anon_bytes=seen.get("rss_anon_bytes"),
            rss_file_bytes=seen.get("rss_file_bytes"),
            peak_rss_bytes=max((peak for peak in peaks if peak is not None), default=None),
        )

    def _unlocked(self, blank: Run, measured: Measured | None) -> str:
        """A caution where the kernel refused the lock, which llama.cpp only logs."""
        if not self.not_locked:
            return ""
        wanted = fmt_bytes(blank.predicted.locked_bytes)
        got = None if measured is None else measured.locked_bytes
        held = "not all" if got is None else fmt_bytes(got)
        return f"llama.cpp could not lock what it was asked to and went on: {held} of {wanted} are locked."

    def _without_effect(self, blank: Run) -> str:
        """A caution where n_gpu_layers did nothing: llama.cpp accepts it on a build without any device."""
        n, models = blank.settings.n_gpu_layers, [b for b in self.buffers if b.kind == "model"]
        if n == 0 or not models or any(not buffer.device.startswith("CPU") for buffer in models):
            return ""
        return (
            f"n_gpu_layers={n} had no effect, since there is no device for them: labkit doctor lists the devices of "
            f"this build, and devices=('{LOOPBACK}',) starts one."
        )
