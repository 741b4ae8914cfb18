"""Where a claim's check gets its figures: from runs that are already there, else measured once and kept.

Live runs use one thread: on a busy computer several threads wait for each other, and times stop meaning anything.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit import caps, gguf, models, predict, probe
from labkit.bandwidth import Disk, disk_bandwidth
from labkit.data import data_path
from labkit.experiment import measure
from labkit.forge import ForgeError, header_bytes, models_dir
from labkit.gguf import GGUFError, Header
from labkit.machine import machine
from labkit.models import ModelError
from labkit.run import Run
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes

SEVEN_B, ONE_B, FILLED, REAL = "llama-2-7b:Q4_K_M", "llama-3.2-1b:Q4_K_M", "llama-3.2-1b:Q4_K_M:filled", "smollm2"
ROOM_FOR_7B_BYTES = 8 * GiB  # file 3.8 GiB, repacked copy 2.9 GiB, cache and buffers
TOKENS = 8

Progress = Callable[[float, str], None]


class Unsettled(Exception):
    """The figures a check needs cannot be had here; the message is the reason."""


@dataclass(frozen=True)
class Pass:
    """Touching every page of a mapped file once."""

    seconds: float
    minor_faults: int
    major_faults: int
    read_bytes: int


@dataclass(frozen=True)
class Storage:
    """A file mapped and touched after its pages were dropped from memory, and again; then read cold and warm."""

    file_bytes: int
    cold: Pass
    warm: Pass
    disk: Disk


class Bench:
    """Runs and other measurements for checks, each made at most once.

    Args:
        using: runs to look through first. Recorded ones serve only where nothing can be measured.
        measure: makes a Run; ``experiment.measure``, or a stand-in.
    """

    def __init__(self, using: Iterable[Run] = (), *, measure: Callable[..., Run] = measure) -> None:
        given = list(using)
        self.runs = [run for run in given if run.recorded is None]
        self._given_recorded = [run for run in given if run.recorded is not None]
        self._measure = measure
        self._memo: dict[str, Any] = {}
        self.progress: Progress = lambda fraction, text: None
        self.begin()

    def begin(self) -> None:
        """A new check starts: forget what the last one used."""
        self.used: list[Run] = []
        self.looked = False

    def choose(self, *settings: Mapping[str, Any], first: str = SEVEN_B, upto: str = "decode") -> str:
        """The model to use: the first that this computer has room for and that was already run with all ``settings``.

        Without such runs it is ``first``, or the largest that fits.
        """
        here = machine()
        fits = [REAL] if here.profile == "tiny" else [ONE_B, REAL]
        if here.profile == "full" and (here.available_bytes or 0) >= ROOM_FOR_7B_BYTES:
            fits = [SEVEN_B, *fits]
        if first in fits:
            fits = [first, *(name for name in fits if name != first)]
        for name in fits:
            if all(self._find(name, Settings.of(values), upto) for values in settings):
                return name
        return fits[0]

    def run(self, model: str, *, upto: str = "decode", tokens: int = TOKENS, **settings: Any) -> Run:
        """A run without a cap that ended phase ``upto`` and decoded so many tokens.

        Raises:
            Unsettled: it cannot be run here, or did not get so far, and there is no recorded one.
        """
        wanted = Settings.of(settings)
        found = self._find(model, wanted, upto, tokens)
        if found is None:
            made = self._live(model, tokens=tokens, **settings)
            if made.phase(upto) is not None:
                found = made
            else:
                found = self._find(model, wanted, upto, tokens, among=self._recorded)
                if found is None:
                    raise Unsettled(f"{model} did not get through {upto}: {made.outcome}, {made.reason}")
        self.used.append(found)
        return found

    def capped(self, *, share: float, least: float, most: float, tokens: int = 4) -> tuple[Run, Run]:
        """The same model without a cap, and under one of ``share`` of what it needs; real bytes on disk, repack off.

        Runs that are already there serve if their cap is between ``least`` and ``most`` of the need.

        Raises:
            Unsettled: see ``run``; also when caps are impossible and nothing recorded fits.
        """
        fits = [REAL] if machine().profile == "tiny" else [FILLED, REAL]
        for model in fits:
            for run in self.runs:
                if self._is_capped(run, model, least, most, tokens):
                    self.used.append(run)
                    return self.run(model, tokens=tokens, repack=False), run
        method = caps.available()
        if method.how is None:
            return self._capped_elsewhere(least, most, tokens, method.reason)
        need = needed_bytes(self.header(fits[0]))
        free = self.run(fits[0], tokens=tokens, repack=False)
        run = self._live(fits[0], tokens=tokens, repack=False, cap=int(share * need), timeout_s=120)
        self.used.append(run)
        return free, run

    def _capped_elsewhere(self, least: float, most: float, tokens: int, reason: str) -> tuple[Run, Run]:
        for run in self._recorded:
            if not self._is_capped(run, run.model.name, least, most, tokens):
                continue
            wanted = Settings(repack=False)
            free = self._find(run.model.name, wanted, "decode", among=self._recorded, machine_of=run)
            if free is not None:
                self.used += [run, free]
                return free, run
        raise Unsettled(f"{reason}, and no recorded run shows it")

    def header(self, model: str) -> Header:
        """The header of a model; of a forged one without writing it.

        Raises:
            Unsettled: the bundled model is missing.
        """
        if ":" not in model:
            return gguf.read_header(self._path(model))
        shape, quant, *filled = model.split(":")
        return gguf.read_header(header_bytes(shape, quant, fill=bool(filled)))

    @cached_property
    def storage(self) -> Storage:
        """What reading costs from the disk and from memory, seen on a scratch copy of the bundled model.

        A copy, because pages of a file that any process has mapped cannot be dropped. It has no name, so that nothing
        stays behind, whatever happens.

        Raises:
            Unsettled: its pages cannot be dropped, or faults cannot be counted.
        """
        if sys.platform != "linux":
            raise Unsettled("only Linux lets a program drop a file's pages from memory")
        source, folder = self._path(REAL), models_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as scratch:
                self.progress(0.0, "copying a file to read it cold")
                scratch.write(source.read_bytes())
                scratch.flush()
                return _storage(Path(f"/proc/self/fd/{scratch.fileno()}"), self.progress)
        except OSError as error:
            raise Unsettled(f"no scratch file can be written to {folder} ({error.strerror or error})") from None

    def can_map(self, model: str) -> bool:
        """Whether this process can map a model's whole file at once."""
        path = self._path(model)
        self.looked = True
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
                return True
        except (OSError, ValueError, OverflowError):
            return False

    def engine_says(self, word: bytes) -> int:
        """In how many of llama.cpp's installed libraries a word (lower case) occurs: options, messages, names.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        spec = importlib.util.find_spec("llama_cpp")
        folders = [Path(folder) / "lib" for folder in (spec.submodule_search_locations or [])] if spec else []
        libraries = [path for folder in folders for path in folder.glob("*ll*") if path.is_file()]
        if not libraries:
            raise Unsettled("llama-cpp-python is not installed")
        return sum(word in path.read_bytes().lower() for path in libraries)

    def _path(self, model: str) -> Path:
        try:
            return models.find(model, progress=self.progress).path
        except (ModelError, GGUFError, ForgeError) as error:
            raise Unsettled(str(error)) from None

    def _live(self, model: str, **wanted: Any) -> Run:
        """Measure, or give the run made for the same wish before, whatever became of it."""
        key = repr((model, sorted(wanted.items())))
        if key not in self._memo:
            try:
                run = self._measure(model, n_threads=1, progress=self.progress, **wanted)
            except (ModelError, GGUFError, ForgeError, caps.CapError) as error:
                raise Unsettled(str(error)) from None
            self._memo[key] = run
            self.runs.append(run)
        found: Run = self._memo[key]
        return found

    def _find(
        self,
        model: str,
        wanted: Settings,
        upto: str,
        tokens: int = 1,
        *,
        among: list[Run] | None = None,
        machine_of: Run | None = None,
    ) -> Run | None:
        for run in self.runs if among is None else among:
            fits = run.model.name == model and run.cap_bytes is None and _plain(run) and _same(run.settings, wanted)
            decoded = upto != "decode" or len(run.timings.decode_ms) >= tokens
            if fits and decoded and run.phase(upto) and (machine_of is None or run.machine == machine_of.machine):
                return run
        return None

    def _is_capped(self, run: Run, model: str, least: float, most: float, tokens: int) -> bool:
        if run.model.name != model or run.cap_bytes is None or not _plain(run):
            return False
        share = run.cap_bytes / (run.predicted.mapped_bytes + run.predicted.rss_anon_bytes)
        enough = run.outcome == "oom-killed" or len(run.timings.decode_ms) >= tokens
        return _same(run.settings, Settings(repack=False)) and least <= share <= most and enough

    @cached_property
    def _recorded(self) -> list[Run]:
        try:
            folder = data_path("runs")
        except FileNotFoundError:
            return self._given_recorded
        return self._given_recorded + [Run.load(path) for path in sorted(folder.glob("*.json"))]


def needed_bytes(header: Header) -> int:
    """What a mapped model with repack off keeps in memory while it decodes: the mapping and anonymous memory."""
    need = predict.memory(header, Settings(repack=False), cpu_features=())
    return need.mapped_bytes + need.rss_anon_bytes


def _same(settings: Settings, wanted: Settings) -> bool:
    return replace(settings, n_threads=None) == replace(wanted, n_threads=None)


def _plain(run: Run) -> bool:
    """Whether a run's decoding was left alone: not stopped at each layer, its pages not dropped on purpose."""
    return not run.layers


def _storage(path: Path, progress: Progress) -> Storage:
    size = path.stat().st_size
    kept = probe.evict(path).after_bytes
    if kept is None or kept > 0.1 * size:
        raise Unsettled("the pages of a file could not be dropped from memory; its folder may be one in memory")
    cold, warm = _touch(path), _touch(path)
    return Storage(size, cold, warm, disk_bandwidth(path, progress=progress))


def _touch(path: Path) -> Pass:
    """Map a file and read one byte of each page."""
    import numpy as np

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        pages = np.frombuffer(mapped, dtype=np.uint8)[:: mmap.PAGESIZE]
        before = probe.process(os.getpid())
        start = time.perf_counter()
        pages.sum()
        seconds = time.perf_counter() - start
        after = probe.process(os.getpid())
        del pages  # a mapping that is still looked at cannot be closed
    figures = []
    for name in ("minor_faults", "major_faults", "read_bytes"):
        a, b = getattr(before, name), getattr(after, name)
        if a is None or b is None:
            raise Unsettled(f"this system does not count {name.replace('_', ' ')}")
        figures.append(b - a)
    return Pass(seconds, *figures)
