"""What a run's process had at the end of a phase, and what it gained between two phases."""

from __future__ import annotations

from labkit.course.claims.unsettled import Unsettled
from labkit.experiments.run import Run


def at(run: Run, phase: str, kind: str) -> int:
    """A figure of ``Phase`` at the end of a phase; kind ``rss`` is anonymous and file-backed memory together.

    Raises:
        Unsettled: the run did not finish the phase, or this system does not give the figure.
    """
    if kind == "rss":
        return at(run, phase, "rss_anon_bytes") + at(run, phase, "rss_file_bytes")
    value: int | None = getattr(run.phase(phase), kind, None)
    if value is None:
        raise Unsettled(f"this system does not give the {kind.replace('_', ' ')} of a process")
    return value


def grown(run: Run, kind: str, since: str, until: str) -> int:
    """How much a figure grew from the end of one phase to the end of another; ``Unsettled`` as for ``at``."""
    return at(run, until, kind) - at(run, since, kind)


def grown_if_known(run: Run, kind: str, since: str, until: str) -> int | None:
    """The same, but None where ``grown`` is unsettled."""
    try:
        return grown(run, kind, since, until)
    except Unsettled:
        return None


def read_share(run: Run) -> float:
    """Of the weights, the share that was read from disk for each decoded token; ``Unsettled`` as for ``at``."""
    read = grown(run, "read_bytes", "prefill", "decode")
    return read / len(run.timings.decode_ms) / run.predicted.weights_bytes
