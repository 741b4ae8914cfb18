"""The checks of the claims about options, programs and backends: looked up in llama.cpp's installed libraries."""

from __future__ import annotations

from labkit import engine
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.options import known_names, look_up
from labkit.course.claims.terms import SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab04.bench import OffloadBench

PROGRAMS = ("llama-server", "llama-cli")
NAMED_BACKENDS, OTHER_BACKENDS = ("metal", "cuda"), ("vulkan", "sycl", "hip", "cann", "opencl")
NAMED_FEATURES = ("avx2", "avx512")


def c073(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know --cpu-offload, else wrong."""
    known, show = look_up(bench, "--cpu-offload", "--n-gpu-layers"), Figures()
    n_layer = bench.header(SEVEN_B).n_layer
    stay = bench.part(OffloadBench).split(SEVEN_B, 20).layers_on.count(0)
    return show.finding(
        "confirmed" if known["--cpu-offload"] else "wrong",
        f"llama.cpp's list of options has {known_names(show, known)}; -ngl 20 moves 20 of Llama 2 7B's {n_layer + 1} "
        f"layers to the device, and {show(blocks_on_host=stay)} of its {show(blocks=n_layer)} blocks stay on the CPU.",
    )


def c074(bench: Bench) -> Finding:
    """Confirmed if llama.cpp's command-line tools know LLAMA_CPU_OFFLOAD_LAYERS, else wrong."""
    known, show = look_up(bench, "LLAMA_CPU_OFFLOAD_LAYERS", "LLAMA_ARG_N_GPU_LAYERS"), Figures()
    moved = bench.part(OffloadBench).split(SEVEN_B, 35).n_gpu_layers
    return show.finding(
        "confirmed" if known["LLAMA_CPU_OFFLOAD_LAYERS"] else "wrong",
        f"llama.cpp's list of variables has {known_names(show, known)}; LLAMA_ARG_N_GPU_LAYERS=35 moves "
        f"{show(layers_on_device=moved)} layers of Llama 2 7B to the device, which are all it has.",
    )


def c075(bench: Bench) -> Finding:
    """Confirmed if the name gpt-main occurs in llama.cpp's libraries, wrong if those of its server and its command-line
    chat do and gpt-main does not."""
    bench.looked = True
    found, show = {name: bench.in_libraries(name.encode()) for name in ("gpt-main", *PROGRAMS)}, Figures()
    if not found["gpt-main"] and not all(found[name] for name in PROGRAMS):
        raise Unsettled("this build of llama.cpp comes without the library that names its programs")
    return show.finding(
        "confirmed" if found["gpt-main"] else "wrong",
        f"Of {show(looked_up=len(found))} names of programs, llama.cpp's libraries contain {known_names(show, found)}.",
    )


def c083(bench: Bench) -> Finding:
    """VirtGPU: ggml's libraries know a backend of that name. Flags: llama.cpp's command-line tools know --offload and
    --unified. Confirmed if all three are there; misleading if the backend and one of the flags are; else wrong."""
    known, show = look_up(bench, "--offload", "--unified"), Figures()
    offload = bench.part(OffloadBench)
    there = offload.ggml_has("virtgpu")
    others = [name for name in (*NAMED_BACKENDS, *OTHER_BACKENDS) if offload.ggml_has(name)]
    bench.cite("llama.cpp's docs/backend/VirtGPU.md")
    show.keep(virtgpu=there)
    return show.finding(
        ("wrong", "misleading", "confirmed")[sum(known.values())] if there else "wrong",
        f"ggml {'knows' if there else 'does not know'} virtgpu, a backend like {show(other_backends=len(others))} "
        f"others looked up ({', '.join(others)}), which by its documentation passes operations from a virtual machine "
        f"to the host; llama.cpp's list of options has {known_names(show, known)}.",
    )


def c091(bench: Bench) -> Finding:
    """What ggml's libraries know: the backends metal and cuda, processors with AVX2 and with AVX-512, and other
    backends. Confirmed if all four and another backend, wrong if none of the four, else roughly right."""
    offload, show = bench.part(OffloadBench), Figures()
    backends = [name for name in (*NAMED_BACKENDS, *OTHER_BACKENDS) if offload.ggml_has(name)]
    features = [name for name in NAMED_FEATURES if offload.ggml_has(f"ggml_cpu_has_{name}")]
    here = sorted(engine.cpu_features() or ())
    named = [name for name in backends if name in NAMED_BACKENDS] + features
    if not named:
        verdict = "wrong"
    else:
        complete = len(named) == len(NAMED_BACKENDS) + len(NAMED_FEATURES) and len(backends) > len(NAMED_BACKENDS)
        verdict = "confirmed" if complete else "roughly right"
    show.keep(features=", ".join(features), used_here=", ".join(here))
    return show.finding(
        verdict,
        f"ggml knows {show(backends=len(backends))} of {len(NAMED_BACKENDS + OTHER_BACKENDS)} backends looked up "
        f"({', '.join(backends) or 'none'}) and checks processors for {', '.join(features) or 'neither AVX'}; this "
        f"build uses {', '.join(here) or 'none of them'} here.",
    )
