"""Make files of ``datasets/runs`` anew on this machine: ``python -m labkit.experiments.recordings NAME …``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from labkit import gguf
from labkit.engine import cpu_features
from labkit.experiments import device, pressure
from labkit.experiments.boundary import find_boundary
from labkit.experiments.cap_sweep import MODEL, SHARES, cap_sweep, needed_bytes
from labkit.experiments.measure import measure
from labkit.experiments.offload_sweep import offload_sweep
from labkit.experiments.pressure import pressured
from labkit.experiments.recordings import labelled, save
from labkit.experiments.run import Run
from labkit.files import data_path
from labkit.models import lookup
from labkit.planning.context import needed
from labkit.settings import Settings
from labkit.system import caps

OFFLOADED, OFFLOADED_LAYERS = "llama-3.2-1b:Q4_K_M", (0, 1, 4, 8, 12, 16, 17)  # of 16 blocks and the output layer
DENIED_MODEL, DENIED_LIMIT = "smollm2", "64KiB"
SAME: dict[str, Any] = {"repack": False, "n_threads": 1}
LOCK: dict[str, Any] = {"load_mode": "mmap+mlock"}
LOOSE: dict[str, Any] = {"load_mode": "mmap"}

Label = Callable[..., Run]  # ``labelled``, with the date and the command given


def cliff(label: Label) -> Iterator[Run]:
    """One model under falling caps, the run without a cap first."""
    made = cap_sweep(**SAME)
    for run in (made.free, *made.runs):
        yield label(run, disk_bytes_per_s=made.disk_bytes_per_s)


def killed(label: Label) -> Iterator[Run]:
    """A model read into memory, under the smallest cap of the sweep."""
    need = needed_bytes(gguf.read_header(lookup.find(MODEL).path), Settings.of(SAME))
    yield label(measure(MODEL, load_mode="none", cap=int(min(SHARES) * need), **SAME))


def locked(label: Label) -> Iterator[Run]:
    """Runs that lock, that may not, and that have no room to."""
    header = gguf.read_header(lookup.find(MODEL).path)
    short, long = (needed(header, Settings.of({**SAME, **LOCK}), n_ctx) for n_ctx in (512, 8192))
    cap = short.mapped_bytes + (short.anon_floor_bytes + long.rss_anon_bytes) // 2  # room for the short one only
    dropped: list[dict[str, Any]] = [{"evict": "readahead", **mode} for mode in (LOOSE, LOCK)]
    capped: list[dict[str, Any]] = [
        {"cap": cap, "n_ctx": n, **mode} for n, mode in ((512, LOCK), (8192, LOCK), (8192, LOOSE))
    ]
    for how in dropped:
        yield _small(label, _undisturbed(measure(MODEL, tokens=4, **how, **SAME)))
    yield _small(label, measure(DENIED_MODEL, tokens=1, memlock=DENIED_LIMIT, **LOCK, **SAME))
    for how in capped:
        yield _small(label, _undisturbed(measure(MODEL, tokens=4, **how, **SAME)))


def offload(label: Label) -> Iterator[Run]:
    """One model with more and more layers on the loopback device."""
    features = sorted(cpu_features() or ())
    for point in offload_sweep(OFFLOADED, layers=OFFLOADED_LAYERS, n_threads=1).points:
        for run in point.runs:
            yield _small(label, run, cpu_features=features)


def beside_a_ballast(label: Label) -> Iterator[Run]:
    """Runs beside a ballast, by load mode; the last one is the control, whose ballast is outside the cap."""
    modes = [{"load_mode": mode} for mode in ("mmap", "mmap+mlock", "none")]
    beside: list[dict[str, Any]] = [
        {"ballast": pressure.BALLAST},
        {"ballast": pressure.BALLAST, "idle_s": pressure.IDLE_S, "tokens": 8},
        {"ballast": pressure.ANONYMOUS, "kind": "anonymous", "tokens": 8},
    ]
    asked = [{**one, **mode} for one in beside for mode in modes]
    asked.append({"ballast": pressure.BALLAST, "inside": False, **LOOSE})
    for how in asked:
        made = pressured(pressure.MODEL, cap=pressure.CAP, **how, **SAME)
        yield _small(label, _undisturbed(made.run), pressure=pressure.about(made))


def boundary(label: Label) -> Iterator[Run]:
    """Searches for the cap that kills, with two types of cache."""
    for kv in ("f16", "q8_0"):
        model = pressure.MODEL.removesuffix(":filled")
        found = find_boundary(model, n_ctx=4096, type_k=kv, type_v=kv, **SAME)
        if found.reason:
            raise SystemExit(f"the search cannot be recorded: {found.reason}")
        for run in found.runs:
            yield label(replace(run, samples=(), phases=()), predicted_boundary_bytes=found.predicted_bytes)


MAKERS: dict[str, Callable[[Label], Iterator[Run]]] = {
    "boundary": boundary,
    "cliff": cliff,
    "killed": killed,
    "locked": locked,
    "offload": offload,
    "pressure": beside_a_ballast,
}


def main(words: Sequence[str] | None = None) -> int:
    """Make the named files.

    Raises:
        SystemExit: a name is unknown, this machine cannot make such runs, or a run was disturbed.
    """
    parser = argparse.ArgumentParser(prog="python -m labkit.experiments.recordings", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=MAKERS, help=f"one of {', '.join(MAKERS)}")
    parser.add_argument("--folder", type=Path, help="where to write, by default where the kit reads them")
    args = parser.parse_args(words)
    for name in args.names:
        if problem := _problem(name):
            raise SystemExit(f"{name} cannot be recorded here: {problem}")
        label = partial(labelled, date=date.today().isoformat(), command=f"{parser.prog} {name}")
        save(list(MAKERS[name](label)), (args.folder or data_path("runs")) / f"{name}.json")
    return 0


def _problem(name: str) -> str | None:
    """Why this machine cannot make the runs of a file, or None."""
    if name == "offload":
        return device.problem()
    return None if caps.available().how else caps.available().reason


def _small(label: Label, run: Run, **also: Any) -> Run:
    """A labelled run without its samples and layers."""
    return label(replace(run, samples=(), layers=()), **also)


def _undisturbed(run: Run) -> Run:
    """The run itself, which must have no caution."""
    if run.caution:
        raise SystemExit(f"a run of {run.model.name} cannot be recorded: {run.caution}")
    return run


if __name__ == "__main__":
    sys.exit(main())
