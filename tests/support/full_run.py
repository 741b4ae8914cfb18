"""A run in which every field is set."""

from __future__ import annotations

from labkit.engine.log import Buffer
from labkit.experiments.run import (
    LayerStep,
    Measured,
    ModelInfo,
    Phase,
    Run,
    Sample,
    Timings,
)
from labkit.predict import Predicted
from labkit.settings import Settings
from labkit.units import MiB

PREDICTED = Predicted(
    weights_bytes=96 * MiB,
    mapped_bytes=96 * MiB,
    heap_bytes=0,
    repack_bytes=0,
    kv_bytes=11 * MiB,
    compute_bytes=98 * MiB,
    compute_exact=True,
    output_bytes=196608,
    python_bytes=43 * MiB,
    anon_floor_bytes=153 * MiB,
    rss_anon_bytes=55 * MiB,
    rss_file_bytes=114 * MiB,
    locked_bytes=0,
)

MEASURED = Measured(
    rss_anon_bytes=54 * MiB,
    rss_file_bytes=None,  # as on a system that does not tell
    peak_rss_bytes=170 * MiB,
    locked_bytes=0,
    minor_faults=7000,
    major_faults=0,
    read_bytes=0,
    decode_ms=6.5,
    cap_peak_bytes=160 * MiB,
    cap_oom_kills=0,
)

RUN = Run(
    model=ModelInfo("smollm2", "/home/learner/models/x.gguf", "llama", 98_000_000, False),
    settings=Settings(load_mode="none", devices=("RPC0[127.0.0.1:50052]",), n_threads=2),
    outcome="ok",
    reason="",
    predicted=PREDICTED,
    measured=MEASURED,
    cap_bytes=600 * MiB,
    cap_how="cgroup-v1",
    evict="random",
    buffers=(Buffer("CPU_Mapped", "model", 96 * MiB), Buffer("CPU", "kv", 11 * MiB), Buffer("GPU", "kv", MiB)),
    timings=Timings(0.2, 0.1, None, (6.25, 6.75)),
    samples=tuple(Sample(n / 50, "decode", n, n, 0, n, 0, None) for n in range(250)),
    phases=(Phase("start", 0.0, 0.1, 1, 2, 3, 0, 4, 5, 6),),
    layers=(LayerStep(0, 1, 0.25, 1, 2, 3),),
    text="Paris",
    caution="something else was running.",
    machine={"cpu_name": "AMD EPYC", "cores": 2, "psi": {"some": {"avg10": 0.0}}, "limits": [], "reasons": {}},
)

REFUSED = Run(RUN.model, Settings(), "refused", "there is no room.", PREDICTED)
