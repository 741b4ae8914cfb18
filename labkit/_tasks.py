"""What a child does besides running a model for ``experiment``: quantize, weigh columns, compare models and caches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Send = Callable[..., None]


def run(job: dict[str, Any], send: Send) -> int:
    """Do ``job["task"]`` and send its result; the exit status is 0 when it succeeded."""
    from labkit import engine
    from labkit.ggmltensor import LayoutError

    try:
        result = _TASKS[job["task"]](job, send)
    except (engine.EngineError, LayoutError, OSError, ValueError, MemoryError) as error:
        send("error", reason=str(error) or type(error).__name__)
        return 1
    send("done", result=result)
    return 0


def _quantize(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit import engine
    from labkit.imatrix import load

    engine.quantize(
        Path(job["source"]),
        Path(job["target"]),
        ftype=job["ftype"],
        threads=job["threads"],
        allow_requantize=job["allow_requantize"],
        token_embedding_type=job["token_embedding_type"],
        output_tensor_type=job["output_tensor_type"],
        imatrix=load(job["imatrix"]) if job["imatrix"] else None,
        on_tensor=lambda name: send("tensor", name=name),
    )
    return {}


def _imatrix(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit.imatrix import measure

    target = Path(job["target"])
    return measure(Path(job["model"]), job["text"], job["tokens"], target, threads=job["threads"], send=send)


def _quality(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit.quality import measure

    return measure(
        Path(job["model"]),
        Path(job["reference"]),
        job["text"],
        job["tokens"],
        settings=job["settings"],
        threads=job["threads"],
        send=send,
    )


def _dry_runs(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit.dryrun import plan
    from labkit.settings import Settings

    plan(Path(job["model"]), [Settings.of(one) for one in job["settings"]], send=send)
    return {}


def _cache_quality(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit.cachequality import measure

    return measure(
        Path(job["model"]),
        job["text"],
        job["tokens"],
        [(type_k, type_v, rotated) for type_k, type_v, rotated in job["caches"]],
        chunk=job["chunk"],
        bin_tokens=job["bin_tokens"],
        threads=job["threads"],
        send=send,
    )


def _slots(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit.cells.slots import measure

    measure(job, send)
    return {}


def _device(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit._device import serve

    return serve(job, send)


def _ballast(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit._ballast import carry

    return carry(job, send)


def _depth(job: dict[str, Any], send: Send) -> dict[str, Any]:
    from labkit.depth import measure
    from labkit.settings import Settings

    rows = [Settings.of(one) for one in job["settings"]]
    return measure(Path(job["model"]), rows, job["depths"], job["repeats"], send=send)


_TASKS: dict[str, Callable[[dict[str, Any], Send], dict[str, Any]]] = {
    "quantize": _quantize,
    "imatrix": _imatrix,
    "quality": _quality,
    "ballast": _ballast,
    "device": _device,
    "dry_runs": _dry_runs,
    "cache_quality": _cache_quality,
    "depth": _depth,
    "slots": _slots,
}
