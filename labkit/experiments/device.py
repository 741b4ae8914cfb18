"""A device for machines that have none: a second process lends its memory and processor to llama.cpp.

llama.cpp's RPC backend speaks to it as to a remote graphics card, so what is offloaded leaves the measuring process for
another one. It has no memory faster than the host's: it shows what offload moves, not what a graphics card gains.
"""

from __future__ import annotations

import queue
import socket
import time
from types import TracebackType

from labkit.engine import PINNED, library, version_problem
from labkit.experiments.child.process import Child, how_it_ended, killed
from labkit.settings import LOOPBACK
from labkit.system._os import ProcessUse
from labkit.system.probe import process
from labkit.units import parse_bytes

__all__ = ["LOOPBACK", "DeviceError", "Loopback", "problem"]

_HOST = "127.0.0.1"
_START_S = 30.0  # a busy machine can take seconds to start Python
_LOOK_S = 0.01


class DeviceError(RuntimeError):
    """There is no such device here, or it ended; one sentence says why and what to do."""


def problem() -> str | None:
    """Why there can be no loopback device here, in one sentence; None where there can."""
    wrong = version_problem()
    if wrong is None and library("ggml-rpc") is None:
        wrong = (
            "this build of llama-cpp-python has no RPC backend, which the loopback device needs: run `uv sync "
            "--reinstall-package llama-cpp-python`, or `pip install --force-reinstall --no-binary llama-cpp-python "
            f"-C cmake.define.GGML_RPC=ON llama-cpp-python=={PINNED}`."
        )
    return wrong


class Loopback:
    """A running loopback device, as a context manager.

    Only this computer can reach it, but any program on it can: keep it for the length of one experiment. It ends with
    the process (on Linux: the thread) that started it, however that ends.

    >>> with Loopback(memory="2GiB") as device:                # doctest: +SKIP
    ...     print(device.endpoint, device.use().rss_anon_bytes)

    Args:
        memory: size of its memory, in bytes or as ``"2GiB"``: it refuses buffers beyond it, as a graphics card does.
            None leaves it whatever the system gives. Beside that the process itself takes some 20 MiB, and up to the
            largest tensor while a model is loaded.
        n_threads: on how many threads it computes. It and the host share the same cores.
        port: where it listens on 127.0.0.1; None finds a free one.

    Attributes:
        endpoint: ``"127.0.0.1:PORT"``, as llama.cpp wants it.
        pid: its process.
        memory_bytes: its size, or None.
        idle: what the process used before anything was put on it.

    Raises:
        DeviceError: there can be none here, or the port is in use.
        ValueError: the size or the number of threads makes no sense.
    """

    def __init__(self, *, memory: int | str | None = None, n_threads: int = 1, port: int | None = None) -> None:
        why = problem()
        if why:
            raise DeviceError(why)
        self.memory_bytes = None if memory is None else parse_bytes(memory)
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError("a device's memory must be more than 0 bytes.")
        if n_threads < 1:
            raise ValueError(f"n_threads is {n_threads}: a device computes on at least 1.")
        if port is not None and not 0 < port < 1 << 16:
            raise ValueError(f"port is {port}: it must be between 1 and 65,535.")
        self.n_threads = n_threads
        job = {"port": port or 0, "n_threads": n_threads, "memory_bytes": self.memory_bytes}
        self._child = Child("labkit.experiments.child.device_worker:serve", job)
        self.pid = self._child.pid
        try:
            self.endpoint = f"{_HOST}:{self._wait_until_it_answers()}"
            self.idle = self.use()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def use(self) -> ProcessUse:
        """What its process uses now.

        Raises:
            ProcessGone: it has ended.
        """
        return process(self.pid)

    def lost(self, *, within_s: float = 0.0) -> str | None:
        """How it ended, as a clause, if it has or does so soon; None while it runs."""
        status = self._child.status(within_s=within_s)
        if status is None:
            return None
        if status == -6:
            return f"ggml aborted it: {self._child.last_stderr_line()}"
        return how_it_ended(status) if killed(status) else f"it ended with status {status}"

    def close(self) -> None:
        """End it and free all it held; again is harmless."""
        self._child.kill()
        self._child.wait()

    def _wait_until_it_answers(self) -> int:
        until = time.monotonic() + _START_S
        port = 0
        while time.monotonic() < until:
            try:
                event = self._child.events.get(timeout=_LOOK_S)
            except queue.Empty:
                if port and _answers(port):
                    return port
                continue
            if event is None:
                self._child.wait()
                raise DeviceError(f"the loopback device did not start: {self.lost()}.")
            if event["event"] == "error":
                raise DeviceError(f"the loopback device did not start: {event['reason']}")
            port = event["port"]
        raise DeviceError(f"the loopback device did not answer within {_START_S:.0f} s: is the machine very busy?")


def _answers(port: int) -> bool:
    """Whether someone accepts a connection there; the server takes one that says nothing for a client that left."""
    try:
        socket.create_connection((_HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
