"""Run a model beside a ballast, which takes and touches memory, and see what the kernel reclaims.

Without swap the kernel can take back only pages that have a file behind them. An anonymous ballast therefore keeps its
pages: a mapped model beside it loses its own, and where the model is locked, one of the two is killed. A ballast of
file pages and a mapped model lose pages alike; against a locked model only the ballast loses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

from labkit.experiments import recordings
from labkit.experiments.ballast import KINDS, RATE, Ballast, PressureError
from labkit.experiments.boundary import Boundary, find_boundary
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.experiments.stages import AFTER, BEFORE, DURING, Stages, Step
from labkit.progress import Progress
from labkit.system import caps
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
    stages = Stages(size, rate=rate_bytes_per_s, kind=kind, inside=inside, idle_s=idle_s, tokens=tokens)
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
