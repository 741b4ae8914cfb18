"""What a measurement returns: a record of settings, prediction, figures and outcome, with a JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.engine.log import Buffer
from labkit.predict import Predicted
from labkit.settings import Settings
from labkit.units import fmt_bytes, fmt_ms

SCHEMA = 1
_SETUP = ("cap_bytes", "cap_how", "evict", "memlock_bytes")  # of a Run, but among the settings in its JSON
OUTCOMES = ("ok", "oom-killed", "load-failed", "refused", "timed-out", "interrupted", "device-lost")


@dataclass(frozen=True)
class ModelInfo:
    """Which model ran. A forged one has the shape and types of the named model and no knowledge."""

    name: str
    path: str
    arch: str
    file_bytes: int
    forged: bool


@dataclass(frozen=True)
class Measured:
    """Figures of the child process, from the kernel.

    Resident sizes are those at the end of decode, or at the last sample where it did not reach that end; faults and
    read bytes are totals since its start; ``decode_ms`` is the median over the decoded tokens. None: this system does
    not report it, or nothing was decoded.
    """

    rss_anon_bytes: int | None
    rss_file_bytes: int | None
    peak_rss_bytes: int | None
    locked_bytes: int | None
    minor_faults: int | None
    major_faults: int | None
    read_bytes: int | None
    decode_ms: float | None
    cap_peak_bytes: int | None = None
    cap_oom_kills: int | None = None


@dataclass(frozen=True)
class DeviceUse:
    """Figures of the loopback device's process, from the kernel, at the same moment as those of ``Measured``.

    ``memory_bytes`` is the size it was given, None for none; ``predicted_bytes`` what its buffers are predicted to
    take; ``idle_rss_anon_bytes`` what its process took before anything was put on it. Its buffers are among the Run's
    ``buffers``, under the device's name.
    """

    name: str
    memory_bytes: int | None
    n_threads: int
    predicted_bytes: int | None = None
    idle_rss_anon_bytes: int | None = None
    rss_anon_bytes: int | None = None
    rss_file_bytes: int | None = None
    peak_rss_bytes: int | None = None


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds of each phase; None for a phase that did not end. ``decode_ms`` has one entry per token."""

    load_s: float | None = None
    context_s: float | None = None
    prefill_s: float | None = None
    decode_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    """The child's memory at one moment; ``t_s`` counts from its start.

    ``device_rss_anon_bytes`` is the loopback device's, None where there is none.
    """

    t_s: float
    phase: str
    rss_anon_bytes: int | None
    rss_file_bytes: int | None
    locked_bytes: int | None
    minor_faults: int | None
    major_faults: int | None
    read_bytes: int | None
    device_rss_anon_bytes: int | None = None


@dataclass(frozen=True)
class Phase:
    """One phase and the child's figures at its end; faults and read bytes are counted from the child's start."""

    name: str
    start_s: float
    end_s: float
    rss_anon_bytes: int | None
    rss_file_bytes: int | None
    pss_bytes: int | None
    locked_bytes: int | None
    minor_faults: int | None
    major_faults: int | None
    read_bytes: int | None
    device_rss_anon_bytes: int | None = None


@dataclass(frozen=True)
class LayerStep:
    """Time, faults and read bytes of one layer of one token; None where the system does not count."""

    token: int
    layer: int
    ms: float
    minor_faults: int | None
    major_faults: int | None
    read_bytes: int | None


@dataclass(frozen=True)
class Run:
    """One measurement, however it ended.

    ``evict`` is the argument of ``measure``, ``memlock_bytes`` the child's RLIMIT_MEMLOCK. ``device`` is None unless
    the loopback device was among the settings' devices. ``caution`` says what disturbed the run, if anything did.
    ``recorded`` is None for a run made here and now.
    """

    model: ModelInfo
    settings: Settings
    outcome: str
    reason: str
    predicted: Predicted
    measured: Measured | None = None
    device: DeviceUse | None = None
    cap_bytes: int | None = None
    cap_how: str | None = None
    evict: str | None = None
    memlock_bytes: int | None = None
    buffers: tuple[Buffer, ...] = ()
    timings: Timings = field(default_factory=Timings)
    samples: tuple[Sample, ...] = ()
    phases: tuple[Phase, ...] = ()
    layers: tuple[LayerStep, ...] = ()
    text: str = ""
    caution: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, Any] | None = None
    schema: int = SCHEMA

    @property
    def ok(self) -> bool:
        """Whether every phase ended."""
        return self.outcome == "ok"

    def phase(self, name: str) -> Phase | None:
        """The named phase, or None if it did not end."""
        return next((phase for phase in self.phases if phase.name == name), None)

    def buffer_bytes(self, *, kind: str, device: str | None = None) -> int:
        """Bytes the engine reported for one kind of buffer (``model``, ``kv``, ``compute``, ``output``)."""
        return sum(b.bytes for b in self.buffers if b.kind == kind and device in (None, b.device))

    def to_dict(self) -> dict[str, Any]:
        """What ``labkit measure --json`` prints: cap, eviction and memlock are among the settings."""
        values = asdict(self)
        around = {name: values.pop(name) for name in _SETUP}
        values["settings"] = {**self.settings.to_dict(), **around}
        return {"schema": values.pop("schema"), **values}

    def to_json(self, *, indent: int | None = 2) -> str:
        """As text; ``Run.from_json`` gives an equal Run back."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """A Run from its JSON form.

        Raises:
            ValueError: another schema, or not a run.
        """
        if not isinstance(values, Mapping) or "schema" not in values:
            raise ValueError("this is not a run that labkit measured: it has no schema.")
        if values["schema"] != SCHEMA:
            raise ValueError(f"this run has schema {values['schema']!r} and labkit reads {SCHEMA}: record it again.")
        try:
            return cls._from_dict(values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"this run is damaged ({type(error).__name__}: {error}): record it again.") from error

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Run:
        settings = dict(values["settings"])
        cap_bytes, cap_how, evict, memlock_bytes = (settings.pop(name, None) for name in _SETUP)
        measured, timings, device = values["measured"], values["timings"], values.get("device")
        return cls(
            model=ModelInfo(**values["model"]),
            settings=Settings.of({**settings, "devices": tuple(settings["devices"])}),
            outcome=values["outcome"],
            reason=values["reason"],
            predicted=Predicted(**values["predicted"]),
            measured=None if measured is None else Measured(**measured),
            device=None if device is None else DeviceUse(**device),
            cap_bytes=cap_bytes,
            cap_how=cap_how,
            evict=evict,
            memlock_bytes=memlock_bytes,
            buffers=tuple(Buffer(**b) for b in values["buffers"]),
            timings=Timings(**{**timings, "decode_ms": tuple(timings["decode_ms"])}),
            samples=tuple(Sample(**s) for s in values["samples"]),
            phases=tuple(Phase(**p) for p in values["phases"]),
            layers=tuple(LayerStep(**step) for step in values["layers"]),
            text=values["text"],
            caution=values["caution"],
            machine=values["machine"],
            recorded=values["recorded"],
        )

    @classmethod
    def from_json(cls, text: str) -> Run:
        """A Run from ``to_json``'s text."""
        return cls.from_dict(json.loads(text))

    def __repr__(self) -> str:
        m = self.measured
        name = f"{self.model.name}, {self.settings.load_mode}{'' if self.settings.repack else ', repack off'}"
        if self.cap_bytes:
            name += f", cap {fmt_bytes(self.cap_bytes)}"
        if m is None or m.rss_anon_bytes is None or m.rss_file_bytes is None:
            return f"Run({name}: {self.outcome}, {self.reason})"
        speed = "" if m.decode_ms is None else f", {fmt_ms(m.decode_ms)}/token"
        why = "" if self.ok else f", {self.reason}"
        memory = f"{fmt_bytes(m.rss_anon_bytes)} anonymous + {fmt_bytes(m.rss_file_bytes)} file"
        return f"Run({name}: {self.outcome}, {memory}{speed}{why})"
