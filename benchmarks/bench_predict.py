"""Predicted against measured memory, over models, load modes, repack and context. Not timed: the figures are bytes.

uv run python benchmarks/bench_predict.py
"""

from __future__ import annotations

import itertools

from labkit.experiments.measure import measure
from labkit.units import MiB

MODELS = ("smollm2", "llama-3.2-1b:Q4_K_M", "llama-2-7b:Q4_K_M")


def main() -> None:
    """Print a row for each setting; the last column says whether both parts are within 2 % or 24 MiB."""
    print(f"{'model':22}{'load':6}{'repack':8}{'n_ctx':>6}{'anonymous MiB':>20}{'file MiB':>20}", end="")
    print(f"{'KV':>7}{'weights':>9}  ok")
    worst = 0.0
    for model, mode, repack, n_ctx in itertools.product(MODELS, ("mmap", "none"), (True, False), (512, 4096)):
        run = measure(model, load_mode=mode, repack=repack, n_ctx=n_ctx, tokens=2, n_threads=1)
        p, m = run.predicted, run.measured
        assert m is not None and m.rss_anon_bytes is not None and m.rss_file_bytes is not None, run
        pairs = ((p.rss_anon_bytes, m.rss_anon_bytes), (p.rss_file_bytes, m.rss_file_bytes))
        ok = all(abs(a - b) <= max(0.02 * b, 24 * MiB) for a, b in pairs)
        worst = max(worst, *(abs(a - b) / MiB for a, b in pairs))
        # The log rounds each buffer to 0.01 MiB, so "exact" means: no further apart than that.
        kv = abs(run.buffer_bytes(kind="kv") - p.kv_bytes) < 0.01 * MiB
        mapped_or_heap = run.buffer_bytes(kind="model") - (p.mapped_bytes or p.heap_bytes) - p.repack_bytes
        weights = abs(mapped_or_heap) < 0.03 * MiB
        anon, file = (f"{a / MiB:.1f} / {b / MiB:.1f}" for a, b in pairs)
        exact = (("exact" if same else "OFF") for same in (kv, weights))
        print(f"{model:22}{mode:6}{'on' if repack else 'off':8}{n_ctx:6}{anon:>20}{file:>20}", end="")
        print("".join(f"{word:>{width}}" for word, width in zip(exact, (7, 9), strict=True)), " ok" if ok else " NO")
    print(f"largest difference: {worst:.1f} MiB")


if __name__ == "__main__":
    main()
