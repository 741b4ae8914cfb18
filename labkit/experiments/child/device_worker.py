"""The loopback device's process: it lends its CPU and memory to llama.cpp in another process, over ggml's RPC."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from typing import Any

from labkit.engine import EngineError, library
from labkit.engine.internals.memory_limit import MemoryLimit

HOST = "127.0.0.1"  # the RPC server has no security: nothing outside this computer may reach it

_pointer, _size = ctypes.c_void_p, ctypes.c_size_t


def serve(*, port: int, n_threads: int, memory_bytes: int | None, send: Callable[..., None]) -> dict[str, Any]:
    """Serve until this process is ended.

    Args:
        port: 0 for a free one.
        n_threads: on how many threads the device computes.
        memory_bytes: size of the device's memory; None for no limit.
        send: gets ``serving`` with the port, just before the port opens.

    Raises:
        EngineError: the port is taken, or ggml's server returned.
        LayoutError: the size cannot be set in this build of ggml.
    """
    ggml, base, rpc = library("ggml"), library("ggml-base"), library("ggml-rpc")
    assert ggml is not None and base is not None and rpc is not None  # ``device.problem`` has checked
    ggml.ggml_backend_dev_by_type.restype = _pointer
    cpu = ggml.ggml_backend_dev_by_type(0)
    limit = None if memory_bytes is None else MemoryLimit(base, cpu, memory_bytes)
    start = rpc.ggml_backend_rpc_start_server
    start.restype, start.argtypes = None, [ctypes.c_char_p, ctypes.c_char_p, _size, _size, _pointer]
    port = _usable(port)
    send("serving", port=port)
    start(f"{HOST}:{port}".encode(), None, n_threads, 1, (_pointer * 1)(cpu))
    raise EngineError(f"ggml's RPC server did not open port {port}{'' if limit is None else ' with a size'}.")


def _usable(port: int) -> int:
    """The port if it can be opened, or a free one where 0 is asked for."""
    try:
        with socket.create_server((HOST, port)) as trial:
            return int(trial.getsockname()[1])
    except OSError as error:
        why = os.strerror(error.errno or 0)  # Python's own text repeats the address
        raise EngineError(
            f"port {port} of {HOST} cannot be opened ({why}): choose another, or none for a free one."
        ) from None
