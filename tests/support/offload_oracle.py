"""What llama.cpp itself puts where, on devices of another process: ``python offload_oracle.py`` reads jobs as JSON
lines and answers each with one. Run in a process of its own, since llama.cpp may abort.

A job is {"path", "settings", "n_devices", "shares", "on_cpu": [regex, …], "dry", "tokens"}. An answer is {"buffers":
[[device, kind, bytes], …], "layers": [side of each block and of the output], "splits", "decode_ms": […], "problem"},
with devices named CPU… for the host and by number, from 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def library(name: str) -> ctypes.CDLL:
    from labkit.engine import library as find

    found = find(name)
    assert found is not None, name
    return found


def serve(port: int) -> None:
    """Be a device: serve this process's CPU and memory until the parent is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    ggml, rpc = library("ggml"), library("ggml-rpc")
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    devices = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_type(0))
    rpc.ggml_backend_rpc_start_server.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    rpc.ggml_backend_rpc_start_server(f"127.0.0.1:{port}".encode(), None, 1, 1, devices)


@contextlib.contextmanager
def servers(n: int) -> Iterator[list[str]]:
    processes, endpoints = [], []
    try:
        for _ in range(n):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--serve", str(port)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            endpoints.append(f"127.0.0.1:{port}")
        for endpoint in endpoints:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(endpoint.split(":"), timeout=1):
                    break
                time.sleep(0.05)
        yield endpoints
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Override(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


class Log:
    """Every line llama.cpp says, debug lines too: they name each layer's device."""

    def __init__(self, ll: Any) -> None:
        self.text = ""

        @ll.llama_log_callback  # type: ignore[untyped-decorator]
        def hear(level: int, text: bytes, user: Any) -> None:
            self.text += text.decode("utf-8", "replace")

        self._keep = hear
        ll.llama_log_set(hear, ctypes.c_void_p(0))

    def take(self) -> list[str]:
        text, self.text = self.text, ""
        return text.split("\n")


def registered(endpoints: list[str]) -> list[int]:
    rpc, ggml, base = library("ggml-rpc"), library("ggml"), library("ggml-base")
    rpc.ggml_backend_rpc_add_server.restype = base.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_register.argtypes = [ctypes.c_void_p]
    base.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    devices = []
    for endpoint in endpoints:
        reg = rpc.ggml_backend_rpc_add_server(endpoint.encode())
        ggml.ggml_backend_register(reg)
        devices.append(base.ggml_backend_reg_dev_get(reg, 0))
    return devices


def cpu_buffer_type() -> int:
    """As llama.cpp itself sees it: compared by address, and the package ships each library under three names."""
    ggml, base = library("ggml"), library("ggml-base")
    ggml.ggml_backend_dev_by_type.restype = base.ggml_backend_dev_buffer_type.restype = ctypes.c_void_p
    base.ggml_backend_dev_buffer_type.argtypes = [ctypes.c_void_p]
    found: int = base.ggml_backend_dev_buffer_type(ggml.ggml_backend_dev_by_type(0))
    return found


def answer(ll: Any, log: Log, endpoints: list[str], devices: list[int], job: dict[str, Any]) -> dict[str, Any]:
    from labkit.engine.log import parse_buffers
    from labkit.settings import CACHE_TYPES, FLASH_ATTN, LOAD_MODES, Settings

    settings = Settings.of(job["settings"])
    params = ll.llama_model_default_params()
    params.no_alloc = job.get("dry", False)
    params.load_mode = 0 if params.no_alloc else LOAD_MODES[settings.load_mode]
    params.use_extra_bufts, params.n_gpu_layers = settings.repack, settings.n_gpu_layers
    n = job.get("n_devices", 1)
    array = (ctypes.c_void_p * (n + 1))(*devices[:n], None)
    params.devices = ctypes.cast(array, ctypes.c_void_p)
    shares = (ctypes.c_float * 128)(*(job.get("shares") or ()))
    if job.get("shares"):
        params.tensor_split = shares
    overrides = job.get("on_cpu") or []
    table = (Override * (len(overrides) + 1))(*[Override(pattern.encode(), cpu_buffer_type()) for pattern in overrides])
    if overrides:
        params.tensor_buft_overrides = ctypes.cast(table, ctypes.c_void_p)
    log.take()
    model = ll.llama_model_load_from_file(os.fsencode(Path(job["path"])), params)
    lines = log.take()
    if not model:
        return {"problem": "\n".join(lines[-5:])}
    wanted = ll.llama_context_default_params()
    for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "swa_full", "offload_kqv"):
        setattr(wanted, name, getattr(settings, name))
    wanted.type_k, wanted.type_v = CACHE_TYPES[settings.type_k], CACHE_TYPES[settings.type_v]
    wanted.flash_attn_type = FLASH_ATTN[settings.flash_attn]
    wanted.n_threads = wanted.n_threads_batch = settings.n_threads or 1
    wanted.n_outputs_max = settings.n_outputs_max or 0
    context = ll.llama_init_from_model(model, wanted)
    lines += log.take()
    times = []
    if context and job.get("tokens"):
        token = (ll.llama_token * 1)(1)
        for _ in range(job["tokens"]):
            start = time.perf_counter()
            status = ll.llama_decode(context, ll.llama_batch_get_one(token, 1))
            ll.llama_get_logits_ith(context, -1)
            assert status == 0
            times.append((time.perf_counter() - start) * 1000)
    if context:
        ll.llama_free(context)
    ll.llama_model_free(model)
    log.take()
    text = "\n".join(lines)
    placed = re.findall(r"layer +\d+ assigned to device (CPU|RPC(\d+)),", text)
    splits = re.search(r"splits = (?:\d+ / )?(\d+)", text)
    numbers = {f"RPC0[{endpoint}]": i for i, endpoint in enumerate(endpoints, 1)}
    return {
        "buffers": [[numbers.get(b.device, b.device), b.kind, b.bytes] for b in parse_buffers(lines)],
        "layers": [int(number) + 1 if number else 0 for _, number in placed],
        "splits": int(splits[1]) if splits else None,
        "decode_ms": times,
        "problem": None if context else text[-400:],
    }


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
        return
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import llama_cpp.llama_cpp as ll

    log = Log(ll)
    ll.llama_backend_init()
    jobs = [json.loads(line) for line in sys.stdin]
    with servers(max(job.get("n_devices", 1) for job in jobs)) as endpoints:
        devices = registered(endpoints)
        for job in jobs:
            out.write(json.dumps(answer(ll, log, endpoints, devices, job)) + "\n")


if __name__ == "__main__":
    main()
