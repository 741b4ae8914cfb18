"""The device's side of a loopback: lend this process's CPU and memory to llama.cpp in another one, over ggml's RPC.

Runs in a child process. A graphics card refuses a buffer for which it has no room; ggml's CPU takes
whatever the system gives. So where a size is asked for, two functions of ggml's CPU device are replaced, in this
process only: the one that says how much memory there is, and the one that allocates. They are found at their places in
ggml/src/ggml-backend-impl.h (at 0c1e57098), and the change is tried before anything depends on it.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from typing import Any

from labkit.engine import EngineError, library
from labkit.engine.internals.tensors import LayoutError

HOST = "127.0.0.1"  # the RPC server has no security: nothing outside this computer may reach it

_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_sizes = ctypes.POINTER(_size)
_GET_MEMORY = ctypes.CFUNCTYPE(None, _pointer, _sizes, _sizes)  # third of ggml_backend_device_i
_ALLOC_BUFFER = ctypes.CFUNCTYPE(_pointer, _pointer, _size)  # second of ggml_backend_buffer_type_i
_FREE_BUFFER = ctypes.CFUNCTYPE(None, _pointer)  # first of ggml_backend_buffer_i
_TRIAL_BYTES = 64


def serve(job: dict[str, Any], send: Callable[..., None]) -> dict[str, Any]:
    """Serve until this process is ended.

    Args:
        job: ``port`` (0: a free one), ``n_threads``, and ``memory_bytes`` (None: no limit).
        send: gets ``serving`` with the port, just before the port opens.

    Raises:
        EngineError: the port is taken, or ggml's server returned.
        LayoutError: the size cannot be set in this build of ggml.
    """
    ggml, base, rpc = library("ggml"), library("ggml-base"), library("ggml-rpc")
    assert ggml is not None and base is not None and rpc is not None  # ``device.problem`` has looked
    ggml.ggml_backend_dev_by_type.restype = _pointer
    cpu = ggml.ggml_backend_dev_by_type(0)
    limit = None if job["memory_bytes"] is None else _Limit(base, cpu, job["memory_bytes"])
    start = rpc.ggml_backend_rpc_start_server
    start.restype, start.argtypes = None, [ctypes.c_char_p, ctypes.c_char_p, _size, _size, _pointer]
    port = _usable(job["port"])
    send("serving", port=port)
    start(f"{HOST}:{port}".encode(), None, job["n_threads"], 1, (_pointer * 1)(cpu))
    raise EngineError(f"ggml's RPC server did not open port {port}{'' if limit is None else ' with a size'}.")


def _usable(port: int) -> int:
    """The port, or a free one for 0, after a look whether it opens."""
    try:
        with socket.create_server((HOST, port)) as trial:
            return int(trial.getsockname()[1])
    except OSError as error:
        why = os.strerror(error.errno or 0)  # Python's own text repeats the address
        raise EngineError(
            f"port {port} of {HOST} cannot be opened ({why}): choose another, or none for a free one."
        ) from None


class _Limit:
    """Makes ggml's CPU device one of ``size`` bytes, and refuses buffers beyond them."""

    def __init__(self, base: ctypes.CDLL, cpu: int, size: int) -> None:
        base.ggml_backend_dev_buffer_type.restype = _pointer
        base.ggml_backend_dev_buffer_type.argtypes = [_pointer]
        kind = base.ggml_backend_dev_buffer_type(cpu)
        device, buffers = (_pointer * 3).from_address(cpu), (_pointer * 2).from_address(kind)
        self._taken: dict[int, int] = {}
        self._size = size
        self._alloc = _ALLOC_BUFFER(buffers[1] or 0)
        self._free: Any = None  # the same for all buffers of the CPU
        # ggml calls these as long as the process lives; they must not be collected.
        self._callbacks = _GET_MEMORY(self._memory), _ALLOC_BUFFER(self._allocate), _FREE_BUFFER(self._release)
        addresses = [ctypes.cast(callback, _pointer).value for callback in self._callbacks]
        device[2], buffers[1], self._release_address = addresses
        self._check(base, cpu, kind)

    def _memory(self, device: int, free: Any, total: Any) -> None:
        total[0], free[0] = self._size, self._size - sum(self._taken.values())

    def _allocate(self, kind: int, n: int) -> int | None:
        if sum(self._taken.values()) + n > self._size:
            return None
        buffer: int | None = self._alloc(kind, n)
        if buffer:
            free = (_pointer * 1).from_address(buffer)
            self._free = self._free or _FREE_BUFFER(free[0] or 0)
            free[0] = self._release_address
            self._taken[buffer] = n
        return buffer

    def _release(self, buffer: int) -> None:
        del self._taken[buffer]
        self._free(buffer)

    def _check(self, base: ctypes.CDLL, cpu: int, kind: int) -> None:
        """Ask through ggml's own functions whether the new ones are called."""
        base.ggml_backend_dev_memory.argtypes = [_pointer, _sizes, _sizes]
        base.ggml_backend_buft_alloc_buffer.restype = _pointer
        base.ggml_backend_buft_alloc_buffer.argtypes = [_pointer, _size]
        base.ggml_backend_buffer_free.argtypes = [_pointer]
        free, total = _size(), _size()
        base.ggml_backend_dev_memory(cpu, ctypes.byref(free), ctypes.byref(total))
        n = min(_TRIAL_BYTES, self._size)
        buffer = base.ggml_backend_buft_alloc_buffer(kind, n)
        seen = dict(self._taken)
        base.ggml_backend_buffer_free(buffer)
        if (free.value, total.value, seen, self._taken) != (self._size, self._size, {buffer: n}, {}):
            raise LayoutError("a loopback device cannot be given a size in this build of ggml: leave its memory out.")
