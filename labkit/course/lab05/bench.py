"""What the checks of lab 05's claims measure: runs that lock, that are not allowed to, and that have no room to."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from labkit.course.claims.bench import Part, ending
from labkit.course.claims.terms import BUNDLED, PAGED
from labkit.experiments.run import Run
from labkit.planning.context import longest_surviving_context, needed
from labkit.settings import Settings
from labkit.system import caps
from labkit.system.machine import machine
from labkit.units import fmt_bytes

LOCK = Settings(load_mode="mmap+mlock", repack=False)
LOOSE = Settings(load_mode="mmap", repack=False)
SHORT, LONG = 512, 8192  # tokens of context: the cache takes 4 % of the size of the weights, and 70 %
DENIED_LIMIT = "64KiB"
TOKENS = 4
LINUX = sys.platform == "linux"
LOCKED_SHARE = 0.9  # of what was to be locked: from here on the lock counts as held


@dataclass(frozen=True)
class Outgrown:
    """Three runs under one cap: locked with a short context, locked with a long one, and the long one only mapped."""

    short: Run
    long: Run
    loose: Run

    @property
    def cap_bytes(self) -> int:
        """Of all three."""
        return self.long.cap_bytes or 0


class LockBench(Part):
    """Runs whose weights are locked in memory, and the same runs without the lock."""

    def dropped(self) -> tuple[Run, Run]:
        """One model mapped, and mapped and locked; before each token the kernel was asked to drop the file's pages.

        Raises:
            Unsettled: pages cannot be dropped or locked here, and nothing is recorded.
        """
        loose, locked = self.bench.obtain(_dropped, self._drop)
        return loose, locked

    def _drop(self) -> str:
        """Measure them; why that is impossible or was not enough."""
        if why := self._cannot_lock():
            return why
        runs = [self._live(PAGED, settings, evict="readahead") for settings in (LOOSE, LOCK)]
        failed = (f"a run did not finish: {_mode_and_end(run)}" for run in runs if not run.ok)
        return next(failed, "the locked run was disturbed")

    def denied(self) -> Run:
        """A run that was to lock more than it may.

        Raises:
            Unsettled: a limit cannot be set here, and nothing is recorded.
        """
        (run,) = self.bench.obtain(_denied, self._deny)
        return run

    def _deny(self) -> str:
        """Measure it; why that is impossible or was not enough."""
        if not LINUX:
            return "only Linux limits how much a single program may lock"
        run = self._live(BUNDLED, LOCK, tokens=1, memlock=DENIED_LIMIT)
        return f"the limit shows nothing: {_mode_and_end(run)}"

    def outgrown(self) -> Outgrown:
        """A locked model whose context grows under a cap that holds its weights with a short context.

        Raises:
            Unsettled: no cap is possible or nothing can be locked here, and nothing is recorded.
        """
        return Outgrown(*self.bench.obtain(_outgrown, self._outgrow))

    def _outgrow(self) -> str:
        """Measure them; why that is impossible or was not enough."""
        if why := self._cannot_lock() or (None if caps.available().how else caps.available().reason):
            return why
        asked = [replace(LOCK, n_ctx=SHORT), replace(LOCK, n_ctx=LONG), replace(LOOSE, n_ctx=LONG)]
        runs = [self._live(PAGED, settings, cap=self._cap_bytes()) for settings in asked]
        return f"the runs under a cap show nothing: {'; '.join(map(_mode_and_end, runs))}"

    def longest(self, model: str, settings: Settings, limit_bytes: int) -> int:
        """Predicted: the longest context with which a model is not killed under a limit."""
        return longest_surviving_context(self.bench.header(model), settings, limit_bytes)

    def _live(self, model: str, settings: Settings, *, tokens: int = TOKENS, **how: object) -> Run:
        """A run measured here on one thread."""
        return self.bench.live(model, replace(settings, n_threads=1), tokens=tokens, **how)

    def _cap_bytes(self) -> int:
        """Half way between the most that the short context needs and the least that the long one does."""
        header = self.bench.header(PAGED)
        most, least = needed(header, LOCK, SHORT), needed(header, LOCK, LONG)
        return most.mapped_bytes + (most.anon_floor_bytes + least.rss_anon_bytes) // 2

    def _cannot_lock(self) -> str | None:
        """Why nothing can be locked here, or None."""
        if not LINUX:
            return "only Linux shows what is locked, and lets a program drop a file's pages"
        size, here = self.bench.header(PAGED).file_bytes, machine()
        if here.lockable_bytes is not None and here.lockable_bytes < size:
            return f"this process may lock {fmt_bytes(here.lockable_bytes)} and {fmt_bytes(size)} are asked for"
        return None


def locked_bytes(run: Run) -> int:
    """Bytes that a run had locked; 0 where the system does not show them."""
    return (run.measured.locked_bytes if run.measured else None) or 0


def is_locked(run: Run) -> bool:
    """Whether a run locked what it was to lock."""
    return locked_bytes(run) >= LOCKED_SHARE * run.predicted.locked_bytes > 0


def _mode_and_end(run: Run) -> str:
    """A run's load mode and how it ended."""
    return f"{run.settings.load_mode} {ending(run)}"


def _dropped(runs: Iterable[Run]) -> tuple[Run, Run] | None:
    """The first mapped run, and the same one locked, whose pages the kernel was asked to drop; None without a pair."""
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


def _denied(runs: Iterable[Run]) -> list[Run]:
    """The first run that was not allowed to lock, alone in a list."""
    return [run for run in runs if _is_denied(run)][:1]


def _is_denied(run: Run) -> bool:
    """Whether a run was to lock and did not, and ended by itself: one that was killed may have had no time to lock."""
    asked = run.predicted.locked_bytes and run.cap_bytes is None and not run.evict
    return bool(asked) and run.outcome in ("ok", "load-failed") and not is_locked(run)


def _outgrown(runs: Iterable[Run]) -> tuple[Run, Run, Run] | None:
    """The three runs of an ``Outgrown``, of which the first finished with its weights locked; None without them."""
    capped = [run for run in runs if run.cap_bytes is not None and not run.evict and not run.layers]
    ended = [run for run in capped if run.outcome in ("ok", "oom-killed")]
    for short in ended:
        if not short.ok or short.settings.load_mode != "mmap+mlock" or not is_locked(short):
            continue
        for long in ended:
            longer = replace(short.settings, n_ctx=long.settings.n_ctx)
            if not _same(short, long) or long.settings != longer or longer.n_ctx < 4 * short.settings.n_ctx:
                continue
            for loose in ended:
                if _same(short, loose) and loose.settings == replace(longer, load_mode="mmap"):
                    return short, long, loose
    return None


def _same(one: Run, other: Run) -> bool:
    """Whether two runs had one model and one cap."""
    return one.model.name == other.model.name and one.cap_bytes == other.cap_bytes
