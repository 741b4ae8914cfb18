"""Quantize a model with llama.cpp's own code, in a child process, and keep the file for the next time."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import engine, gguf
from labkit.engine import PINNED
from labkit.experiments.child import task
from labkit.experiments.child.task import Cancelled, TaskError
from labkit.files import new_file, shortage
from labkit.gguf.types import TYPES
from labkit.models import lookup, mixtures
from labkit.models.forge import models_dir
from labkit.models.quant_plan import PlanError, QuantPlan, plan_quant
from labkit.progress import Progress, bar
from labkit.quant.imatrix import Imatrix, load
from labkit.system.machine import usable_cores
from labkit.units import fmt_bytes

__all__ = ["Cancelled", "PlanError", "QuantizeError", "Quantized", "quantize"]


FIND_SHARE = 0.3  # of the progress bar: finding the model, which may mean forging it


class QuantizeError(TaskError):
    """Nothing was quantized; one sentence says why and what to do."""


@dataclass(frozen=True)
class Quantized:
    """A quantized file.

    Attributes:
        file_bytes: its length.
        seconds: how long quantizing took, without start and checks; None if the file existed already.
        types: (number of tensors, their bytes) of each tensor type.
        fallbacks: number of tensors that got another type than the mixture asks for, because of their rows' length.
        reused: the file existed already.
    """

    path: Path
    quant: str
    file_bytes: int
    seconds: float | None
    types: dict[str, tuple[int, int]]
    fallbacks: int
    reused: bool


def quantize(
    model: str | Path,
    quant: str,
    *,
    out: str | Path | None = None,
    imatrix: Imatrix | str | Path | None = None,
    allow_requantize: bool = True,
    token_embedding_type: str | None = None,
    output_tensor_type: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Quantized:
    """Write a model in another mixture of tensor types, unless the file exists already.

    Its size is predicted first and must fit on the disk. The file gets its name when it is complete: a failure,
    ``cancel`` or Ctrl-C leaves nothing behind.

    Args:
        model: a path, ``smollm2``, or ``SHAPE:QUANT`` for a forged one.
        quant: a mixture, such as ``"Q4_K_M"``.
        out: the file, which must not exist; by default one in labkit's cache, which is used again.
        imatrix: the importance of each column, from ``imatrix.collect``.
        allow_requantize: accept a source whose tensors are quantized already; their loss is not undone.
        token_embedding_type: type of the token embedding, whatever the mixture says.
        output_tensor_type: type of output.weight, whatever the mixture says.
        threads: by default all usable cores.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, quantizing ends.

    Raises:
        ShapeError: there is no such mixture.
        PlanError: a setting would make llama.cpp abort.
        GGUFError, ModelError: there is no such model, or it cannot be read.
        QuantizeError: the disk is too full, ``out`` exists, the importance matrix is of another model, or
            ``allow_requantize`` is off and needed.
        ImatrixError: the importance matrix cannot be read.
        TaskError: llama.cpp failed.
        Cancelled: ``cancel`` was set.
    """
    mixture = mixtures.find(quant)
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar(f"quantizing to {mixture.name}"))
        source = lookup.find(model, progress=lambda share, text: report(FIND_SHARE * share, text)).path
        header = gguf.read_header(source)
        weights = imatrix.path if isinstance(imatrix, Imatrix) else None if imatrix is None else Path(imatrix)
        if weights is not None:
            _check_imatrix(weights, header)
        settings = {"token_embedding_type": token_embedding_type, "output_tensor_type": output_tensor_type}
        settings = {name: value and value.upper() for name, value in settings.items()}
        wanted = plan_quant(header, mixture.name, imatrix=weights is not None, **settings)
        if not allow_requantize:
            _refuse_requantizing(source, wanted)
        target = Path(out).expanduser() if out is not None else _cached(source, mixture.name, weights, settings)
        if out is not None and target.exists():
            raise QuantizeError(f"{target} exists and is not overwritten: delete it or choose another name.")
        if _readable(target):
            return _result(target, wanted, None)
        problem = shortage(target.parent, wanted.file_bytes)
        if problem:
            raise QuantizeError(f"{source.name} cannot be quantized to {mixture.name}: {problem}")
        job = {
            "source": str(source),
            "ftype": mixture.ftype,
            "threads": threads or usable_cores(),
            "allow_requantize": allow_requantize,
            "imatrix": str(weights) if weights else None,
            **settings,
        }
        clock = _Clock(header, report)
        what = f"quantizing {source.name} to {mixture.name}"
        try:
            with new_file(target) as part:
                task.run(
                    "labkit.quant.quantize:in_child",
                    {**job, "target": str(part)},
                    what=what,
                    on_step=clock.step,
                    cancel=cancel,
                )
        except OSError as error:
            reason = error.strerror or error
            raise QuantizeError(f"{target} cannot be written ({reason}): choose another path.") from error
        report(1.0, f"{target.name}: {fmt_bytes(wanted.file_bytes)}")
        return _result(target, wanted, clock.seconds())


def _result(path: Path, wanted: QuantPlan, seconds: float | None) -> Quantized:
    """The record of a file; ``seconds`` is None where it existed already."""
    header = gguf.read_header(path)
    return Quantized(
        path=path,
        quant=wanted.quant,
        file_bytes=header.file_bytes,
        seconds=seconds,
        types=header.types,
        fallbacks=wanted.fallbacks,
        reused=seconds is None,
    )


class _Clock:
    """Reports progress by the sizes of the tensors done, and the time since the first one was begun."""

    def __init__(self, header: gguf.Header, report: Progress) -> None:
        self._report = report
        self._elements = {t.name: t.n_elements for t in header.tensors}
        self._total = max(1, header.n_params)
        self._begun = self._current = 0
        self._start: float | None = None

    def step(self, event: dict[str, Any]) -> None:
        if self._start is None:
            self._start = time.monotonic()
        self._begun += self._current
        self._current = self._elements.get(event["name"], 0)
        self._report(FIND_SHARE + (0.99 - FIND_SHARE) * self._begun / self._total, event["name"])

    def seconds(self) -> float:
        return 0.0 if self._start is None else time.monotonic() - self._start


def _refuse_requantizing(source: Path, wanted: QuantPlan) -> None:
    """Refuse a source that is quantized already.

    Raises:
        QuantizeError: a tensor that would change is quantized.
    """
    for t in wanted.tensors:
        if t.source != t.type and TYPES[t.source].block_elems > 1:
            raise QuantizeError(
                f"{source.name} is quantized already ({t.name} is {t.source}) and allow_requantize is off: quantize "
                "the F16 model, or allow it and lose precision twice."
            )


def _check_imatrix(path: Path, header: gguf.Header) -> None:
    """Refuse the importance matrix of another model: llama.cpp ignores entries whose names it does not know.

    Raises:
        ImatrixError: the file is not an importance matrix.
        QuantizeError: an entry fits no tensor.
    """
    columns = {t.name: t.dims[0] * (t.dims[2] if len(t.dims) > 2 else 1) for t in header.tensors}
    for name, values in load(path).items():
        if columns.get(name) != values.size:
            raise QuantizeError(
                f"{path.name} is an importance matrix of another model, since it has {values.size} figures for {name}: "
                "collect one of this model with imatrix.collect."
            )


def _readable(path: Path) -> bool:
    """Whether the cache has this file; its name identifies source and settings, and only complete files get it."""
    try:
        gguf.read_header(path)
    except gguf.GGUFError:
        return False
    return True


def _cached(source: Path, quant: str, weights: Path | None, settings: dict[str, str | None]) -> Path:
    """The file in labkit's cache; its name identifies source and settings."""
    stat = os.stat(source)
    identity: list[Any] = [str(source.resolve()), stat.st_size, stat.st_mtime_ns, settings, PINNED]
    if weights is not None:
        identity.append(hashlib.sha256(weights.read_bytes()).hexdigest())
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    name = f"{source.stem}-{quant}{'-imatrix' if weights else ''}-{digest}.gguf"
    return models_dir().parent / "quantized" / name


def in_child(*, source: str, target: str, imatrix: str | None, send: Callable[..., None], **how: Any) -> dict[str, Any]:
    """The child's part of ``quantize``; ``how`` are further arguments of ``engine.quantize``."""
    weights = load(imatrix) if imatrix else None
    engine.quantize(
        Path(source), Path(target), imatrix=weights, on_tensor=lambda name: send("tensor", name=name), **how
    )
    return {}
