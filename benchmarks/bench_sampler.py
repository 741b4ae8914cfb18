"""What watching a child costs it: ``python benchmarks/bench_sampler.py [REPEATS]``.

Decodes a forged 1B model on every core, watched 50 times a second (as ``measure`` does) and once a second, in turns, so
that other programs disturb both alike. Several samples are taken during each token, so the fastest tokens, too, contain
the sampler's time, and the least of other programs'. Therefore the fastest tenth is compared. Target: less than 1 %
slower.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from statistics import median, quantiles

from labkit.experiments.measure import SAMPLE_HZ, measure

MODEL = "llama-3.2-1b:Q4_K_M"
TOKENS = 48


@dataclass
class Watched:
    """What was seen at one rate, over all turns."""

    decode_ms: list[float] = field(default_factory=list)
    samples: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def turn(self, hz: float) -> None:
        cpu, start = time.process_time(), time.monotonic()
        run = measure(MODEL, tokens=TOKENS, sample_hz=hz, repack=False, progress=lambda fraction, text: None)
        assert run.ok, run.reason
        self.cpu_s += time.process_time() - cpu
        self.wall_s += time.monotonic() - start
        self.samples += len(run.samples)
        self.decode_ms += run.timings.decode_ms

    @property
    def fast_ms(self) -> float:
        return quantiles(self.decode_ms, n=10)[0]


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    Watched().turn(1.0)  # the file's pages come into memory
    often, seldom = Watched(), Watched()
    for turn in range(repeats):
        for rate, seen in ((SAMPLE_HZ, often), (1.0, seldom))[:: 1 if turn % 2 else -1]:
            seen.turn(rate)
    for rate, seen in ((SAMPLE_HZ, often), (1.0, seldom)):
        print(
            f"{rate:3.0f} Hz: {seen.fast_ms:6.2f} ms/token in the fastest tenth, {median(seen.decode_ms):6.2f} median; "
            f"{seen.samples} samples in {seen.wall_s:.0f} s took the parent {seen.cpu_s:.2f} CPU seconds, "
            f"{seen.cpu_s / seen.wall_s:.2%} of a core"
        )
    print(f"{SAMPLE_HZ:.0f} Hz against 1 Hz: {often.fast_ms / seldom.fast_ms:.4f} times as long")


if __name__ == "__main__":
    main()
