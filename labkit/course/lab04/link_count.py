"""How many bytes cross between llama.cpp and a loopback device while it generates: counted on their connection."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from labkit.experiments.child.measurement import Job
from labkit.experiments.child.process import Child
from labkit.experiments.device import DeviceError, Loopback
from labkit.settings import Settings

_CHUNK_BYTES = 1 << 20
TIMEOUT_S = 60.0  # between two events of a child that loads and runs a small model


class LinkError(RuntimeError):
    """The bytes could not be counted; the message is one sentence."""


@dataclass(frozen=True)
class Crossed:
    """Bytes that crossed while ``n_tokens`` were generated, both ways, with what the protocol adds."""

    n_tokens: int
    n_bytes: int


class Relay:
    """Passes all bytes between a client and ``endpoint`` on this computer, and counts them.

    Attributes:
        endpoint: what the client connects to instead.
        n_bytes: passed so far, both ways.
    """

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.rsplit(":", 1)
        self._target = host, int(port)
        self._server = socket.create_server((host, 0))
        self.endpoint = f"{host}:{self._server.getsockname()[1]}"
        self.n_bytes = 0
        self._lock = threading.Lock()
        self._open = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *how: object) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        # Closed when the device has ended, or the kernel would go on accepting connections that get no answer.
        with contextlib.suppress(OSError), self._server:
            while True:
                client, _ = self._server.accept()
                there = socket.create_connection(self._target)
                for one in (client, there):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += [client, there]
                for source, target in ((client, there), (there, client)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                with self._lock:
                    self.n_bytes += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def crossed(path: Path, settings: Settings, *, tokens: int) -> Crossed:
    """Generate with the loopback device of ``settings`` and count what crosses meanwhile.

    Raises:
        LinkError: there can be no loopback device here, or the run did not finish.
    """
    try:
        with Loopback() as device, Relay(device.endpoint) as relay:
            job = Job(
                path=str(path),
                settings=settings.to_dict(),
                prompt=None,
                prompt_tokens=8,
                tokens=tokens,
                layers=False,
                evict=None,
                hold_s=0.0,
                memlock_bytes=None,
                pauses=(),
                device_endpoint=relay.endpoint,
                device_pid=device.pid,
            )
            with Child("labkit.experiments.child.measurement:in_child", job.to_dict()) as child:
                began = ended = None
                while event := child.events.get(timeout=TIMEOUT_S):
                    if event.get("phase") == "decode" and event["event"] == "begin":
                        began = relay.n_bytes
                    elif event.get("phase") == "decode" and event["event"] == "end":
                        ended = relay.n_bytes
                    elif event["event"] == "error":
                        raise LinkError(event["reason"])
                if began is None or ended is None:
                    child.wait()
                    raise LinkError(
                        f"the engine ended before it had generated: {child.last_stderr_line() or 'it wrote no reason'}."
                    )
                return Crossed(tokens, ended - began)
    except queue.Empty:
        raise LinkError(f"the engine did not answer within {TIMEOUT_S:.0f} s.") from None
    except (DeviceError, OSError) as error:
        raise LinkError(str(error)) from None
