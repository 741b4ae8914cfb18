"""The loopback device: what it holds, what it refuses, how it ends, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import LINUX, SOAK, at, children, until
from support.small import small

from labkit import cli, gguf, predict
from labkit.engine.log import LOG_RESOLUTION_BYTES
from labkit.experiments import device
from labkit.experiments.device import DeviceError, Loopback
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.models.forge import forge
from labkit.system.machine import machine
from labkit.system.probe import ProcessGone
from labkit.units import MiB

pytestmark = [
    pytest.mark.skipif(device.problem() is not None, reason=f"no loopback device here: {device.problem()}"),
    pytest.mark.live,
    pytest.mark.usefixtures("nothing_left"),
]
ON_IT: dict[str, Any] = {"devices": ("loopback",), "n_threads": 1, "n_ctx": 256, "tokens": 2}
N_LAYER = 2


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, and an embedding that is its output layer too."""
    return forge(small(), "Q4_K_M", path=tmp_path_factory.mktemp("device") / "small.gguf").path


def listening(endpoint: str) -> bool:
    host, port = endpoint.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def on_device(run: Run, kind: str) -> int:
    return run.buffer_bytes(kind=kind, device="loopback")


# Start and stop


def test_it_starts_and_stops_and_leaves_nothing() -> None:
    endpoints = set()
    for _ in range(SOAK):
        with Loopback(memory="64MiB") as running:
            assert running.endpoint.startswith("127.0.0.1:") and listening(running.endpoint)
            assert psutil.pid_exists(running.pid) and running.lost() is None
            endpoints.add(running.endpoint)
        assert not psutil.pid_exists(running.pid) and children() == []
    assert not any(listening(endpoint) for endpoint in endpoints)


@LINUX
def test_it_listens_on_this_computer_only() -> None:
    with Loopback() as running:
        port = int(running.endpoint.partition(":")[2])
        open_at = [c.laddr for c in psutil.Process(running.pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert open_at == [("127.0.0.1", port)]


@LINUX
def test_it_is_small_and_the_first_to_be_killed() -> None:
    with Loopback() as running:
        assert running.idle.rss_anon_bytes is not None and 0 < running.idle.rss_anon_bytes < 40 * MiB
        assert Path(f"/proc/{running.pid}/oom_score_adj").read_text() == "1000\n"


def test_a_closed_device_has_ended() -> None:
    running = Loopback()
    running.close()
    running.close()
    with pytest.raises(ProcessGone):
        running.use()
    assert running.lost() is not None


def test_a_chosen_port_is_used_and_one_in_use_is_named() -> None:
    with Loopback() as first:
        port = int(first.endpoint.partition(":")[2])
        with pytest.raises(DeviceError) as error:
            Loopback(port=port)
    said = str(error.value)
    assert said.startswith(f"the loopback device did not start: port {port} of 127.0.0.1 cannot be opened")
    assert "in use" in said and said.endswith("choose another, or none for a free one.") and "\n" not in said
    with Loopback(port=port) as second:
        assert second.endpoint == f"127.0.0.1:{port}" and listening(second.endpoint)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": 0}, "more than 0 bytes"),
        ({"memory": "much"}, "much"),
        ({"n_threads": 0}, "at least 1"),
        ({"port": 70_000}, "between 1 and 65,535"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loopback(**wrong)


def test_a_build_without_rpc_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, forged: Path) -> None:
    monkeypatch.setattr(device, "library", lambda name: None)
    with pytest.raises(DeviceError, match=r"no RPC backend.*GGML_RPC=ON"):
        Loopback()
    run = measure(forged, **ON_IT)
    assert run.outcome == "refused" and run.reason == device.problem()


@LINUX
def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(DeviceError, match="did not start: it ended with status 1"):
        Loopback()


PARENT = """
import os, sys, time
from labkit.experiments.device import Loopback
running = Loopback(memory="64MiB")
print(running.pid, running.endpoint, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["time.sleep(60)", "os._exit(1)", "pass", "raise SystemExit(1)"])
def test_it_ends_with_its_parent(then: str) -> None:
    code = PARENT.format(then=then)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, endpoint = parent.stdout.readline().split()
        if "sleep" in then:
            assert psutil.pid_exists(int(pid)) and listening(endpoint)
            parent.kill()
    assert until(lambda: not psutil.pid_exists(int(pid)) and not listening(endpoint))


@LINUX
def test_both_processes_end_with_a_killed_measurement(forged: Path) -> None:
    code = (
        "import sys; from labkit.experiments.measure import measure\n"
        f"measure(sys.argv[1], n_gpu_layers=3, hold_s=600, progress=lambda f, t: print(t, flush=True), **{ON_IT!r})"
    )
    with subprocess.Popen([sys.executable, "-c", code, forged], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert any(line == "hold\n" for line in parent.stdout)
        both = psutil.Process(parent.pid).children()
        assert len(both) == 2
        parent.kill()
    assert until(lambda: not any(process.is_running() for process in both))


# What is where


def offloaded(header: gguf.Header, n_gpu_layers: int) -> int:
    """Σ tensors of what leaves: the output layer first (here a copy of the embedding), then the last blocks."""
    first = header.n_layer + 1 - n_gpu_layers
    blocks = [t for t in header.tensors if t.name.startswith("blk.") and int(t.name.split(".")[1]) >= first]
    output = [t for t in header.tensors if t.name in ("output_norm.weight", "token_embd.weight", "rope_freqs.weight")]
    return sum(t.nbytes for t in (*blocks, *(output if n_gpu_layers else [])))


@LINUX
@pytest.mark.parametrize("n_gpu_layers", range(N_LAYER + 2))
def test_each_layer_that_leaves_is_in_the_other_process(n_gpu_layers: int, forged: Path) -> None:
    header = gguf.read_header(forged)
    run = measure(forged, n_gpu_layers=n_gpu_layers, repack=False, **ON_IT)
    assert (run.outcome, run.reason) == ("ok", "")
    assert on_device(run, "model") == pytest.approx(offloaded(header, n_gpu_layers), abs=LOG_RESOLUTION_BYTES + 4096)
    kv_per_layer = predict.kv_bytes(header, run.settings) // N_LAYER
    gone = max(0, n_gpu_layers - 1)
    assert run.predicted.kv_bytes == (N_LAYER - gone) * kv_per_layer
    assert on_device(run, "kv") == pytest.approx(gone * kv_per_layer, abs=LOG_RESOLUTION_BYTES)
    assert run.buffer_bytes(kind="kv") == pytest.approx(N_LAYER * kv_per_layer, abs=2 * LOG_RESOLUTION_BYTES)
    assert on_device(run, "output") == 0 and (on_device(run, "compute") > 0) == (n_gpu_layers > 0)
    assert {buffer.device for buffer in run.buffers} <= {"CPU", "CPU_Mapped", "loopback"}

    used, host = run.device, run.measured
    assert (
        used is not None
        and host is not None
        and (used.name, used.n_threads, used.memory_bytes)
        == (
            "loopback",
            1,
            None,
        )
    )
    assert used.rss_anon_bytes is not None and used.idle_rss_anon_bytes is not None
    held = on_device(run, "model") + on_device(run, "kv")
    grown = used.rss_anon_bytes - used.idle_rss_anon_bytes
    assert held <= grown <= held + on_device(run, "compute") + 8 * MiB
    assert used.peak_rss_bytes is not None and used.rss_file_bytes is not None
    assert used.peak_rss_bytes >= used.rss_anon_bytes
    stays = run.buffer_bytes(kind="model", device="CPU_Mapped")
    assert host.rss_file_bytes is not None and stays <= host.rss_file_bytes <= stays + 40 * MiB

    decode = run.phase("decode")
    assert decode is not None and decode.device_rss_anon_bytes == used.rss_anon_bytes
    assert any(sample.device_rss_anon_bytes for sample in run.samples)
    assert Run.from_json(run.to_json()) == run


@pytest.mark.parametrize(("n_gpu_layers", "model_mib", "kv_mib"), [(4, 316.57, 6), (17, 762.81, 32)])
def test_llama_3_2_1b(
    n_gpu_layers: int, model_mib: float, kv_mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    options = {**ON_IT, "n_ctx": 1024, "n_ubatch": 64}
    run = measure("llama-3.2-1b:Q4_K_M", n_gpu_layers=n_gpu_layers, **options)
    if run.outcome == "refused" and "are available" in run.reason:
        pytest.skip(run.reason)
    assert run.ok, run.reason
    assert on_device(run, "model") == pytest.approx(model_mib * MiB, abs=LOG_RESOLUTION_BYTES)
    header = gguf.read_header(tmp_path / "forged" / "llama-3.2-1b-Q4_K_M.gguf")
    assert on_device(run, "model") == pytest.approx(offloaded(header, n_gpu_layers), abs=LOG_RESOLUTION_BYTES + 4096)
    assert on_device(run, "kv") == kv_mib * MiB


def test_the_cache_can_stay(forged: Path) -> None:
    run = measure(forged, n_gpu_layers=3, offload_kqv=False, **ON_IT)
    assert run.ok and on_device(run, "kv") == 0
    assert run.buffer_bytes(kind="kv", device="CPU") == pytest.approx(run.predicted.kv_bytes, abs=LOG_RESOLUTION_BYTES)
    assert on_device(run, "model") > 0


def test_the_model_writes_the_same_text_there() -> None:
    asked: dict[str, Any] = {"prompt": "What is the capital of France?", "tokens": 6, "n_threads": 1}
    here, there = measure("smollm2", **asked), measure("smollm2", n_gpu_layers=31, devices=("loopback",), **asked)
    assert here.ok and there.ok and here.device is None
    assert here.text == there.text and "Paris" in there.text


def test_layers_are_timed_on_both_sides(forged: Path) -> None:
    run = measure(forged, n_gpu_layers=2, layers=True, **ON_IT)
    assert run.ok, run.reason
    assert [(step.token, step.layer) for step in run.layers] == [(0, 0), (0, 1), (1, 0), (1, 1)]


# Its memory


def test_it_refuses_what_it_has_no_room_for(forged: Path) -> None:
    whole = measure(forged, n_gpu_layers=3, **ON_IT)
    parts = [on_device(whole, kind) for kind in ("model", "kv", "compute")]
    assert whole.ok and min(parts) > 2 * LOG_RESOLUTION_BYTES
    slack = len(parts) * LOG_RESOLUTION_BYTES
    fits = measure(forged, n_gpu_layers=3, device_memory=sum(parts) + slack, **ON_IT)
    assert (fits.outcome, fits.reason) == ("ok", "")
    assert fits.device is not None and fits.device.memory_bytes == sum(parts) + slack
    for n, what in ((1, "cannot load small.gguf"), (2, "cannot make this context"), (3, "cannot make this context")):
        run = measure(forged, n_gpu_layers=3, device_memory=sum(parts[:n]) - slack, **ON_IT)
        assert run.outcome == "load-failed" and run.reason.startswith(f"llama.cpp {what}: loopback (")
        assert "has no room for a buffer of " in run.reason and "lower n_gpu_layers" in run.reason
        assert "\n" not in run.reason and "127.0.0.1" not in run.reason


def test_less_than_a_layer_is_one_sentence_too(forged: Path) -> None:
    run = measure(forged, n_gpu_layers=1, device_memory=1, **ON_IT)
    assert run.outcome == "load-failed" and "loopback (1 B) has no room for a buffer of " in run.reason


CLIENT = """
import ctypes, sys
from labkit import engine
from labkit.engine import bindings
import labkit.engine.devices
devices = sys.modules["labkit.engine.devices"]
bindings.llama()
remote = devices._remote_device(sys.argv[1])
base = engine.library("ggml-base")
free, total = ctypes.c_size_t(), ctypes.c_size_t()
pointer, size = ctypes.c_void_p, ctypes.c_size_t
base.ggml_backend_dev_memory.argtypes = [pointer, ctypes.POINTER(size), ctypes.POINTER(size)]
base.ggml_backend_dev_buffer_type.restype = base.ggml_backend_buft_alloc_buffer.restype = pointer
base.ggml_backend_dev_buffer_type.argtypes = [pointer]
base.ggml_backend_buft_alloc_buffer.argtypes = [pointer, size]
base.ggml_backend_buffer_free.argtypes = [pointer]
kind = base.ggml_backend_dev_buffer_type(remote)
def left():
    base.ggml_backend_dev_memory(remote, ctypes.byref(free), ctypes.byref(total))
    return free.value
print(left(), total.value)
for wanted in (600, 500, 400, 1):
    if wanted == 500:
        assert not base.ggml_backend_buft_alloc_buffer(kind, 500)
        continue
    last = base.ggml_backend_buft_alloc_buffer(kind, wanted)
    print(bool(last), left())
    if wanted == 400:
        base.ggml_backend_buffer_free(last)
        print(left())
"""


def test_it_counts_to_the_byte() -> None:
    with Loopback(memory=1000) as running:
        for _ in range(2):  # what a client leaves behind is freed when it disconnects
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, running.endpoint], capture_output=True, text=True, timeout=300
            )
            assert " ".join(done.stdout.split()) == "1000 1000 True 400 True 0 400 True 399", done.stderr


def test_a_device_that_could_exhaust_the_machine_is_refused(forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine()
    monkeypatch.setattr("labkit.experiments.measure.machine", lambda: replace(here, available_bytes=80 * MiB))
    large = {**ON_IT, "n_ctx": 16384}
    run = measure(forged, n_gpu_layers=3, **large)
    assert run.outcome == "refused" and "fewer layers on the loopback device" in run.reason
    assert run.device is not None and run.device.rss_anon_bytes is None and "cap of at most" not in run.reason
    small_one = measure(forged, n_gpu_layers=3, device_memory=MiB, **large)
    assert small_one.outcome == "load-failed" and "no room" in small_one.reason
    assert Run.from_json(run.to_json()) == run


# How it can end


def kill_device(with_signal: signal.Signals) -> None:
    """The device is the child that listens."""
    (pid,) = [
        process.pid for process in children() if any(c.status == psutil.CONN_LISTEN for c in process.net_connections())
    ]
    os.kill(pid, with_signal)


@LINUX
@pytest.mark.parametrize("phase", ["load", "decode, token 2", "hold"])
def test_a_killed_device_is_an_outcome(phase: str, forged: Path) -> None:
    options = {**ON_IT, "tokens": 100, "hold_s": 5.0 if phase == "hold" else 0.0}
    run = measure(forged, n_gpu_layers=2, progress=at(phase, lambda: kill_device(signal.SIGKILL)), **options)
    name = phase.partition(",")[0]
    assert (run.outcome, run.reason) == (
        "device-lost",
        f"the loopback device was lost in {name}: it was killed from outside (signal 9), as the kernel does when "
        "memory runs out.",
    )
    assert len(run.timings.decode_ms) == {"load": 0, "hold": 100}.get(name, len(run.timings.decode_ms))
    assert run.device is not None and run.device.idle_rss_anon_bytes
    assert Run.from_json(run.to_json()) == run


@LINUX
def test_a_device_that_crashes_is_an_outcome(forged: Path) -> None:
    crash = at("decode", lambda: kill_device(signal.SIGSEGV))
    run = measure(forged, n_gpu_layers=3, progress=crash, **{**ON_IT, "tokens": 100})
    assert run.outcome == "device-lost" and run.reason.endswith("it ended with status -11.")


@LINUX
def test_a_device_that_hangs_is_timed_out(forged: Path) -> None:
    stop = at("decode", lambda: kill_device(signal.SIGSTOP))
    run = measure(forged, n_gpu_layers=3, timeout_s=4, progress=stop, **{**ON_IT, "tokens": 100})
    assert run.outcome == "timed-out" and "in decode" in run.reason


@LINUX
def test_a_killed_host_leaves_no_device(forged: Path) -> None:
    def kill() -> None:
        (pid,) = [c.pid for c in children() if not any(x.status == psutil.CONN_LISTEN for x in c.net_connections())]
        os.kill(pid, signal.SIGKILL)

    run = measure(forged, n_gpu_layers=3, progress=at("decode", kill), **{**ON_IT, "tokens": 100})
    assert run.outcome == "interrupted" and "something outside killed it in decode" in run.reason


def test_cancelling_ends_both(forged: Path) -> None:
    cancel = threading.Event()
    run = measure(forged, n_gpu_layers=3, cancel=cancel, progress=at("hold", cancel.set), hold_s=600, **ON_IT)
    assert run.outcome == "interrupted"


# The command line


def test_the_command_line(forged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"measure {forged} --device loopback --ngl 3 --vram 1GiB --ctx 256 --threads 1 --tokens 2"
    assert cli.main([*command.split(), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["device"]["name"] == "loopback" and values["device"]["memory_bytes"] == 1 << 30
    assert {"rss_anon_bytes", "rss_file_bytes", "peak_rss_bytes", "idle_rss_anon_bytes"} <= set(values["device"])
    assert "device_rss_anon_bytes" in values["samples"][0] and values["measured"]["rss_file_bytes"] != 0
    assert cli.main(command.split()) == 0
    out = capsys.readouterr().out
    assert "loopback, anonymous" in out and "(it has 1.00 GiB)" in out and "loopback model" in out
    assert cli.main(command.replace("1GiB", "1MiB").split()) == 1
    assert "loopback (1.00 MiB) has no room for a buffer of" in capsys.readouterr().out
