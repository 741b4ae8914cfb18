"""Where the check of a claim gets its figures: from runs that are there already, else measured once and kept.

Live runs use one thread: on a busy computer several threads wait for each other, and times differ from run to run.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from labkit import gguf
from labkit.course.claims import libraries
from labkit.course.claims.unsettled import Unsettled, or_unsettled
from labkit.experiments import recordings
from labkit.experiments.child.task import TaskError
from labkit.experiments.dry_run import Planned, dry_runs
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.files import data_path
from labkit.gguf import GGUFError, Header
from labkit.models import lookup
from labkit.models.forge import ForgeError, header_bytes
from labkit.models.lookup import ModelError
from labkit.progress import Progress
from labkit.settings import Settings
from labkit.system import caps

if TYPE_CHECKING:
    from labkit.experiments.cache_slots import Snapshot
    from labkit.experiments.depth import DepthSpeed
    from labkit.quant.cache_quality import CacheQuality
    from labkit.quant.quality import Quality

TOKENS = 8  # decoded in a live run, at least
KNOWN_OPTIONS = ("--batch-size", "LLAMA_ARG_BATCH")  # where these are not found, nothing follows from a missing one


class Part:
    """What one lab's checks measure, with the runs and models of a ``Bench``; made by ``Bench.part``."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench


AnyPart = TypeVar("AnyPart", bound=Part)


class Bench:
    """Runs, headers and what llama.cpp knows, for checks of claims; nothing is measured twice.

    Args:
        using: runs to look through first. Recorded ones serve only where nothing can be measured.
        measure: makes a run as ``labkit.measure`` does.

    Attributes:
        given: the runs of ``using`` that were made on this computer.
        runs: these and the ones measured since.
        qualities: what the bundled model loses in a mixture, by the mixture and whether an importance matrix was used.
        cache_qualities, depth_speeds, slot_maps: results of ``cache_quality``, ``speed_at_depth`` and ``slot_map``.
            Add what a lab measured to these four, and it is not measured again.
        progress: told how far a measurement is.
        used, looked, cited: what the check at hand used: runs; anything else on this computer, such as a file or the
            disk; whose published figures.
    """

    def __init__(self, using: Iterable[Run] = (), *, measure: Callable[..., Run] = measure) -> None:
        using = list(using)
        self.given = tuple(run for run in using if run.recorded is None)
        self.runs = list(self.given)
        self._given_recorded = [run for run in using if run.recorded is not None]
        self.measure = measure
        self._made: dict[str, Run] = {}
        self._parts: dict[type[Part], Part] = {}
        self.qualities: dict[tuple[str, bool], Quality] = {}
        self.cache_qualities: list[CacheQuality] = []
        self.depth_speeds: list[DepthSpeed] = []
        self.slot_maps: list[Sequence[Snapshot]] = []
        self.progress: Progress = lambda fraction, text: None
        self.begin()

    def begin(self) -> None:
        """Forget what the last check used: a new one starts."""
        self.used: list[Run] = []
        self.looked = False
        self.cited = ""

    def cite(self, source: str) -> None:
        """Note that the check at hand uses figures or words that this project only took over."""
        if source not in self.cited:
            self.cited += f" and {source}" if self.cited else source

    def part(self, kind: type[AnyPart]) -> AnyPart:
        """The measurements of one lab on this bench: always the same object, so that they too are made once."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        part = self._parts[kind]
        assert isinstance(part, kind)
        return part

    def run(
        self, model: str, settings: Settings, *, upto: str = "decode", tokens: int = 1, like: Run | None = None
    ) -> Run:
        """A run without a cap that finished phase ``upto`` and, if that is decode, decoded so many tokens.

        Args:
            like: a run with whose times this one's will be compared, so that both use the same number of threads.

        Raises:
            Unsettled: no run finished that phase here, and there is no recorded one.
        """
        wanted: dict[str, Any] = {"upto": upto, "tokens": tokens, "like": like}
        found = find(self.runs, model, settings, **wanted)
        if found is None:
            threads = like.settings.n_threads if like else 1
            made = self.live(model, replace(settings, n_threads=threads), tokens=max(tokens, TOKENS))
            found = made if made.phase(upto) else find(self.recorded, model, settings, **wanted)
            if found is None:
                raise Unsettled(f"{model} did not finish {upto}: {ending(made)}")
        self.used.append(found)
        return found

    def live(self, model: str, settings: Settings, **how: Any) -> Run:
        """A run measured here; asked for again, the same one, even if it failed.

        Args:
            how: more arguments of ``measure``.

        Raises:
            Unsettled: the model is not available, or the cap cannot be set.
        """
        key = repr((model, settings, how))
        if key not in self._made:
            with or_unsettled(ModelError, GGUFError, ForgeError, caps.CapError):
                self._made[key] = self.measure(model, progress=self.progress, **how, **settings.to_dict())
            self.runs.append(self._made[key])
        return self._made[key]

    def obtain(
        self, pick: Callable[[Sequence[Run]], Sequence[Run] | None], measure: Callable[[], str]
    ) -> Sequence[Run]:
        """Runs that belong together: those that are there, else measured, else recorded.

        Args:
            pick: the wanted runs among others, or None.
            measure: measures them with ``live``, and returns why nothing can be measured here or why it does not serve.

        Raises:
            Unsettled: there are none, for the reason that ``measure`` gave.
        """
        found, why = pick(self.runs), ""
        if not found:
            why = measure()
            found = pick(self.runs) or pick(self.recorded)
        if not found:
            raise Unsettled(why.rstrip("."))
        self.used += found
        return found

    @cached_property
    def recorded(self) -> list[Run]:
        """Runs that were recorded elsewhere: those given, then those that come with the kit."""
        try:
            files = sorted(data_path("runs").glob("*.json"))
        except FileNotFoundError:
            files = []
        return self._given_recorded + [run for path in files for run in recordings.load(path)]

    def path(self, model: str) -> Path:
        """The file of a model; a forged one is written first.

        Raises:
            Unsettled: there is no such model here.
        """
        with or_unsettled(ModelError, GGUFError, ForgeError):
            return lookup.find(model, progress=self.progress).path

    def header(self, model: str) -> Header:
        """The header of a model; of a forged one without writing it.

        Raises:
            Unsettled: there is no such model here.
        """
        if ":" not in model:
            self.looked = True
            return gguf.read_header(self.path(model))
        shape, quant, *filled = model.split(":")
        return gguf.read_header(header_bytes(shape, quant, fill=bool(filled)))

    def can_map(self, model: str) -> bool:
        """Whether this process can map a model's whole file at once."""
        path = self.path(model)
        self.looked = True
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
                return True
        except (OSError, ValueError, OverflowError):
            return False

    def planned(self, model: str, *settings: Settings) -> tuple[Planned, ...]:
        """What llama.cpp would allocate, by its own dry run; a setting that it refuses has a ``problem``.

        Raises:
            Unsettled: llama.cpp is not installed, or cannot open the model.
        """
        path = self.path(model)
        self.looked = True
        with or_unsettled(TaskError, OSError):
            return dry_runs(path, settings, progress=self.progress)

    def planned_kv_bytes(self, model: str, *settings: Settings) -> list[int]:
        """The KV cache in each of llama.cpp's plans.

        Raises:
            Unsettled: see ``planned``; also when it refuses one.
        """
        plans = self.planned(model, *settings)
        if problem := next((plan.problem for plan in plans if plan.problem), None):
            raise Unsettled(problem.rstrip("."))
        return [plan.kv_bytes or 0 for plan in plans]

    @cached_property
    def _libraries(self) -> bytes:
        """What is in llama.cpp's libraries, in lower case."""
        return libraries.contents("*llama*", "*ggml-base*").lower()

    def in_libraries(self, word: bytes) -> bool:
        """Whether a word (lower case) occurs in llama.cpp's installed libraries: in an option, a message, a name.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        if not self._libraries:
            raise Unsettled("llama-cpp-python is not installed")
        return word in self._libraries

    def has_option(self, name: str) -> bool:
        """Whether llama.cpp's command-line tools know an option (``--ctx-size``) or an environment variable.

        Raises:
            Unsettled: llama.cpp is not installed, or without the library that has the options.
        """
        if not all(self.in_libraries(known.lower().encode() + b"\0") for known in KNOWN_OPTIONS):
            raise Unsettled("this build of llama.cpp comes without the library that lists its options")
        return self.in_libraries(name.lower().encode() + b"\0")


def find(
    runs: Iterable[Run],
    model: str,
    settings: Settings,
    *,
    upto: str = "decode",
    tokens: int = 1,
    like: Run | None = None,
) -> Run | None:
    """The first run without a cap that ``Bench.run`` would take."""
    for run in runs:
        if run.model.name != model or run.cap_bytes is not None or not ran_with(run, settings):
            continue
        if like is not None and run.settings.n_threads != like.settings.n_threads:
            continue
        if run.phase(upto) and (upto != "decode" or len(run.timings.decode_ms) >= tokens):
            return run
    return None


def ran_with(run: Run, settings: Settings) -> bool:
    """Whether a run had these settings, with any number of threads, and is ``undisturbed``."""
    return replace(run.settings, n_threads=None) == settings and undisturbed(run)


def undisturbed(run: Run) -> bool:
    """Whether no layer was timed, no page was dropped on request, and no other program got in the way."""
    return not (run.layers or run.evict or run.caution)


def ending(run: Run) -> str:
    """How a run ended and why, as the end of a sentence."""
    return ", ".join(filter(None, (run.outcome, run.reason.rstrip("."))))
