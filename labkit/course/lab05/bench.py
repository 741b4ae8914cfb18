"""What checks of claims about locking ask a ``Bench`` for: runs that lock, that may not, and that have no room to."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from labkit.course.claims.unsettled import Unsettled
from labkit.experiments.run import Run
from labkit.gguf import Header
from labkit.planning.context import longest_surviving_context, needed
from labkit.settings import Settings
from labkit.system import caps
from labkit.system.machine import machine
from labkit.units import fmt_bytes

if TYPE_CHECKING:
    from pathlib import Path

# Not the bundled model: a notebook that has it mapped would keep its pages in memory, whatever is asked for.
LOCKED_MODEL = "smollm2-135m:F16:filled"
DENIED_MODEL = "smollm2"
LOCK = Settings(load_mode="mmap+mlock", repack=False)
LOOSE = Settings(load_mode="mmap", repack=False)
SHORT, LONG = 512, 8192  # tokens of context with which a cache is next to nothing, and two thirds of the weights
DENIED_LIMIT = "64KiB"
TOKENS = 4
LINUX = sys.platform == "linux"
LOCKED_SHARE = 0.9


@dataclass(frozen=True)
class Outgrown:
    """Three runs under one cap: locked with a short context, locked with a long one, and the long one mapped only."""

    short: Run
    long: Run
    loose: Run

    @property
    def cap_bytes(self) -> int:
        """Of all three."""
        return self.long.cap_bytes or 0


class LockFigures:
    """The part of ``Bench`` that is about locking."""

    used: list[Run]
    looked: bool
    _runs: list[Run]

    @property
    def _recorded(self) -> list[Run]:
        raise NotImplementedError

    def header(self, model: str) -> Header:
        raise NotImplementedError

    def _path(self, model: str) -> Path:
        raise NotImplementedError

    def _live(self, model: str, settings: Settings, **how: Any) -> Run:
        raise NotImplementedError

    def dropped(self) -> tuple[Run, Run]:
        """One model mapped, and mapped and locked, whose pages were asked away before each token.

        Raises:
            Unsettled: pages cannot be dropped or locked here, and nothing is recorded.
        """
        found = _dropped(self._runs)
        if found is None and (why := self._cannot_lock()) is None:
            runs = [self._live(LOCKED_MODEL, _on_one(s), tokens=TOKENS, evict="readahead") for s in (LOOSE, LOCK)]
            found = _dropped(runs)
            why = next((f"a run did not get through: {_end(run)}" for run in runs if not run.ok), None)
            why = why or "the locked run was disturbed"
        loose, locked = self._use(found or _dropped(self._recorded), why if found is None else None)
        return loose, locked

    def denied(self) -> Run:
        """A run that was to lock more than it may.

        Raises:
            Unsettled: a limit cannot be set here, and nothing is recorded.
        """
        found = next(filter(_is_denied, self._runs), None)
        why = None
        if found is None:
            if LINUX:
                run = self._live(DENIED_MODEL, _on_one(LOCK), tokens=1, memlock=DENIED_LIMIT)
                found, why = (run, None) if _is_denied(run) else (None, f"the limit shows nothing: {_end(run)}")
            else:
                why = "only Linux limits how much a single program may lock"
            found = found or next(filter(_is_denied, self._recorded), None)
        return self._use((found,) if found else None, why)[0]

    def outgrown(self) -> Outgrown:
        """A locked model whose context grows under a cap that its weights and a short context fit in.

        Raises:
            Unsettled: no cap is possible or nothing can be locked here, and nothing is recorded.
        """
        found = _outgrown(self._runs)
        why = None
        if found is None:
            why = self._cannot_lock() or (None if caps.available().how else caps.available().reason)
            if why is None:
                cap = self._cap()
                asked = [replace(LOCK, n_ctx=SHORT), replace(LOCK, n_ctx=LONG), replace(LOOSE, n_ctx=LONG)]
                runs = [self._live(LOCKED_MODEL, _on_one(s), tokens=TOKENS, cap=cap) for s in asked]
                found = _outgrown(runs)
                why = f"the runs under a cap show nothing: {_end(runs[0])}; {_end(runs[1])}; {_end(runs[2])}"
            found = found or _outgrown(self._recorded)
        return Outgrown(*self._use(found, why))

    def longest(self, model: str, settings: Settings, limit_bytes: int) -> int:
        """Predicted: the longest context that survives under a limit."""
        return longest_surviving_context(self.header(model), settings, limit_bytes)

    def _cap(self) -> int:
        """Half way between what the short context needs at most, and the long one at least."""
        header = self.header(LOCKED_MODEL)
        most, least = needed(header, LOCK, SHORT), needed(header, LOCK, LONG)
        return most.mapped_bytes + (most.anon_floor_bytes + least.rss_anon_bytes) // 2

    def _cannot_lock(self) -> str | None:
        """Why nothing can be locked here, or None."""
        if not LINUX:
            return "only Linux shows what is locked, and lets a program drop a file's pages"
        size, here = self.header(LOCKED_MODEL).file_bytes, machine()
        if here.lockable_bytes is not None and here.lockable_bytes < size:
            return f"this process may lock {fmt_bytes(here.lockable_bytes)} and {fmt_bytes(size)} are asked for"
        return None

    def _use(self, found: Iterable[Run] | None, why: str | None) -> tuple[Run, ...]:
        if not found:
            raise Unsettled((why or "there is no such run").rstrip("."))
        runs = tuple(found)
        self.used += runs
        return runs


def is_locked(run: Run) -> bool:
    """Whether a run locked what it was to lock."""
    return _locked(run) >= LOCKED_SHARE * run.predicted.locked_bytes > 0


def read_share(run: Run) -> float:
    """Of the weights, what was read from disk for each token; NaN where that is not counted."""
    before, after = run.phase("prefill"), run.phase("decode")
    if before is None or after is None or before.read_bytes is None or after.read_bytes is None:
        return float("nan")
    return (after.read_bytes - before.read_bytes) / len(run.timings.decode_ms) / run.predicted.weights_bytes


def _locked(run: Run) -> int:
    return (run.measured.locked_bytes if run.measured else None) or 0


def _on_one(settings: Settings) -> Settings:
    return replace(settings, n_threads=1)


def _end(run: Run) -> str:
    return f"{run.settings.load_mode} {run.outcome}{', ' if run.reason else ''}{run.reason.rstrip('.')}"


def _dropped(runs: Iterable[Run]) -> tuple[Run, Run] | None:
    """The last mapped and locked run of one model that were asked to drop their pages."""
    plain = [run for run in runs if run.evict and run.ok and run.cap_bytes is None and run.timings.decode_ms]
    pairs = (
        (loose, locked)
        for locked in plain
        for loose in plain
        if locked.settings.load_mode == "mmap+mlock"
        and is_locked(locked)
        and loose.settings == replace(locked.settings, load_mode="mmap")
        and loose.model.name == locked.model.name
    )
    return next(pairs, None)


def _is_denied(run: Run) -> bool:
    """Whether a run was to lock and did not, whatever it did then; one that had no time to tell does not count."""
    asked = run.predicted.locked_bytes and run.cap_bytes is None and not run.evict
    return bool(asked) and run.outcome in ("ok", "load-failed") and not is_locked(run)


def _outgrown(runs: Iterable[Run]) -> tuple[Run, Run, Run] | None:
    """Runs of one model under one cap that came through with a short context locked."""
    capped = [run for run in runs if run.cap_bytes is not None and not run.evict and not run.layers]
    ended = [run for run in capped if run.outcome in ("ok", "oom-killed")]
    for short in ended:
        if not short.ok or short.settings.load_mode != "mmap+mlock" or not is_locked(short):
            continue
        for long in ended:
            grown = replace(short.settings, n_ctx=long.settings.n_ctx)
            if not _same(short, long) or long.settings != grown or grown.n_ctx < 4 * short.settings.n_ctx:
                continue
            for loose in ended:
                if _same(short, loose) and loose.settings == replace(grown, load_mode="mmap"):
                    return short, long, loose
    return None


def _same(one: Run, other: Run) -> bool:
    return one.model.name == other.model.name and one.cap_bytes == other.cap_bytes
