"""The device catalogue: units, ranges and sources; what a working set leaves of RAM, against logged figures."""

from __future__ import annotations

import json

import pytest

from labkit.files import data_path
from labkit.predict import hardware
from labkit.units import GiB, MiB

RAW = json.loads(data_path("devices.json").read_text(encoding="utf-8"))
ALL = [hardware.get(name) for name in hardware.names()]
BANDWIDTH = {"discrete": (200e9, 4e12), "unified": (60e9, 1e12), "integrated": (40e9, 150e9), "memory": (10e9, 700e9)}


def test_there_are_devices_of_every_kind() -> None:
    assert len(ALL) >= 20
    assert {device.kind for device in ALL} == set(hardware.KINDS)
    assert sum(device.name.startswith("apple-") for device in ALL) >= 10


@pytest.mark.parametrize("device", ALL, ids=lambda d: d.name)
def test_figures_are_in_bytes_and_plausible(device: hardware.Hardware) -> None:
    low, high = BANDWIDTH[device.kind]
    assert low <= device.bandwidth_bytes_per_s <= high
    for size in (*device.ram_bytes, *([device.vram_bytes] if device.vram_bytes else [])):
        assert size % GiB == 0 and 4 * GiB <= size <= 2048 * GiB
    if device.kind == "discrete":
        assert device.vram_bytes and not device.ram_bytes and device.gpu_bytes() == device.vram_bytes
        assert device.link.startswith("PCIe ") and device.link_bytes_per_s
        assert 7e9 < device.link_bytes_per_s < 70e9 < device.bandwidth_bytes_per_s
    else:
        assert device.vram_bytes is None and device.ram_bytes == tuple(sorted(device.ram_bytes)) and device.ram_bytes
        assert device.link == "shared memory" and device.link_bytes_per_s is None


@pytest.mark.parametrize("device", ALL, ids=lambda d: d.name)
def test_every_figure_has_a_source_and_says_how_it_is_known(device: hardware.Hardware) -> None:
    assert device.source.startswith("https://")
    assert set(device.known) == {"memory", "bandwidth"} | ({"link"} if device.kind == "discrete" else set())
    assert set(device.known.values()) <= set(RAW["known"])
    assert device.checked is None or device.checked.startswith("http")
    if device.known["bandwidth"] == "computed":
        bits, rate = (float(part.split()[0]) for part in device.note.split(";")[0].split("×"))
        assert device.bandwidth_bytes_per_s == pytest.approx(bits / 8 * rate * 1e9, rel=0.01), "width × rate"


# Metal's recommendedMaxWorkingSetSize in MiB, from the logs named in the file, before macOS 26.
LOGGED = {16: 10922.67, 32: 21845.34, 96: 73728.0}


@pytest.mark.parametrize("ram", LOGGED)
def test_the_working_set_of_a_mac_is_what_was_logged(ram: int) -> None:
    for device in ALL:
        if device.name.startswith("apple-"):
            assert device.gpu_bytes(ram * GiB) == pytest.approx(LOGGED[ram] * MiB, abs=0.02 * MiB)
            assert "recommendedMaxWorkingSetSize" in device.working_set


def test_the_others_shares() -> None:
    assert hardware.get("strix-halo").gpu_bytes(128 * GiB) == 96 * GiB
    assert hardware.get("Strix-Halo").gpu_bytes() == 96 * GiB
    assert hardware.get("jetson-orin-nano-super").gpu_bytes() == 8 * GiB
    assert hardware.get("arc-140v").gpu_bytes(32 * GiB) == 16 * GiB
    with pytest.raises(hardware.HardwareError, match="no GPU to offload to"):
        hardware.get("raspberry-pi-5").gpu_bytes()


def test_a_link_is_its_lanes_at_their_rate() -> None:
    for generation, rate in ((3, 8e9 * 128 / 130 / 8), (4, 16e9 * 128 / 130 / 8), (5, 32e9 * 128 / 130 / 8)):
        assert RAW["link_bytes_per_s_per_lane"][str(generation)] == pytest.approx(rate, rel=0.001)
    assert hardware.get("rtx-4060").link_bytes_per_s == 8 * 1_969_000_000
    assert hardware.get("rtx-5090").link == "PCIe 5.0 x16"


def test_a_wrong_name_is_answered_with_near_ones() -> None:
    with pytest.raises(hardware.HardwareError, match=r"did you mean .*rtx-3060-12gb"):
        hardware.get("rtx-3060")
