"""Why a claim stays open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Unsettled(Exception):
    """A check cannot get its figures here; the message is the reason, without a full stop."""


@contextmanager
def or_unsettled(*errors: type[Exception]) -> Iterator[None]:
    """Turn what llama.cpp or the disk refuses into the reason why a claim stays open."""
    try:
        yield
    except errors as error:
        raise Unsettled(str(error).rstrip(".")) from None
