"""Measurements in a child process: every way to load, every way to end, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import CAPPED, LINUX, LOCKS, SOAK, at, children
from support.small import small, write

from labkit.experiments.child.measurement import Job
from labkit.experiments.child.process import Child
from labkit.experiments.measure import Interrupted, measure
from labkit.experiments.run import Run
from labkit.models.forge import forge
from labkit.settings import LOAD_MODES
from labkit.system import caps
from labkit.system._os import cgroup
from labkit.system.machine import machine
from labkit.units import KiB, MiB, fmt_bytes

PHASES = ["start", "load", "context", "prefill", "decode"]
CAP = 72 * MiB  # room for Python and its libraries
GREEDY = {"n_ctx": 1 << 20}  # a cache of 1 GiB for the tiny model
pytestmark = [pytest.mark.live, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(small(), "Q4_0", path=tmp_path_factory.mktemp("experiment") / "small.gguf").path


def child() -> psutil.Process:
    (found,) = children()
    return found


def again(run: Run) -> None:
    """The run survives JSON unchanged, and its JSON has the contract's fields."""
    text = run.to_json()
    assert Run.from_json(text) == run
    values = json.loads(text)
    assert {"schema", "model", "settings", "outcome", "reason", "predicted", "measured", "buffers"} <= set(values)
    assert {"timings", "samples", "machine", "recorded"} <= set(values)
    assert "\n" not in run.reason and len(run.reason) < 300


# Ways to load


@LINUX
@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("load_mode", LOAD_MODES)
@pytest.mark.parametrize("model", ["smollm2", "forged"])
def test_every_way_to_load(model: str, load_mode: str, repack: bool, forged: Path) -> None:
    run = measure(
        forged if model == "forged" else model, tokens=2, load_mode=load_mode, repack=repack, n_threads=1, n_ctx=256
    )
    assert (run.outcome, run.reason) == ("ok", ""), run.reason
    p, m = run.predicted, run.measured
    assert m is not None and m.locked_bytes is not None
    devices = {buffer.device for buffer in run.buffers if buffer.kind == "model"}
    in_place = "CPU_Mapped" if load_mode in ("auto", "mmap", "mmap+mlock") else "CPU"
    assert devices == {in_place} | ({"CPU_REPACK"} if p.repack_bytes else set())
    assert {buffer.kind for buffer in run.buffers} == {"model", "kv", "compute", "output"}
    lockable = machine().lockable_bytes or 0
    if p.locked_bytes <= lockable:
        assert m.locked_bytes == pytest.approx(p.locked_bytes, abs=4 * 4096)
    else:
        assert m.locked_bytes < p.locked_bytes
    assert [phase.name for phase in run.phases] == PHASES
    assert len(run.timings.decode_ms) == 2 and min(run.timings.decode_ms) > 0
    again(run)


@LINUX
def test_samples_and_phases_agree(forged: Path) -> None:
    run = measure(forged, tokens=3, hold_s=0.3, n_threads=1)
    m = run.measured
    assert run.ok and m is not None and m.peak_rss_bytes is not None
    assert [phase.name for phase in run.phases] == [*PHASES, "hold"]
    ends = [edge for phase in run.phases for edge in (phase.start_s, phase.end_s)]
    assert ends == sorted(ends) and ends[0] >= 0
    times = [sample.t_s for sample in run.samples]
    assert times == sorted(times) and len(times) > 5
    looks = [*run.samples, *run.phases]
    for counter in ("minor_faults", "major_faults", "read_bytes"):
        for rows in (run.samples, run.phases):
            values = [getattr(row, counter) for row in rows if row.rss_anon_bytes is not None]
            assert values == sorted(values), counter
    totals = [look.rss_anon_bytes + look.rss_file_bytes for look in looks if look.rss_anon_bytes is not None]
    assert m.peak_rss_bytes == max(totals)
    hold = run.phase("hold")
    assert hold is not None and (m.rss_anon_bytes, m.rss_file_bytes) == (hold.rss_anon_bytes, hold.rss_file_bytes)
    assert hold.pss_bytes is not None and m.rss_anon_bytes <= hold.pss_bytes
    t = run.timings
    assert t.load_s is not None and t.context_s is not None and t.prefill_s is not None
    assert sorted(t.decode_ms)[1] == m.decode_ms
    assert run.phase("nonsense") is None
    assert run.buffer_bytes(kind="model") == sum(b.bytes for b in run.buffers if b.kind == "model")
    assert run.buffer_bytes(kind="model", device="CPU_Mapped") < run.buffer_bytes(kind="model")
    assert "small.gguf, mmap: ok" in repr(run)


def test_generated_text_is_handed_on_as_it_comes() -> None:
    heard: list[str] = []
    run = measure("smollm2", prompt="What is the capital of France?", tokens=8, on_text=heard.append, n_threads=1)
    assert run.ok and len(heard) > 1
    assert "".join(heard) == run.text and "Paris" in run.text
    assert len(run.timings.decode_ms) == len(heard)
    again(run)


def test_the_parent_never_imports_the_engine(tiny: Path) -> None:
    code = (
        "import sys; from labkit.experiments.measure import measure\n"
        "print(measure(sys.argv[1], tokens=1).outcome, 'llama_cpp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny], capture_output=True, text=True, timeout=300)
    assert done.stdout == "ok False\n", done.stderr


@LINUX
def test_the_child_is_the_first_to_be_killed(tiny: Path) -> None:
    scores: list[str] = []
    look = at("hold", lambda: scores.append(Path(f"/proc/{child().pid}/oom_score_adj").read_text()))
    assert measure(tiny, tokens=0, hold_s=0.2, progress=look).ok
    assert scores == ["1000\n"]


@pytest.mark.parametrize("name", ["path", "SHAPE:QUANT"])
def test_progress_rises_to_one(name: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    seen: list[tuple[float, str]] = []
    run = measure(
        tiny if name == "path" else "smollm2-135m:Q4_0",
        tokens=3,
        hold_s=0.01,
        progress=lambda fraction, text: seen.append((fraction, text)),
    )
    assert run.ok
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions) and fractions[0] >= 0 and fractions[-1] == 1.0
    assert {"load", "context", "prefill", "hold", "ok", "decode, token 3 of 3"} <= {text for _, text in seen}


def test_it_works_from_another_thread(tiny: Path) -> None:
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(measure(tiny, tokens=1)))
    thread.start()
    thread.join()
    assert runs[0].ok


# Layers and cold pages


@LINUX
def test_each_layer_of_each_token_is_noted(forged: Path) -> None:
    run = measure(forged, tokens=3, layers=True, n_threads=1)
    assert run.ok
    assert [(step.token, step.layer) for step in run.layers] == [(t, n) for t in range(3) for n in range(2)]
    for token, ms in enumerate(run.timings.decode_ms):
        assert 0 < sum(step.ms for step in run.layers if step.token == token) <= ms
    again(run)


@LINUX
def test_evicted_pages_are_read_again(filled: Path) -> None:
    runs = {
        evict: measure(filled, tokens=2, layers=True, evict=evict, repack=False, n_threads=1)
        for evict in (None, "readahead")
    }
    for run in runs.values():
        assert run.ok and len(run.layers) == 4 * 2
    warm, cold = (sum(step.read_bytes for step in run.layers) for run in runs.values())
    layers = sum(t.nbytes for t in _header(filled).tensors if t.name.startswith("blk."))
    assert warm < cold
    assert cold > layers, "both tokens read every layer; readahead may take more, never less than one round"


@LINUX
def test_without_readahead_every_page_is_a_major_fault(filled: Path) -> None:
    runs = {
        evict: measure(filled, tokens=1, layers=True, evict=evict, repack=False, n_threads=1)
        for evict in ("random", "readahead")
    }
    faults = {evict: sum(step.major_faults for step in run.layers) for evict, run in runs.items()}
    layers = sum(t.nbytes for t in _header(filled).tensors if t.name.startswith("blk."))
    assert faults["random"] > 0.9 * layers / 4096
    assert faults["random"] > 5 * faults["readahead"]


def _header(path: Path) -> Any:
    from labkit.gguf import read_header

    return read_header(path)


# Refusals


def with_available(monkeypatch: pytest.MonkeyPatch, at_start: int, *later: int) -> None:
    """So much memory is available at the start, and at each look afterwards."""
    here, looks = machine(), list(later or [at_start])
    monkeypatch.setattr("labkit.experiments.measure.machine", lambda: replace(here, available_bytes=at_start))
    monkeypatch.setattr(
        "labkit.experiments.watch.available_bytes", lambda: looks.pop(0) if len(looks) > 1 else looks[0]
    )


def test_a_run_that_could_exhaust_the_machine_is_refused(forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_available(monkeypatch, 300 * MiB)
    run = measure(forged, load_mode="none", n_ctx=65536)
    assert (run.outcome, run.measured, run.samples, run.phases) == ("refused", None, (), ())
    need = run.predicted.anon_floor_bytes
    assert need > 0.8 * 300 * MiB
    assert run.reason.startswith(f"it would need {fmt_bytes(need)} that the kernel cannot take back, and 300 MiB are")
    assert run.reason.endswith("under a cap of at most 240 MiB.")
    again(run)
    assert "refused" in repr(run)
    with_available(monkeypatch, int(need / 0.8) + MiB)
    assert measure(forged, load_mode="none", n_ctx=65536, tokens=0).ok
    with_available(monkeypatch, int(need / 0.8) - MiB)
    assert measure(forged, load_mode="none", n_ctx=65536, tokens=0).outcome == "refused"


def test_locked_pages_count_as_memory_that_cannot_be_taken_back(forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = measure(forged, tokens=0, n_ctx=256).predicted
    with_available(monkeypatch, int((mapped.anon_floor_bytes + mapped.mapped_bytes // 2) / 0.8))
    assert measure(forged, tokens=0, n_ctx=256).ok
    assert measure(forged, tokens=0, n_ctx=256, load_mode="mmap+mlock").outcome == "refused"
    read = measure(forged, tokens=0, n_ctx=256, load_mode="none").predicted.anon_floor_bytes
    with_available(monkeypatch, int(read / 0.8) + MiB)
    assert measure(forged, tokens=0, n_ctx=256, load_mode="mlock").outcome != "refused", "locked heap counts once"


@CAPPED
def test_a_cap_makes_a_large_run_safe(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_available(monkeypatch, 300 * MiB)
    assert measure(tiny, **GREEDY).outcome == "refused"
    assert measure(tiny, cap=CAP, **GREEDY).outcome == "oom-killed"


def test_a_run_is_stopped_when_the_machine_runs_short(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_available(monkeypatch, 1000 * MiB, 1000 * MiB, 101 * MiB, 99 * MiB)
    run = measure(tiny, tokens=0, hold_s=600)
    assert run.outcome == "interrupted" and run.reason.startswith("only 99.0 MiB of memory was left on this machine")


def test_without_caps_a_capped_run_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_NO_CAPS", "1")
    run = measure(tiny, cap="1GiB")
    assert run.outcome == "refused"
    assert run.reason == "no memory cap is possible here: memory caps are switched off by LABKIT_NO_CAPS"
    assert (run.cap_bytes, run.cap_how) == (1 << 30, None)
    again(run)


# Under a cap


@CAPPED
def test_pages_of_a_file_are_reclaimed_under_a_cap(filled: Path) -> None:
    run = measure(filled, cap="100 MiB", tokens=3, repack=False, n_ctx=256, n_ubatch=32, n_threads=1)
    assert (run.outcome, run.reason, run.caution) == ("ok", "", "")
    assert (run.cap_bytes, run.cap_how) == (100 * MiB, caps.available().how)
    m = run.measured
    assert m is not None and run.model.file_bytes > 90 * MiB
    assert m.cap_oom_kills in (0, None)
    assert m.rss_anon_bytes is not None and m.rss_file_bytes is not None
    libraries = 24 * MiB  # charged to whoever read them first
    assert m.rss_anon_bytes + m.rss_file_bytes < 100 * MiB + libraries
    assert m.cap_peak_bytes is None or m.cap_peak_bytes <= 100 * MiB
    assert m.major_faults and m.read_bytes and m.read_bytes > run.model.file_bytes
    again(run)


@CAPPED
@pytest.mark.parametrize("load_mode", ["none", "mlock", pytest.param("mmap+mlock", marks=LOCKS)])
def test_a_run_whose_memory_cannot_be_reclaimed_is_killed(load_mode: str, filled: Path) -> None:
    run = measure(filled, cap=100 * MiB, load_mode=load_mode, repack=False)
    assert run.outcome == "oom-killed"
    assert run.reason == "the kernel killed it in load: its cap of 100 MiB is too small."
    assert run.measured is not None and run.measured.decode_ms is None
    assert run.timings.load_s is None and not run.timings.decode_ms
    assert run.measured.cap_oom_kills in (1, None)
    again(run)


@CAPPED
@LOCKS
def test_a_cache_that_does_not_fit_beside_a_locked_model_is_killed(filled: Path) -> None:
    """The model is locked and fits; the cache that comes after it does not."""
    run = measure(filled, cap=220 * MiB, load_mode="mmap+mlock", repack=False, n_ctx=65536)
    assert run.outcome == "oom-killed" and "killed it in context" in run.reason
    assert [phase.name for phase in run.phases] == ["start", "load"]


@CAPPED
@LINUX
def test_many_kills_in_a_row_leave_nothing(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = sorted(os.listdir(tiny.parent))
    before: tuple[int, int] | None = None
    for _ in range(SOAK):
        run = measure(tiny, cap=CAP, n_threads=1, **GREEDY)
        assert run.outcome == "oom-killed" and run.reason.startswith("the kernel killed it in context"), run.reason
        now = (psutil.Process().num_fds(), threading.active_count())
        before = before or now
        assert now == before and children() == []
    again(run)
    assert os.listdir(tmp_path) == [] and sorted(os.listdir(tiny.parent)) == folder
    assert measure(tiny, tokens=1).ok


@CAPPED
def test_a_cap_too_small_to_start_is_still_a_result(tiny: Path) -> None:
    run = measure(tiny, cap=2 * MiB)
    assert run.outcome == "oom-killed" and "killed it in start" in run.reason
    again(run)


@CAPPED
def test_pages_that_another_process_holds_are_mentioned(smollm2_path: Path) -> None:
    import mmap

    with open(smollm2_path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        sum(mapped[i] for i in range(0, len(mapped), 4096))
        run = measure("smollm2", cap="400MiB", tokens=1, n_threads=1)
    assert run.ok and run.caution.startswith("9") and "stayed in the page cache" in run.caution
    again(run)


# Ways to end


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("cap", [None, pytest.param("1GiB", marks=CAPPED)])
def test_a_kill_from_outside_is_told_from_the_kernels(
    cap: str | None, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "labkit.system.probe.system_oom_kills", lambda: 7
    )  # of the whole machine: other tests may be killed, too
    run = measure(tiny, tokens=1, hold_s=600, cap=cap, progress=at("hold", lambda: child().kill()))
    assert run.outcome == "interrupted"
    assert run.reason == "something outside killed it in hold (signal 9)."
    assert run.measured is not None and run.measured.decode_ms is not None
    assert [phase.name for phase in run.phases] == PHASES
    again(run)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_another_signal_is_a_failure_with_its_number(tiny: Path) -> None:
    run = measure(
        tiny, tokens=1, hold_s=600, progress=at("hold", lambda: child().send_signal(signal.SIGSEGV)), n_threads=1
    )
    assert run.outcome == "load-failed" and run.reason.startswith("the engine ended in hold with status -11: ")


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_an_abort_of_the_engine_is_reported_in_its_own_words(tmp_path: Path) -> None:
    shape = small("mixtral-8x7b", embedding_length=1024, attention_head_count=8, feed_forward_length=256)
    path = tmp_path / "x.gguf"
    write(path, shape, "Q4_0", llama__expert_used_count=9)
    run = measure(path)
    assert run.outcome == "load-failed"
    assert run.reason.startswith("the engine ended in load with status -6: llama-model.cpp:")
    assert "GGML_ASSERT" in run.reason and "n_expert" in run.reason
    again(run)


class Saboteur(Child):
    """Spoils the model between the parent's look at it and the child's start."""

    spoil: Callable[[Path], None]

    def __init__(self, function: str, job: dict[str, Any], **options: Any) -> None:
        Saboteur.spoil(Path(job["path"]))
        super().__init__(function, job, **options)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (Path.unlink, "llama.cpp cannot load x.gguf: "),
        (lambda path: os.truncate(path, 64 * KiB), "llama.cpp cannot load x.gguf: "),
        (lambda path: path.write_bytes(b"GGUF" * 1000), "llama.cpp cannot load x.gguf: "),
    ],
    ids=["deleted", "cut", "overwritten"],
)
def test_a_model_spoiled_under_way(
    spoil: Callable[[Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = forge(small(), "Q4_0", path=tmp_path / "x.gguf").path
    monkeypatch.setattr(Saboteur, "spoil", staticmethod(spoil), raising=False)
    monkeypatch.setattr("labkit.experiments.measure.Child", Saboteur)
    run = measure(path)
    assert run.outcome == "load-failed" and run.reason.startswith(said)
    assert run.reason.endswith(".") and "no reason" not in run.reason
    again(run)


@LINUX
def test_a_model_cut_while_it_is_mapped(tmp_path: Path) -> None:
    path = forge(small(), "Q4_0", path=tmp_path / "x.gguf").path
    run = measure(path, tokens=400, repack=False, progress=at("decode", lambda: os.truncate(path, 64 * KiB)))
    assert run.outcome == "load-failed"
    assert run.reason.startswith(f"the engine ended in decode with status -{signal.SIGBUS.value}: ")


def test_a_model_deleted_while_it_is_mapped_is_still_read(tmp_path: Path) -> None:
    path = forge(small(), "Q4_0", path=tmp_path / "x.gguf").path
    assert measure(path, tokens=3, progress=at("decode", path.unlink)).ok


def test_a_text_for_a_forged_model_is_refused_by_the_engine(tiny: Path) -> None:
    run = measure(tiny, prompt="hello")
    assert run.outcome == "load-failed"
    assert run.reason == "this model is forged and has no vocabulary: give token ids, not text."


def test_it_gives_up_after_a_while(tiny: Path) -> None:
    start = time.monotonic()
    run = measure(tiny, tokens=1, hold_s=600, timeout_s=1.5, sample_hz=0.05)
    assert run.outcome == "timed-out"
    assert re.fullmatch(r"it was still in \w+ after 2 s; raise timeout_s to wait longer\.", run.reason)
    assert time.monotonic() - start < 50, "a low sampling rate must not delay it"
    again(run)


def test_it_can_be_cancelled(tiny: Path) -> None:
    cancel = threading.Event()
    start = time.monotonic()
    run = measure(tiny, tokens=1, hold_s=600, sample_hz=0.05, cancel=cancel, progress=at("hold", cancel.set))
    assert (run.outcome, run.reason) == ("interrupted", "it was cancelled.")
    assert run.measured is not None and run.measured.decode_ms is not None
    assert time.monotonic() - start < 50


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("cap", [None, pytest.param("1GiB", marks=CAPPED)])
def test_ctrl_c_ends_it_and_keeps_what_there_was(cap: str | None, tiny: Path) -> None:
    with pytest.raises(Interrupted) as stopped:
        measure(tiny, tokens=2, hold_s=600, cap=cap, progress=at("hold", lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert isinstance(stopped.value, KeyboardInterrupt)
    run = stopped.value.run
    assert (run.outcome, run.reason) == ("interrupted", "it was stopped from the keyboard.")
    assert len(run.timings.decode_ms) == 2 and run.phase("decode") is not None
    again(run)


@pytest.mark.parametrize("cap", [None, pytest.param("1GiB", marks=CAPPED)])
def test_an_error_of_a_callback_ends_it_too(cap: str | None, tiny: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure(tiny, tokens=1, hold_s=600, cap=cap, progress=at("hold", fail))


HOLD = """
import os, sys
from labkit.experiments.measure import measure
from psutil import Process
def progress(fraction, text):
    if text == "hold":
        print(Process().children()[0].pid, flush=True)
measure(sys.argv[1], tokens=1, hold_s=600, progress=progress, cap=sys.argv[2] if len(sys.argv) > 2 else None)
"""


@LINUX
@pytest.mark.parametrize("cap", [None, pytest.param("1GiB", marks=CAPPED)])
def test_the_child_ends_with_its_parent(cap: str | None, tiny: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tiny), *([cap] if cap else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([orphan], timeout=60)
    assert alive == []
    base = caps.available().base
    if cap and base:
        with caps.Cap(1 << 30):  # making the next one sweeps what the dead left
            assert not [group for group in os.listdir(base) if group.startswith(f"labkit-{parent.pid}-")]


def test_the_end_of_its_input_ends_the_child(tiny: Path) -> None:
    """Where the kernel does not tell a child that its parent died, the closed pipe does."""
    job = Job(path=str(tiny), settings={}, tokens=1, prompt_tokens=1, hold_s=600)
    request = {"function": "labkit.experiments.child.measurement:in_child", "job": job.to_dict()}
    command = [sys.executable, "-m", "labkit.experiments.child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if json.loads(line).get("phase") == "hold":
                break
        process.stdin.close()
        assert process.wait(timeout=60) == 3


def test_half_an_event_is_no_event() -> None:
    """A child that is killed while it writes leaves half a line."""
    talk = 'print(\'{"event": "begin"}\'); print(\'{"event": "tok\', end="")'
    with Child("", {}, wrap=lambda command: [sys.executable, "-c", talk]) as process:
        assert process.events.get(timeout=60) == {"event": "begin"}
        assert process.events.get(timeout=60) is None
        assert process.wait() == 0
    assert process.last_stderr_line() == '{"event": "tok'


def test_layers_that_no_device_takes_are_mentioned(tiny: Path) -> None:
    run = measure(tiny, tokens=1, n_gpu_layers=2, n_threads=1)
    if not all(buffer.device.startswith("CPU") for buffer in run.buffers):
        pytest.skip("this build has a device that takes the layers")
    assert run.ok and run.caution.startswith("n_gpu_layers=2 had no effect, since there is no device for them")
    assert not measure(tiny, tokens=1, n_threads=1).caution


def test_a_run_on_a_named_device_is_predicted_for_the_host_alone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure(tiny, tokens=1, n_threads=1, repack=False).predicted
    monkeypatch.setattr("labkit.experiments.measure.version_problem", lambda: "enough.")  # there is no such device here
    gone = measure(tiny, devices=("CUDA0",), n_gpu_layers=99, repack=False)
    assert (gone.outcome, gone.reason) == ("refused", "enough.") and gone.device is None
    assert gone.predicted.kv_bytes == 0 < whole.kv_bytes
    assert gone.predicted.anon_floor_bytes < whole.anon_floor_bytes and gone.predicted.mapped_bytes < whole.mapped_bytes
    assert measure(tiny, devices=("CUDA0",), n_gpu_layers=0, repack=False).predicted.kv_bytes == whole.kv_bytes


# CPU quota


def limited_group(parent: cgroup.Group) -> Path | None:
    """A new control group whose processes may use the time of one core; None where it cannot be made."""
    folder = parent.path / f"labkit-quota-{os.getpid()}"
    name, quota = ("cpu.max", "100000 100000") if parent.version == 2 else ("cpu.cfs_quota_us", "100000")
    with contextlib.suppress(OSError):
        folder.mkdir()
        try:
            with open(folder / name, "r+") as file:  # an absent file means that this hierarchy has no such control
                file.write(quota)
            return folder
        except OSError:
            folder.rmdir()
    return None


@pytest.fixture
def one_core() -> Iterator[Path]:
    """A control group of version 1 or 2 whose processes may use the time of one core."""
    folder = next(filter(None, map(limited_group, cgroup.groups("cpu"))), None)
    if folder is None:
        pytest.skip("no CPU quota can be set here: it takes a control group in which this user may make another")
    yield folder
    folder.rmdir()


THREADS = """
import sys, psutil
from labkit.experiments.measure import measure
def progress(fraction, text):
    if text == "hold":
        print(psutil.Process().children()[0].num_threads())
settings = {"n_threads": int(sys.argv[2])} if len(sys.argv) > 2 else {}
run = measure(sys.argv[1], tokens=2, hold_s=0.1, progress=progress, **settings)
print(run.outcome, run.settings.n_threads)
"""


def threads(tiny: Path, *n_threads: int, group: Path | None = None) -> tuple[int, str]:
    """How many threads the child has after decoding, and how the run ended; in a process of its own, in a group."""
    command = [sys.executable, "-c", THREADS, str(tiny), *map(str, n_threads)]
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    count, _, ended = done.stdout.partition("\n")
    assert count, done.stderr
    return int(count), ended.strip()


@LINUX
def test_under_a_quota_of_one_core_one_thread_computes(tiny: Path, one_core: Path) -> None:
    one, two = (threads(tiny, n) for n in (1, 2))
    assert (one[1], two) == ("ok 1", (one[0] + 1, "ok 2"))
    assert threads(tiny, group=one_core) == (one[0], "ok None")
