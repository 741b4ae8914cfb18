"""Let llama.cpp plan many settings of one model without allocating them: a grid of sizes in a second or two."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit import predict
from labkit.engine import version_problem
from labkit.engine.log import KVCache, parse_recurrent
from labkit.experiments.child import task
from labkit.gguf import Header
from labkit.models import lookup
from labkit.progress import Progress, bar
from labkit.settings import Settings

# Even a dry run keeps some 50 bytes for each cell: its position, and a bit for every sequence (src/llama-kv-cells.h).
N_CTX_MAX = 1 << 24
REMEMBERED = 1 << 14  # plans kept in memory, less than a KiB each


@dataclass(frozen=True)
class Planned:
    """What llama.cpp would allocate for one setting, rounded by its log to 0.01 MiB.

    Attributes:
        settings: as they were asked for.
        kv_bytes: keys and values of all ``caches``; None, like the other sizes, where there is a ``problem``.
        recurrent_bytes: state of recurrent layers (Mamba and hybrids); 0 where there are none.
        compute_bytes: compute buffers of all devices.
        output_bytes: the rows of logits handed out.
        caches: as llama.cpp makes them: two where some layers have a sliding window.
        problem: None, or one sentence: why llama.cpp refused the setting, or how it ended the process.
    """

    settings: Settings
    kv_bytes: int | None = None
    recurrent_bytes: int | None = None
    compute_bytes: int | None = None
    output_bytes: int | None = None
    caches: tuple[KVCache, ...] = ()
    problem: str | None = None


_remembered: dict[tuple[str, int, int, Settings], Planned] = {}


def dry_runs(
    model: str | Path,
    settings: Sequence[Settings],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[Planned, ...]:
    """Let llama.cpp plan a context for each of ``settings``, in a child process that opens the model once.

    A plan takes 0.1 ms for each layer of the model, for a context of up to 128k tokens; more beyond. A plan is
    remembered as long as this process runs and the file stays the same. A setting that makes llama.cpp abort costs a
    new child, not the other plans.

    Args:
        model: a path, ``smollm2``, or ``SHAPE:QUANT`` as in ``llama-2-13b:Q4_K_M``.
        settings: in any order. ``n_threads`` and ``load_mode`` change no size.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, planning ends.

    Returns:
        One plan for each of ``settings``, in their order.

    Raises:
        GGUFError, ModelError: there is no such model, or it cannot be read.
        TaskError: llama.cpp cannot open the model, or there is no device of the name that a setting gives.
        Cancelled: ``cancel`` was set.
    """
    model_found = lookup.find(model)
    path, file = model_found.path, model_found.path.stat()
    wanted = [_sized_by(one) for one in settings]
    plans: dict[Settings, Planned] = {}
    for one in wanted:
        if known := _remembered.get((str(path), file.st_size, file.st_mtime_ns, one)):
            plans[one] = known
        elif one.n_ctx > N_CTX_MAX:
            problem = (
                f"n_ctx is {one.n_ctx:,}: plan at most {N_CTX_MAX:,}, even a dry run keeps 50 bytes for each cell."
            )
            plans[one] = Planned(one, problem=problem)
    todo = [one for one in dict.fromkeys(wanted) if one not in plans]
    n_distinct = len(plans) + len(todo)
    at_hand: Settings | None = None

    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("planning"))

        def on_event(event: dict[str, Any]) -> None:
            nonlocal at_hand
            one = todo[event["index"]]
            if event["event"] == "trying":
                at_hand = one
                return
            at_hand = None
            caches = tuple(KVCache(**cache) for cache in event["plan"].pop("caches", ()))
            plans[one] = Planned(one, **event["plan"], caches=caches)
            _remember((str(path), file.st_size, file.st_mtime_ns, one), plans[one])
            report(len(plans) / n_distinct, f"{len(plans)} of {n_distinct} settings")

        while todo:
            job = {"model": str(path), "settings": [one.to_dict() for one in todo]}
            try:
                task.run(
                    "labkit.experiments.dry_run:in_child",
                    job,
                    what=f"planning {model_found.name}",
                    on_step=on_event,
                    cancel=cancel,
                )
            except task.Cancelled:
                raise
            except task.TaskError as error:
                if at_hand is None:
                    raise
                # Not remembered: this machine may have been short of memory.
                plans[at_hand] = Planned(at_hand, problem=str(error))
                at_hand = None
            todo = [one for one in todo if one not in plans]
    return tuple(replace(plans[one], settings=asked) for one, asked in zip(wanted, settings, strict=True))


def compute_bytes(path: Path, header: Header, settings: Settings) -> int | None:
    """The compute buffer on the CPU as llama.cpp plans it, where ``predict`` has no exact formula.

    Returns:
        None where the formula is exact, and where llama.cpp is not installed or refuses.
    """
    if predict.compute_bytes(header, settings)[1] or version_problem():
        return None
    on_host = replace(settings, devices=(), n_gpu_layers=0)
    try:
        [plan] = dry_runs(path, [on_host], progress=lambda share, text: None)
    except task.TaskError:
        return None
    return plan.compute_bytes


def _sized_by(settings: Settings) -> Settings:
    """The same sizes, with one value for what does not change them, so that equal plans are made once."""
    return replace(settings, n_threads=1, load_mode="mmap")


def _remember(key: tuple[str, int, int, Settings], plan: Planned) -> None:
    _remembered[key] = plan
    while len(_remembered) > REMEMBERED:
        _remembered.pop(next(iter(_remembered)), None)


def in_child(*, model: str, settings: Sequence[Mapping[str, Any]], send: Callable[..., None]) -> dict[str, Any]:
    """The child's part of ``dry_runs``: the event ``trying`` before each setting, ``planned`` after it."""
    from labkit import engine

    wanted = [Settings.of(one) for one in settings]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, one in enumerate(wanted):
        groups.setdefault((one.repack, one.n_gpu_layers, one.devices), []).append(index)  # what belongs to the model
    for indices in groups.values():
        with engine.Model(Path(model), wanted[indices[0]], dry=True) as opened:
            for index in indices:
                send("trying", index=index)
                try:
                    with engine.Context(opened, wanted[index]) as context:
                        found = sizes(context)
                except engine.EngineError as error:
                    found = {"problem": str(error)}
                send("planned", index=index, plan=found)
    return {}


def sizes(context: Any) -> dict[str, Any]:
    """``Planned``'s figures of a context that llama.cpp has made, or only planned."""

    def of(kind: str) -> int:
        return sum(buffer.bytes for buffer in context.buffers if buffer.kind == kind)

    return {
        "kv_bytes": sum(cache.bytes for cache in context.kv),
        "recurrent_bytes": parse_recurrent(context.log),
        "compute_bytes": of("compute"),
        "output_bytes": of("output"),
        "caches": [asdict(cache) for cache in context.kv],
    }
