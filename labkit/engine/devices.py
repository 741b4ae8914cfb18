"""The devices that this build of llama.cpp can compute on."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.engine.bindings import llama
from labkit.engine.install import PINNED, EngineError, cpu_features, installed_version, library, version_problem
from labkit.engine.log import Buffer, no_room, parse_buffers
from labkit.settings import LOOPBACK
from labkit.units import fmt_bytes


@dataclass(frozen=True)
class Device:
    """A device the build can compute on. ``kind`` is CPU, GPU, IGPU or ACCEL."""

    name: str
    description: str
    kind: str
    total_bytes: int | None


@dataclass(frozen=True)
class EngineInfo:
    """What is installed. ``problem`` is None, or one sentence that says what is wrong and what to do."""

    version: str | None
    rpc: bool
    devices: tuple[Device, ...]
    cpu_features: tuple[str, ...]
    problem: str | None


def info() -> EngineInfo:
    """What is installed, and on which devices it can compute. Imports llama_cpp (about half a second); never raises."""
    problem = version_problem()
    if problem:
        return EngineInfo(installed_version(), False, (), (), problem)
    try:
        ll = llama()
    except (OSError, ImportError, RuntimeError) as error:
        reason = f"llama-cpp-python {PINNED} is installed but does not load ({error}): reinstall it on this machine."
        return EngineInfo(installed_version(), False, (), (), reason)
    features = tuple(sorted(cpu_features() or ()))
    return EngineInfo(PINNED, bool(ll.llama_supports_rpc()), devices(), features, None)


def devices() -> tuple[Device, ...]:
    """Compute devices of this build, the CPU among them (ggml-backend.h, ggml_backend_dev_*)."""
    llama()
    lib, base = library("ggml"), library("ggml-base")
    if lib is None or base is None:
        return ()
    lib.ggml_backend_dev_count.restype = ctypes.c_size_t
    lib.ggml_backend_dev_get.restype = ctypes.c_void_p
    lib.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for function in ("name", "description", "type"):
        getattr(base, f"ggml_backend_dev_{function}").argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_name.restype = base.ggml_backend_dev_description.restype = ctypes.c_char_p
    found = []
    for i in range(lib.ggml_backend_dev_count()):
        dev = lib.ggml_backend_dev_get(i)
        kind = {0: "CPU", 1: "GPU", 2: "IGPU", 3: "ACCEL"}.get(base.ggml_backend_dev_type(dev), "other")
        name = base.ggml_backend_dev_name(dev).decode()
        description = base.ggml_backend_dev_description(dev).decode() or platform.processor()
        found.append(Device(name, description, kind, _total_bytes(dev)))
    return tuple(found)


def device_array(names: Sequence[str], endpoint: str | None) -> Any:
    """Named devices as the NULL-terminated array llama.cpp wants; None leaves the choice to llama.cpp.

    Args:
        names: as ``devices`` lists them, or ``loopback``.
        endpoint: where the loopback device listens.

    Raises:
        EngineError: there is no device of a name.
    """
    if not names:
        return None
    lib = library("ggml")
    # The CPU computes the other layers anyway; named as a device it would get a second set of buffers.
    known = {device.name: i for i, device in enumerate(devices()) if device.kind != "CPU"}
    assert lib is not None  # devices() found some
    found = []
    for name in names:
        if name == LOOPBACK and endpoint is not None:
            found.append(_remote_device(endpoint))
        elif name in known:
            found.append(lib.ggml_backend_dev_get(known[name]))
        else:
            raise EngineError(f"there is no device {name} to offload to: this build has {', '.join(known) or 'none'}.")
    return (ctypes.c_void_p * (len(names) + 1))(*found, None)


_remote: dict[str, int] = {}  # the loopback devices in use, by llama.cpp's name for their buffers


def _remote_device(endpoint: str) -> int:
    """The first device of a running RPC server (ggml-rpc.h); ggml aborts if none listens at the endpoint."""
    rpc, base = library("ggml-rpc"), library("ggml-base")
    if rpc is None or base is None:
        raise EngineError("this build of llama-cpp-python has no RPC backend, so it has no loopback device.")
    rpc.ggml_backend_rpc_add_server.restype = base.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
    base.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    server = rpc.ggml_backend_rpc_add_server(endpoint.encode())
    device: int = base.ggml_backend_reg_dev_get(server, 0)
    _remote[f"RPC0[{endpoint}]"] = device
    return device


def named_buffers(log: Sequence[str]) -> tuple[Buffer, ...]:
    """The buffers in the log, those of the loopback device under its own name."""
    return tuple(replace(b, device=LOOPBACK) if b.device in _remote else b for b in parse_buffers(log))


def explained(why: str, advice: str) -> str:
    """A reason from the log; where a device had no room, its size and which setting to lower instead."""
    refused = no_room(why)
    if refused is None:
        return why
    name, wanted = refused
    if name in _remote:
        name, total = LOOPBACK, _total_bytes(_remote[name])
    else:
        total = next((device.total_bytes for device in devices() if device.name == name and device.kind != "CPU"), None)
    if total is None:
        return why
    return f"{name} ({fmt_bytes(total)}) has no room for a buffer of {fmt_bytes(wanted)}; lower {advice}"


def _total_bytes(device: int) -> int | None:
    """How much memory a device has, or None where it does not report it."""
    base = library("ggml-base")
    assert base is not None  # part of the same package
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return total.value or None
