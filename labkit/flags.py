"""The same settings in the words of llama.cpp, llama-cpp-python, LM Studio and Ollama."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from labkit.settings import CACHE_TYPES, Settings

OLLAMA_CACHE_TYPES = ("f16", "q8_0", "q4_0")  # docs/faq of Ollama, OLLAMA_KV_CACHE_TYPE: one type for K and V


def flags(
    model: str | Path,
    settings: Settings,
    *,
    n_layer: int,
    n_cpu_moe: int = 0,
    on_cpu: Sequence[str] = (),
    shares: Sequence[float] = (),
) -> dict[str, str]:
    """How to start a model this way in each program.

    What equals a program's default is left out, but for the number of layers and the context, which are always said.
    What a program cannot be told is named after a ``#``.

    Args:
        model: the file.
        settings: how it is run.
        n_layer: number of blocks; with ``n_gpu_layers`` above it, everything leaves.
        n_cpu_moe: of a mixture of experts, how many blocks from the start keep their experts on the host.
        on_cpu: further weights that stay on the host, as regular expressions.
        shares: of the layers for each device, where llama.cpp is not to choose.

    Returns:
        Text for ``llama.cpp``, ``llama-cpp-python``, ``lmstudio`` and ``ollama``.
    """
    gone = n_layer + 1 if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, n_layer + 1)
    extra = [f"-ncmoe {n_cpu_moe}"] if n_cpu_moe else []
    extra += [f"-ot {shlex.quote(f'{pattern}=CPU')}" for pattern in on_cpu]
    if shares:
        extra.append("-ts " + ",".join(f"{share:g}" for share in shares))
    return {
        "llama.cpp": _llama_cpp(model, settings, gone, extra),
        "llama-cpp-python": _llama_cpp_python(model, settings, gone, extra),
        "lmstudio": _lmstudio(settings, gone, n_layer, bool(n_cpu_moe), extra),
        "ollama": _ollama(model, settings, gone, extra),
    }


def _llama_cpp(model: str | Path, settings: Settings, gone: int, extra: Sequence[str]) -> str:
    """Options of llama-server (common/arg.cpp). Without ``-np`` it makes several slots."""
    words = ["llama-server", "-m", shlex.quote(str(model)), f"-ngl {gone}", f"-c {settings.n_ctx}"]
    words.append(f"-np {settings.n_seq_max}")
    default = Settings()
    for option, name in (("-b", "n_batch"), ("-ub", "n_ubatch"), ("-ctk", "type_k"), ("-ctv", "type_v")):
        if getattr(settings, name) != getattr(default, name):
            words.append(f"{option} {getattr(settings, name)}")
    if settings.flash_attn != "auto":
        words.append(f"-fa {settings.flash_attn}")
    if settings.load_mode not in ("auto", "mmap"):  # the default, auto, maps where the device supports it
        words.append(f"-lm {settings.load_mode}")
    if settings.n_threads:
        words.append(f"-t {settings.n_threads}")
    switches = {
        "--no-repack": not settings.repack,
        "-nkvo": not settings.offload_kqv,
        "-kvu": settings.kv_unified,
        "--swa-full": settings.swa_full,
    }
    words += [switch for switch, wanted in switches.items() if wanted]
    return " ".join([*words, *extra])


def _llama_cpp_python(model: str | Path, settings: Settings, gone: int, extra: Sequence[str]) -> str:
    """Arguments of ``llama_cpp.Llama`` 0.3.36, whose defaults differ from llama.cpp's."""
    arguments = [f"model_path={str(model)!r}", f"n_gpu_layers={gone}", f"n_ctx={settings.n_ctx}"]
    for name in ("n_batch", "n_ubatch"):
        if getattr(settings, name) != 512:
            arguments.append(f"{name}={getattr(settings, name)}")
    if settings.flash_attn != "off":
        arguments.append("flash_attn=True")
    if not settings.swa_full:
        arguments.append("swa_full=False")
    for name in ("type_k", "type_v"):
        if getattr(settings, name) != "f16":
            arguments.append(f"{name}={CACHE_TYPES[getattr(settings, name)]}")
    if not settings.offload_kqv:
        arguments.append("offload_kqv=False")
    if settings.load_mode in ("none", "mlock", "dio"):
        arguments.append("use_mmap=False")
    if "mlock" in settings.load_mode:
        arguments.append("use_mlock=True")
    if settings.n_threads:
        arguments.append(f"n_threads={settings.n_threads}")
    missing = [*extra]
    missing += ["--no-repack"] if not settings.repack else []
    missing += [f"-np {settings.n_seq_max}"] if settings.n_seq_max > 1 else []
    missing += ["-lm dio"] if settings.load_mode == "dio" else []
    return f"Llama({', '.join(arguments)})" + _cannot(missing)


def _lmstudio(settings: Settings, gone: int, n_layer: int, experts: bool, extra: Sequence[str]) -> str:
    """Settings of a model in LM Studio's load dialogue; ``lms load`` knows the first two."""
    offload = "max" if gone > n_layer else str(gone)
    lines = [f"Context Length: {settings.n_ctx}", f"GPU Offload: {offload}"]
    if settings.flash_attn != "off":
        lines.append("Flash Attention: on")
    for half, cache_type in (("K", settings.type_k), ("V", settings.type_v)):
        if cache_type != "f16":
            lines.append(f"{half} Cache Quantization Type: {cache_type}")
    if not settings.offload_kqv:
        lines.append("Offload KV Cache to GPU Memory: off")
    if settings.load_mode in ("none", "mlock", "dio"):
        lines.append("Try mmap(): off")
    lines.append(f"Keep Model in Memory: {'on' if 'mlock' in settings.load_mode else 'off'}")
    if experts:
        lines.append("Force Model Expert Weights onto CPU: on")
    missing = [option for option in extra if not (experts and option.startswith("-ncmoe"))]
    missing += ["--no-repack"] if not settings.repack else []
    return "; ".join(lines) + _cannot(missing)


def _ollama(model: str | Path, settings: Settings, gone: int, extra: Sequence[str]) -> str:
    """A Modelfile, and variables of the server's environment, which hold for every model it loads."""
    lines = [f"FROM {model}", f"PARAMETER num_gpu {gone}", f"PARAMETER num_ctx {settings.n_ctx}"]
    if settings.n_ubatch != 512:
        lines.append(f"PARAMETER num_batch {settings.n_ubatch}")
    if settings.n_threads:
        lines.append(f"PARAMETER num_thread {settings.n_threads}")
    if settings.load_mode in ("none", "mlock", "dio"):
        lines.append("PARAMETER use_mmap false")
    missing = list(extra)
    environment = []
    if settings.flash_attn != "off":
        environment.append("OLLAMA_FLASH_ATTENTION=1")
    if {settings.type_k, settings.type_v} != {"f16"}:
        if settings.type_k == settings.type_v and settings.type_k in OLLAMA_CACHE_TYPES:
            environment.append(f"OLLAMA_KV_CACHE_TYPE={settings.type_k}")
        else:
            missing.append(f"-ctk {settings.type_k} -ctv {settings.type_v}")
    if settings.n_seq_max > 1:
        environment.append(f"OLLAMA_NUM_PARALLEL={settings.n_seq_max}")
    missing += ["-nkvo"] if not settings.offload_kqv else []
    missing += ["--no-repack"] if not settings.repack else []
    missing += [f"-lm {settings.load_mode}"] if "mlock" in settings.load_mode else []
    start = f"\n{' '.join(environment)} ollama serve" if environment else ""
    return "\n".join(lines) + start + _cannot(missing)


def _cannot(missing: Sequence[str]) -> str:
    return f"  # it cannot be told: {' '.join(missing)}" if missing else ""
