"""Start the child, read its events, and make sure that it ends with us."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

LAST_LINES = 20


class Child:
    """A process that calls one function. Leaving the ``with`` block ends it, whatever state it is in.

    ``events`` yields the child's events as dicts, then None when it has closed its end.
    """

    def __init__(
        self, function: str, job: dict[str, Any], *, wrap: Callable[[list[str]], list[str]] | None = None
    ) -> None:
        """Start it.

        Args:
            function: ``"module:name"``, called in the child with the job and ``send(event, **values)``.
            job: what it needs, plain values only.
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

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        self.wait()

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()  # and leave it open: its end tells the child that we are gone
        except BrokenPipeError:
            pass  # it died at once; its status and last line of stderr tell

    def resume(self) -> None:
        """End its pause; it has reported that it is waiting."""
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

    def kill(self) -> None:
        """End it now; again, or after it ended, is harmless."""
        if self._process.poll() is None:
            self._process.kill()

    def status(self, *, within_s: float = 0.0) -> int | None:
        """Its exit status if it is gone, or goes so soon, else None."""
        try:
            return self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            return None

    def wait(self) -> int:
        """Its exit status once it is gone (negative: the signal that ended it); frees pipes and threads."""
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


def how_it_ended(status: int, last_line: str = "") -> str:
    """An exit status as a clause: who killed the process, or with which status it ended and what it wrote last."""
    if killed(status):
        return "it was killed from outside (signal 9), as the kernel does when memory runs out"
    return f"it ended with status {status}: {last_line or 'it wrote no reason'}"


def killed(status: int | None) -> bool:
    """Whether SIGKILL ended a process: -9 from Python's own child, 137 through a shell or systemd."""
    return status in (-9, 137)
