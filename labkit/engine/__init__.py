"""llama.cpp under its own names, with the options of ``Settings``.

llama.cpp may abort the process on a bad file, so whatever loads a model runs in a child process (see ``experiments``).
Importing this package is quick: llama_cpp itself is loaded on first use.
"""

from labkit.engine.context import CacheFull, Context
from labkit.engine.devices import Device, EngineInfo, devices, info
from labkit.engine.install import PINNED, EngineError, cpu_features, installed_version, library, version_problem
from labkit.engine.internals.slot_maps import SlotMap
from labkit.engine.log import Buffer, KVCache
from labkit.engine.model import Model
from labkit.engine.quantize import quantize

__all__ = [
    "PINNED",
    "Buffer",
    "CacheFull",
    "Context",
    "Device",
    "EngineError",
    "EngineInfo",
    "KVCache",
    "Model",
    "SlotMap",
    "cpu_features",
    "devices",
    "info",
    "installed_version",
    "library",
    "quantize",
    "version_problem",
]
