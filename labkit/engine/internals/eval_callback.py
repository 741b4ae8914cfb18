"""Call Python functions while llama.cpp computes a graph (``cb_eval``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.engine.bindings import llama
from labkit.engine.install import library
from labkit.engine.internals.tensors import Reader

OnLayer = Callable[[int], None]
OnMatmul = Callable[[str, NDArray[np.float32], NDArray[np.int32], int], None]


def eval_callback(on_layer: OnLayer | None, on_matmul: OnMatmul | None) -> Any:
    """The C function to be set as ``cb_eval``.

    llama.cpp calls it twice for each tensor: before it is computed, to ask whether the callback wants it, and then
    afterwards, to ask whether to go on.
    """
    ll, base = llama(), library("ggml-base")
    assert base is not None  # part of the same package
    read = Reader(base)

    @ll.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator]
    def on_eval(tensor: int, ask: bool, user: Any) -> bool:
        name = read.name(tensor)
        layer = on_layer is not None and name.startswith("l_out-")
        matmul = on_matmul is not None and read.multiplies_a_weight(tensor)
        if ask:
            return layer or matmul
        if layer and on_layer is not None:
            on_layer(int(name[6:]))
        if matmul and on_matmul is not None:
            on_matmul(*read.multiplied(tensor))
        return True

    return on_eval
