"""What checks of claims about the cache ask a ``Bench`` for: handed over by a lab, else measured small and kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import engine, predict
from labkit.course.claims.unsettled import Unsettled, or_unsettled
from labkit.engine.internals.slot_maps import EMPTY
from labkit.experiments.run import Run
from labkit.gguf import TYPES, Header
from labkit.settings import CACHE_TYPES, Settings
from labkit.units import GiB, KiB, MiB

if TYPE_CHECKING:
    from labkit.experiments.cache_slots import Snapshot
    from labkit.experiments.depth import DepthSpeed
    from labkit.experiments.dry_run import Planned
    from labkit.quant.cache_quality import CacheQuality

SMALL, THIRTEEN, EIGHT = "smollm2", "llama-2-13b:Q4_K_M", "llama-3.1-8b:Q4_K_M"
QUANTIZED = tuple(name for name in CACHE_TYPES if TYPES[name.upper()].block_elems > 1)
COMPARED = ("q8_0", "q4_0")  # the cache types that the articles speak of, beside f16
TEXT_TOKENS = 128
DEPTHS, REPEATS = (0, 1024), 48
GROWTH_BYTES = 4 * MiB  # the kernel's counters may be off by about 1 MiB
GROWTH_CONTEXT = 2048
ADDRESSES_BYTES, TOO_LARGE_BYTES = 4 * GiB, 16 * GiB  # what a child may have, and the cache that it asks for


@dataclass(frozen=True)
class Growth:
    """What became of a process's memory as a cache was made and filled.

    Attributes:
        n_ctx, n_tokens: cells of the cache, and how many of them generating filled.
        kv_bytes: the cache, predicted.
        kv_buffers: as llama.cpp reports them, one for each device that holds a part.
        context_bytes, decode_bytes: anonymous memory that making the context and generating added.
        minor_faults, major_faults: while generating.
    """

    model: str
    n_ctx: int
    n_tokens: int
    kv_bytes: int
    kv_buffers: tuple[int, ...]
    context_bytes: int
    decode_bytes: int
    minor_faults: int | None
    major_faults: int | None

    @property
    def if_growing_bytes(self) -> int:
        """What the tokens would have added to a cache that grew with them."""
        return self.kv_bytes * self.n_tokens // self.n_ctx

    @classmethod
    def of(cls, run: Run) -> Growth:
        """What a run showed that got through decode.

        Raises:
            Unsettled: the system does not tell anonymous memory.
        """

        def grown(kind: str, since: str, until: str) -> int | None:
            before, after = (getattr(run.phase(name), kind) for name in (since, until))
            return None if before is None or after is None else int(after - before)

        at_once, later = grown("rss_anon_bytes", "load", "context"), grown("rss_anon_bytes", "prefill", "decode")
        if at_once is None or later is None:
            raise Unsettled("this system does not tell rss anon bytes of a process")
        return cls(
            model=run.model.name,
            n_ctx=run.settings.n_ctx,
            n_tokens=len(run.timings.decode_ms),
            kv_bytes=run.predicted.kv_bytes,
            kv_buffers=tuple(buffer.bytes for buffer in run.buffers if buffer.kind == "kv"),
            context_bytes=at_once,
            decode_bytes=max(0, later),
            minor_faults=grown("minor_faults", "prefill", "decode"),
            major_faults=grown("major_faults", "prefill", "decode"),
        )


class CacheFigures:
    """The part of ``Bench`` that is about the cache.

    Attributes:
        cache_qualities, depth_speeds, slot_maps: what ``cache_quality``, ``speed_at_depth`` and ``slot_map`` returned.
            Put in what was measured elsewhere, so that it is not measured again.
    """

    looked: bool
    progress: Callable[[float, str], None]
    used: list[Run]
    _runs: list[Run]
    _measure: Callable[..., Run]

    def __init__(self) -> None:
        self.cache_qualities: list[CacheQuality] = []
        self.depth_speeds: list[DepthSpeed] = []
        self.slot_maps: list[Sequence[Snapshot]] = []

    def header(self, model: str) -> Header:
        raise NotImplementedError

    def run(self, model: str, settings: Settings, *, upto: str = "decode", tokens: int = 1) -> Run:
        raise NotImplementedError

    def _path(self, model: str) -> Path:
        raise NotImplementedError

    def kv_bytes(self, model: str, **settings: Any) -> int:
        """The KV cache of a model by the kit's formula."""
        return predict.kv_bytes(self.header(model), Settings.of(settings))

    def planned(self, model: str, *settings: Settings) -> tuple[Planned, ...]:
        """What llama.cpp would allocate, by its own dry run; a setting that it refuses has a ``problem``.

        Raises:
            Unsettled: llama.cpp is not installed, or cannot open the model.
        """
        from labkit.experiments.child.task import TaskError
        from labkit.experiments.dry_run import dry_runs

        path = self._path(model)
        self.looked = True
        with or_unsettled(TaskError, OSError):
            return dry_runs(path, settings, progress=self.progress)

    def planned_kv_bytes(self, model: str, *settings: Settings) -> list[int]:
        """The cache in each of llama.cpp's plans.

        Raises:
            Unsettled: see ``planned``; also when it refuses one.
        """
        plans = self.planned(model, *settings)
        if problem := next((plan.problem for plan in plans if plan.problem), None):
            raise Unsettled(problem.rstrip("."))
        return [plan.kv_bytes or 0 for plan in plans]

    def killed(self) -> list[Run]:
        """Runs, of those there are, that a memory cap ended."""
        return [run for run in self._runs if run.outcome == "oom-killed"]

    def growth(self) -> Growth:
        """A 4-bit model with an f16 cache, run for so many tokens that a cache which grew with them would show.

        Raises:
            Unsettled: see ``Bench.run``; or the system does not tell anonymous memory.
        """
        for run in self._runs:
            plain = run.cap_bytes is None and not (run.layers or run.evict or run.caution)
            if plain and run.settings.type_k == run.settings.type_v == "f16" and _would_show(run):
                self.used.append(run)
                return Growth.of(run)
        per_token = self.kv_bytes(SMALL, n_ctx=GROWTH_CONTEXT) // GROWTH_CONTEXT
        wanted = Settings(repack=False, n_ctx=GROWTH_CONTEXT)
        return Growth.of(self.run(SMALL, wanted, tokens=-(-GROWTH_BYTES // per_token)))

    def cache_quality(self, type_k: str, type_v: str, *, rotated: bool = True) -> CacheQuality:
        """What a pair of cache types costs the bundled model in quality.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.looked = True
        found = self._quality_of(type_k, type_v, rotated)
        if found is None:
            from labkit.experiments.child.task import TaskError
            from labkit.quant.cache_quality import cache_quality

            pairs = list(dict.fromkeys([(type_k, type_v), *((name, name) for name in COMPARED)]))
            how: dict[str, Any] = {"tokens": TEXT_TOKENS, "threads": 1, "progress": self.progress}
            with or_unsettled(TaskError, OSError):
                self.cache_qualities += cache_quality(self._path(SMALL), pairs=pairs, rotation=(rotated,), **how)
            found = self._quality_of(type_k, type_v, rotated)
            assert found is not None  # it was among the pairs
        return found

    def _quality_of(self, type_k: str, type_v: str, rotated: bool) -> CacheQuality | None:
        wanted = (type_k, type_v, rotated)
        same = (one for one in self.cache_qualities if (one.type_k, one.type_v, one.rotated) == wanted)
        return max(same, key=lambda one: one.quality.n_tokens, default=None)

    def depth(self) -> tuple[DepthSpeed, ...]:
        """Time per token with caches of f16, q8_0 and q4_0, empty and filled to the same depths.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.looked = True
        if len(self._depths()) < 2:
            from labkit.experiments.child.task import TaskError
            from labkit.experiments.depth import speed_at_depth

            how: dict[str, Any] = {"depths": DEPTHS, "repeats": REPEATS, "threads": 1, "progress": self.progress}
            with or_unsettled(TaskError, OSError):
                self.depth_speeds = list(speed_at_depth(self._path(SMALL), types=("f16", *COMPARED), **how))
        wanted = self._depths()
        return tuple(one for one in self.depth_speeds if one.n_past in wanted and _is_compared(one))

    def _depths(self) -> set[int]:
        """Depths at which all three types were timed."""
        timed = {(one.type_k, one.n_past) for one in self.depth_speeds if _is_compared(one)}
        return {n for _, n in timed if all((name, n) in timed for name in ("f16", *COMPARED))}

    def slots(self) -> Sequence[Snapshot]:
        """The cells of llama.cpp's cache while sequences come and go, until one more does not fit.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.looked = True
        found = next((trace for trace in self.slot_maps if _asks_for_a_gap(trace) and _asks_for_too_much(trace)), None)
        if found is None:
            from labkit.experiments.cache_slots import demo_trace, slot_map
            from labkit.experiments.child.task import TaskError

            with or_unsettled(TaskError, OSError):
                found = slot_map(demo_trace(), model=self._path(SMALL), threads=1, progress=self.progress)
            self.slot_maps.append(found)
        return found

    def refusal(self) -> str | None:
        """What llama.cpp says when a child that may have 4 GiB of addresses asks for a cache of 16; None: nothing.

        Raises:
            Unsettled: only Linux limits the addresses of a process; or llama.cpp is not installed.
        """
        from labkit.course.lab03.short_memory import ShortMemoryError, refusal

        per_token = self.kv_bytes(SMALL, n_ctx=KiB) // KiB
        settings = Settings(repack=False, n_threads=1, n_ctx=TOO_LARGE_BYTES // per_token)
        self.looked = True
        with or_unsettled(ShortMemoryError):
            return refusal(self._path(SMALL), settings, addresses_bytes=ADDRESSES_BYTES)

    def cache_under(self, variable: str) -> int:
        """The KV cache that a child process makes for 512 tokens when an environment variable is set to 1.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.looked = True
        with _environment(variable):
            run = self._measure(SMALL, tokens=1, progress=self.progress, repack=False, n_threads=1)
        if not run.phase("context"):
            raise Unsettled(f"{SMALL} did not get through context: {run.outcome}, {run.reason.rstrip('.')}")
        return run.buffer_bytes(kind="kv")

    def device_kinds(self) -> frozenset[str]:
        """Names and descriptions of what this build can compute on, in lower case.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        self.looked = True
        info = engine.info()
        if info.problem:
            raise Unsettled(info.problem.rstrip("."))
        return frozenset(f"{device.name} {device.description}".lower() for device in info.devices)

    def block_error(self, n: int) -> float:
        """Root mean square error of normally distributed values rounded to 8 bits, one scale for each ``n`` of them.

        As a share of their spread. A scale is the largest value over 127, as in Q8_0.
        """
        values = np.random.default_rng(0).standard_normal((1 << 18) // n * n, np.float32).reshape(-1, n)
        scale = np.abs(values).max(axis=1, keepdims=True) / 127
        error = np.round(values / scale) * scale - values
        return float(np.sqrt(np.mean(error**2)) / values.std())


def _would_show(run: Run) -> bool:
    """Whether a 4-bit model went through all phases, with tokens enough to be seen in the kernel's counters."""
    if run.model.name != SMALL and not run.model.name.endswith(":Q4_K_M"):
        return False
    through = all(run.phase(name) for name in ("load", "context", "prefill", "decode"))
    return through and run.predicted.kv_bytes * len(run.timings.decode_ms) >= GROWTH_BYTES * run.settings.n_ctx


def _is_compared(speed: DepthSpeed) -> bool:
    return speed.type_k == speed.type_v and speed.type_k in ("f16", *COMPARED) and speed.flash_attn != "off"


def _asks_for_a_gap(trace: Sequence[Snapshot]) -> bool:
    """Whether a new sequence comes after another was removed from before a third, and is longer than the hole."""
    for before, hole, after in zip(trace, trace[1:], trace[2:], strict=False):
        freed = np.flatnonzero((before.cells != EMPTY) & (hole.cells == EMPTY))
        if hole.step.op == "remove" and after.step.op == "add" and 0 < len(freed) < (after.step.n or 0):
            behind = hole.cells[freed[-1] + 1 :]
            if (behind != EMPTY).any() and after.step.seq not in hole.cells:
                return True
    return False


def _asks_for_too_much(trace: Sequence[Snapshot]) -> bool:
    """Whether a batch is longer than all cells that were empty before it."""
    return any(
        after.step.op == "add" and (before.cells == EMPTY).sum() < (after.step.n or 0)
        for before, after in pairwise(trace)
    )


@contextmanager
def _environment(variable: str) -> Iterator[None]:
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
