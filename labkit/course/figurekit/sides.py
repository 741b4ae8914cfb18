"""A host's and a device's memory by kind, as predicted and as measured, and the mark of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.patches import Patch

from labkit.course.figurekit import style
from labkit.course.figurekit.style import INK, KINDS
from labkit.predict import PYTHON_ANON_BYTES, PYTHON_FILE_BYTES

if TYPE_CHECKING:
    from labkit.experiments.offload_sweep import OffloadPoint
    from labkit.experiments.run import Run
    from labkit.predict import Side


def device_edge(*, linewidth: float = 1.2) -> dict[str, Any]:
    """Patch settings of the dotted edge around what lies on a device."""
    return {"facecolor": "none", "edgecolor": INK, "linewidth": linewidth, "linestyle": (0, (1, 1.2))}


def device_swatch(colour: str) -> Any:
    """The legend's patch for something on a device; goes with ``HandlerTuple``."""
    return (Patch(**style.solid(colour)), Patch(**device_edge()))


def predicted_side(side: Side, *, process: bool = False) -> dict[str, int]:
    """Bytes per kind of memory on one side, keyed as in ``KINDS``.

    A device's weights are never file-backed: they count as weights on the heap.

    Args:
        side: of a split.
        process: count the Python process around a host as well.
    """
    host = side.name == "host"
    return {
        "file": side.mapped_bytes + (PYTHON_FILE_BYTES if host and process else 0),
        "heap": side.heap_bytes if host else side.weights_bytes,
        "repack": side.repack_bytes,
        "kv": side.kv_bytes + side.recurrent_bytes,
        "compute": side.compute_bytes + side.output_bytes,
        "python": PYTHON_ANON_BYTES if host and process else 0,
    }


def shown_run(point: OffloadPoint) -> Run | None:
    """The last run of a point that ended well, else its last; None if it was not run."""
    return next((run for run in reversed(point.runs) if run.ok), point.runs[-1] if point.runs else None)


def cache_moves(point: OffloadPoint) -> bool:
    """Whether its cache lies where its layers are (``offload_kqv``)."""
    return all(run.settings.offload_kqv for run in point.runs)


def measured_device(run: Run) -> dict[str, int] | None:
    """The device process's anonymous memory by kind; None when nothing was measured.

    The kernel gives one figure. What the idle process held is Python; buffers come next as far as the memory reaches,
    the compute buffer last, because it is touched in part.
    """
    device = run.device
    if device is None or device.rss_anon_bytes is None:
        return None
    idle = device.idle_rss_anon_bytes or 0
    split = dict.fromkeys(KINDS, 0)
    left = max(device.rss_anon_bytes - idle, 0)
    for kind, names in (("heap", ("model",)), ("kv", ("kv", "rs")), ("compute", ("compute", "output"))):
        size = sum(run.buffer_bytes(kind=name, device=device.name) for name in names)
        split[kind] = min(size, left)
        left -= split[kind]
    split["python"] = device.rss_anon_bytes - sum(split.values())
    return split


def reported_bytes(run: Run, *, device: bool) -> int | None:
    """What the engine says it reserved on one side, all buffers together; None when it had no time to say."""
    name = run.device.name if run.device else None
    sizes = [buffer.bytes for buffer in run.buffers if (buffer.device == name) is device]
    return sum(sizes) if run.buffers else None
