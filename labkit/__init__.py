"""LLM Memory Labs: predict, then measure on your own machine, how llama.cpp runs a model.

``import labkit as lk`` is what the labs do. Names are loaded when first used, so that importing costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# These share their module's name, which importing the module would otherwise put in their place.
from labkit.forge import forge
from labkit.machine import machine
from labkit.quality import quality
from labkit.quantize import quantize

if TYPE_CHECKING:
    import labkit.exercises as check  # noqa: F401
    from labkit import blocks as blocks
    from labkit import budget as budget
    from labkit import claims as claims
    from labkit import device as device
    from labkit import devicecurves as devicecurves
    from labkit import engine as engine
    from labkit import figures as figures
    from labkit import ggml as ggml
    from labkit import hardware as hardware
    from labkit import imatrix as imatrix
    from labkit import panels as panels
    from labkit import planning as planning
    from labkit import predict as predict
    from labkit import pressure as pressure
    from labkit import probe as probe
    from labkit import shapes as shapes
    from labkit import tuner as tuner
    from labkit.bandwidth import disk_bandwidth as disk_bandwidth
    from labkit.bandwidth import ram_bandwidth as ram_bandwidth
    from labkit.cachequality import cache_quality as cache_quality
    from labkit.cells import cachesim as cachesim
    from labkit.cells import slots as slots
    from labkit.checking import compare as compare
    from labkit.depth import speed_at_depth as speed_at_depth
    from labkit.doctor import examine as examine
    from labkit.dryrun import dry_runs as dry_runs
    from labkit.experiment import measure as measure
    from labkit.ggml_types import TYPES as TYPES
    from labkit.gguf import read_header as read_header
    from labkit.mapping import MappedFile as MappedFile
    from labkit.models import find as find
    from labkit.models import suggested as suggested_models  # noqa: F401
    from labkit.offloadsweep import offload_sweep as offload_sweep
    from labkit.quantplan import plan as plan
    from labkit.run import Run as Run
    from labkit.run import recorded as recorded_runs  # noqa: F401
    from labkit.settings import Settings as Settings
    from labkit.sweep import cap_sweep as cap_sweep
    from labkit.tensordata import read_blocks as read_blocks
    from labkit.units import GiB as GiB
    from labkit.units import KiB as KiB
    from labkit.units import MiB as MiB
    from labkit.units import fmt_bytes as fmt_bytes
    from labkit.units import fmt_ms as fmt_ms
    from labkit.units import parse_bytes as parse_bytes

__version__ = "0.1.0"

# Public name -> where it lives ("module" alone: the module itself).
_WHERE = {
    "TYPES": "ggml_types:TYPES",
    "GiB": "units:GiB",
    "KiB": "units:KiB",
    "MiB": "units:MiB",
    "MappedFile": "mapping:MappedFile",
    "Run": "run:Run",
    "Settings": "settings:Settings",
    "blocks": "blocks",
    "budget": "budget",
    "cache_quality": "cachequality:cache_quality",
    "cap_sweep": "sweep:cap_sweep",
    "cachesim": "cells.cachesim",
    "check": "exercises",
    "claims": "claims",
    "compare": "checking:compare",
    "device": "device",
    "devicecurves": "devicecurves",
    "disk_bandwidth": "bandwidth:disk_bandwidth",
    "dry_runs": "dryrun:dry_runs",
    "engine": "engine",
    "figures": "figures",
    "examine": "doctor:examine",
    "find": "models:find",
    "fmt_bytes": "units:fmt_bytes",
    "fmt_ms": "units:fmt_ms",
    "ggml": "ggml",
    "hardware": "hardware",
    "imatrix": "imatrix",
    "measure": "experiment:measure",
    "offload_sweep": "offloadsweep:offload_sweep",
    "panels": "panels",
    "parse_bytes": "units:parse_bytes",
    "plan": "quantplan:plan",
    "planning": "planning",
    "predict": "predict",
    "pressure": "pressure",
    "probe": "probe",
    "recorded_runs": "run:recorded",
    "ram_bandwidth": "bandwidth:ram_bandwidth",
    "read_blocks": "tensordata:read_blocks",
    "read_header": "gguf:read_header",
    "shapes": "shapes",
    "slots": "cells.slots",
    "speed_at_depth": "depth:speed_at_depth",
    "suggested_models": "models:suggested",
    "tuner": "tuner",
}

__all__ = [*_WHERE, "__version__", "forge", "machine", "quality", "quantize"]


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
