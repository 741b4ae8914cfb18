"""A model that has to share: a ballast beside it takes and touches memory, and reclaim has to choose.

Without swap the kernel can take back only pages that have a file behind them. So an anonymous ballast always wins
against a mapped model, and kills where the model is locked; a ballast of file pages competes with the mapped model's
on equal terms, and loses to a locked one.
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

# Sizes that show the effect within seconds: the model takes 763 MiB of file and 50 MiB of its own, so locked it fits.
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
        run: the model's own record; its outcome says whether it lived.
        ballast_bytes: size of the ballast.
        kind: of its memory.
        inside: whether it shared the model's cap.
        rate_bytes_per_s: how fast it touched its pages.
        idle_s: how long the model was silent while the ballast worked; 0: it decoded meanwhile.
        steps: every token, in order.
        ballast_passes: how often the ballast touched all its pages.
        ballast_ended: how it ended before its time, as a clause; empty if it did not.
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
        """The run's."""
        return self.run.outcome

    @property
    def reason(self) -> str:
        """The run's, and how the ballast ended if that was early."""
        early = f"the ballast did not stay: {self.ballast_ended}." if self.ballast_ended else ""
        return " ".join(filter(None, (self.run.reason, early)))

    def ms(self, stage: str) -> tuple[float, ...]:
        """Milliseconds of each token of a stage."""
        return tuple(step.ms for step in self.steps if step.stage == stage)

    @property
    def before_ms(self) -> tuple[float, ...]:
        """Tokens before there was a ballast."""
        return self.ms(BEFORE)

    @property
    def during_ms(self) -> tuple[float, ...]:
        """Tokens while it worked."""
        return self.ms(DURING)

    @property
    def after_ms(self) -> tuple[float, ...]:
        """Tokens after it had gone."""
        return self.ms(AFTER)

    @property
    def first_token_ms(self) -> float | None:
        """The first token after the silence; None where there was none."""
        return self.after_ms[0] if self.idle_s and self.after_ms else None

    @property
    def penalty_ms(self) -> float | None:
        """What the silence cost the first token, against the median before it."""
        first = self.first_token_ms
        return None if first is None or not self.before_ms else first - median(self.before_ms)

    @property
    def major_faults(self) -> int | None:
        """Faults that waited for a file's page, under pressure, or for the first token after the silence."""
        return _sum([step.major_faults for step in self._told])

    @property
    def read_bytes(self) -> int | None:
        """Bytes read from disk for the same tokens; None where the system does not count them."""
        return _sum([step.read_bytes for step in self._told])

    @property
    def _told(self) -> list[Step]:
        stage = AFTER if self.idle_s else DURING
        steps = [step for step in self.steps if step.stage == stage]
        return steps[:1] if self.idle_s else steps


def _sum(counts: list[int | None]) -> int | None:
    known = [n for n in counts if n is not None]
    return sum(known) if known and len(known) == len(counts) else None


class _Stages:
    """Decides when the ballast comes and goes; see ``watch.Companion``."""

    def __init__(self, size: int, *, rate: int, kind: str, inside: bool, idle_s: float, tokens: int) -> None:
        self._size, self._rate, self._kind, self._inside, self._idle_s = size, rate, kind, inside, idle_s
        self._leaves = tokens if idle_s else 2 * tokens
        self.pauses: Sequence[int] = sorted({tokens, self._leaves})
        self._comes = tokens
        self.inside_bytes, self.outside_bytes = (size, 0) if inside else (0, size)
        self.problem: str | None = None
        self.early: str | None = None  # how the ballast ended before it was told to
        self.ballast: Ballast | None = None
        self.steps: list[Step] = []
        self._limit: Cap | None = None
        self._stage = BEFORE
        self._waits, self._since = False, 0.0

    def enter(self, limit: Cap | None) -> None:
        self._limit = limit if self._inside else None

    def waiting(self, token: int) -> None:
        self._waits, self._since = True, time.monotonic()
        if token == self._comes:
            try:
                self.ballast = Ballast(self._size, rate_bytes_per_s=self._rate, cap=self._limit, kind=self._kind)
            except PressureError as error:  # less is available than when the run began
                self.problem = str(error)
        if token == self._leaves and not self._idle_s:
            self._go_after()

    def token(self, event: Mapping[str, Any]) -> None:
        self.steps.append(Step(self._stage, event["ms"], event.get("major_faults"), event.get("read_bytes")))

    def look(self) -> bool:
        """Whether the waiting child may go on."""
        if self.ballast is not None:
            self.ballast.look()
            if self.ballast.ended and self.ballast.aborted:
                self.problem = f"the ballast saw the machine run short and the run was stopped: {self.ballast.ended}."
        if not self._waits or self.problem:
            return False
        waited = time.monotonic() - self._since
        if self._stage == AFTER:
            pass
        elif self.ballast is None:
            return False
        elif self._idle_s:
            if waited < self._idle_s and not self.ballast.ended:
                return False
            self._go_after()
        elif not self.ballast.passes and not self.ballast.ended and waited < FILL_S:
            return False
        else:
            self._stage = DURING
        self._waits = False
        return True

    def _go_after(self) -> None:
        self._stage = AFTER
        if self.ballast is not None:
            self.early = self.ballast.look().ended
            self.ballast.close()

    def close(self) -> None:
        if self.ballast is not None:
            if self._stage != AFTER:
                self.early = self.ballast.look().ended
            self.ballast.close()


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
    """Decode before, during and after a ballast takes memory; or be silent while it does, and decode again.

    Where no cap is possible, a run recorded elsewhere is returned, and says so; without ``cap`` none is needed.

    Args:
        model: as for ``measure``; a filled one, since the holes of a sparse file cost no disk reads.
        cap: for the model's child, and the ballast if it is inside; None for no cap.
        ballast: its size.
        inside: the ballast shares the cap. Outside it takes processor time and bandwidth alone: the control.
        kind: of the ballast's memory; see ``Ballast``.
        rate_bytes_per_s: how fast it touches its pages.
        idle_s: how long to be silent while it works. 0 decodes meanwhile.
        tokens: in each stage.
        timeout_s: for all of it.
        progress: see ``measure``.
        cancel: see ``measure``.
        **settings: any of ``Settings``' fields.

    Returns:
        A record, whatever happened: being killed or refused is an outcome.

    Raises:
        SettingsError, GGUFError, ModelError, Interrupted: as for ``measure``.
        ValueError: a ballast that makes no sense, or one inside of no cap.
        FileNotFoundError: no cap is possible and nothing of the kind was recorded.
    """
    size = parse_bytes(ballast)
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: choose one of {', '.join(KINDS)}.")
    if size < MiB or rate_bytes_per_s < MiB or idle_s < 0 or tokens < 1:
        raise ValueError("a ballast has at least 1 MiB and touches 1 MiB per second, beside at least one token.")
    if inside and cap is None:
        raise ValueError("a ballast inside needs a cap to be inside of: write cap, or inside=False.")
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
    there = stages.ballast
    return Pressured(
        run=made,
        ballast_bytes=size,
        kind=kind,
        inside=inside,
        rate_bytes_per_s=rate_bytes_per_s,
        idle_s=idle_s,
        steps=tuple(stages.steps),
        ballast_passes=there.passes if there else 0,
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
