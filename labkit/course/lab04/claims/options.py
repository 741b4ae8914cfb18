"""The checks of the claims about options, programs and backends: looked up in llama.cpp's installed libraries."""

from __future__ import annotations

from collections.abc import Callable

from labkit import engine
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Finding
from labkit.course.claims.options import as_figures, listing, look_up
from labkit.course.claims.terms import SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab04.bench import OffloadBench

PROGRAMS = ("llama-server", "llama-cli")
NAMED_BACKENDS, OTHER_BACKENDS = ("metal", "cuda"), ("vulkan", "sycl", "hip", "cann", "opencl")
NAMED_FEATURES = ("avx2", "avx512")


def c073(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --cpu-offload, else wrong."""
    known = look_up(bench, "--cpu-offload", "--n-gpu-layers")
    n_layer = bench.header(SEVEN_B).n_layer
    split = bench.part(OffloadBench).split(SEVEN_B, 20)
    stay = split.layers_on.count(0)
    return Finding(
        "confirmed" if known["--cpu-offload"] else "wrong",
        f"In llama.cpp's library of options: {listing(known)}; -ngl 20 takes 20 of Llama 2 7B's {n_layer + 1} layers "
        f"to the device, and {stay} of its {n_layer} blocks stay on the CPU.",
        {"blocks_on_host": stay, "blocks": n_layer, **as_figures(known)},
    )


def c074(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know LLAMA_CPU_OFFLOAD_LAYERS, else wrong."""
    known = look_up(bench, "LLAMA_CPU_OFFLOAD_LAYERS", "LLAMA_ARG_N_GPU_LAYERS")
    gone = bench.part(OffloadBench).split(SEVEN_B, 35).n_gpu_layers
    return Finding(
        "confirmed" if known["LLAMA_CPU_OFFLOAD_LAYERS"] else "wrong",
        f"In llama.cpp's library of options: {listing(known)}; 35 in the latter takes {gone} layers of Llama 2 7B to "
        f"the device, which are all it has.",
        {"layers_on_device": gone, **as_figures(known)},
    )


def c075(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's libraries name a program gpt-main, wrong if they name its server and not that."""
    bench.looked = True
    found = {name: bench.in_libraries(name.encode()) for name in ("gpt-main", *PROGRAMS)}
    if not found["gpt-main"] and not all(found[name] for name in PROGRAMS):
        raise Unsettled("this build of llama.cpp comes without the library that names its programs")
    return Finding(
        "confirmed" if found["gpt-main"] else "wrong",
        f"Of {len(found)} names of programs looked up in llama.cpp's libraries: {listing(found)}.",
        {"looked_up": len(found), **as_figures(found)},
    )


def c083(bench: Bench) -> Finding:
    """VirtGPU: ggml's libraries know a backend of that name. Flags: llama.cpp's command-line tools know --offload and
    --unified. Confirmed if all three are there; misleading if the backend and one of the flags; else wrong."""
    known = look_up(bench, "--offload", "--unified")
    there = bench.part(OffloadBench).ggml_has("virtgpu")
    others = [name for name in (*NAMED_BACKENDS, *OTHER_BACKENDS) if bench.part(OffloadBench).ggml_has(name)]
    bench.cite("llama.cpp's docs/backend/VirtGPU.md")
    return Finding(
        ("wrong", "misleading", "confirmed")[sum(known.values())] if there else "wrong",
        f"ggml {'knows' if there else 'does not know'} virtgpu, as a backend beside {len(others)} others looked up "
        f"({', '.join(others)}), which by its documentation hands operations from a virtual machine to the host; in "
        f"llama.cpp's library of options: {listing(known)}.",
        {"virtgpu": "yes" if there else "no", "other_backends": len(others), **as_figures(known)},
    )


def c091(bench: Bench) -> Finding:
    """What ggml's libraries know: the backends metal and cuda, processors with AVX2 and with AVX-512, and others.
    Confirmed if all four and another backend, wrong if none of the four, else roughly right."""
    backends = [name for name in (*NAMED_BACKENDS, *OTHER_BACKENDS) if bench.part(OffloadBench).ggml_has(name)]
    features = [name for name in NAMED_FEATURES if bench.part(OffloadBench).ggml_has(f"ggml_cpu_has_{name}")]
    here = sorted(engine.cpu_features() or ())
    named = [name for name in backends if name in NAMED_BACKENDS] + features
    if not named:
        verdict = "wrong"
    else:
        complete = len(named) == len(NAMED_BACKENDS) + len(NAMED_FEATURES) and len(backends) > len(NAMED_BACKENDS)
        verdict = "confirmed" if complete else "roughly right"
    return Finding(
        verdict,
        f"ggml knows {len(backends)} of {len(NAMED_BACKENDS + OTHER_BACKENDS)} backends looked up "
        f"({', '.join(backends) or 'none'}) and asks processors for {', '.join(features) or 'neither AVX'}; this build "
        f"uses {', '.join(here) or 'none of them'} here.",
        {"backends": len(backends), "features": ", ".join(features), "used_here": ", ".join(here)},
    )


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.upper(): check for check in (c073, c074, c075, c083, c091)
}
