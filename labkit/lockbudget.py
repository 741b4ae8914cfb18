"""What a model with locked weights needs at each length of context, from its header alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from labkit import predict
from labkit.gguf import Header
from labkit.predict import Predicted
from labkit.settings import CELL_PADDING, Settings

AT_MOST = 131_072


def pinned_bytes(p: Predicted) -> int:
    """What the kernel cannot take back once the whole compute buffer has been used: locked pages, anonymous memory.

    A cap below it kills. Weights on the heap are anonymous already, so locking them adds nothing.
    """
    return min(p.locked_bytes, p.mapped_bytes) + p.anon_floor_bytes


def needed(header: Header, settings: Settings, n_ctx: int, *, cpu_features: Iterable[str] = ()) -> Predicted:
    """The prediction at another length of context."""
    return predict.memory(header, replace(settings, n_ctx=n_ctx), cpu_features=cpu_features)


def longest_context(
    header: Header,
    settings: Settings,
    limit_bytes: int,
    *,
    cpu_features: Iterable[str] = (),
    at_most: int = AT_MOST,
) -> int:
    """The longest ``n_ctx``, a multiple of 256, that survives under a limit; 0 if none does.

    Args:
        settings: whose ``load_mode`` decides whether the weights can give way; its ``n_ctx`` does not count.
        cpu_features: what this build of ggml repacks for, if ``settings`` says so.
        at_most: where the search ends.
    """
    features = tuple(cpu_features)
    fits, too_long = 0, at_most // CELL_PADDING + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if pinned_bytes(needed(header, settings, middle * CELL_PADDING, cpu_features=features)) <= limit_bytes:
            fits = middle
        else:
            too_long = middle
    return fits * CELL_PADDING
