"""Write a model in another mixture of types."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.engine.bindings import llama, log
from labkit.engine.install import EngineError
from labkit.gguf.types import TYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_QUANTIZE_BUFFER_BYTES = 256 << 20  # llama.cpp's own default is 8 GiB


def quantize(
    source: Path,
    target: Path,
    *,
    ftype: int,
    threads: int,
    allow_requantize: bool = False,
    token_embedding_type: str | None = None,
    output_tensor_type: str | None = None,
    imatrix: Mapping[str, NDArray[np.float32]] | None = None,
    on_tensor: Callable[[str], None] | None = None,
) -> None:
    """Write ``source`` in another mixture (llama_model_quantize). The caller refuses what llama.cpp would abort on.

    Args:
        ftype: number of the mixture, as in ``models.mixtures``.
        imatrix: for each tensor's name, the importance of each column, shape (n_expert × ne0,).
        on_tensor: called with each tensor's name before it is quantized.

    Raises:
        EngineError: llama.cpp failed; the target may be incomplete.
    """
    import numpy as np

    ll = llama()
    params = ll.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = ftype, threads, allow_requantize
    params.max_buf_size = _QUANTIZE_BUFFER_BYTES
    if token_embedding_type is not None:
        params.token_embedding_type = TYPES[token_embedding_type].id
    if output_tensor_type is not None:
        params.output_tensor_type = TYPES[output_tensor_type].id
    weights = {name.encode(): np.ascontiguousarray(values, np.float32) for name, values in (imatrix or {}).items()}
    entries = (ll.llama_model_imatrix_data * (len(weights) + 1))()  # the last one is empty and ends the list
    for entry, (name, values) in zip(entries, weights.items(), strict=False):
        data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.name, entry.data, entry.size = name, data, values.size
    if weights:
        params.imatrix = entries

    def read_name(text: str) -> None:
        match = re.match(r"\[ *\d+/ *\d+\] (\S+)", text)
        if match and on_tensor:
            on_tensor(match[1])

    log.take()
    log.on_text = read_name
    try:
        status = ll.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    finally:
        log.on_text = None
    why = log.why().rpartition("failed to quantize: ")[2]  # the line may begin with the current tensor
    log.take()
    if status:
        raise EngineError(f"llama.cpp cannot quantize {source.name}: {why}.")
