"""A progress bar where someone is looking: a notebook cell or a terminal. Elsewhere nothing is written."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 1.0  # work that ends before this shows no bar


Progress = Callable[[float, str], None]
"""Called with the share that is done, 0 to 1, and what is being done."""


@contextmanager
def bar(title: str) -> Iterator[Progress]:
    """A bar for the length of a ``with`` block, gone afterwards."""
    shown = _NotebookBar(title) if _in_kernel() else _TerminalBar(title) if sys.stderr.isatty() else None
    if shown is None:
        yield lambda fraction, text: None
        return
    start = time.monotonic()

    def report(fraction: float, text: str) -> None:
        if time.monotonic() - start >= PATIENCE_S:
            shown.show(min(max(fraction, 0.0), 1.0), text)

    try:
        yield report
    finally:
        shown.clear()


def _in_kernel() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class _TerminalBar:
    def __init__(self, title: str) -> None:
        self.title, self.width = title, 0

    def show(self, fraction: float, text: str) -> None:
        done = round(fraction * 24)
        line = f"{self.title} [{'#' * done}{'.' * (24 - done)}] {fraction:4.0%} {text}"
        self._write(line)

    def clear(self) -> None:
        if self.width:
            self._write("")
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self.width) + ("" if line else "\r"))
        sys.stderr.flush()
        self.width = len(line)


class _NotebookBar:
    """One output that is replaced as work goes on and emptied at the end, so that a saved notebook does not keep it."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.handle: Any = None
        self.last = 0.0

    def show(self, fraction: float, text: str) -> None:
        from IPython.display import HTML, display

        if time.monotonic() - self.last < 0.2:
            return
        self.last = time.monotonic()
        words = html.escape(f"{self.title}: {text}")
        view = HTML(  # type: ignore[no-untyped-call]
            f'<progress value="{fraction:.3f}" max="1" style="width:40%"></progress> {words}'
        )
        if self.handle is None:
            self.handle = display(view, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update(view)

    def clear(self) -> None:
        if self.handle is not None:
            from IPython.display import HTML

            self.handle.update(HTML(""))  # type: ignore[no-untyped-call]
