"""Give ggml's CPU device a size, in this process only, so that it refuses buffers as a graphics card does.

ggml's CPU device takes whatever the system gives. Two functions are replaced: the one that reports how much memory the
device has, and the one that allocates a buffer. They are found at their places in ggml/src/ggml-backend-impl.h (at
0c1e57098), and the new ones are tried through ggml's own functions before anything depends on them.
"""

from __future__ import annotations

import ctypes
from typing import Any

from labkit.engine.internals import LayoutError

_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_sizes = ctypes.POINTER(_size)
_GET_MEMORY = ctypes.CFUNCTYPE(None, _pointer, _sizes, _sizes)  # third of ggml_backend_device_i
_ALLOC_BUFFER = ctypes.CFUNCTYPE(_pointer, _pointer, _size)  # second of ggml_backend_buffer_type_i
_FREE_BUFFER = ctypes.CFUNCTYPE(None, _pointer)  # first of ggml_backend_buffer_i
_TRIAL_BYTES = 64


class MemoryLimit:
    """Makes ggml's CPU device one of ``size`` bytes; keep it as long as the process uses ggml.

    Args:
        base: the loaded library ggml-base.
        cpu: address of the CPU device.
        size: of the device's memory, in bytes.

    Raises:
        LayoutError: ggml does not call the new functions, so the device cannot be given a size.
    """

    def __init__(self, base: ctypes.CDLL, cpu: int, size: int) -> None:
        base.ggml_backend_dev_buffer_type.restype = _pointer
        base.ggml_backend_dev_buffer_type.argtypes = [_pointer]
        kind = base.ggml_backend_dev_buffer_type(cpu)
        device, buffers = (_pointer * 3).from_address(cpu), (_pointer * 2).from_address(kind)
        self._taken: dict[int, int] = {}
        self._size = size
        self._alloc = _ALLOC_BUFFER(buffers[1] or 0)
        self._free: Any = None  # the same for all buffers of the CPU
        # ggml calls these as long as the process runs: they must not be collected.
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
