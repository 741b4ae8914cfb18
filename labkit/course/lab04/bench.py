"""What the checks of lab 04's claims measure about offloading: runs with a device, predictions, published figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labkit import engine
from labkit.course.claims import libraries
from labkit.course.claims.bench import Bench, Part, ending, undisturbed
from labkit.course.claims.terms import RAM_BYTES
from labkit.course.claims.unsettled import Unsettled, or_unsettled
from labkit.course.lab04.offloaded import Offloaded, order_of
from labkit.experiments import device
from labkit.experiments.run import Run
from labkit.predict import hardware
from labkit.predict.hardware import Hardware
from labkit.predict.offload import Split, offload
from labkit.predict.placement import place
from labkit.settings import LOOPBACK, Settings
from labkit.system.machine import machine

if TYPE_CHECKING:
    from labkit.course.lab04.link_count import Crossed

DEVICE_MODEL = (
    "smollm2-135m:Q4_K_M"  # small, and its 30 blocks differ in size, which shows which of them are on a device
)
EVERYTHING = 99  # n_gpu_layers that no model here reaches
LINK_TOKENS = 16
ROUNDS, ROUND_TOKENS, STEADY = 3, 16, 0.1
MAKERS = "makers' figures (datasets/devices.json)"

# Kinds of runs: whether one with that n_gpu_layers is of the kind, for a model of so many blocks; what to measure where
# none is there; and offload_kqv.
KINDS: dict[str, tuple[Callable[[int, int], bool], int, bool]] = {
    "none": (lambda asked, n_layer: asked == 0, 0, True),
    "part": (lambda asked, n_layer: 1 < asked <= n_layer, 20, True),
    "all": (lambda asked, n_layer: asked > n_layer, EVERYTHING, True),
    "all, cache kept": (lambda asked, n_layer: asked > n_layer, EVERYTHING, False),
    "a few too many": (lambda asked, n_layer: n_layer + 1 < asked < 2 * n_layer, 33, True),
    "far too many": (lambda asked, n_layer: asked >= 2 * n_layer, EVERYTHING, True),
}


class OffloadBench(Part):
    """Where a model's layers are with a device, what crosses to it, and how fast that is."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._crossed: Crossed | None = None

    @cached_property
    def device_name(self) -> str | None:
        """What a live run offloads to: the loopback device, else a GPU of this build, else nothing."""
        if device.problem() is None:
            return LOOPBACK
        return next((one.name for one in engine.info().devices if one.kind in ("GPU", "IGPU")), None)

    def offloads(self, *kinds: str) -> tuple[Offloaded, ...]:
        """One model run in each of ``kinds``: given, else measured, else recorded, else predicted.

        Raises:
            Unsettled: a run failed here.
        """
        for runs in (self.bench.runs, [] if self.device_name else self.bench.recorded):
            # Of a file of the learner's own, only its name is known.
            for model in dict.fromkeys(run.model.name for run in runs if run.settings.devices and run.model.forged):
                found = [run for kind in kinds if (run := self._of_kind(kind, runs, model)) is not None]
                if len(found) == len(kinds):
                    self.bench.used += found
                    return tuple(Offloaded.of(run, self._n_layer(run)) for run in found)
        return tuple(self._measured_or_predicted(*KINDS[kind][1:]) for kind in kinds)

    def _measured_or_predicted(self, n_gpu_layers: int, with_cache: bool) -> Offloaded:
        """``DEVICE_MODEL`` with the device here, or predicted if there is none."""
        header = self.bench.header(DEVICE_MODEL)
        devices = (self.device_name,) if self.device_name else ()
        settings = Settings(repack=False, n_gpu_layers=n_gpu_layers, devices=devices, offload_kqv=with_cache)
        if not devices:
            return Offloaded.predicted(DEVICE_MODEL, header, settings)
        return Offloaded.of(self.bench.run(DEVICE_MODEL, settings), header.n_layer)

    def _of_kind(self, kind: str, runs: Iterable[Run], model: str) -> Run | None:
        """The first run of this model and kind; of kind ``part``, one whose bytes show in which order layers moved."""
        is_kind, _, with_cache = KINDS[kind]
        for run in runs:
            if run.model.name != model or not _is_plain(run) or len(run.settings.devices) != 1:
                continue
            n_layer, asked = self._n_layer(run), run.settings.n_gpu_layers
            asked = EVERYTHING if asked < 0 else asked
            if run.settings.offload_kqv != with_cache or not is_kind(asked, n_layer):
                continue
            if kind != "part" or order_of(self.bench.header(model), Offloaded.of(run, n_layer)):
                return run
        return None

    def _n_layer(self, run: Run) -> int:
        """The number of blocks of a run's model."""
        return self.bench.header(run.model.name).n_layer

    def fastest_ms(self, *names: str, settings: Settings) -> tuple[float, ...]:
        """The fastest token of each model on one thread; they take turns, so that other programs slow all of them.

        As many runs of each as there would be rounds serve, if they are there.

        Raises:
            Unsettled: a model does not run here, or its two best rounds differ by more than a tenth.
        """
        on_one = replace(settings, n_threads=1)
        plain = [run for run in self.bench.runs if run.settings == on_one and _is_plain(run)]
        runs = {name: [run for run in plain if run.model.name == name] for name in names}
        if min(map(len, runs.values())) < ROUNDS:
            runs = {name: [] for name in names}
            for number in range(ROUNDS):
                for name in names:
                    # Another number of tokens makes it another run.
                    runs[name].append(self.bench.live(name, on_one, tokens=ROUND_TOKENS + number))
                    if not (last := runs[name][-1]).ok:
                        raise Unsettled(f"{name} did not finish: {ending(last)}")
        fastest = []
        for rounds in runs.values():
            self.bench.used += rounds
            best, second, *_ = sorted(min(run.timings.decode_ms) for run in rounds)
            if second > (1 + STEADY) * best:
                raise Unsettled("the times vary too much to tell; try again when this computer has less to do")
            fastest.append(best)
        return tuple(fastest)

    def overfull(self) -> Run:
        """A run that asks for more layers than the memory of its device holds.

        Raises:
            Unsettled: there can be no loopback device here, whose memory could be limited, and nothing is recorded.
        """

        def pick(runs: Iterable[Run]) -> list[Run]:
            return [run for run in runs if self._asks_too_much(run)][:1]

        def measure() -> str:
            if why := device.problem():
                return why
            settings = Settings(repack=False, n_threads=1, n_gpu_layers=EVERYTHING, devices=(LOOPBACK,))
            half = offload(self.bench.header(DEVICE_MODEL), settings).devices[0].weights_bytes // 2
            run = self.bench.live(DEVICE_MODEL, settings, tokens=1, device_memory=half)
            return f"the run with too many layers shows nothing: {ending(run)}"

        (run,) = self.bench.obtain(pick, measure)
        return run

    def _asks_too_much(self, run: Run) -> bool:
        """Whether a run's layers take more than the memory that its one device was given."""
        memory = run.device.memory_bytes if run.device else None
        if memory is None or run.cap_bytes is not None or len(run.settings.devices) != 1:
            return False
        return offload(self.bench.header(run.model.name), run.settings).devices[0].weights_bytes > memory

    def crossed(self) -> tuple[Crossed, Split]:
        """What crossed between llama.cpp and a loopback device that has a part of ``DEVICE_MODEL``, and where that is.

        Raises:
            Unsettled: there can be no loopback device here.
        """
        from labkit.course.lab04.link_count import LinkError, crossed

        n_gpu_layers = KINDS["part"][1]
        self.bench.looked = True
        if self._crossed is None:
            settings = Settings(repack=False, n_threads=1, n_gpu_layers=n_gpu_layers, devices=(LOOPBACK,))
            with or_unsettled(LinkError):
                self._crossed = crossed(self.bench.path(DEVICE_MODEL), settings, tokens=LINK_TOKENS)
        return self._crossed, self.split(DEVICE_MODEL, n_gpu_layers)

    def split(self, model: str, n_gpu_layers: int, *, on_cpu: Sequence[str] = (), **settings: Any) -> Split:
        """Predicted: both sides of a model with so many layers on a device."""
        wanted = Settings.of({**settings, "n_gpu_layers": n_gpu_layers})
        return offload(self.bench.header(model), wanted, on_cpu=on_cpu)

    def spread(self, n_layer: int, shares: Sequence[float]) -> tuple[int, ...]:
        """Predicted: how many of all layers, the output layer among them, each of several devices gets."""
        sides = place(n_layer, -1, shares=shares)
        return tuple(sides.count(number) for number in range(1, len(shares) + 1))

    def hardware(self, *kinds: str) -> tuple[Hardware, ...]:
        """Devices of some kinds, from published figures."""
        self.bench.cite(MAKERS)
        return tuple(one for one in map(hardware.get, hardware.names()) if one.kind in kinds)

    def gpu_share(self, name: str = "apple-m2", ram_bytes: int = RAM_BYTES) -> tuple[str, int, int]:
        """What the GPU may have of unified memory: the chip, so many bytes, and bytes of RAM.

        This computer's if it is a Mac, elsewhere by the rule in the catalogue.
        """
        for one in engine.info().devices:
            if one.description.startswith("Apple") and one.kind in ("GPU", "IGPU") and one.total_bytes:
                here = machine()
                if here.ram_bytes:
                    self.bench.looked = True
                    return one.description, one.total_bytes, here.ram_bytes
        self.bench.cite(MAKERS)
        chip = hardware.get(name)
        return chip.title, chip.gpu_bytes(ram_bytes), ram_bytes

    @cached_property
    def _ggml(self) -> bytes:
        """What is in ggml's libraries."""
        return libraries.contents("*ggml*")

    def ggml_has(self, word: str) -> bool:
        """Whether a word stands by itself in ggml's libraries: a backend (``metal``) or a function.

        Raises:
            Unsettled: ggml's libraries cannot be read here.
        """
        self.bench.looked = True
        if b"ggml_backend_load_all\0" not in self._ggml:
            raise Unsettled("ggml's libraries are not installed, or do not list the backends that they can load")
        return word.encode() + b"\0" in self._ggml


def _is_plain(run: Run) -> bool:
    """Whether a run without a cap generated undisturbed."""
    generated = run.phase("decode") is not None and bool(run.timings.decode_ms)
    return generated and run.cap_bytes is None and undisturbed(run)
