"""What a context costs a model, from its header alone: weights, cache and buffers at every length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit import predict
from labkit.gguf import Header
from labkit.settings import CELL_PADDING, Settings

if TYPE_CHECKING:
    from labkit.figures.context import BudgetRow

CONTEXTS = tuple(512 << n for n in range(9))
"""512 to 131,072 tokens."""


def budget(header: Header, settings: Settings, *, label: str = "") -> BudgetRow:
    """Weights, cache, and compute and output buffers of one setting, in bytes.

    Args:
        label: what the row is called in ``figures.context_presets``.
    """
    from labkit.figures.context import BudgetRow  # here, so that the arithmetic does not load matplotlib

    compute, _ = predict.compute_bytes(header, settings)
    output = predict.output_bytes(header, settings)
    kept = predict.cache(header, settings).bytes
    return BudgetRow(settings.n_ctx, header.tensor_bytes, kept, compute + output, label)


def context_curve(
    header: Header, settings: Settings, *, limit_bytes: int | None = None, contexts: Sequence[int] = CONTEXTS
) -> tuple[BudgetRow, ...]:
    """Rows for ``figures.context_budget``, with the longest context that fits and the next one among them.

    Args:
        settings: whose ``n_ctx`` does not count.
        limit_bytes: what the machine can give.
        contexts: other lengths to compute.
    """
    lengths = set(contexts)
    if limit_bytes is not None:
        longest = longest_context(header, settings, limit_bytes, at_most=max(contexts))
        lengths |= {longest, longest + CELL_PADDING} if min(contexts) <= longest < max(contexts) else set()
    return tuple(budget(header, replace(settings, n_ctx=n)) for n in sorted(lengths))


def longest_context(header: Header, settings: Settings, limit_bytes: int, *, at_most: int = CONTEXTS[-1]) -> int:
    """The longest ``n_ctx``, a multiple of 256, with which everything fits in ``limit_bytes``; 0 if there is none."""
    fits, too_long = 0, at_most // CELL_PADDING + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if budget(header, replace(settings, n_ctx=middle * CELL_PADDING)).bytes <= limit_bytes:
            fits = middle
        else:
            too_long = middle
    return fits * CELL_PADDING
