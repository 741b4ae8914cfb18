"""The same settings as options of llama.cpp, llama-cpp-python, LM Studio and Ollama."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
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
    """How to start a model with these settings in each program.

    The number of layers and the context are always written, other settings only where they differ from the program's
    default. Settings that a program has no option for follow after a ``#``, as options of llama.cpp. ``devices`` and
    ``n_outputs_max`` are left out everywhere.

    Args:
        model: the file.
        settings: how it is run.
        n_layer: number of blocks; with ``n_gpu_layers`` above it, all layers are offloaded.
        n_cpu_moe: of a mixture of experts, how many of the first blocks keep their experts on the host.
        on_cpu: further weights that stay on the host, as regular expressions.
        shares: of the layers for each device; by default llama.cpp chooses.

    Returns:
        Text for ``llama.cpp``, ``llama-cpp-python``, ``lmstudio`` and ``ollama``.
    """
    n_gpu_layers = n_layer + 1 if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, n_layer + 1)
    extra = [f"-ncmoe {n_cpu_moe}"] if n_cpu_moe else []
    extra += [f"-ot {shlex.quote(f'{pattern}=CPU')}" for pattern in on_cpu]
    if shares:
        extra.append("-ts " + ",".join(f"{share:g}" for share in shares))
    # A program that cannot keep experts on the host cannot offload so many layers, so that is written with the number.
    noted = [
        f"{option} (without it, so many layers do not fit)" * option.startswith("-ncmoe") or option for option in extra
    ]
    return {
        "llama.cpp": _llama_cpp(model, settings, n_gpu_layers, extra),
        "llama-cpp-python": _llama_cpp_python(model, settings, n_gpu_layers, noted),
        "lmstudio": _lmstudio(settings, n_gpu_layers, n_layer, n_cpu_moe, extra),
        "ollama": _ollama(model, settings, n_gpu_layers, noted),
    }


def _options(settings: Settings) -> dict[str, str]:
    """Options of llama-server (common/arg.cpp) by field, for the settings that differ from llama.cpp's defaults."""
    valued = {
        "n_seq_max": "-np",
        "n_batch": "-b",
        "n_ubatch": "-ub",
        "type_k": "-ctk",
        "type_v": "-ctv",
        "flash_attn": "-fa",
        "load_mode": "-lm",
        "n_threads": "-t",
    }
    switches = {"repack": "--no-repack", "offload_kqv": "-nkvo", "kv_unified": "-kvu", "swa_full": "--swa-full"}
    default = Settings()
    changed = {name for name in (*valued, *switches) if getattr(settings, name) != getattr(default, name)}
    if settings.load_mode == "auto":  # llama.cpp's own default, which maps where the device supports it
        changed.discard("load_mode")
    found = {name: f"{option} {getattr(settings, name)}" for name, option in valued.items()} | switches
    return {name: option for name, option in found.items() if name in changed}


def _llama_cpp(model: str | Path, settings: Settings, n_gpu_layers: int, extra: Sequence[str]) -> str:
    """Options of llama-server. Without ``-np`` it makes several slots."""
    words = ["llama-server", "-m", shlex.quote(str(model)), f"-ngl {n_gpu_layers}", f"-c {settings.n_ctx}"]
    options = {"n_seq_max": f"-np {settings.n_seq_max}"} | _options(settings)
    return " ".join([*words, *options.values(), *extra])


def _llama_cpp_python(model: str | Path, settings: Settings, n_gpu_layers: int, extra: Sequence[str]) -> str:
    """Arguments of ``llama_cpp.Llama`` 0.3.36, whose defaults differ from llama.cpp's."""
    arguments = [f"model_path={str(model)!r}", f"n_gpu_layers={n_gpu_layers}", f"n_ctx={settings.n_ctx}"]
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
    missing = {"n_seq_max", "kv_unified", "repack"}
    if settings.load_mode == "dio":
        missing.add("load_mode")
    return f"Llama({', '.join(arguments)})" + _cannot(settings, missing, extra)


def _lmstudio(settings: Settings, n_gpu_layers: int, n_layer: int, n_cpu_moe: int, extra: Sequence[str]) -> str:
    """Settings of a model in LM Studio's load dialogue; ``lms load`` has options for the first two."""
    offload = "max" if n_gpu_layers > n_layer else str(n_gpu_layers)
    lines = [f"Context Length: {settings.n_ctx}", f"GPU Offload: {offload}"]
    lines.append(f"Flash Attention: {'off' if settings.flash_attn == 'off' else 'on'}")
    for half, cache_type in (("K", settings.type_k), ("V", settings.type_v)):
        if cache_type != "f16":
            lines.append(f"{half} Cache Quantization Type: {cache_type}")
    if not settings.offload_kqv:
        lines.append("Offload KV Cache to GPU Memory: off")
    if settings.load_mode in ("none", "mlock", "dio"):
        lines.append("Try mmap(): off")
    lines.append(f"Keep Model in Memory: {'on' if 'mlock' in settings.load_mode else 'off'}")
    lines.append(f"Max Concurrent Predictions: {settings.n_seq_max}")  # it is 4 unless told
    if settings.n_batch != Settings().n_batch:
        lines.append(f"Evaluation Batch Size: {settings.n_batch}")
    if settings.n_threads:
        lines.append(f"CPU Threads: {settings.n_threads}")
    if n_cpu_moe:  # a number of layers since LM Studio 0.4; before, all experts or none
        lines.append(f"Number of layers for which to force MoE layers into CPU: {n_cpu_moe}")
    missing = {"n_ubatch", "kv_unified", "swa_full", "repack"}
    if settings.load_mode == "dio":
        missing.add("load_mode")
    extra = [option for option in extra if not option.startswith("-ncmoe")]
    return "; ".join(lines) + _cannot(settings, missing, extra)


def _ollama(model: str | Path, settings: Settings, n_gpu_layers: int, extra: Sequence[str]) -> str:
    """A Modelfile, and environment variables of the server, which apply to every model that it loads."""
    lines = [f"FROM {model}", f"PARAMETER num_gpu {n_gpu_layers}", f"PARAMETER num_ctx {settings.n_ctx}"]
    if settings.n_ubatch != 512:
        lines.append(f"PARAMETER num_batch {settings.n_ubatch}")
    if settings.n_threads:
        lines.append(f"PARAMETER num_thread {settings.n_threads}")
    if settings.load_mode in ("none", "mlock", "dio"):
        lines.append("PARAMETER use_mmap false")
    missing = {"n_batch", "kv_unified", "swa_full", "offload_kqv", "repack"}
    if settings.load_mode == "dio" or "mlock" in settings.load_mode:
        missing.add("load_mode")
    environment = [f"OLLAMA_FLASH_ATTENTION={0 if settings.flash_attn == 'off' else 1}"]
    if settings.type_k != settings.type_v or settings.type_k not in OLLAMA_CACHE_TYPES:
        missing |= {"type_k", "type_v"}
    elif settings.type_k != "f16":
        environment.append(f"OLLAMA_KV_CACHE_TYPE={settings.type_k}")
    if settings.n_seq_max > 1:
        environment.append(f"OLLAMA_NUM_PARALLEL={settings.n_seq_max}")
    return "\n".join(lines) + f"\n{' '.join(environment)} ollama serve" + _cannot(settings, missing, extra)


def _cannot(settings: Settings, missing: Collection[str], extra: Sequence[str]) -> str:
    """A comment with the settings that a program has no option for: fields in ``missing``, and further options."""
    found = [*extra, *(option for name, option in _options(settings).items() if name in missing)]
    return f"  # there is no option for: {' '.join(found)}" if found else ""
