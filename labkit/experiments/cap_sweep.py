"""Run a model under falling memory caps: below which cap it slows down, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit import gguf, predict
from labkit.experiments import recordings
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.models import lookup
from labkit.progress import Progress, bar
from labkit.settings import Settings
from labkit.system import caps
from labkit.system.bandwidth import disk_bandwidth

MODEL = "smollm2-135m:F16:filled"
SHARES = (1.2, 1.1, 1.05, 1.0, 0.95, 0.9, 0.8, 0.7, 0.6)


@dataclass(frozen=True)
class CliffPoint:
    """One run under one cap.

    Attributes:
        cap_bytes: the memory the run was allowed.
        ms: measured ms per token, one figure per token or per repeat; None if the run measured none.
        outcome: the run's outcome; one that is not ``ok`` counts as such, whatever it measured.
    """

    cap_bytes: int
    ms: tuple[float, ...] | None
    outcome: str = "ok"


@dataclass(frozen=True)
class Sweep:
    """Runs under falling caps, and one without a cap.

    ``needed_bytes`` is the predicted mapped file and anonymous memory together: the smallest cap that does not page.
    ``disk_bytes_per_s`` is how fast the file is read cold; None if it never was. ``recorded`` says on which machine and
    when, if this one cannot set caps.
    """

    free: Run
    runs: tuple[Run, ...]
    needed_bytes: int
    disk_bytes_per_s: float | None
    recorded: str | None

    @property
    def points(self) -> list[CliffPoint]:
        """For ``figures.cliff``: cap, milliseconds of each token (None if none was decoded), outcome."""
        return [CliffPoint(r.cap_bytes or 0, r.timings.decode_ms or None, r.outcome) for r in self.runs]


def cap_sweep(
    model: str = MODEL,
    *,
    shares: Sequence[float] = SHARES,
    tokens: int = 3,
    progress: Progress | None = None,
    **settings: Any,
) -> Sweep:
    """Measure under caps of ``shares`` times what the model needs, largest first, and the disk's speed.

    Where no cap is possible, the sweep recorded in ``datasets/runs/cliff.json`` is returned and says so.

    Args:
        model: as for ``measure``; a filled one, since the holes of a sparse file cost no disk reads.
        shares: caps as shares of mapped file plus anonymous memory.
        tokens: to decode under each cap.
        progress: called with a fraction and a text; by default a bar appears.
        **settings: any of ``Settings``' fields.

    Raises:
        SettingsError, GGUFError, ModelError: as for ``measure``.
    """
    if caps.available().how is None:
        return recorded()
    with bar("sweeping the cap") as shown:
        report = progress or shown
        path = lookup.find(model, progress=report).path
        need = needed_bytes(gguf.read_header(path), Settings.of(settings))
        asked = [None, *(int(share * need) for share in sorted(shares, reverse=True))]
        runs = []
        for number, cap in enumerate(asked):
            runs.append(measure(model, cap=cap, tokens=tokens, progress=lambda fraction, text: None, **settings))
            report((number + 1) / (len(asked) + 1), f"{number + 1} of {len(asked)} runs")
        disk = disk_bandwidth(path).cold_bytes_per_s
    return Sweep(runs[0], tuple(runs[1:]), need, disk, None)


def needed_bytes(header: gguf.Header, settings: Settings) -> int:
    """The smallest memory in which a mapped model decodes without reading from disk: file part plus anonymous part."""
    from labkit.engine import cpu_features

    expected = predict.memory(header, settings, cpu_features=cpu_features())
    return expected.mapped_bytes + expected.rss_anon_bytes


def recorded() -> Sweep:
    """The sweep in ``datasets/runs/cliff.json``: the first run has no cap.

    Raises:
        FileNotFoundError: the file is not installed.
    """
    free, *runs = recordings.recorded("cliff")
    needed = free.predicted.mapped_bytes + free.predicted.rss_anon_bytes
    return Sweep(free, tuple(runs), needed, (free.recorded or {}).get("disk_bytes_per_s"), recordings.origin(free))
