"""What llama.cpp reports when it cannot have the memory for a cache: asked in a child that may have few addresses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from labkit.settings import Settings

TIMEOUT_S = 60.0


class ShortMemoryError(RuntimeError):
    """The child could not try; one sentence says why."""


def refusal(model: Path, settings: Settings, *, addresses_bytes: int) -> str | None:
    """Make a context in a process whose addresses are limited (RLIMIT_AS), and return llama.cpp's error.

    Args:
        model: the file; it is mapped within the limit.
        settings: with a cache that does not fit in it.
        addresses_bytes: the limit. Python and llama.cpp take about 1 GiB of it.

    Returns:
        llama.cpp's reason, or None if the context could be made.

    Raises:
        ShortMemoryError: not on Linux, or the child ended before it could ask for a cache.
    """
    if sys.platform != "linux":
        raise ShortMemoryError("only Linux limits the addresses that a process may have.")
    job = {"model": str(model), "settings": settings.to_dict(), "addresses_bytes": addresses_bytes}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "labkit.course.lab03.short_memory"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        refused: str | None = json.loads(child.stdout)["refused"]
    except subprocess.TimeoutExpired:
        raise ShortMemoryError(f"the child did not answer within {TIMEOUT_S:.0f} s.") from None
    except (ValueError, TypeError, KeyError):
        lines = child.stderr.strip().splitlines()
        reason = lines[-1] if lines else "it wrote no reason"
        raise ShortMemoryError(f"the child ended with status {child.returncode}: {reason}.") from None
    return refused


def main() -> int:
    """The child: one job on stdin, one answer on stdout."""
    import resource

    from labkit import engine

    job = json.loads(sys.stdin.read())
    settings = Settings.of(job["settings"])
    resource.setrlimit(resource.RLIMIT_AS, (job["addresses_bytes"],) * 2)
    refused = None
    with engine.Model(Path(job["model"]), settings) as model:
        try:
            with engine.Context(model, settings):
                pass
        except engine.EngineError as error:
            refused = str(error)
    print(json.dumps({"refused": refused}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
