"""llama.cpp's low-level bindings, loaded on first use. The only module that imports llama_cpp."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from labkit.engine.install import EngineError, version_problem
from labkit.engine.log import first_reason


class LogCapture:
    """Collects the lines of llama.cpp's log, which it passes in fragments.

    Attributes:
        on_text: called with each fragment.
        debug: keep debug messages too: thousands of lines about graph inputs, and the map of the cells.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.on_text: Callable[[str], None] | None = None
        self.debug = False
        self._rest = ""

    def add(self, text: str, *, error: bool = False) -> None:
        """Add a fragment."""
        if self.on_text:
            self.on_text(text)
        *whole, self._rest = (self._rest + text).split("\n")
        self.lines += whole
        if error:
            self.errors += whole

    def why(self) -> str:
        """The reason among the errors since the last ``take``."""
        return first_reason(self.errors) or "it gave no reason"

    def take(self) -> tuple[str, ...]:
        """The lines since the last call."""
        lines, self.lines, self.errors = self.lines, [], []
        return tuple(lines)


log = LogCapture()
_callbacks: list[Any] = []


def skip_high_level_api() -> None:
    """Let ``llama`` load the bindings without ``llama_cpp/__init__``, in a process that uses nothing else of it.

    That file imports the class ``Llama`` with jinja2 and numpy, which takes half a second and 9 MiB, and no child of
    ours needs them. A process in which someone may import ``llama_cpp`` for themselves must not call this.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is not None and "llama_cpp" not in sys.modules:
        sys.modules["llama_cpp"] = importlib.util.module_from_spec(spec)  # the package, not executed


@cache
def llama() -> Any:
    """The low-level bindings, with the log captured and the backend started.

    Raises:
        EngineError: llama-cpp-python is not installed, or in another version.
    """
    problem = version_problem()
    if problem:
        raise EngineError(problem)
    import llama_cpp.llama_cpp as ll

    @ll.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, user: Any) -> None:
        if level != 1 or log.debug:  # 1 is debug
            log.add(text.decode("utf-8", "replace"), error=level == 4)

    _callbacks.append(on_log)  # llama.cpp calls it as long as the process runs
    ll.llama_log_set(on_log, ctypes.c_void_p(0))
    ll.llama_backend_init()
    return ll
