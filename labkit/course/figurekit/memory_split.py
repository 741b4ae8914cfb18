"""Memory by kind, as predicted and as measured: of a process, and of a host and a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from labkit.course.figurekit.style import KINDS
from labkit.predict import PYTHON_ANON_BYTES, PYTHON_FILE_BYTES

if TYPE_CHECKING:
    from labkit.experiments.run import Run
    from labkit.predict import Side

Split = dict[str, int]
"""Bytes for each kind of memory, keyed as in ``KINDS``."""


def predicted_split(run: Run) -> Split:
    """Bytes per kind of memory that are predicted to be resident.

    Of the compute buffer only the part that the run is expected to touch counts: it is what the prediction of the
    anonymous resident set leaves for it.
    """
    p = run.predicted
    held = p.heap_bytes + p.repack_bytes + p.kv_bytes + p.python_bytes
    return {
        "file": p.rss_file_bytes,
        "heap": p.heap_bytes,
        "repack": p.repack_bytes,
        "kv": p.kv_bytes,
        "compute": max(p.rss_anon_bytes - held, 0),
        "python": p.python_bytes,
    }


def measured_split(run: Run) -> Split | None:
    """Bytes per kind of memory as measured; None when nothing was measured.

    The kernel gives two figures, file-backed and anonymous. The anonymous one is shared out: what the process held
    before decoding, less the buffers it had by then, is Python and the rest; the buffers that the engine reported come
    next. A buffer counts only as far as the memory reaches, because a compute buffer is touched in part. A run that
    was killed before the engine could report a buffer is shared out by the predicted sizes.
    """
    at = run.measured or (run.samples[-1] if run.samples else None)
    if at is None or at.rss_file_bytes is None or at.rss_anon_bytes is None:
        return None
    held = {phase.name: phase.rss_anon_bytes for phase in run.phases}
    sizes = dict.fromkeys(("heap", "repack", "kv", "compute"), 0)
    for buffer in run.buffers:
        kind = _kind_of(buffer.device, buffer.kind)
        if kind:
            sizes[kind] += buffer.bytes
    expected = predicted_split(run)
    for kind, phase in (("heap", "load"), ("repack", "load"), ("kv", "context"), ("compute", "context")):
        if phase not in held:
            sizes[kind] = expected[kind]

    # The compute buffer is first touched by decoding, so after "context" everything else has reached its size.
    weights = sizes["heap"] + sizes["repack"]
    earlier = {"context": weights + sizes["kv"], "load": weights, "start": 0}
    last = next((name for name in earlier if held.get(name) is not None), None)
    rest = max((held[last] or 0) - earlier[last], 0) if last else 0

    split = _shared_out(at.rss_anon_bytes, rest, sizes)
    split["file"] = at.rss_file_bytes
    return split


def _kind_of(device: str, kind: str) -> str | None:
    """The kind of anonymous memory a buffer of the engine's log is; None for mapped weights and other devices."""
    if not device.upper().startswith("CPU"):
        return None
    if kind.lower() != "model":
        return {"kv": "kv", "rs": "kv", "compute": "compute", "output": "compute"}.get(kind.lower())
    if device.upper().endswith("MAPPED"):
        return None
    return "repack" if "REPACK" in device.upper() else "heap"


def _shared_out(anon_bytes: int, rest_bytes: int, sizes: Split) -> Split:
    """Anonymous memory by kind: each size in turn, as far as the memory beyond ``rest_bytes`` reaches; Python last."""
    split = dict.fromkeys(KINDS, 0)
    left = max(anon_bytes - rest_bytes, 0)
    for kind, size in sizes.items():
        split[kind] = min(size, left)
        left -= split[kind]
    split["python"] = anon_bytes - sum(split.values())
    return split


def predicted_sides(sides: Iterable[Side], *, process: bool = False) -> Split:
    """Bytes per kind of memory on a host, or on all devices together.

    A device's weights are never file-backed: they count as weights on the heap.

    Args:
        sides: of a split.
        process: count the Python process around a host as well.
    """
    split = dict.fromkeys(KINDS, 0)
    for side in sides:
        host = side.name == "host"
        split["file"] += side.mapped_bytes + (PYTHON_FILE_BYTES if host and process else 0)
        split["heap"] += side.heap_bytes if host else side.weights_bytes
        split["repack"] += side.repack_bytes
        split["kv"] += side.kv_bytes + side.recurrent_bytes
        split["compute"] += side.compute_bytes + side.output_bytes
        split["python"] += PYTHON_ANON_BYTES if host and process else 0
    return split


def measured_device(run: Run) -> Split | None:
    """The device process's anonymous memory by kind; None when nothing was measured.

    The kernel gives one figure. What the idle process held is Python; buffers come next as far as the memory reaches,
    the compute buffer last, because it is touched in part.
    """
    device = run.device
    if device is None or device.rss_anon_bytes is None:
        return None
    buffers = {"heap": ("model",), "kv": ("kv", "rs"), "compute": ("compute", "output")}
    sizes = {
        kind: sum(run.buffer_bytes(kind=name, device=device.name) for name in names) for kind, names in buffers.items()
    }
    return _shared_out(device.rss_anon_bytes, device.idle_rss_anon_bytes or 0, sizes)
