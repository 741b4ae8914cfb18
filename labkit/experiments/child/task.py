"""Let a child process do work on which llama.cpp might abort, and return its result."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from labkit.engine import version_problem
from labkit.experiments.child.process import Child, how_it_ended, killed
from labkit.system.machine import usable_cores

CHECK_INTERVAL_S = 0.1  # between checks of the cancel event


class TaskError(RuntimeError):
    """The work was refused or failed; one sentence says why and, where there is a remedy, what to do."""


class Cancelled(TaskError):
    """The work was cancelled. Nothing of it is left."""


def run(
    function: str,
    job: dict[str, Any],
    *,
    what: str,
    on_step: Callable[[dict[str, Any]], None],
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """Call a function in a child and return its result.

    Args:
        function: ``"module:name"``. It is called with the job's entries and ``send``, and returns plain values.
        job: its keyword arguments, plain values only.
        what: subject of the message when it fails, as in ``"quantizing a.gguf"``.
        on_step: called with each progress event.
        cancel: when set, the child is ended.

    Raises:
        TaskError: llama.cpp refused, aborted, or was killed.
        Cancelled: ``cancel`` was set.
    """
    problem = version_problem()
    if problem:
        raise TaskError(problem)
    error = None
    with Child(function, job) as child:
        while True:
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"{what} was cancelled.")
            try:
                event = child.events.get(timeout=CHECK_INTERVAL_S)
            except queue.Empty:
                continue
            if event is None:
                break
            if event["event"] == "done":
                result: dict[str, Any] = event["result"]
                return result
            if event["event"] == "error":
                error = event["reason"]
            else:
                on_step(event)
        status = child.wait()
        if error:
            raise TaskError(error)
        ended = how_it_ended(status, child.last_stderr_line(), what=what)
        raise TaskError(f"{ended}{'.' if killed(status) else ''}")


def default_threads() -> int:
    """All usable cores but one, which keeps a notebook or browser on the same machine responsive."""
    return max(1, usable_cores() - 1)
