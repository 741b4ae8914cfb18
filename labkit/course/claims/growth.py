"""How a process's memory grows while llama.cpp makes a KV cache and fills it."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.course.claims.finding import Figures
from labkit.course.claims.phases import grown, grown_if_known
from labkit.course.claims.terms import MOST
from labkit.experiments.run import Run


@dataclass(frozen=True)
class Growth:
    """What making a context and generating added to a process.

    Attributes:
        n_ctx, n_tokens: cells of the cache, and how many of them generating filled.
        kv_bytes: the cache, predicted.
        kv_buffers: bytes of each buffer that llama.cpp reports for it, one for each device that holds a part.
        context_bytes, decode_bytes: anonymous memory that making the context and generating added.
        minor_faults, major_faults: while generating; None where the system does not count them.
    """

    model: str
    n_ctx: int
    n_tokens: int
    kv_bytes: int
    kv_buffers: tuple[int, ...]
    context_bytes: int
    decode_bytes: int
    minor_faults: int | None
    major_faults: int | None

    @property
    def at_once(self) -> bool:
        """Whether nearly all of the cache is resident when the context has been made."""
        return self.context_bytes >= MOST * self.kv_bytes

    @property
    def if_growing_bytes(self) -> int:
        """What the tokens would have added to a cache that grew with them."""
        return self.kv_bytes * self.n_tokens // self.n_ctx

    @property
    def added_share(self) -> float:
        """What generating added, as a share of ``if_growing_bytes``."""
        return self.decode_bytes / self.if_growing_bytes

    @classmethod
    def of(cls, run: Run) -> Growth:
        """What a run showed that finished decode.

        Raises:
            Unsettled: this system does not give the anonymous memory of a process.
        """
        return cls(
            model=run.model.name,
            n_ctx=run.settings.n_ctx,
            n_tokens=len(run.timings.decode_ms),
            kv_bytes=run.predicted.kv_bytes,
            kv_buffers=tuple(buffer.bytes for buffer in run.buffers if buffer.kind == "kv"),
            context_bytes=grown(run, "rss_anon_bytes", "load", "context"),
            decode_bytes=max(0, grown(run, "rss_anon_bytes", "prefill", "decode")),
            minor_faults=grown_if_known(run, "minor_faults", "prefill", "decode"),
            major_faults=grown_if_known(run, "major_faults", "prefill", "decode"),
        )

    def told(self, show: Figures) -> str:
        """What was added, in two clauses that begin in lower case."""
        return (
            f"making {self.model}'s context added {show(context_bytes=self.context_bytes)}, where the cache for "
            f"{self.n_ctx} tokens takes {show(kv_bytes=self.kv_bytes)}, and generating {self.n_tokens} tokens added "
            f"{show(decode_bytes=self.decode_bytes)}, where a cache that grew with them would have added "
            f"{show(if_growing_bytes=self.if_growing_bytes)}"
        )
