"""Run a model beside a ballast, which takes and touches memory, and see what the kernel reclaims.

Without swap the kernel can take back only pages that have a file behind them. An anonymous ballast therefore keeps its
pages: a mapped model beside it loses its own, and where the model is locked, one of the two is killed. A ballast of
file pages and a mapped model lose pages alike; against a locked model only the ballast loses them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

from labkit.experiments import recordings
from labkit.experiments.ballast import FILL_S, KINDS, RATE, Ballast, PressureError
from labkit.experiments.boundary import Boundary, find_boundary
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.progress import Progress
from labkit.system import caps
from labkit.system.caps import Cap
from labkit.units import MiB, parse_bytes

__all__ = [
    "KINDS",
    "Ballast",
    "Boundary",
    "PressureError",
    "Pressured",
    "Step",
    "find_boundary",
    "pressured",
    "recorded",
]

# Sizes that show the effect within seconds: the model has 763 MiB of file and 50 MiB of its own, so locked it fits.
MODEL = "llama-3.2-1b:Q4_K_M:filled"
CAP, BALLAST, ANONYMOUS = 900 * MiB, 600 * MiB, 300 * MiB
IDLE_S = 3.0
BEFORE, DURING, AFTER = "before", "during", "after"


@dataclass(frozen=True)
class Step:
    """One decoded token: when (``before``, ``during`` or ``after`` the ballast), how long, and what it fetched."""

    stage: str
    ms: float
    major_faults: int | None
    read_bytes: int | None


@dataclass(frozen=True)
class Pressured:
    """A run beside a ballast.

    Attributes:
        run: the model's own record; its outcome says whether it was killed.
        ballast_bytes: size of the ballast.
        kind: of its memory.
        inside: whether it shared the model's cap.
        rate_bytes_per_s: how fast it touched its pages.
        idle_s: how long the model paused while the ballast ran; 0: it decoded meanwhile.
        steps: every token, in order.
        ballast_passes: how often the ballast touched all its pages.
        ballast_ended: how the ballast ended before it was told to, as a clause; empty if it did not.
        recorded: on which machine and when, or None if it was measured here.
    """

    run: Run
    ballast_bytes: int
    kind: str
    inside: bool
    rate_bytes_per_s: int
    idle_s: float
    steps: tuple[Step, ...]
    ballast_passes: int
    ballast_ended: str = ""
    recorded: str | None = None

    @property
    def outcome(self) -> str:
        """The run's outcome."""
        return self.run.outcome

    @property
    def reason(self) -> str:
        """The run's reason, and how the ballast ended if that was early."""
        early = f"the ballast ended early: {self.ballast_ended}." if self.ballast_ended else ""
        return " ".join(filter(None, (self.run.reason, early)))

    def ms(self, stage: str) -> tuple[float, ...]:
        """Milliseconds of each token of a stage."""
        return tuple(step.ms for step in self.steps if step.stage == stage)

    @property
    def before_ms(self) -> tuple[float, ...]:
        """Tokens before the ballast was started."""
        return self.ms(BEFORE)

    @property
    def during_ms(self) -> tuple[float, ...]:
        """Tokens while the ballast ran."""
        return self.ms(DURING)

    @property
    def after_ms(self) -> tuple[float, ...]:
        """Tokens after the ballast was ended."""
        return self.ms(AFTER)

    @property
    def first_token_ms(self) -> float | None:
        """The first token after the pause; None where there was no pause or no such token."""
        return self.after_ms[0] if self.idle_s and self.after_ms else None

    @property
    def penalty_ms(self) -> float | None:
        """How much longer the first token after the pause took than the median token before it."""
        first = self.first_token_ms
        return None if first is None or not self.before_ms else first - median(self.before_ms)

    @property
    def major_faults(self) -> int | None:
        """Page faults that waited for a file: of the tokens under pressure, or of the first one after the pause."""
        return _sum([step.major_faults for step in self._under_pressure])

    @property
    def read_bytes(self) -> int | None:
        """Bytes read from disk for the same tokens; None where the system does not count them."""
        return _sum([step.read_bytes for step in self._under_pressure])

    @property
    def _under_pressure(self) -> list[Step]:
        """The tokens that the ballast slowed: those of ``during``, or the first one after the pause."""
        stage = AFTER if self.idle_s else DURING
        steps = [step for step in self.steps if step.stage == stage]
        return steps[:1] if self.idle_s else steps


def _sum(counts: list[int | None]) -> int | None:
    """The sum, or None if a count is not known or there is none."""
    known = [n for n in counts if n is not None]
    return sum(known) if known and len(known) == len(counts) else None


class _Stages:
    """Decides when the ballast is started and ended; see ``watch.Companion``."""

    def __init__(self, size: int, *, rate: int, kind: str, inside: bool, idle_s: float, tokens: int) -> None:
        self._size, self._rate, self._kind, self._inside, self._idle_s = size, rate, kind, inside, idle_s
        self._start_token = tokens
        self._end_token = tokens if idle_s else 2 * tokens
        self.pauses: Sequence[int] = sorted({self._start_token, self._end_token})
        self.inside_bytes, self.outside_bytes = (size, 0) if inside else (0, size)
        self.problem: str | None = None
        self.early: str | None = None  # how the ballast ended before it was told to
        self.ballast: Ballast | None = None
        self.steps: list[Step] = []
        self._limit: Cap | None = None
        self._stage = BEFORE
        self._waiting, self._since = False, 0.0

    def start(self, limit: Cap | None) -> None:
        self._limit = limit if self._inside else None

    def waiting(self, token: int) -> None:
        self._waiting, self._since = True, time.monotonic()
        if token == self._start_token:
            try:
                self.ballast = Ballast(self._size, rate_bytes_per_s=self._rate, cap=self._limit, kind=self._kind)
            except PressureError as error:  # less is available than when the run began
                self.problem = str(error)
        if token == self._end_token and not self._idle_s:
            self.close()

    def token(self, event: Mapping[str, Any]) -> None:
        self.steps.append(Step(self._stage, event["ms"], event.get("major_faults"), event.get("read_bytes")))

    def may_resume(self) -> bool:
        if self.ballast is not None:
            self.ballast.update()
            if self.ballast.ended and self.ballast.aborted:
                self.problem = f"the run was stopped because the ballast ended: {self.ballast.ended}."
        if not self._waiting or self.problem:
            return False
        if self._stage != AFTER:
            if self.ballast is None or not self._under_pressure(self.ballast):
                return False
            if self._idle_s:
                self.close()
            else:
                self._stage = DURING
        self._waiting = False
        return True

    def _under_pressure(self, ballast: Ballast) -> bool:
        """Whether the model has waited as long as it should: until the ballast is full, or has ended."""
        waited = time.monotonic() - self._since
        full = bool(ballast.passes) or waited > FILL_S
        return bool(ballast.ended) or (full and waited > self._idle_s)

    def close(self) -> None:
        if self.ballast is not None:
            if self._stage != AFTER:
                self.early = self.ballast.update().ended
            self.ballast.close()
        self._stage = AFTER


def pressured(
    model: str | Path,
    *,
    cap: int | str | None,
    ballast: int | str,
    inside: bool = True,
    kind: str = "file",
    rate_bytes_per_s: int = RATE,
    idle_s: float = 0.0,
    tokens: int = 12,
    timeout_s: float = 60.0,
    progress: Progress | None = None,
    cancel: Event | None = None,
    **settings: Any,
) -> Pressured:
    """Decode before, during and after a ballast takes memory; or pause while it does, and decode again.

    Where no cap is possible, a run recorded elsewhere is returned, and says so; without ``cap`` none is needed.

    Args:
        model: as for ``measure``; a filled one, since the holes of a sparse file cost no disk reads.
        cap: for the model's child, and the ballast if it is inside; None for no cap.
        ballast: its size.
        inside: the ballast shares the cap. Outside it takes only processor time and bandwidth, as a control.
        kind: of the ballast's memory; see ``Ballast``.
        rate_bytes_per_s: how fast it touches its pages.
        idle_s: how long to pause while it runs, at least until it has touched every page. 0 decodes meanwhile.
        tokens: in each stage.
        timeout_s: for all stages together.
        progress: see ``measure``.
        cancel: see ``measure``.
        **settings: any of ``Settings``' fields.

    Returns:
        A record, whatever happened: being killed or refused is an outcome.

    Raises:
        SettingsError, GGUFError, ModelError, Interrupted: as for ``measure``.
        ValueError: a ballast that makes no sense, or one inside without a cap.
        FileNotFoundError: no cap is possible and nothing of the kind was recorded.
    """
    size = parse_bytes(ballast)
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: choose one of {', '.join(KINDS)}.")
    if size < MiB or rate_bytes_per_s < MiB or idle_s < 0 or tokens < 1:
        raise ValueError("a ballast has at least 1 MiB and touches 1 MiB per second, beside at least one token.")
    if inside and cap is None:
        raise ValueError("inside=True needs a cap that the ballast shares: write cap, or inside=False.")
    if cap is not None and caps.available().how is None:
        return recorded(str(settings.get("load_mode", "mmap")), kind=kind, inside=inside, idle=idle_s > 0)
    stages = _Stages(size, rate=rate_bytes_per_s, kind=kind, inside=inside, idle_s=idle_s, tokens=tokens)
    made = measure(
        model,
        cap=cap,
        tokens=tokens * (2 if idle_s else 3),
        timeout_s=timeout_s,
        progress=progress,
        cancel=cancel,
        companion=stages,
        **settings,
    )
    return Pressured(
        run=made,
        ballast_bytes=size,
        kind=kind,
        inside=inside,
        rate_bytes_per_s=rate_bytes_per_s,
        idle_s=idle_s,
        steps=tuple(stages.steps),
        ballast_passes=stages.ballast.passes if stages.ballast else 0,
        ballast_ended=stages.early or "",
    )


def recorded(load_mode: str, *, kind: str = "file", inside: bool = True, idle: bool = False) -> Pressured:
    """The run of this kind that comes with the kit (``datasets/runs/pressure.json``).

    Raises:
        FileNotFoundError: there is none.
    """
    wanted = (load_mode, kind, inside, idle)
    for run in recordings.recorded("pressure"):
        kept = (run.recorded or {})["pressure"]
        if (run.settings.load_mode, kept["kind"], kept["inside"], kept["idle_s"] > 0) == wanted:
            steps = tuple(Step(*step) for step in kept["steps"])
            return Pressured(run=run, **{**kept, "steps": steps}, recorded=recordings.origin(run))
    raise FileNotFoundError(f"no run of {load_mode} beside such a ballast was recorded, and no cap is possible here.")


def about(made: Pressured) -> dict[str, Any]:
    """What ``recorded`` needs beside the run, for its label: everything but the run, steps as short lists."""
    kept = {name: value for name, value in vars(made).items() if name not in ("run", "recorded", "steps")}
    return {**kept, "steps": [[s.stage, round(s.ms, 3), s.major_faults, s.read_bytes] for s in made.steps]}
