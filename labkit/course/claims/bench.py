"""Where the check of a claim gets its figures: from runs that are already there, else measured once and kept.

Live runs use one thread: on a busy computer several threads wait for each other, and times stop meaning anything.
"""

from __future__ import annotations

import importlib.util
import mmap
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import engine, gguf, predict
from labkit.blocks.random import random_blocks
from labkit.course.claims.unsettled import Unsettled as Unsettled
from labkit.course.claims.unsettled import or_unsettled
from labkit.course.lab01 import storage
from labkit.course.lab03.bench import CacheFigures
from labkit.course.lab04.bench import OffloadFigures
from labkit.course.lab05.bench import LockFigures
from labkit.engine import ggml
from labkit.experiments import run as runs_file
from labkit.experiments.child.task import TaskError
from labkit.experiments.dry_run import dry_runs
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.files import data_path
from labkit.gguf import TYPES, GGUFError, Header
from labkit.models import lookup, mixtures
from labkit.models.forge import ForgeError, header_bytes, models_dir
from labkit.models.lookup import ModelError
from labkit.settings import Settings
from labkit.system import caps
from labkit.system.machine import machine, usable_cores
from labkit.units import GiB

if TYPE_CHECKING:
    from labkit.quant.quality import Quality

SEVEN_B, ONE_B, REAL = "llama-2-7b:Q4_K_M", "llama-3.2-1b:Q4_K_M", "smollm2"
# For paging. Not the bundled model: a notebook that has it mapped would keep its pages in memory, cap or no cap.
PAGED = "smollm2-135m:F16:filled"
LARGEST, REAL_BYTES = (SEVEN_B, ONE_B, REAL), (REAL, PAGED)  # REAL_BYTES: on disk, where a sparse file has holes
MAPPED = Settings(repack=False)
ROOM_FOR_7B_BYTES = 8 * GiB  # 3.8 of the file, 2.9 of the repacked copy, cache and buffers

TOKENS = 8  # decoded in a live run, at least
KNOWN_OPTIONS = ("--batch-size", "LLAMA_ARG_BATCH")  # where these are not found, nothing follows from a missing one

Progress = Callable[[float, str], None]


class Bench(CacheFigures, OffloadFigures, LockFigures):
    """Runs and other measurements for checks, each made at most once.

    Args:
        using: runs to look through first. Recorded ones serve only where nothing can be measured.
        measure: makes a Run as ``experiment.measure`` does.

    Attributes:
        qualities: of the bundled model in a mixture, with an importance matrix or without. What was measured elsewhere
            on the kit's English text may be put in.
    """

    def __init__(self, using: Iterable[Run] = (), *, measure: Callable[..., Run] = measure) -> None:
        super().__init__()
        given = list(using)
        self._given = [run for run in given if run.recorded is None]
        self._runs = self._given.copy()
        self._given_recorded = [run for run in given if run.recorded is not None]
        self._measure = measure
        self._made: dict[str, Run] = {}
        self.qualities: dict[tuple[str, bool], Quality] = {}
        self.progress: Progress = lambda fraction, text: None
        self.begin()

    def begin(self) -> None:
        """A new check starts: forget which figures the last one used."""
        self.used: list[Run] = []
        self.looked = False  # at something that is not a run: a file, the disk, a mapping
        self.cited = ""  # published figures

    def choose(self, *settings: Settings, among: Sequence[str] = LARGEST, tokens: int = 1) -> str:
        """The model for a check: one that was given with a run of each of ``settings``, else one that fits here.

        Args:
            among: models in order of preference; the last must fit everywhere.
            tokens: how many the runs must have decoded.
        """
        for name in among:
            if settings and all(self._find(self._given, name, wanted, tokens=tokens) for wanted in settings):
                return name
        here = machine()
        room = {
            SEVEN_B: here.profile == "full" and (here.available_bytes or 0) >= ROOM_FOR_7B_BYTES,
            ONE_B: here.profile != "tiny",
        }
        return next(name for name in among if room.get(name, True))

    def run(
        self, model: str, settings: Settings, *, upto: str = "decode", tokens: int = 1, like: Run | None = None
    ) -> Run:
        """A run without a cap that ended phase ``upto`` and, if that is decode, decoded so many tokens.

        Args:
            like: a run with whose times this one's will be compared, so that both use the same number of threads.

        Raises:
            Unsettled: it did not get so far here, and there is no recorded one.
        """
        found = self._find(self._runs, model, settings, upto, tokens, like)
        if found is None:
            threads = like.settings.n_threads if like else 1
            made = self._live(model, replace(settings, n_threads=threads), tokens=max(tokens, TOKENS))
            found = made if made.phase(upto) else self._find(self._recorded, model, settings, upto, tokens, like)
            if found is None:
                raise Unsettled(f"{model} did not get through {upto}: {made.outcome}, {made.reason.rstrip('.')}")
        self.used.append(found)
        return found

    def capped(self, *, share: float, least: float, most: float, tokens: int = 2) -> tuple[Run, Run]:
        """A mapped model without a cap, and under one of ``share`` of what it needs; repack off, real bytes on disk.

        Runs that are there already serve if their cap is between ``least`` and ``most`` of the need.

        Raises:
            Unsettled: see ``run``; also when no cap is possible and nothing recorded fits.
        """

        def among(runs: Iterable[Run]) -> Run | None:
            return next((run for run in runs if _is_capped(run, least, most, tokens)), None)

        found = among(self._runs)
        if found is None and caps.available().how is None:
            return self._capped_elsewhere(among(self._recorded), tokens)
        name = found.model.name if found else PAGED
        free = self.run(name, MAPPED, tokens=tokens, like=found)
        if found is None:
            cap = int(share * (free.predicted.mapped_bytes + free.predicted.rss_anon_bytes))
            found = self._live(name, free.settings, tokens=3, cap=cap)
            if not _is_capped(found, least, most, tokens):
                why = found.caution or f"{found.outcome}, {found.reason}"
                raise Unsettled(f"the run under a cap shows nothing: {why.rstrip('.')}")
        self.used.append(found)
        return free, found

    def _capped_elsewhere(self, found: Run | None, tokens: int) -> tuple[Run, Run]:
        if found is not None:
            same_place = [run for run in self._recorded if run.recorded == found.recorded]
            free = self._find(same_place, found.model.name, MAPPED, "decode", tokens)
            if free is not None:
                self.used += [free, found]
                return free, found
        raise Unsettled(f"{caps.available().reason}, and there is no recorded run")

    def header(self, model: str) -> Header:
        """The header of a model; of a forged one without writing it.

        Raises:
            Unsettled: there is no such model here.
        """
        if ":" not in model:
            self.looked = True
            return gguf.read_header(self._path(model))
        shape, quant, *filled = model.split(":")
        return gguf.read_header(header_bytes(shape, quant, fill=bool(filled)))

    @cached_property
    def _storage(self) -> storage.Storage | str:
        try:
            return storage.examine(self._path(REAL), folder=models_dir(), progress=self.progress)
        except storage.StorageError as error:
            return str(error)

    def storage(self) -> storage.Storage:
        """What reading from disk and from memory costs, seen on a copy of the bundled model.

        Raises:
            Unsettled: cold reads cannot be had here.
        """
        if isinstance(self._storage, str):
            raise Unsettled(self._storage)
        self.looked = True
        return self._storage

    def can_map(self, model: str) -> bool:
        """Whether this process can map a model's whole file at once."""
        path = self._path(model)
        self.looked = True
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
                return True
        except (OSError, ValueError, OverflowError):
            return False

    @cached_property
    def _libraries(self) -> bytes:
        """What is in llama.cpp's installed libraries, each once, in lower case."""
        spec = importlib.util.find_spec("llama_cpp")
        folders = [Path(folder, "lib") for folder in (spec.submodule_search_locations or [])] if spec else []
        # The library of the command-line tools is installed beside the package, where it is installed at all.
        folders += [folder.parent.parent / "lib" for folder in folders]
        found = {
            path.resolve().stat().st_ino: path
            for folder in folders
            for name in ("*llama*", "*ggml-base*")
            for path in folder.glob(name)
            if path.is_file()
        }
        return b"\0".join(path.read_bytes().lower() for path in found.values())

    def engine_says(self, word: bytes) -> bool:
        """Whether a word (lower case) occurs in llama.cpp's installed libraries: in an option, a message, a name.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        if not self._libraries:
            raise Unsettled("llama-cpp-python is not installed")
        return word in self._libraries

    def option(self, name: str) -> bool:
        """Whether llama.cpp's command-line tools know an option (``--ctx-size``) or an environment variable.

        Raises:
            Unsettled: llama.cpp is not installed, or without the library that has the options.
        """
        if not all(self.engine_says(known.lower().encode() + b"\0") for known in KNOWN_OPTIONS):
            raise Unsettled("this build of llama.cpp comes without the library that lists its options")
        return self.engine_says(name.lower().encode() + b"\0")

    def head(self, model: str) -> bytes:
        """The bytes of a model's file before its first tensor.

        Raises:
            Unsettled: there is no such model here.
        """
        with open(self._path(model), "rb") as file:
            return file.read(self.header(model).data_offset)

    def weights_changed(self, type_name: str) -> tuple[int, ...]:
        """For each byte of a block, how many weights come out of ggml otherwise when the byte's lowest bit changes.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        block = TYPES[type_name]
        changed = np.zeros((block.block_bytes, block.block_elems), bool)
        self.looked = True
        for original in random_blocks(type_name, 16, seed=0):  # a weight of 0 hides its scale, but not in all blocks
            flipped = original ^ np.eye(block.block_bytes, dtype=np.uint8)
            with or_unsettled(engine.EngineError):
                weights = ggml.decode(type_name, np.vstack((original, flipped))).reshape(-1, block.block_elems)
            changed |= weights[1:] != weights[0]
        return tuple(changed.sum(axis=1).tolist())

    def rounding_error(self, type_name: str) -> float:
        """Root mean square error of normally distributed weights after ggml rounded them, as a share of their spread.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        weights = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
        self.looked = True
        with or_unsettled(engine.EngineError):
            error = ggml.decode(type_name, ggml.encode(type_name, weights)) - weights
        return float(np.sqrt(np.mean(error**2)) / weights.std())

    def types_given(self, model: str, quant: str) -> dict[str, str]:
        """The type that llama.cpp gives each tensor of a model when it quantizes it; the file is not kept.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        source, ftype = self._path(model), mixtures.find(quant).ftype
        self.looked = True
        with or_unsettled(engine.EngineError, GGUFError, OSError), tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "quantized.gguf")
            engine.quantize(source, target, ftype=ftype, threads=usable_cores(), allow_requantize=True)
            return {tensor.name: tensor.type for tensor in gguf.read_header(target).tensors}

    def cache_bytes(self, model: str, cache_type: str) -> int:
        """The KV cache that llama.cpp would make for 512 tokens, by its own dry run.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        path = self._path(model)
        self.looked = True
        with or_unsettled(TaskError):
            (plan,) = dry_runs(path, [Settings(type_k=cache_type, type_v=cache_type)], progress=self.progress)
        if plan.kv_bytes is None:
            raise Unsettled(str(plan.problem).rstrip("."))
        return plan.kv_bytes

    def relaid_bytes(self, model: str) -> int:
        """Bytes of a model's weights that the CPU backend would lay out anew on this machine (predicted)."""
        return predict.memory(self.header(model), Settings(), cpu_features=engine.cpu_features()).repack_bytes

    def quality(self, quant: str, *, imatrix: bool = False) -> Quality:
        """What the bundled model loses in a mixture, counted from the F16 that is made from its own file.

        Raises:
            Unsettled: llama.cpp is not installed or refuses, or the disk is full.
        """
        self.looked = True
        if (quant, imatrix) not in self.qualities:
            self.qualities[quant, imatrix] = self._quality(quant, imatrix)
        return self.qualities[quant, imatrix]

    def _quality(self, quant: str, imatrix: bool) -> Quality:
        from labkit.quant.imatrix import collect
        from labkit.quant.quality import quality
        from labkit.quant.quantize import quantize

        how: dict[str, Any] = {"progress": self.progress}
        with or_unsettled(TaskError, ModelError, GGUFError, OSError):
            reference = quantize(REAL, "F16", **how).path
            matrix = collect(reference, **how) if imatrix else None
            return quality(quantize(reference, quant, imatrix=matrix, **how).path, reference, **how)

    def _path(self, model: str) -> Path:
        try:
            return lookup.find(model, progress=self.progress).path
        except (ModelError, GGUFError, ForgeError) as error:
            raise Unsettled(str(error).rstrip(".")) from None

    def _live(self, model: str, settings: Settings, **how: Any) -> Run:
        """Measure; a wish made before gets the same run, whatever became of it."""
        key = repr((model, settings, how))
        if key not in self._made:
            try:
                run = self._measure(model, progress=self.progress, **how, **settings.to_dict())
            except (ModelError, GGUFError, ForgeError, caps.CapError) as error:
                raise Unsettled(str(error).rstrip(".")) from None
            self._made[key] = run
            self._runs.append(run)
        return self._made[key]

    @staticmethod
    def _find(
        runs: Iterable[Run],
        model: str,
        wanted: Settings,
        upto: str = "decode",
        tokens: int = 1,
        like: Run | None = None,
    ) -> Run | None:
        for run in runs:
            if run.model.name != model or run.cap_bytes is not None or not _fits(run, wanted):
                continue
            if like is not None and run.settings.n_threads != like.settings.n_threads:
                continue
            if run.phase(upto) and (upto != "decode" or len(run.timings.decode_ms) >= tokens):
                return run
        return None

    @cached_property
    def _recorded(self) -> list[Run]:
        try:
            files = sorted(data_path("runs").glob("*.json"))
        except FileNotFoundError:
            files = []
        return self._given_recorded + [run for path in files for run in runs_file.load(path)]


def _fits(run: Run, wanted: Settings) -> bool:
    """Whether a run had these settings (any number of threads), and nothing disturbed it or was done to it."""
    return replace(run.settings, n_threads=None) == wanted and not (run.layers or run.evict or run.caution)


def _is_capped(run: Run, least: float, most: float, tokens: int) -> bool:
    on_disk = not run.model.forged or run.model.name.endswith(":filled")
    if run.cap_bytes is None or not _fits(run, MAPPED) or not on_disk:
        return False
    share = run.cap_bytes / (run.predicted.mapped_bytes + run.predicted.rss_anon_bytes)
    return least <= share <= most and (run.outcome == "oom-killed" or len(run.timings.decode_ms) >= tokens)
