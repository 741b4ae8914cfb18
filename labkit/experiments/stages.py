"""The stages of a run beside a ballast: before it is started, while it runs, and after it has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.experiments.ballast import FILL_S, Ballast, PressureError
from labkit.system.caps import Cap

BEFORE, DURING, AFTER = "before", "during", "after"


@dataclass(frozen=True)
class Step:
    """One decoded token: when (``before``, ``during`` or ``after`` the ballast), how long, and what it fetched."""

    stage: str
    ms: float
    major_faults: int | None
    read_bytes: int | None


class Stages:
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
