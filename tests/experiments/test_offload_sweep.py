"""The sweep over n_gpu_layers: rounds, calibration and error on made-up times, and once for real."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.full_run import RUN
from support.small import small

from labkit.experiments import device
from labkit.experiments import offload_sweep as offloadsweep
from labkit.experiments.offload_sweep import OffloadPoint, offload_sweep
from labkit.experiments.run import Run, Timings
from labkit.gguf import read_header
from labkit.models.forge import forge, header_bytes
from labkit.predict.offload import offload
from labkit.predict.offload_speed import Speeds, offload_ms
from labkit.settings import Settings, SettingsError

MODEL = "llama-3.2-1b:Q4_K_M"
HEADER = read_header(header_bytes("llama-3.2-1b", "Q4_K_M"))
SPEEDS = Speeds(20e9, 100e9)


def run(ms: tuple[float, ...], outcome: str = "ok") -> Run:
    return Run(RUN.model, Settings(), outcome, "", RUN.predicted, timings=Timings(decode_ms=ms))


class Machine:
    """Stands for ``measure``: each token takes what ``SPEEDS`` say, now and then much longer."""

    def __init__(self, outcome: str = "ok") -> None:
        self.asked: list[int] = []
        self.outcome = outcome

    def __call__(self, model: str, **how: Any) -> Run:
        n = how["n_gpu_layers"]
        assert how["devices"] == ("loopback",) and how["n_ctx"] == 1024
        self.asked.append(n)
        ms = offload_ms(offload(HEADER, Settings(n_gpu_layers=n)), SPEEDS)
        return replace(run((ms, ms * 1.01, 9 * ms), self.outcome), settings=Settings(n_gpu_layers=n, n_ctx=1024))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(offloadsweep, "measure", found)
    monkeypatch.setattr(offloadsweep, "problem", lambda: None)
    monkeypatch.setattr(offloadsweep, "cpu_features", lambda: None)
    return found


def test_rounds_go_back_and_forth(fast: Machine) -> None:
    sweep = offload_sweep(MODEL, layers=[17, 0, 8], rounds=3, n_ctx=1024)
    assert fast.asked == [0, 8, 17, 17, 8, 0, 0, 8, 17]
    assert [point.n_gpu_layers for point in sweep.points] == [0, 8, 17]
    assert all(len(point.runs) == 3 and len(point.decode_ms) == 9 for point in sweep.points)


def test_the_prediction_is_made_from_both_ends_and_hits_the_rest(fast: Machine) -> None:
    sweep = offload_sweep(MODEL, layers=[0, 4, 8, 17], n_ctx=1024)
    assert [point.calibrates for point in sweep.points] == [True, False, False, True]
    assert sweep.speeds is not None and sweep.speeds.host_bytes_per_s == pytest.approx(20e9, rel=0.02)
    assert sweep.error is not None and sweep.error < 1e-6
    assert all(point.predicted_ms == pytest.approx(point.typical_ms) for point in sweep.points)


def test_a_slow_token_does_not_count() -> None:
    point = OffloadPoint(offload(HEADER, Settings()), (run((10.0, 11.0, 90.0)), run((500.0,), "timed-out")))
    assert point.decode_ms == (10.0, 11.0, 90.0) and point.typical_ms == 10.5
    assert OffloadPoint(point.split, ()).typical_ms is None


def test_without_both_ends_nothing_is_predicted(fast: Machine) -> None:
    for layers in ([4, 17], [0, 8]):  # not all on the host, not all on the device
        sweep = offload_sweep(MODEL, layers=layers, rounds=1, n_ctx=1024)
        assert sweep.speeds is None and sweep.error is None
        assert all(point.predicted_ms is None for point in sweep.points)


def test_a_refusal_ends_the_sweep(fast: Machine) -> None:
    fast.outcome = "refused"
    sweep = offload_sweep(MODEL, layers=[0, 8, 17], n_ctx=1024)
    assert fast.asked == [0] and sweep.speeds is None
    assert sweep.points[0].runs[0].outcome == "refused" and not sweep.points[1].runs
    # What did not run is told for the same settings.
    same = Settings(n_gpu_layers=8, n_ctx=1024)
    assert sweep.points[1].split == offload(HEADER, same) != offload(HEADER, Settings(n_gpu_layers=8))


def test_no_layers_are_refused(fast: Machine) -> None:
    with pytest.raises(SettingsError, match=r"^layers is empty: give at least one n_gpu_layers\.$"):
        offload_sweep(MODEL, layers=[])


def test_pages_are_this_machines(fast: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloadsweep, "machine", lambda: SimpleNamespace(page_bytes=16384))
    [point] = offload_sweep(MODEL, layers=[8], rounds=1, n_ctx=1024).points
    assert point.split == offload(HEADER, Settings(n_gpu_layers=8, n_ctx=1024), page_bytes=16384)
    assert point.split.host.mapped_bytes % 16384 == 0


def test_cancelling_keeps_what_there_is(fast: Machine) -> None:
    cancel = threading.Event()

    def progress(share: float, text: str) -> None:
        if share >= 0.5:
            cancel.set()

    sweep = offload_sweep(MODEL, layers=[0, 17], rounds=2, n_ctx=1024, progress=progress, cancel=cancel)
    assert sum(len(point.runs) for point in sweep.points) == len(fast.asked) == 3


def test_without_rpc_the_recorded_sweep_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloadsweep, "problem", lambda: "this build has no RPC.")
    sweep = offload_sweep(MODEL, layers=[0, 17])
    assert sweep.recorded is not None and sweep.recorded.startswith("recorded on ")
    assert tuple(point.n_gpu_layers for point in sweep.points) == (0, 1, 4, 8, 12, 16, 17)
    assert sweep.speeds is not None and sweep.error is not None and sweep.error < 0.15
    for point in sweep.points:
        [held] = {
            sum(b.bytes for b in run.buffers if (b.device, b.kind) == ("loopback", "model")) for run in point.runs
        }
        assert held == pytest.approx(point.split.devices[0].weights_bytes, abs=16 * 1024)
        assert all(run.recorded and not run.samples for run in point.runs)


@pytest.mark.live
@pytest.mark.skipif(bool(device.problem()), reason=str(device.problem()))
def test_live(tmp_path: Any) -> None:
    made = forge(small("llama-3.2-1b"), "Q4_0", path=tmp_path / "small.gguf")
    sweep = offload_sweep(made.path, layers=[0, 2, 3], rounds=1, tokens=4, n_threads=1)
    assert [point.runs[0].outcome for point in sweep.points] == ["ok"] * 3
    held = []
    for point in sweep.points:
        buffers = point.runs[0].buffers
        held.append(sum(buffer.bytes for buffer in buffers if (buffer.device, buffer.kind) == ("loopback", "model")))
    assert held[0] == 0 < held[1] < held[2]
    assert held[2] == pytest.approx(sweep.points[2].split.devices[0].weights_bytes, abs=16 * 1024)
    assert sweep.speeds is not None
