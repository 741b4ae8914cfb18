"""Runs of a forged 7B, made up with the figures that one machine gave."""

from __future__ import annotations

from dataclasses import replace

from labkit.engine.log import Buffer
from labkit.experiments.run import Measured, ModelInfo, Phase, Run, Sample
from labkit.predict import Predicted
from labkit.settings import Settings
from labkit.units import MiB


def predicted(**sizes: int) -> Predicted:
    base = {"heap": 0, "repack": 2943 * MiB, "kv": 256 * MiB, "python": 42 * MiB, "touched": 20 * MiB} | sizes
    anon = base["heap"] + base["repack"] + base["kv"] + base["python"] + base["touched"]
    return Predicted(
        weights_bytes=3890 * MiB,
        mapped_bytes=3890 * MiB,
        heap_bytes=base["heap"],
        repack_bytes=base["repack"],
        kv_bytes=base["kv"],
        compute_bytes=96 * MiB,
        compute_exact=True,
        output_bytes=MiB,
        python_bytes=base["python"],
        anon_floor_bytes=anon,
        rss_anon_bytes=anon,
        rss_file_bytes=base.get("file", 3912 * MiB),
        locked_bytes=base.get("locked", 0),
    )


def run(**changes: object) -> Run:
    """The forged 7B with mmap and repack, as measured on the machine of the engine facts."""
    foreseen = predicted()
    at = {"minor_faults": 1, "major_faults": 0, "read_bytes": 0, "locked_bytes": 0, "rss_file_bytes": 3912 * MiB}
    held = [("start", 24), ("load", 42 + 2943), ("context", 42 + 2943 + 256), ("decode", 42 + 2943 + 256 + 24)]
    phases = tuple(
        Phase(name=name, start_s=n, end_s=n + 1, pss_bytes=None, rss_anon_bytes=mib * MiB, **at)
        for n, (name, mib) in enumerate(held)
    )
    samples = tuple(Sample(t_s=n / 10, phase="", rss_anon_bytes=n * 80 * MiB, **at) for n in range(41))
    base = Run(
        model=ModelInfo("llama-2-7b:Q4_K_M", "", "llama", 4080281056, True),
        settings=Settings(),
        outcome="ok",
        reason="",
        predicted=foreseen,
        measured=Measured(
            rss_anon_bytes=(42 + 2943 + 256 + 24) * MiB,
            peak_rss_bytes=None,
            decode_ms=128.0,
            **at,
        ),
        buffers=(
            Buffer("CPU_Mapped", "model", 3890 * MiB),
            Buffer("CPU_REPACK", "model", 2943 * MiB),
            Buffer("CPU", "kv", 256 * MiB),
            Buffer("CPU", "compute", 96 * MiB),
            Buffer("CPU", "output", MiB),
            Buffer("RPC0[127.0.0.1:50052]", "model", 700 * MiB),
        ),
        phases=phases,
        samples=samples,
    )
    return replace(base, **changes)


def killed(**changes: object) -> Run:
    """A run without mmap that the kernel ended while it was loading."""
    whole = run()
    seen = {"peak_rss_bytes": None, "decode_ms": None, "minor_faults": 1, "major_faults": 0, "read_bytes": 0}
    values: dict[str, object] = {
        "outcome": "oom-killed",
        "reason": "the kernel killed it in load",
        "cap_bytes": 600 * MiB,
        "settings": Settings(load_mode="none", repack=False),
        "predicted": predicted(heap=763 * MiB, repack=0, kv=16 * MiB, file=22 * MiB),
        "measured": Measured(rss_anon_bytes=575 * MiB, rss_file_bytes=22 * MiB, locked_bytes=0, **seen),
        "phases": whole.phases[:1],
        "buffers": (),
        "samples": tuple(
            replace(s, rss_anon_bytes=n * 14 * MiB, rss_file_bytes=22 * MiB) for n, s in enumerate(whole.samples)
        ),
    }
    return replace(whole, **{**values, **changes})
