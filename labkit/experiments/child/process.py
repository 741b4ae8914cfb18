"""Start a child process, read its events, and make sure that it ends with this one."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from labkit.system import probe
from labkit.system.probe import ProcessUse

LAST_LINES = 20
_Self = TypeVar("_Self", bound="Child")


class Child:
    """A process that calls one function. Leaving the ``with`` block ends it, whatever it is doing.

    Attributes:
        events: the child's events as dicts, then None when it has closed its output.
        pid: its process id.
        started: when it was started, as ``time.monotonic`` counts.
    """

    def __init__(
        self, function: str, job: dict[str, Any], *, wrap: Callable[[list[str]], list[str]] | None = None
    ) -> None:
        """Start it.

        Args:
            function: ``"module:name"``, called in the child with the job's entries and ``send(event, **values)``.
            job: its keyword arguments, plain values only.
            wrap: puts the command under a memory cap.
        """
        command = [sys.executable, "-m", "labkit.experiments.child"]
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stderr: deque[str] = deque(maxlen=LAST_LINES)
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            wrap(command) if wrap else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C and a kernel's interrupt reach every process of the group: the parent decides, not the terminal.
            start_new_session=os.name == "posix",
        )
        self.pid = self._process.pid
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._read_events, self._read_stderr)]
        for thread in self._threads:
            thread.start()
        self._send(json.dumps({"function": function, "job": job}) + "\n")

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()  # and leave it open: its end tells the child that this process has ended
        except BrokenPipeError:
            pass  # it ended at once; its status and its last line of stderr say why

    def resume(self) -> None:
        """End its pause, after it has reported that it is waiting."""
        self._send("\n")

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.events.put(json.loads(line))
            except ValueError:  # half a line: it was killed while it wrote
                self._stderr.append(line.strip())
        self.events.put(None)

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr.append(line.strip())

    def use(self) -> ProcessUse:
        """What it uses now.

        Raises:
            ProcessGone: it has ended.
        """
        return probe.process(self.pid)

    def kill(self) -> None:
        """End it now; calling it again, or after the process has ended, is harmless."""
        if self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """End it and free all it held; calling it again is harmless."""
        self.kill()
        self.wait()

    def status(self, *, within_s: float = 0.0) -> int | None:
        """Its exit status if it has ended or ends within that time, else None."""
        try:
            return self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            return None

    def wait(self) -> int:
        """Wait until it has ended, free pipes and threads, and return its exit status (negative: the signal)."""
        status = self._process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return status

    def last_stderr_line(self) -> str:
        """The last line it wrote to stderr that is not blank."""
        line = next((line for line in reversed(self._stderr) if line), "")
        return re.sub(r"^\S+[/\\](?=\S+:\d+: )", "", line)  # an assertion names the folder in which llama.cpp was built


def how_it_ended(status: int, last_line: str | None = None, *, what: str = "it", phase: str = "") -> str:
    """An exit status as a clause.

    Args:
        status: as ``Child.wait`` returns it.
        last_line: of its stderr, to be quoted as the reason; None leaves the reason out.
        what: subject of the clause.
        phase: in which phase of a measurement it ended.
    """
    if killed(status):
        return f"{what} was killed from outside (signal 9), as the kernel does when memory runs out"
    reason = "" if last_line is None else f": {last_line or 'it wrote no reason'}"
    return f"{what} ended{f' in {phase}' if phase else ''} with status {status}{reason}"


def killed(status: int) -> bool:
    """Whether SIGKILL ended a process."""
    return _ended_by(status, 9)  # signal.SIGKILL, which Windows does not have


def aborted(status: int) -> bool:
    """Whether a process ended itself with abort(), as ggml does when an assertion fails."""
    return _ended_by(status, signal.SIGABRT)


def _ended_by(status: int, number: int) -> bool:
    """Whether a signal ended a process: its negative number from Python's own child, 128 more through a shell."""
    return status in (-number, 128 + number)
