"""Read a tensor of llama.cpp's computation graph from Python.

ggml exports no getters for a tensor's operation and sources, so they are read at their places in ``struct ggml_tensor``
(ggml/include/ggml.h at 0c1e57098). ``Reader`` first tries this on tensors it makes itself and refuses if they differ.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from labkit.engine.internals import LayoutError

_NUMPY = {0: np.dtype("f4"), 26: np.dtype("i4")}  # GGML_TYPE_F32, GGML_TYPE_I32


class _Tensor(ctypes.Structure):
    """The first fields of ``struct ggml_tensor``."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
    )


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Reader:
    """Reads tensors by their address, which ``cb_eval`` is called with.

    Args:
        base: the loaded library ggml-base.

    Raises:
        LayoutError: the library's tensors are not laid out as expected.
    """

    def __init__(self, base: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "ggml_get_name": (ctypes.c_char_p, [pointer]),
            "ggml_op_name": (ctypes.c_char_p, [ctypes.c_int]),
            "ggml_nbytes": (size, [pointer]),
            "ggml_backend_tensor_get": (None, [pointer, pointer, size, size]),
            "ggml_init": (pointer, [_InitParams]),
            "ggml_free": (None, [pointer]),
            "ggml_new_tensor_2d": (pointer, [pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]),
            "ggml_mul_mat": (pointer, [pointer, pointer, pointer]),
            "ggml_transpose": (pointer, [pointer, pointer]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(base, name)
            function.restype, function.argtypes = result, arguments
        self._base = base
        self._check()

    def op(self, tensor: int) -> str:
        """The operation that computes it, such as ``MUL_MAT``."""
        name: bytes = self._base.ggml_op_name(self._fields(tensor).op)
        return name.decode()

    def name(self, tensor: int) -> str:
        """Its name, that of the file's tensor for a weight."""
        name: bytes = self._base.ggml_get_name(tensor)
        return name.decode()

    def source(self, tensor: int, i: int) -> int:
        """Address of the i-th tensor it is computed from."""
        address = self._fields(tensor).src[i]
        if not address:
            raise LayoutError(f"the tensor {self.name(tensor)} has no source {i}.")
        return int(address)

    def dims(self, tensor: int) -> tuple[int, ...]:
        """Its four dimensions in ggml's order, row length first."""
        return tuple(self._fields(tensor).ne)

    def values(self, tensor: int) -> NDArray[Any]:
        """A copy of an F32 or I32 tensor, wherever it lies: shape (ne3, ne2, ne1, ne0)."""
        fields = self._fields(tensor)
        dtype = _NUMPY.get(fields.type)
        if dtype is None:
            raise LayoutError(f"the tensor {self.name(tensor)} holds neither F32 nor I32.")
        # From the first element to the last, whatever lies between: views are not contiguous.
        span = np.empty(self._base.ggml_nbytes(tensor) // dtype.itemsize, dtype)
        self._base.ggml_backend_tensor_get(tensor, span.ctypes.data, 0, span.nbytes)
        return as_strided(span, shape=tuple(fields.ne)[::-1], strides=tuple(fields.nb)[::-1])

    def multiplies_a_weight(self, tensor: int) -> bool:
        """Whether it is a product with a weight of a block, a single matrix or one per expert."""
        op = self.op(tensor)
        if op not in ("MUL_MAT", "MUL_MAT_ID"):
            return False
        weight = self.source(tensor, 0)
        name = self.name(weight)
        # In a plain product with a stack of matrices (one per head, in MLA), rows do not belong to whole columns.
        is_matrix = op == "MUL_MAT_ID" or self.dims(weight)[2] == 1
        return is_matrix and name.startswith("blk.") and name.endswith(".weight")

    def multiplied(self, tensor: int) -> tuple[str, NDArray[np.float32], NDArray[np.int32], int]:
        """What such a weight is multiplied by (``IMatrixCollector::collect_imatrix`` in tools/imatrix/imatrix.cpp).

        Returns:
            The weight's name; the rows, shape (n, ne0); for each row the expert it goes to, shape (n,); the number of
            experts (1 for a plain matrix).
        """
        weight = self.source(tensor, 0)
        rows = self.values(self.source(tensor, 1))[0]  # (tokens or 1, rows or experts used, ne0)
        n_expert = self.dims(weight)[2]
        if self.op(tensor) == "MUL_MAT":
            rows = rows.reshape(-1, rows.shape[-1])
            return self.name(weight), rows, np.zeros(len(rows), np.int32), n_expert
        ids = self.values(self.source(tensor, 2))[0, 0]  # (tokens, experts used)
        rows = np.broadcast_to(rows, (*ids.shape, rows.shape[-1]))
        return self.name(weight), rows.reshape(-1, rows.shape[-1]), ids.reshape(-1), n_expert

    @staticmethod
    def _fields(tensor: int) -> _Tensor:
        return _Tensor.from_address(tensor)

    def _check(self) -> None:
        base = self._base
        context = base.ggml_init(_InitParams(1 << 16, None, True))
        try:
            weight = base.ggml_new_tensor_2d(context, 0, 64, 3)
            rows = base.ggml_new_tensor_2d(context, 0, 64, 5)
            product = base.ggml_mul_mat(context, weight, rows)
            turned = base.ggml_transpose(context, rows)
            found, view = self._fields(product), self._fields(turned)
            as_expected = (
                (self.op(product), found.type, *found.src[:3]) == ("MUL_MAT", 0, weight, rows, None)
                and (*found.ne, *found.nb) == (3, 5, 1, 1, 4, 12, 60, 60)
                and (self.op(turned), *view.ne, *view.nb[:2]) == ("TRANSPOSE", 5, 64, 1, 1, 256, 4)
            )
        finally:
            base.ggml_free(context)
        if not as_expected:
            raise LayoutError(
                "this build of ggml keeps its tensors differently from the one this kit was checked against: install "
                "the version of llama-cpp-python that `labkit doctor` names."
            )
