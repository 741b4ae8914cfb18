"""A panel that shows the cells of a KV cache step by step."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from labkit.course import figures
from labkit.course.panelkit import Panel, Runner, check, choice, slider
from labkit.experiments import cache_slots
from labkit.experiments.cache_trace import Step, add, context_shift, copy, remove
from labkit.progress import Progress


def traces() -> dict[str, tuple[Step, ...]]:
    """The traces that the panel offers, by name. Each needs 256 cells or a few more."""
    return {
        "requests come and go": cache_slots.demo_trace(),
        "a long chat drops old tokens": (
            add(0, 200),
            add(0, 60),
            *context_shift(0, n_keep=20, n_discard=90),
            add(0, 60),
        ),
        "three sequences share a prompt": (
            add(0, 100),
            copy(0, 1),
            copy(0, 2),
            add(0, 30),
            add(1, 30),
            add(2, 30),
            remove(0),
            remove(2),
            remove(1),
        ),
    }


class SlotMap(Panel):
    """Run a trace in llama.cpp, and see after each step which cell of the cache belongs to which sequence.

    Args:
        named: traces by name; by default ``traces()``.
        snapshots: of an earlier ``slots.slot_map``, shown until a trace is run.
    """

    def __init__(
        self,
        named: Mapping[str, Sequence[Step]] | None = None,
        *,
        snapshots: Sequence[cache_slots.Snapshot] = (),
    ) -> None:
        self._named = dict(named) if named is not None else traces()
        self.snapshots = tuple(snapshots)
        self.trace = choice("trace", self._named)
        self.n_ctx = choice("n_ctx", [256, 512, 1024], width="140px")
        self.unified = check("kv_unified", value=True)
        self.step = slider("step", most=0, readout=False)
        self.runner = Runner("Run the trace", self._run)
        super().__init__([self.trace, self.n_ctx, self.unified], self.runner.row, [self.step])
        self.on_change(self.redraw, self.step)
        self.write("Run a trace to see its cells.")
        self._show_last()

    def _run(self, progress: Progress, cancel: threading.Event) -> None:
        self.snapshots = cache_slots.slot_map(
            self._named[self.trace.value],
            n_ctx=self.n_ctx.value,
            kv_unified=self.unified.value,
            progress=progress,
            cancel=cancel,
        )
        self._show_last()
        self.runner.write(f"{len(self.snapshots)} steps ran")

    def _show_last(self) -> None:
        """Let the slider go over all steps, and show the last one."""
        if self.snapshots:
            last = len(self.snapshots) - 1
            self.fit(self.step, most=last, value=last)
            self.redraw()

    def draw(self) -> None:
        if not self.snapshots:
            return
        n = min(self.step.value, len(self.snapshots) - 1)
        shown = self.snapshots[n]
        self.show(figures.slot_map(self.snapshots, selected=n))
        self.write(
            f"step {n + 1} of {len(self.snapshots)}, {shown.step}: {shown.note}. "
            f"{shown.used} of {len(shown.cells)} cells are in use."
        )
