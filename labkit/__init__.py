"""LLM Memory Labs: predict, then measure on your own machine, how llama.cpp runs a model.

``import labkit as lk`` is what the labs do. Names are loaded when first used, so that importing costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> where it lives ("module:name", or "module" for a whole module).
_WHERE = {
    "TYPES": "gguf.types:TYPES",
    "GiB": "units:GiB",
    "KiB": "units:KiB",
    "MiB": "units:MiB",
    "MappedFile": "system.mapping:MappedFile",
    "Run": "experiments.run:Run",
    "Settings": "settings:Settings",
    "blocks": "blocks",
    "budget": "planning.context",
    "cache_quality": "quant.cache_quality:cache_quality",
    "cap_sweep": "experiments.cap_sweep:cap_sweep",
    "cachesim": "course.lab03.cachesim",
    "check": "course.exercises",
    "claims": "course.claims",
    "compare": "course.checking:compare",
    "device": "experiments.device",
    "devicecurves": "planning.device_curves",
    "disk_bandwidth": "system.bandwidth:disk_bandwidth",
    "dry_runs": "experiments.dry_run:dry_runs",
    "engine": "engine",
    "figures": "course.figures",
    "examine": "course.readiness:examine",
    "find": "models.lookup:find",
    "fmt_bytes": "units:fmt_bytes",
    "fmt_ms": "units:fmt_ms",
    "forge": "models.forge:forge",
    "ggml": "engine.ggml",
    "hardware": "predict.hardware",
    "imatrix": "quant.imatrix",
    "machine": "system.machine:machine",
    "measure": "experiments.measure:measure",
    "offload_sweep": "experiments.offload_sweep:offload_sweep",
    "panels": "course.panels",
    "parse_bytes": "units:parse_bytes",
    "plan": "planning.planner:plan",
    "plan_quant": "models.quant_plan:plan_quant",
    "predict": "predict",
    "pressure": "experiments.pressure",
    "probe": "system.probe",
    "quality": "quant.quality:quality",
    "quantize": "quant.quantize:quantize",
    "recorded_runs": "experiments.recordings:recorded",
    "ram_bandwidth": "system.bandwidth:ram_bandwidth",
    "read_blocks": "gguf.tensor_data:read_blocks",
    "read_header": "gguf:read_header",
    "shapes": "models.shapes",
    "slots": "experiments.cache_slots",
    "speed_at_depth": "experiments.depth:speed_at_depth",
    "suggested_models": "models.lookup:suggested",
    "tuner": "planning.tuner",
    "verify": "experiments.offload_sweep:verify",
}

__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"labkit has no {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = import_module(f"labkit.{module}")
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
