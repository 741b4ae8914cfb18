"""The child process: it may be killed, and its parent goes on.

``process.Child`` starts it as ``python -m labkit.experiments.child``. The first line on stdin names a function and
gives its arguments; stdin then stays open, and its end means that the parent has ended. Events go to stdout, one JSON
object a line.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from labkit.experiments.child import resume

PR_SET_PDEATHSIG, SIGKILL = 1, 9


def main() -> int:
    """Call the function; the exit status is 0 when it returned, 1 when it raised an error that it documents."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not mix with the events
    request = json.loads(sys.stdin.readline())
    _end_with_parent()
    os.environ["GGML_NO_BACKTRACE"] = "1"  # an abort would start a debugger, whose output hides the reason

    def send(event: str, **values: Any) -> None:
        out.write(json.dumps({"event": event, "t": time.monotonic(), **values}) + "\n")

    module, _, name = request["function"].partition(":")
    from labkit.engine import EngineError, bindings

    bindings.skip_high_level_api()
    try:
        result = getattr(import_module(module), name)(**request["job"], send=send)
    except (EngineError, OSError, ValueError, MemoryError) as error:
        send("error", reason=str(error) or type(error).__name__)
        return 1
    send("done", result=result)
    return 0


def _end_with_parent() -> None:
    """Make this process the first that the kernel kills for memory, and let it end when its parent ends."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)

    def watch_stdin() -> None:
        while os.read(0, 4096):  # not sys.stdin, whose lock Python wants at exit
            resume.resumed.set()
        os._exit(3)

    threading.Thread(target=watch_stdin, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
