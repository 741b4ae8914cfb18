"""Token ids for measurements that need no text."""

from __future__ import annotations


def made_up_tokens(n: int, n_vocab: int, *, first: int = 0) -> list[int]:
    """``n`` ids spread over the vocabulary, the same each time, so that embedding rows differ as in real text.

    Args:
        n: how many.
        n_vocab: ids are below it.
        first: how many such ids came before.
    """
    return [(1 + 7919 * i) % n_vocab for i in range(first, first + n)]
