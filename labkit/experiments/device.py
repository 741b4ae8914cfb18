"""A device for machines that have none: a second process lends its memory and processor to llama.cpp.

llama.cpp's RPC backend uses it as it would a graphics card in another computer, so what is offloaded leaves the
measuring process for another one. Its memory is no faster than the host's: it shows what offload moves, not what a
graphics card gains.
"""

from __future__ import annotations

import queue
import socket
import time

from labkit.engine import PINNED, library, version_problem
from labkit.experiments.child.process import Child, aborted, how_it_ended
from labkit.settings import LOOPBACK
from labkit.units import parse_bytes

__all__ = ["LOOPBACK", "DeviceError", "Loopback", "problem"]

_HOST = "127.0.0.1"
_START_S = 30.0  # a busy machine can take seconds to start Python
_CHECK_INTERVAL_S = 0.01  # between tries to connect


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


class Loopback(Child):
    """A running loopback device, as a context manager.

    Only this computer can reach it, but any program on it can: keep it for the length of one experiment. It ends with
    the process (on Linux: the thread) that started it, however that ends.

    >>> with Loopback(memory="2GiB") as device:                # doctest: +SKIP
    ...     print(device.endpoint, device.use().rss_anon_bytes)

    Args:
        memory: size of its memory, in bytes or as ``"2GiB"``: it refuses buffers beyond it, as a graphics card does.
            With None it takes whatever the system gives. Besides that the process itself takes some 13 MiB, and up to
            the largest tensor while a model is loaded.
        n_threads: on how many threads it computes. It and the host share the same cores.
        port: where it listens on 127.0.0.1; None finds a free one.

    Attributes:
        endpoint: ``"127.0.0.1:PORT"``, as llama.cpp wants it.
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
        super().__init__("labkit.experiments.child.device_worker:serve", job)
        try:
            self.endpoint = f"{_HOST}:{self._wait_for_port()}"
            self.idle = self.use()
        except BaseException:
            self.close()
            raise

    def lost(self, *, within_s: float = 0.0) -> str | None:
        """How it ended, as a clause, if it has ended or ends within that time; None while it runs."""
        status = self.status(within_s=within_s)
        if status is None:
            return None
        if aborted(status):
            return f"ggml aborted it: {self.last_stderr_line()}"
        return how_it_ended(status)

    def _wait_for_port(self) -> int:
        """The port, once a connection to it is accepted."""
        until = time.monotonic() + _START_S
        port = 0
        while time.monotonic() < until:
            try:
                event = self.events.get(timeout=_CHECK_INTERVAL_S)
            except queue.Empty:
                if port and _accepts(port):
                    return port
                continue
            if event is None:
                self.wait()
                raise DeviceError(f"the loopback device did not start: {self.lost()}.")
            if event["event"] == "error":
                raise DeviceError(f"the loopback device did not start: {event['reason']}")
            port = event["port"]
        raise DeviceError(f"the loopback device did not answer within {_START_S:.0f} s: is the machine very busy?")


def _accepts(port: int) -> bool:
    """Whether a connection is accepted there. The server treats one that sends nothing as a client that left."""
    try:
        socket.create_connection((_HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
