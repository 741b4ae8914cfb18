"""The process in which a measurement happens: it may be killed, and its parent lives on.

Started by ``experiment`` as ``python -m labkit._child``. The first line on stdin is the job; stdin then stays open as a
lifeline, and its end means that the parent is gone. Events go to stdout, one JSON object a line.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit import _memlock, probe
from labkit.settings import Settings

PR_SET_PDEATHSIG, SIGKILL = 1, 9
MADV_RANDOM, MADV_DONTNEED = 1, 4
_heard = threading.Event()  # the parent has written something since it was cleared


def main() -> int:
    """Run one job; the exit status is 0 when every phase ended."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not mix with the events
    job = json.loads(sys.stdin.readline())
    _die_with_parent()
    os.environ["GGML_NO_BACKTRACE"] = "1"  # an abort would start a debugger, whose chatter hides the reason

    def send(event: str, **values: Any) -> None:
        out.write(json.dumps({"event": event, "t": time.monotonic(), **values}) + "\n")

    if "task" in job:
        from labkit import _tasks

        return _tasks.run(job, send)
    return _run(job, send)


def _run(job: dict[str, Any], send: Callable[..., None]) -> int:
    from labkit import engine  # here, so that the parent never pays for it

    device = job.get("device")  # the loopback's endpoint and pid, or None

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        send("begin", phase=name)
        yield
        # Both are read here, while everything is still in place: afterwards this process frees what is on the device.
        there = None if device is None else asdict(probe.process(device["pid"]))
        send("end", phase=name, use=asdict(probe.process(os.getpid(), smaps=True)), device=there)

    settings = Settings.of(job["settings"])
    path = Path(job["path"])
    layers = _LayerClock()
    try:
        if job.get("memlock_bytes") is not None:
            _memlock.lower(job["memlock_bytes"])
        with phase("start"):
            engine.info()
        with phase("load"):
            model = engine.Model(path, settings, endpoint=None if device is None else device["endpoint"])
            send("buffers", buffers=[asdict(buffer) for buffer in model.buffers])
            if any("failed to mlock" in line or "failed to VirtualLock" in line for line in model.log):
                send("not-locked")
        with phase("context"):
            context = engine.Context(model, settings, on_layer=layers if job["layers"] else None)
            send("buffers", buffers=[asdict(buffer) for buffer in context.buffers])
        text = job["prompt"]
        prompt = model.tokenize(model.chat(text)) if text else _some_tokens(job["prompt_tokens"], model.n_vocab)
        with phase("prefill"):
            context.decode(prompt)
        with phase("decode"):
            if text:
                _speak(model, context, job["tokens"], send)
            else:
                _step(context, _some_tokens(job["tokens"], model.n_vocab), job, path, layers, send)
        if job["hold_s"]:
            with phase("hold"):
                time.sleep(job["hold_s"])
        context.close()
        model.close()
    except (engine.EngineError, OSError, ValueError, MemoryError) as error:
        send("error", reason=str(error))
        return 1
    send("done")
    return 0


def _step(
    context: Any, tokens: list[int], job: dict[str, Any], path: Path, layers: _LayerClock, send: Callable[..., None]
) -> None:
    evict, pauses = job["evict"], job.get("pauses", ())
    for number, token in enumerate(tokens):
        if number in pauses:
            _heard.clear()
            send("waiting", token=number)
            _heard.wait()
        if evict:
            evict_mapping(path, random=evict == "random")
        before = probe.process(os.getpid()) if pauses else None
        layers.begin()
        start = time.perf_counter()
        context.decode([token])
        ms = (time.perf_counter() - start) * 1000
        took = {} if before is None else _since(before)
        send("token", ms=ms, text="", layers=[{"token": number, **row} for row in layers.rows], **took)


def _since(before: probe.ProcessUse) -> dict[str, int | None]:
    """Major faults of this process since then, and bytes read for it."""
    now = probe.process(os.getpid())
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in ("major_faults", "read_bytes")}
    return {name: None if a is None or b is None else b - a for name, (a, b) in pairs.items()}


def _speak(model: Any, context: Any, n: int, send: Callable[..., None]) -> None:
    import codecs

    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for _ in range(n):
        token = int(context.logits().argmax())
        if model.ends(token):
            return
        text = utf8.decode(model.piece(token))
        start = time.perf_counter()
        context.decode([token])
        send("token", ms=(time.perf_counter() - start) * 1000, text=text, layers=[])


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


def _some_tokens(n: int, n_vocab: int) -> list[int]:
    """``n`` token ids spread over the vocabulary, the same each time, so that embedding rows differ as in real text."""
    return [(1 + 7919 * i) % n_vocab for i in range(n)]


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


def _die_with_parent() -> None:
    """Be the first to go: when memory runs out, and when the parent ends."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)

    def lifeline() -> None:
        while os.read(0, 4096):  # not sys.stdin, whose lock Python wants at exit
            _heard.set()
        os._exit(3)

    threading.Thread(target=lifeline, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
