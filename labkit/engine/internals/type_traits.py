"""ggml's entry for a tensor type, which holds the function that decodes its blocks; ggml exports no getter for it.

The fields are read at their places in ``struct ggml_type_traits`` (ggml/include/ggml.h at 0c1e57098). An entry whose
name or block size is not the type's own is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from labkit.engine.internals import LayoutError
from labkit.gguf.types import GGMLType


class _Traits(ctypes.Structure):
    """The first fields of ``struct ggml_type_traits``."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


def decoder(base: ctypes.CDLL, kind: GGMLType) -> Callable[[int, int, int], None] | None:
    """The function that decodes blocks of a type: address of the blocks, address of the F32 weights, number of weights.

    Args:
        base: the loaded library ggml-base.
        kind: the type.

    Returns:
        None where ggml has no such function for this type (F32 itself, for one).

    Raises:
        LayoutError: the entry found is not this type's.
    """
    base.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    traits = base.ggml_get_type_traits(kind.id).contents
    found = (traits.type_size, traits.blck_size, (traits.type_name or b"").decode().upper())
    if found != (kind.block_bytes, kind.block_elems, kind.name.upper()):
        raise LayoutError(
            f"this build of ggml describes {kind.name} differently from the one this kit was checked against: install "
            "the version of llama-cpp-python that `labkit doctor` names."
        )
    return traits.to_float or None
