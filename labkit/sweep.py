"""The same run under a row of memory caps: where a model stops fitting, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit import caps, gguf, models, predict, run
from labkit.data import data_path
from labkit.experiment import measure
from labkit.progress import Progress, bar
from labkit.run import Run
from labkit.settings import Settings

if TYPE_CHECKING:
    from labkit.figures.cliff import CliffPoint

SHARES = (1.2, 1.1, 1.05, 1.0, 0.95, 0.9, 0.8, 0.7, 0.6)


@dataclass(frozen=True)
class Sweep:
    """Runs under falling caps, beside one without a cap.

    ``needed_bytes`` is the predicted mapped file and anonymous memory together: the smallest cap that does not page.
    ``recorded`` says on which machine and when, if this one cannot set caps.
    """

    free: Run
    runs: tuple[Run, ...]
    needed_bytes: int
    recorded: str | None

    @property
    def points(self) -> list[CliffPoint]:
        """For ``figures.cliff``: cap, milliseconds of each token (None if none was decoded), outcome."""
        from labkit.figures.cliff import CliffPoint  # here, so that sweeping does not load matplotlib

        return [CliffPoint(r.cap_bytes or 0, r.timings.decode_ms or None, r.outcome) for r in self.runs]


def cap_sweep(
    model: str,
    *,
    shares: Sequence[float] = SHARES,
    tokens: int = 3,
    progress: Progress | None = None,
    **settings: Any,
) -> Sweep:
    """Measure under caps of ``shares`` times what the model needs, largest first.

    Where no cap is possible, the recorded sweep of ``datasets/runs/cliff.json`` is returned and says so.

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
        header = gguf.read_header(models.find(model, progress=report).path)
        need = needed_bytes(header, Settings.of(settings))
        asked = [None, *(int(share * need) for share in sorted(shares, reverse=True))]
        runs = []
        for number, cap in enumerate(asked):
            runs.append(measure(model, cap=cap, tokens=tokens, progress=lambda fraction, text: None, **settings))
            report((number + 1) / len(asked), f"{number + 1} of {len(asked)} runs")
    return Sweep(runs[0], tuple(runs[1:]), need, None)


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
    free, *runs = run.load(data_path("runs/cliff.json"))
    label = free.recorded or {}
    where = f"recorded on {label.get('machine')}, {label.get('date')}"
    return Sweep(free, tuple(runs), free.predicted.mapped_bytes + free.predicted.rss_anon_bytes, where)
