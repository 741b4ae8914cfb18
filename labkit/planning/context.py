"""Memory at every length of context, from a model's header: weights, cache and buffers, and the longest that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from labkit import predict
from labkit.gguf import Header
from labkit.predict import Predicted
from labkit.settings import CELL_PADDING, Settings

CONTEXTS = tuple(512 << n for n in range(9))
"""512 to 131,072 tokens."""


@dataclass(frozen=True)
class BudgetRow:
    """Memory of a model at one length of context.

    Attributes:
        n_ctx: tokens of context.
        weights_bytes: of all tensors.
        kv_bytes: of the KV cache, with the recurrent state where there is one.
        compute_bytes: of the compute and output buffers.
        label: name of the row where ``n_ctx`` alone does not identify it.
    """

    n_ctx: int
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    label: str = ""

    @property
    def bytes(self) -> int:
        """Weights, cache and buffers."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


def budget(header: Header, settings: Settings, *, label: str = "") -> BudgetRow:
    """Weights, cache, and compute and output buffers of one setting, in bytes.

    Args:
        label: name of the row in ``figures.context_presets``.
    """
    compute, _ = predict.compute_bytes(header, settings)
    output = predict.output_bytes(header, settings)
    kept = predict.cache(header, settings).bytes
    return BudgetRow(settings.n_ctx, header.tensor_bytes, kept, compute + output, label)


def context_curve(
    header: Header, settings: Settings, *, limit_bytes: int | None = None, contexts: Sequence[int] = CONTEXTS
) -> tuple[BudgetRow, ...]:
    """Rows for ``figures.context_budget``: at ``contexts``, at the longest context that fits, and at the next longer.

    Args:
        header: the model's.
        settings: how it is run, but for ``n_ctx``.
        limit_bytes: memory that may be used; None leaves out the longest that fits.
        contexts: lengths to compute.
    """
    lengths = set(contexts)
    if limit_bytes is not None:
        longest = longest_context(header, settings, limit_bytes, at_most=max(contexts))
        lengths |= {longest, longest + CELL_PADDING} if min(contexts) <= longest < max(contexts) else set()
    return tuple(budget(header, replace(settings, n_ctx=n)) for n in sorted(lengths))


def longest_context(header: Header, settings: Settings, limit_bytes: int, *, at_most: int = CONTEXTS[-1]) -> int:
    """The longest ``n_ctx``, a multiple of 256, with which everything fits in ``limit_bytes``; 0 if there is none."""
    return _longest(lambda n: budget(header, replace(settings, n_ctx=n)).bytes <= limit_bytes, at_most)


def longest_surviving_context(
    header: Header,
    settings: Settings,
    limit_bytes: int,
    *,
    cpu_features: Iterable[str] = (),
    at_most: int = CONTEXTS[-1],
) -> int:
    """The longest ``n_ctx``, a multiple of 256, that is not killed under a limit; 0 if there is none.

    Pages of a mapped file that is not locked do not count: the kernel can drop them.

    Args:
        header: the model's.
        settings: how it is run, but for ``n_ctx``; ``load_mode`` decides whether the weights can be dropped.
        limit_bytes: the limit.
        cpu_features: see ``predict.memory``.
        at_most: the longest context to consider.
    """
    features = tuple(cpu_features)
    return _longest(lambda n: pinned_bytes(needed(header, settings, n, cpu_features=features)) <= limit_bytes, at_most)


def needed(header: Header, settings: Settings, n_ctx: int, *, cpu_features: Iterable[str] = ()) -> Predicted:
    """The prediction at another length of context."""
    return predict.memory(header, replace(settings, n_ctx=n_ctx), cpu_features=cpu_features)


def pinned_bytes(p: Predicted) -> int:
    """Bytes that the kernel cannot take back, with the whole compute buffer in use: locked pages, anonymous memory.

    A smaller cap kills the process. Weights on the heap are anonymous memory already, so locking them adds nothing.
    """
    return min(p.locked_bytes, p.mapped_bytes) + p.anon_floor_bytes


def _longest(fits: Callable[[int], bool], at_most: int) -> int:
    """The largest multiple of 256 up to ``at_most`` that fits, if all shorter ones fit, too."""
    good, bad = 0, at_most // CELL_PADDING + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle * CELL_PADDING):
            good = middle
        else:
            bad = middle
    return good * CELL_PADDING
