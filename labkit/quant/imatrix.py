"""The importance matrix, which quantizing can take into account: how much each column of a weight matters.

Errors in a column that is always multiplied by small activations have little effect. So while the model reads a text,
the mean square of what each column is multiplied by is collected (as tools/imatrix/imatrix.cpp in llama.cpp does).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.experiments.child import task
from labkit.files import new_file
from labkit.models import lookup
from labkit.models.forge import models_dir
from labkit.progress import Progress, bar
from labkit.quant import texts

_ABOUT = "labkit"  # name of the entry that holds n_tokens; no tensor has this name


class ImatrixError(ValueError):
    """A file is not an importance matrix; one sentence says what to do."""


@dataclass(frozen=True)
class Imatrix:
    """A collected importance matrix.

    Attributes:
        path: the .npz file: for each tensor's name, one figure per column, shape (n_expert × ne0,), float32.
        n_tokens: length of the text on which it was collected.
        n_tensors: for how many tensors.
        seconds: how long collecting took; None if the file existed already.
        reused: the file existed already.
    """

    path: Path
    n_tokens: int
    n_tensors: int
    seconds: float | None
    reused: bool


def collect(
    model: str | Path,
    *,
    text: str = "english",
    tokens: int = 2048,
    out: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Imatrix:
    """Let a model read a text and collect the importance of its weights' columns, unless the file exists already.

    Args:
        model: a path or ``smollm2``; best the one that is to be quantized.
        text: ``"english"``, ``"korean"`` (the calibration texts of the kit), or the text itself. Evaluate on another.
        tokens: how many of its tokens to read, in chunks of 256.
        out: the .npz file, written anew; by default one in labkit's cache, which is used again.
        threads: by default one less than there are cores.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, collecting ends.

    Raises:
        GGUFError, ModelError: there is no such model, or it cannot be read.
        TaskError: the model is forged, the text too short, or llama.cpp failed.
        Cancelled: ``cancel`` was set.
    """
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("collecting the importance matrix"))
        source = texts.readable(lookup.find(model))
        words = texts.get(text, texts.CALIBRATION)
        target = Path(out).expanduser() if out is not None else _cached(source, words, tokens)
        if out is None and target.exists():
            return _result(target, None)
        started = time.monotonic()
        with new_file(target) as part:
            job = {
                "model": str(source),
                "text": words,
                "tokens": tokens,
                "target": str(part),
                "threads": threads or task.default_threads(),
            }
            task.run(
                "labkit.quant.imatrix:in_child",
                job,
                what=f"collecting the importance matrix of {source.name}",
                on_step=lambda event: report(event["share"], f"{event['tokens']} tokens read"),
                cancel=cancel,
            )
        return _result(target, time.monotonic() - started)


def load(path: str | Path) -> dict[str, NDArray[np.float32]]:
    """The figures of a file: for each tensor's name, one per column, shape (n_expert × ne0,).

    Raises:
        ImatrixError: the file is not an importance matrix of this kit.
    """
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """The figures of a file, and the entry about it."""
    try:
        with np.load(path) as file:
            entries = {name: file[name] for name in file.files}
        about = json.loads(str(entries.pop(_ABOUT)))
    except (OSError, ValueError, AttributeError, KeyError, zipfile.BadZipFile) as error:
        raise ImatrixError(
            f"{path} is not an importance matrix of this kit: collect one with imatrix.collect."
        ) from error
    return entries, about


def _result(path: Path, seconds: float | None) -> Imatrix:
    """The record of a file; ``seconds`` is None where it existed already."""
    entries, about = _read(path)
    return Imatrix(path, about["n_tokens"], len(entries), seconds, seconds is None)


def _cached(source: Path, words: str, tokens: int) -> Path:
    """The file in labkit's cache for a model, a text and a number of tokens."""
    stat = os.stat(source)
    identity = json.dumps([str(source.resolve()), stat.st_size, stat.st_mtime_ns, words, tokens])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return models_dir().parent / "imatrix" / f"{source.stem}-{digest}.npz"


class MeanSquares:
    """Mean square of each column of what each weight was multiplied by, per expert."""

    def __init__(self) -> None:
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}

    def __call__(self, name: str, rows: NDArray[np.float32], experts: NDArray[np.int32], n_expert: int) -> None:
        """Add rows, as ``engine.Context`` passes them to ``on_matmul``."""
        if name not in self._sums:
            self._sums[name] = np.zeros((n_expert, rows.shape[1]))
            self._counts[name] = np.zeros(n_expert, np.int64)
        for expert in np.unique(experts):
            mine = rows[experts == expert]
            self._sums[name][expert] += np.einsum("ij,ij->j", mine, mine, dtype=np.float64)
            self._counts[name][expert] += len(mine)

    def result(self) -> dict[str, NDArray[np.float32]]:
        """One array per weight, shape (n_expert × ne0,); 1 for every column of an expert that was never chosen.

        Raises:
            ValueError: a mean square is infinite or nan.
        """
        out = {}
        for name, sums in self._sums.items():
            counts = self._counts[name][:, None]
            means = np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)
            if not np.isfinite(means).all():
                raise ValueError(
                    f"the model computes infinite or undefined values before {name}: its file is damaged, use another."
                )
            out[name] = means.astype(np.float32).reshape(-1)
        return out


def in_child(
    *, model: str, text: str, tokens: int, target: str, threads: int, send: Callable[..., None]
) -> dict[str, Any]:
    """The child's part of ``collect``."""
    from labkit import engine
    from labkit.settings import Settings

    settings = Settings(n_ctx=texts.CHUNK, n_threads=threads, n_outputs_max=1)
    squares = MeanSquares()
    done = 0
    with engine.Model(Path(model), settings) as loaded:
        chunks = texts.chunks(loaded.tokenize(text), tokens, loaded.bos)
        total = sum(map(len, chunks))
        with engine.Context(loaded, settings, on_matmul=squares) as context:
            for chunk in chunks:
                context.clear()
                context.decode(chunk)
                done += len(chunk)
                send("read", tokens=done, share=done / total)
    save(Path(target), squares.result(), n_tokens=done)
    return {}


def save(path: Path, entries: Mapping[str, NDArray[np.float32]], *, n_tokens: int) -> None:
    """Write what ``load`` reads."""
    with open(path, "wb") as file:  # given a name, numpy would add .npz to it
        np.savez(file, **{_ABOUT: np.array(json.dumps({"n_tokens": n_tokens}))}, **entries)  # type: ignore[arg-type]
