"""What the checks of lab 03's claims measure about the KV cache: memory, quality, speed, cells."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import engine, predict
from labkit.course.claims.bench import Part, ending, undisturbed
from labkit.course.claims.growth import Growth
from labkit.course.claims.terms import BUNDLED
from labkit.course.claims.unsettled import Unsettled, or_unsettled
from labkit.engine.internals.slot_maps import EMPTY
from labkit.experiments.child.task import TaskError
from labkit.experiments.run import Run
from labkit.gguf import TYPES
from labkit.settings import CACHE_TYPES, Settings
from labkit.units import GiB, KiB, MiB

if TYPE_CHECKING:
    from labkit.experiments.cache_slots import Snapshot
    from labkit.experiments.depth import DepthSpeed
    from labkit.quant.cache_quality import CacheQuality

QUANTIZED = tuple(name for name in CACHE_TYPES if TYPES[name.upper()].block_elems > 1)
COMPARED = ("q8_0", "q4_0")  # the cache types that the articles compare with f16
TEXT_TOKENS = 128
DEPTHS, REPEATS = (0, 1024), 48
GROWTH_BYTES = 4 * MiB  # the kernel's counters may be off by about 1 MiB
GROWTH_CONTEXT = 2048
ADDRESSES_BYTES, TOO_LARGE_BYTES = 4 * GiB, 16 * GiB  # what a child may have, and the cache that it asks for


class CacheBench(Part):
    """What the KV cache takes, and what it costs in quality and speed."""

    def kv_bytes(self, model: str, **settings: Any) -> int:
        """The KV cache of a model by the kit's formula."""
        return predict.kv_bytes(self.bench.header(model), Settings.of(settings))

    def killed(self) -> list[Run]:
        """Runs, of those there are, that a memory cap ended."""
        return [run for run in self.bench.runs if run.outcome == "oom-killed"]

    def growth(self) -> Growth:
        """A 4-bit model with an f16 cache, run for so many tokens that a cache which grew with them would show.

        Raises:
            Unsettled: see ``Bench.run``; or this system does not give the anonymous memory of a process.
        """
        for run in self.bench.runs:
            plain = run.cap_bytes is None and undisturbed(run)
            if plain and run.settings.type_k == run.settings.type_v == "f16" and _would_show(run):
                self.bench.used.append(run)
                return Growth.of(run)
        per_token = self.kv_bytes(BUNDLED, n_ctx=GROWTH_CONTEXT) // GROWTH_CONTEXT
        wanted = Settings(repack=False, n_ctx=GROWTH_CONTEXT)
        return Growth.of(self.bench.run(BUNDLED, wanted, tokens=-(-GROWTH_BYTES // per_token)))

    def quality(self, type_k: str, type_v: str, *, rotated: bool = True) -> CacheQuality:
        """What a pair of cache types costs the bundled model in quality.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.bench.looked = True
        found = self.known_quality(type_k, type_v, rotated=rotated)
        if found is None:
            from labkit.quant.cache_quality import cache_quality

            pairs = list(dict.fromkeys([(type_k, type_v), *((name, name) for name in COMPARED)]))
            how: dict[str, Any] = {"tokens": TEXT_TOKENS, "threads": 1, "progress": self.bench.progress}
            with or_unsettled(TaskError, OSError):
                measured = cache_quality(self.bench.path(BUNDLED), pairs=pairs, rotation=(rotated,), **how)
            self.bench.cache_qualities += measured
            found = self.known_quality(type_k, type_v, rotated=rotated)
            assert found is not None  # it was among the pairs
        return found

    def known_quality(self, type_k: str, type_v: str, *, rotated: bool) -> CacheQuality | None:
        """The same if it has been measured, over the most tokens; else None."""
        wanted = (type_k, type_v, rotated)
        same = (one for one in self.bench.cache_qualities if (one.type_k, one.type_v, one.rotated) == wanted)
        return max(same, key=lambda one: one.quality.n_tokens, default=None)

    def depth(self) -> tuple[DepthSpeed, ...]:
        """Time per token with caches of f16, q8_0 and q4_0, empty and filled to the same depths.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.bench.looked = True
        if len(self._depths()) < 2:
            from labkit.experiments.depth import speed_at_depth

            how: dict[str, Any] = {"depths": DEPTHS, "repeats": REPEATS, "threads": 1, "progress": self.bench.progress}
            with or_unsettled(TaskError, OSError):
                measured = speed_at_depth(self.bench.path(BUNDLED), types=("f16", *COMPARED), **how)
            self.bench.depth_speeds = list(measured)
        wanted = self._depths()
        return tuple(one for one in self.bench.depth_speeds if one.n_past in wanted and _is_compared(one))

    def _depths(self) -> set[int]:
        """Depths at which all three types were timed."""
        timed = {(one.type_k, one.n_past) for one in self.bench.depth_speeds if _is_compared(one)}
        return {n for _, n in timed if all((name, n) in timed for name in ("f16", *COMPARED))}

    def slots(self) -> Sequence[Snapshot]:
        """The cells of llama.cpp's cache while sequences are added and removed, until one more does not fit.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.bench.looked = True
        traces = self.bench.slot_maps
        found = next((trace for trace in traces if _asks_for_a_gap(trace) and _asks_for_too_much(trace)), None)
        if found is None:
            from labkit.experiments.cache_slots import demo_trace, slot_map

            model = self.bench.path(BUNDLED)
            with or_unsettled(TaskError, OSError):
                found = slot_map(demo_trace(), model=model, threads=1, progress=self.bench.progress)
            traces.append(found)
        return found

    def refusal(self) -> str | None:
        """llama.cpp's error when a child that may have 4 GiB of addresses asks for a cache of 16; None if it has none.

        Raises:
            Unsettled: only Linux limits the addresses of a process; or llama.cpp is not installed.
        """
        from labkit.course.lab03.short_memory import ShortMemoryError, refusal

        per_token = self.kv_bytes(BUNDLED, n_ctx=KiB) // KiB
        settings = Settings(repack=False, n_threads=1, n_ctx=TOO_LARGE_BYTES // per_token)
        self.bench.looked = True
        with or_unsettled(ShortMemoryError):
            return refusal(self.bench.path(BUNDLED), settings, addresses_bytes=ADDRESSES_BYTES)

    def kv_bytes_under(self, variable: str) -> int:
        """The KV cache that a child process makes for 512 tokens when an environment variable is set to 1.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        self.bench.looked = True
        with _environment(variable):
            run = self.bench.measure(BUNDLED, tokens=1, progress=self.bench.progress, repack=False, n_threads=1)
        if not run.phase("context"):
            raise Unsettled(f"{BUNDLED} did not finish context: {ending(run)}")
        return run.buffer_bytes(kind="kv")

    def device_kinds(self) -> frozenset[str]:
        """Names and descriptions of the devices that this build can compute on, in lower case.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        self.bench.looked = True
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
    """Whether a 4-bit model finished all phases, with enough tokens for growth to show in the kernel's counters."""
    if run.model.name != BUNDLED and not run.model.name.endswith(":Q4_K_M"):
        return False
    finished = all(run.phase(name) for name in ("load", "context", "prefill", "decode"))
    return finished and run.predicted.kv_bytes * len(run.timings.decode_ms) >= GROWTH_BYTES * run.settings.n_ctx


def _is_compared(speed: DepthSpeed) -> bool:
    """Whether K and V have one of the types that are compared, with flash attention."""
    return speed.type_k == speed.type_v and speed.type_k in ("f16", *COMPARED) and speed.flash_attn != "off"


def _asks_for_a_gap(trace: Sequence[Snapshot]) -> bool:
    """Whether a sequence between two others is removed, and a new one is added that is longer than the gap it left."""
    for before, gap, after in zip(trace, trace[1:], trace[2:], strict=False):
        freed = np.flatnonzero((before.cells != EMPTY) & (gap.cells == EMPTY))
        if gap.step.op == "remove" and after.step.op == "add" and 0 < len(freed) < (after.step.n or 0):
            behind = gap.cells[freed[-1] + 1 :]
            if (behind != EMPTY).any() and after.step.seq not in gap.cells:
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
    """Within the block an environment variable is 1."""
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
