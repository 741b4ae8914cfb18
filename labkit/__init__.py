"""LLM Memory Labs: predict, then measure on your own machine, how llama.cpp runs a model.

``import labkit as lk`` is what the labs do. Names are loaded when first used, so that importing costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# These two share their module's name, which importing the module would otherwise put in their place.
from labkit.forge import forge
from labkit.machine import machine

if TYPE_CHECKING:
    from labkit import claims, engine, figures, predict, probe, shapes
    from labkit import exercises as check
    from labkit.bandwidth import disk_bandwidth, ram_bandwidth
    from labkit.exercises import compare
    from labkit.experiment import measure
    from labkit.gguf import read_header
    from labkit.models import find
    from labkit.run import Run
    from labkit.settings import Settings
    from labkit.units import GiB, MiB, fmt_bytes, fmt_ms, parse_bytes

__version__ = "0.1.0"

# Public name -> where it lives ("module" alone: the module itself).
_WHERE = {
    "GiB": "units:GiB",
    "MiB": "units:MiB",
    "Run": "run:Run",
    "Settings": "settings:Settings",
    "check": "exercises",
    "claims": "claims",
    "compare": "exercises:compare",
    "disk_bandwidth": "bandwidth:disk_bandwidth",
    "engine": "engine",
    "figures": "figures",
    "find": "models:find",
    "fmt_bytes": "units:fmt_bytes",
    "fmt_ms": "units:fmt_ms",
    "measure": "experiment:measure",
    "panels": "panels",
    "parse_bytes": "units:parse_bytes",
    "predict": "predict",
    "probe": "probe",
    "ram_bandwidth": "bandwidth:ram_bandwidth",
    "read_header": "gguf:read_header",
    "shapes": "shapes",
}

__all__ = [*_WHERE, "__version__", "forge", "machine"]


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
