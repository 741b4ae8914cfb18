"""A measurement's part in the child: load a model, make a context, decode, and report each phase."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from labkit import engine
from labkit.engine.log import failed_lock
from labkit.experiments.child.resume import resumed
from labkit.experiments.child.tokens import made_up_tokens
from labkit.settings import Settings
from labkit.system import memlock, probe

MADV_RANDOM, MADV_DONTNEED = 1, 4


@dataclass(frozen=True)
class Job:
    """What the child is to do: the arguments of ``measure`` that concern it.

    ``pauses`` are the numbers of the tokens before which it waits; ``device_endpoint`` and ``device_pid`` are those of
    the loopback device, None where there is none.
    """

    path: str
    settings: dict[str, Any]
    tokens: int
    prompt: str | None = None
    prompt_tokens: int = 8
    layers: bool = False
    evict: str | None = None
    hold_s: float = 0.0
    memlock_bytes: int | None = None
    pauses: tuple[int, ...] = ()
    device_endpoint: str | None = None
    device_pid: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def in_child(*, send: Callable[..., None], **values: Any) -> dict[str, Any]:
    """Load, make a context, decode; an event at the beginning and end of each phase, and for each token.

    Args:
        send: writes an event.
        **values: the fields of a ``Job``.

    Raises:
        EngineError, OSError, ValueError: what was asked for is refused.
    """
    job = Job(**values)

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        send("begin", phase=name)
        yield
        # Both are read here, before this process frees anything, on the device too.
        device_use = None if job.device_pid is None else asdict(probe.process(job.device_pid))
        send("end", phase=name, use=asdict(probe.process(os.getpid(), smaps=True)), device=device_use)

    settings = Settings.of(job.settings)
    path = Path(job.path)
    layers = _LayerClock()
    if job.memlock_bytes is not None:
        memlock.lower(job.memlock_bytes)
    with phase("start"):
        engine.info()
    with phase("load"):
        model = engine.Model(path, settings, endpoint=job.device_endpoint)
        send("buffers", buffers=[asdict(buffer) for buffer in model.buffers])
        if failed_lock(model.log):
            send("not-locked")
    with phase("context"):
        context = engine.Context(model, settings, on_layer=layers if job.layers else None)
        send("buffers", buffers=[asdict(buffer) for buffer in context.buffers])
    text = job.prompt
    prompt = model.tokenize(model.chat(text)) if text else made_up_tokens(job.prompt_tokens, model.n_vocab)
    with phase("prefill"):
        context.decode(prompt)
    with phase("decode"):
        if text:
            for _, piece, ms in context.stream(job.tokens):
                send("token", ms=ms, text=piece, layers=[])
        else:
            _decode_one_by_one(context, made_up_tokens(job.tokens, model.n_vocab), job, path, layers, send)
    if job.hold_s:
        with phase("hold"):
            time.sleep(job.hold_s)
    context.close()
    model.close()
    return {}


def _decode_one_by_one(
    context: engine.Context, tokens: list[int], job: Job, path: Path, layers: _LayerClock, send: Callable[..., None]
) -> None:
    """Decode made-up tokens, with the job's pauses and evictions before them; an event for each."""
    evict, pauses = job.evict, job.pauses
    for number, token in enumerate(tokens):
        if number in pauses:
            resumed.clear()
            send("waiting", token=number)
            resumed.wait()
        if evict:
            evict_mapping(path, random=evict == "random")
        before = probe.process(os.getpid()) if pauses else None
        layers.begin()
        start = time.perf_counter()
        context.decode([token])
        ms = (time.perf_counter() - start) * 1000
        counts = {} if before is None else _since(before)
        send("token", ms=ms, text="", layers=[{"token": number, **row} for row in layers.rows], **counts)


def _since(before: probe.ProcessUse) -> dict[str, int | None]:
    """Major faults of this process since ``before``, and bytes read for it; None where the system does not count."""
    now = probe.process(os.getpid())
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in ("major_faults", "read_bytes")}
    return {name: None if a is None or b is None else b - a for name, (a, b) in pairs.items()}


class _LayerClock:
    """Notes time and faults each time a layer's output is ready."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._last = self._now()

    def __call__(self, layer: int) -> None:
        now = self._now()
        row = {name: None if now[name] is None else now[name] - self._last[name] for name in now}
        self.rows.append({"layer": layer, **row})
        self._last = now

    @staticmethod
    def _now() -> dict[str, Any]:
        use = probe.process(os.getpid())
        counted = {name: getattr(use, name) for name in ("minor_faults", "major_faults", "read_bytes")}
        return {"ms": time.perf_counter() * 1000, **counted}


def evict_mapping(path: Path, *, random: bool) -> None:
    """Drop this process's pages of ``path``, and the page cache's, so that the next read is cold.

    With ``random`` the kernel is also told not to read ahead (MADV_RANDOM). Only file-backed, read-only mappings are
    touched: MADV_DONTNEED on anonymous memory would destroy it. Linux only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    real = os.path.realpath(path)
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == real and fields[1].startswith("r--"):
            start, end = (int(edge, 16) for edge in fields[0].split("-"))
            if random:
                libc.madvise(start, end - start, MADV_RANDOM)
            libc.madvise(start, end - start, MADV_DONTNEED)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
