"""Memory by kind: the parts add up to what was predicted or measured."""

from __future__ import annotations

from dataclasses import replace

from support.lab04 import IDLE, TOUCHED, ran, split
from support.memory_runs import killed, run

from labkit import predict
from labkit.course.figurekit.memory_split import measured_device, measured_split, predicted_sides, predicted_split
from labkit.course.figurekit.style import KINDS
from labkit.experiments.run import DeviceUse
from labkit.units import MiB


def test_predicted_split_adds_up_to_the_predicted_resident_set() -> None:
    split = predicted_split(run())
    assert sum(split.values()) == run().predicted.rss_anon_bytes + run().predicted.rss_file_bytes
    assert split["compute"] == 20 * MiB, "only the touched part of the buffer is resident"


def test_measured_split_adds_up_and_leaves_out_other_devices() -> None:
    split = measured_split(run())
    assert split == {
        "file": 3912 * MiB,
        "heap": 0,
        "repack": 2943 * MiB,
        "kv": 256 * MiB,
        "compute": 24 * MiB,
        "python": 42 * MiB,
    }


def test_measured_split_of_a_run_killed_while_loading_is_weights_on_the_heap() -> None:
    split = measured_split(killed())
    assert split is not None
    assert split["heap"] == (575 - 24) * MiB
    assert split["python"] == 24 * MiB
    assert split["kv"] == split["compute"] == 0


def test_measured_split_without_figures_is_none() -> None:
    assert measured_split(run(outcome="refused", measured=None, samples=(), phases=())) is None
    assert measured_split(run(measured=replace(run().measured, rss_anon_bytes=None))) is None


def test_a_devices_memory_is_shared_out_in_order() -> None:
    at, seen = split(8).devices[0], measured_device(ran(8))
    assert seen == {
        "file": 0,
        "heap": at.weights_bytes,
        "repack": 0,
        "kv": at.kv_bytes,
        "compute": TOUCHED,
        "python": IDLE,
    }
    less = replace(ran(8), device=DeviceUse("loopback", None, 1, idle_rss_anon_bytes=IDLE, rss_anon_bytes=IDLE + MiB))
    assert measured_device(less) == {**dict.fromkeys(KINDS, 0), "heap": MiB, "python": IDLE}
    assert measured_device(replace(ran(8), device=None)) is None


def test_predicted_sides_add_up_to_the_split() -> None:
    at = split(8, n_devices=2)
    assert sum(predicted_sides(at.devices).values()) == sum(side.total_bytes for side in at.devices)
    assert predicted_sides(at.devices)["file"] == 0, "a device's weights are never file-backed"
    assert sum(predicted_sides([at.host]).values()) == at.host.total_bytes
    more = sum(predicted_sides([at.host], process=True).values()) - at.host.total_bytes
    assert more == predict.PYTHON_FILE_BYTES + predict.PYTHON_ANON_BYTES
