"""A process's memory by kind, as predicted and as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.course.figurekit.style import KINDS

if TYPE_CHECKING:
    from labkit.experiments.run import Run


def predicted_split(run: Run) -> dict[str, int]:
    """Bytes per kind of memory as predicted to be resident, keyed as in ``KINDS``.

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


def measured_split(run: Run) -> dict[str, int] | None:
    """Bytes per kind of memory as measured, keyed as in ``KINDS``; None when nothing was measured.

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

    split = dict.fromkeys(KINDS, 0)
    left = max(at.rss_anon_bytes - rest, 0)
    for kind, size in sizes.items():
        split[kind] = min(size, left)
        left -= split[kind]
    split["python"] = at.rss_anon_bytes - sum(split.values())
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
