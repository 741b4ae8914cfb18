"""A progress bar in a notebook cell or on a terminal; where neither is, nothing is written."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

DELAY_S = 1.0  # work that ends before this shows no bar

Progress = Callable[[float, str], None]
"""Called with the fraction that is done, 0 to 1, and with what is being done."""

_FORMAT = "{desc} {percentage:3.0f}%|{bar:24}| {remaining} left{postfix}"


@contextmanager
def bar(title: str) -> Iterator[Progress]:
    """A bar with the time left, for the length of a ``with`` block; it is removed when the block ends."""
    shown = _bar_class()(
        total=1.0,
        desc=title,
        leave=False,
        disable=None,  # where the output is no terminal; tqdm ignores it in a notebook
        delay=DELAY_S,
        miniters=0,
        smoothing=0,  # the time left follows from the average speed so far
        bar_format=_FORMAT,
    )

    def report(fraction: float, text: str) -> None:
        shown.set_postfix_str(text, refresh=False)
        shown.update(min(max(fraction, 0.0), 1.0) - shown.n)

    try:
        yield report
    finally:
        shown.n = shown.total  # a notebook keeps a bar that ends earlier, in red
        shown.close()


@cache
def _bar_class() -> Any:
    """tqdm's class of bars for this kernel or terminal, without its thread and without its lock between processes.

    The thread would go on for as long as this process does; the lock starts a further process on some systems.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a notebook without ipywidgets tqdm warns, and there is no bar
        from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0

    Bar.set_lock(threading.RLock())
    return Bar
