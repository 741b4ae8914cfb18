"""A process that holds memory and touches it, so that a model has to share a machine, or a cap."""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from typing import Any

from labkit.experiments.child.process import Child, how_it_ended
from labkit.experiments.preflight import SAFE_SHARE
from labkit.models.forge import models_dir
from labkit.system.caps import Cap
from labkit.system.machine import available_bytes
from labkit.units import MiB, fmt_bytes, parse_bytes

KINDS = ("file", "anonymous")
RATE = 800 * MiB
FILL_S = 20.0  # for a ballast to have touched everything once


class PressureError(RuntimeError):
    """There can be no such ballast here; one sentence says why and what to do."""


class Ballast(Child):
    """A running process that holds memory and touches it in turn, as a context manager.

    It ends with the process that started it, is the first that the kernel kills when memory runs out, and ends by
    itself when less than a tenth of the machine's memory is available.

    Args:
        size: in bytes or as ``"300MiB"``.
        rate_bytes_per_s: how fast it touches its pages, one after the other, over and over.
        cap: the memory limit that it shares; None for none.
        kind: ``"anonymous"`` memory, which cannot be reclaimed without swap, or pages of a ``"file"``, which can.
        root: where the ballast reads ``/proc/meminfo``.

    Attributes:
        passes: how often it had touched everything when ``update`` was last called.
        ended: how it ended, as a clause; None while it runs.
        aborted: it ended by itself, since the machine ran short.

    Raises:
        PressureError: it would take more than is safe.
        ValueError: a size, rate or kind that makes no sense.
    """

    def __init__(
        self,
        size: int | str,
        *,
        rate_bytes_per_s: int = RATE,
        cap: Cap | None = None,
        kind: str = "anonymous",
        root: str = "/",
    ) -> None:
        self.size_bytes = parse_bytes(size)
        if self.size_bytes < MiB or rate_bytes_per_s < MiB:
            raise ValueError("a ballast has at least 1 MiB and touches at least 1 MiB per second.")
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}: choose one of {', '.join(KINDS)}.")
        room = available_bytes(root=root)
        worst = min(self.size_bytes, cap.limit_bytes) if cap else self.size_bytes
        if room is not None and worst > SAFE_SHARE * room:
            raise PressureError(
                f"a ballast of {fmt_bytes(worst)} is too much for this machine, which has {fmt_bytes(room)} available: "
                f"choose {fmt_bytes(SAFE_SHARE * room)} or less."
            )
        self.kind, self.passes, self._closed = kind, 0, False
        self.ended: str | None = None
        self.aborted = False
        job = {
            "size_bytes": self.size_bytes,
            "rate_bytes_per_s": rate_bytes_per_s,
            "kind": kind,
            "folder": str(models_dir()),
            "root": root,
        }
        worker = "labkit.experiments.child.ballast_worker:hold_memory"
        super().__init__(worker, job, wrap=cap.command if cap else None)

    def update(self) -> Ballast:
        """Read what it has reported since the last call."""
        with suppress(queue.Empty):
            while self.ended is None:
                self._take(self.events.get_nowait())
        return self

    def wait_until_full(self, *, within_s: float = FILL_S) -> bool:
        """Whether it has touched everything once within that time and before it ended."""
        until = time.monotonic() + within_s
        while time.monotonic() < until and not self.passes and self.ended is None:
            with suppress(queue.Empty):
                self._take(self.events.get(timeout=0.05))
        return self.passes > 0

    def close(self) -> None:
        """End it and free all it held; calling it again is harmless."""
        self._closed = True
        super().close()

    def _take(self, event: dict[str, Any] | None) -> None:
        if event is None:
            status = self.wait()
            ended = how_it_ended(status, self.last_stderr_line())
            self.ended = self.ended or ("it was closed" if self._closed else ended)
        elif event["event"] == "pass":
            self.passes += 1
        elif event["event"] == "error":
            self.ended = event["reason"]
        elif event["event"] == "done":
            self.ended, self.aborted = f"it stopped by itself, since {event['result']['aborted']}", True
            self.wait()
