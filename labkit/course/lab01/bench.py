"""What the checks of lab 01's claims measure: runs with and without a memory cap, and reads from the disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from labkit.course.claims.bench import Part, ending, find, ran_with
from labkit.course.claims.terms import BUNDLED, MAPPED, PAGED, SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab01 import storage
from labkit.experiments.run import Run
from labkit.models.forge import models_dir
from labkit.settings import Settings
from labkit.system import caps
from labkit.system.machine import machine
from labkit.units import GiB

ONE_B = "llama-3.2-1b:Q4_K_M"
COPIED = Settings(repack=False, load_mode="none")
# Models in order of preference. REAL_BYTES stand on the disk, where a sparse file has holes that are not read.
LARGEST, ONE_B_FIRST, REAL_BYTES = (SEVEN_B, ONE_B, BUNDLED), (ONE_B, SEVEN_B, BUNDLED), (BUNDLED, PAGED)
ROOM_FOR_7B_BYTES = 8 * GiB  # 3.8 of the file, 2.9 of the repacked copy, cache and buffers


class PagingBench(Part):
    """Runs of the largest model that fits here, runs under a memory cap, and what reading from the disk costs."""

    def choose(self, *settings: Settings, among: Sequence[str] = LARGEST, tokens: int = 1) -> str:
        """The model for a check: one that was given with a run of each of ``settings``, else one that fits here.

        Args:
            among: models in order of preference; the last must fit everywhere.
            tokens: how many the runs must have decoded.
        """
        for name in among:
            if settings and all(find(self.bench.given, name, wanted, tokens=tokens) for wanted in settings):
                return name
        here = machine()
        room = {
            SEVEN_B: here.profile == "full" and (here.available_bytes or 0) >= ROOM_FOR_7B_BYTES,
            ONE_B: here.profile != "tiny",
        }
        return next(name for name in among if room.get(name, True))

    def capped(self, *, share: float, least: float, most: float, tokens: int = 2) -> tuple[Run, Run]:
        """A mapped model without a cap, and under one of ``share`` of what it needs; repack off, real bytes on disk.

        Runs that are there already serve if their cap is between ``least`` and ``most`` of the need.

        Raises:
            Unsettled: see ``Bench.run``; also when no cap is possible and nothing recorded serves.
        """

        def among(runs: Iterable[Run]) -> Run | None:
            return next((run for run in runs if is_capped(run, least, most, tokens)), None)

        found = among(self.bench.runs)
        if found is None and caps.available().how is None:
            return self._capped_elsewhere(among(self.bench.recorded), tokens)
        name = found.model.name if found else PAGED
        free = self.bench.run(name, MAPPED, tokens=tokens, like=found)
        if found is None:
            found = self.bench.live(name, free.settings, tokens=3, cap=int(share * _need_bytes(free)))
            if not is_capped(found, least, most, tokens):
                raise Unsettled(f"the run under a cap shows nothing: {found.caution.rstrip('.') or ending(found)}")
        self.bench.used.append(found)
        return free, found

    def _capped_elsewhere(self, found: Run | None, tokens: int) -> tuple[Run, Run]:
        """A recorded run under a cap, after one without from the same place."""
        if found is not None:
            same_place = [run for run in self.bench.recorded if run.recorded == found.recorded]
            free = find(same_place, found.model.name, MAPPED, tokens=tokens)
            if free is not None:
                self.bench.used += [free, found]
                return free, found
        raise Unsettled(f"{caps.available().reason}, and there is no recorded run")

    @cached_property
    def _storage(self) -> storage.Storage | str:
        """The measurement, or why there is none."""
        try:
            return storage.examine(self.bench.path(BUNDLED), folder=models_dir(), progress=self.bench.progress)
        except storage.StorageError as error:
            return str(error)

    def storage(self) -> storage.Storage:
        """What reading from disk and from memory costs, measured on a copy of the bundled model.

        Raises:
            Unsettled: the file's pages cannot be dropped from memory here.
        """
        if isinstance(self._storage, str):
            raise Unsettled(self._storage)
        self.bench.looked = True
        return self._storage


def is_capped(run: Run, least: float, most: float, tokens: int) -> bool:
    """Whether a mapped run had a cap between these shares of its need, real bytes to read, and enough tokens."""
    on_disk = not run.model.forged or run.model.name.endswith(":filled")
    if run.cap_bytes is None or not ran_with(run, MAPPED) or not on_disk:
        return False
    enough = run.outcome == "oom-killed" or len(run.timings.decode_ms) >= tokens
    return enough and least <= run.cap_bytes / _need_bytes(run) <= most


def tokens_of(run: Run) -> str:
    """How many tokens a run generated, in words."""
    n = len(run.timings.decode_ms)
    return f"{n} token{'' if n == 1 else 's'}"


def _need_bytes(run: Run) -> int:
    """What a mapped run needs in memory to read nothing twice (predicted)."""
    return run.predicted.mapped_bytes + run.predicted.rss_anon_bytes
