"""Verdicts of a plan, what its advice is worth, and its shape as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.small import small

from labkit import predict
from labkit.gguf import Header, read_header
from labkit.models import lookup
from labkit.models.forge import forge, header_bytes
from labkit.planning.planner import Plan, plan
from labkit.predict import hardware
from labkit.predict.offload import Split, offload
from labkit.settings import LOAD_MODES, Settings, SettingsError
from labkit.units import GiB, MiB, fmt_bytes

AVX2 = {"avx2"}


def of(name: str, quant: str = "Q4_K_M") -> Header:
    return lookup.header(f"{name}:{quant}")


def test_the_contract_of_the_command() -> None:
    found = plan(of("llama-2-13b"), ram="16GiB", vram="10GiB", settings=Settings(n_ctx=4096)).to_dict()
    assert json.loads(json.dumps(found)) == found
    named = {"verdict", "assumptions", "host", "device", "n_gpu_layers", "decode_ms", "margin_bytes", "advice", "flags"}
    assert named <= set(found)
    assert found["verdict"] == "fits" and found["n_gpu_layers"] == 35
    assert set(found["flags"]) == {"llama.cpp", "llama-cpp-python", "lmstudio", "ollama"}
    assert "-ngl 35 -c 4096" in found["flags"]["llama.cpp"]
    for side in ("host", "device"):
        assert all(key.endswith("_bytes") and isinstance(value, int) for key, value in found[side].items())
        assert found[side]["total_bytes"] > GiB
    assert found["device"]["total_bytes"] <= 9 * GiB
    assert all(set(one) >= {"change", "saves_bytes", "cost"} for one in found["advice"])
    assert found["assumptions"]["n_ctx"] == 4096 and found["assumptions"]["swap"] is False


def verdict(header: Header, ram: int | str, **settings: object) -> Plan:
    return plan(header, ram=ram, settings=Settings(**settings), cpu_features=AVX2)  # type: ignore[arg-type]


def test_the_three_verdicts_and_their_borders() -> None:
    header = of("llama-2-7b")
    for settings in (Settings(n_ctx=4096), Settings(n_ctx=4096, repack=False)):
        one = predict.memory(header, settings, cpu_features=AVX2)
        floor = one.anon_floor_bytes
        for ram, expected in (
            (floor - 1, "killed"),
            (floor, "pages"),
            (floor + one.mapped_bytes - 1, "pages"),
            (floor + one.mapped_bytes, "fits"),
        ):
            found = verdict(header, ram, n_ctx=4096, repack=settings.repack)
            assert found.verdict == expected and found.ok is (expected == "fits")
            assert found.margin_bytes == ram - floor - one.mapped_bytes
            assert found.n_gpu_layers == 0 and found.to_dict()["device"] is None
            assert bool(found.advice) is (expected != "fits")


def test_what_engine_runs_showed() -> None:
    """Llama-2-13B Q5_K_M at 8192 tokens, 14 GiB: f16 paged, f16 with mlock was killed, q8_0 fitted."""
    header = of("llama-2-13b", "Q5_K_M")
    assert verdict(header, "14GiB", n_ctx=8192).verdict == "pages"
    assert verdict(header, "14GiB", n_ctx=8192, load_mode="mmap+mlock").verdict == "killed"
    assert verdict(header, "14GiB", n_ctx=8192, type_k="q8_0", type_v="q8_0").verdict == "fits"
    assert verdict(header, "14GiB", n_ctx=8192, load_mode="none").verdict == "killed"


def test_advice_saves_what_it_says() -> None:
    header = of("llama-2-13b", "Q5_K_M")
    found = verdict(header, "14GiB", n_ctx=8192)
    by_change = {one.change: one for one in found.advice}
    quantized = by_change["type_k=q8_0, type_v=q8_0"]
    assert quantized.then == "fits" and quantized.cost
    saved = predict.kv_bytes(header, Settings(n_ctx=8192)) - predict.kv_bytes(
        header, Settings(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    )
    assert quantized.saves_bytes == pytest.approx(saved, abs=2 * MiB)
    assert [one.saves_bytes for one in found.advice] == sorted((one.saves_bytes for one in found.advice), reverse=True)

    locked = verdict(of("llama-2-7b"), "8GiB", n_ctx=4096, load_mode="mmap+mlock")
    changes = {one.change: one for one in locked.advice}
    assert locked.verdict == "killed" and changes["load_mode=mmap"].then == "pages"
    assert changes["load_mode=mmap"].saves_bytes == locked.split.host.mapped_bytes
    assert changes["repack=False"].then == "fits"
    whole = offload(of("llama-2-7b"), Settings(n_ctx=4096, load_mode="mmap+mlock", repack=False)).host
    assert changes["repack=False"].saves_bytes == locked.split.host.total_bytes - whole.total_bytes, (
        "all of it is locked"
    )


def test_a_card_of_ones_own_and_its_time() -> None:
    header = of("llama-2-7b")
    card = hardware.get("rtx-4090")
    found = plan(header, ram="32GiB", device=card, host_bytes_per_s=50e9, cpu_features=AVX2)
    assert found.n_gpu_layers == 33 and found.advice == () and found.split.host.repack_bytes == 0
    least = found.split.devices[0].read_bytes / card.bandwidth_bytes_per_s * 1000
    assert found.decode_ms is not None and least < found.decode_ms < least + 0.1
    small_one = plan(header, ram="32GiB", device=hardware.get("rtx-4060"), vram="3GiB", host_bytes_per_s=50e9)
    assert small_one.decode_ms is not None and small_one.decode_ms > 5 * found.decode_ms
    assert plan(header, ram="32GiB", vram="3GiB", host_bytes_per_s=50e9).decode_ms is None, "its bandwidth is unknown"
    alone = plan(header, ram="32GiB", host_bytes_per_s=50e9)
    assert alone.decode_ms == pytest.approx(predict.bytes_per_token(header, Settings()) / 50e9 * 1000)


def test_a_mac_shares_its_memory() -> None:
    mac = hardware.get("apple-m2")
    found = plan(
        of("llama-2-13b"), ram="16GiB", device=mac, settings=Settings(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    )
    assert found.assumptions["vram_bytes"] == int(16 * GiB * 2 / 3)
    assert found.assumptions["memory_shared"] and found.assumptions["hop_ms"] == 0
    assert found.n_gpu_layers < 41, "just above the working set"
    assert found.split.devices[0].total_bytes <= 16 * GiB * 2 / 3
    assert found.decode_ms is not None
    assert plan(of("llama-2-70b"), ram="16GiB", device=mac).verdict == "pages"


def test_a_mixture_of_experts_keeps_experts_on_the_host() -> None:
    found = plan(of("qwen3-30b-a3b"), ram="32GiB", device=hardware.get("rtx-3060-12gb"), settings=Settings(n_ctx=8192))
    assert found.n_gpu_layers == 49 and found.n_cpu_moe > 0
    assert f"-ncmoe {found.n_cpu_moe}" in found.flags["llama.cpp"]
    whole = plan(of("qwen3-30b-a3b"), ram="32GiB", device=hardware.get("rtx-4090"), settings=Settings(n_ctx=8192))
    assert whole.n_cpu_moe == 0 and whole.n_gpu_layers == 49


def test_in_words(tmp_path: Path) -> None:
    path = forge("llama-3.2-1b", "Q4_K_M", path=tmp_path / "m.gguf").path
    text = str(plan(path, ram="1GiB", vram="1GiB", margin="200MiB"))
    assert text.splitlines()[0].startswith("fits: ") and "n_gpu_layers" in text and str(path) in text
    alone = str(plan(path, ram="4GiB"))
    assert not any(line.startswith(("device", "n_gpu_layers")) for line in alone.splitlines())
    for program in ("llama.cpp", "llama-cpp-python", "lmstudio", "ollama"):
        assert f"\n{program}: " in alone


def changed(base: Settings, change: str) -> Settings:
    """The settings that a piece of advice names."""
    words = dict(part.split("=") for part in change.split(", "))
    values = {
        name: {"False": False}.get(value, int(value) if value.isdecimal() else value) for name, value in words.items()
    }
    return replace(base, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("load_mode", ["none", "mlock", "dio", "mmap"])
@pytest.mark.parametrize("repack", [True, False])
def test_each_saving_is_the_difference_of_two_splits(load_mode: str, repack: bool) -> None:
    header, base = of("llama-2-7b"), Settings(load_mode=load_mode, repack=repack, n_ctx=4096)

    def pinned(settings: Settings) -> int:
        return offload(header, settings, cpu_features=AVX2).host.pinned_bytes

    found = plan(header, ram="3GiB", settings=base, cpu_features=AVX2).advice
    assert {one.change: one.saves_bytes for one in found} == {
        one.change: pinned(base) - pinned(changed(base, one.change)) for one in found
    }
    always = {"n_ctx=2048", "n_ubatch=128", "type_k=q8_0, type_v=q8_0"}
    # Weights that are read into memory take the same room repacked.
    more = {"repack=False"} if repack and load_mode == "mmap" else set()
    assert {one.change for one in found} == always | more | ({"load_mode=mmap"} if load_mode != "mmap" else set())


def test_a_saving_on_a_card_too() -> None:
    header, base = of("llama-2-13b"), Settings(n_ctx=4096)
    found = plan(header, ram="16GiB", vram="8GiB", settings=base, cpu_features=AVX2)

    def pinned(settings: Settings) -> int:
        split: Split = offload(header, replace(settings, n_gpu_layers=found.n_gpu_layers), pinned_host=True)
        return split.host.pinned_bytes + split.devices[0].pinned_bytes

    assert found.advice and 0 < found.n_gpu_layers < 41
    assert all(one.saves_bytes == pinned(base) - pinned(changed(base, one.change)) for one in found.advice)
    assert "repack=False" not in {one.change for one in found.advice}, "nothing is repacked beside a card"


@pytest.mark.parametrize("load_mode", LOAD_MODES)
def test_shared_memory_holds_the_weights_once(load_mode: str) -> None:
    """A Mac works on the mapped file; others copy weights from it into buffers of their own."""
    mapping = load_mode in ("auto", "mmap", "mmap+mlock")
    for name, model in (
        ("apple-m2", "llama-2-7b"),
        ("jetson-agx-orin-64gb", "llama-2-7b"),
        ("apple-m2", "llama-3.2-1b"),
    ):
        header, settings = of(model), Settings(n_ctx=4096, load_mode=load_mode)

        def made(ram: int | str, device: str = name, header: Header = header, settings: Settings = settings) -> Plan:
            return plan(header, ram=ram, device=hardware.get(device), settings=settings)

        found = made("16GiB")
        host, device = found.split.host, found.split.devices[0]
        assert found.n_gpu_layers == header.n_layer + 1
        buffers = sum(side.kv_bytes + side.compute_bytes + side.output_bytes for side in (host, device))
        weights = device.weights_bytes + host.mapped_bytes + host.heap_bytes
        if name.startswith("apple") and mapping:
            weights = header.tensor_bytes  # a tied embedding's copy is the same pages
        assert 16 * GiB - found.margin_bytes == buffers + weights + predict.PYTHON_ANON_BYTES
        assert weights == pytest.approx(header.tensor_bytes, rel=1e-3) or model == "llama-3.2-1b"


def test_what_shared_memory_cannot_take_back() -> None:
    def verdict(name: str, ram: str, load_mode: str) -> str:
        settings = Settings(n_ctx=4096, load_mode=load_mode)
        found = plan(of("llama-2-7b"), ram=ram, vram="16GiB", device=hardware.get(name), settings=settings)
        assert found.n_gpu_layers == 33
        return found.verdict

    for name in ("apple-m2", "jetson-agx-orin-64gb", "strix-halo"):
        for load_mode in LOAD_MODES:
            can_drop = name == "apple-m2" and load_mode in ("auto", "mmap")
            assert verdict(name, "5GiB", load_mode) == ("pages" if can_drop else "killed")
            assert verdict(name, "7GiB", load_mode) == "fits"
    # With some layers on each side, weights that were read lie on one side or the other.
    settings = Settings(n_ctx=4096, load_mode="none")
    found = plan(of("llama-2-7b"), ram="5GiB", device=hardware.get("apple-m2"), settings=settings)
    both = found.split.host.pinned_bytes + found.split.devices[0].pinned_bytes + predict.PYTHON_ANON_BYTES
    assert found.verdict == "killed" and found.reason.startswith(fmt_bytes(both)) and 0 < found.n_gpu_layers < 33
    assert both == pytest.approx(of("llama-2-7b").tensor_bytes + 2 * GiB, rel=0.05)


def test_what_llama_cpp_refuses_is_not_planned() -> None:
    with pytest.raises(SettingsError, match="one vector for both"):
        plan(of("deepseek-v2-lite"), ram="32GiB", settings=Settings(n_ctx=4096, type_v="q8_0"))
    with pytest.raises(SettingsError, match="32 times"):
        plan(of("llama-2-7b"), ram="32GiB", settings=Settings(n_ctx=10_000_000))
    # Heads of 80 values are no whole number of q8_0's blocks of 32, all eight together are.
    shape = small("llama-3.2-1b", attention_key_length=80, attention_value_length=80)
    odd = plan(read_header(header_bytes(shape, "Q8_0")), ram="1MiB", settings=Settings(n_ctx=2048))
    assert odd.advice and not any("q8_0" in one.change for one in odd.advice)


def test_advice_names_what_it_is_and_keeps_to_the_limits() -> None:
    many = verdict(of("llama-2-7b"), "1GiB", n_ctx=300, n_seq_max=200)
    assert {one.change for one in many.advice} <= {
        "repack=False",
        "n_ubatch=128",
        "type_k=q8_0, type_v=q8_0",
        "n_ctx=200",
    }
    few = verdict(of("llama-2-7b"), "1GiB", n_ctx=4096, n_ubatch=2)
    assert "n_ubatch=1" in {one.change for one in few.advice}
    assert all("=0" not in one.change for one in few.advice)


def test_an_unknown_cards_time_is_not_told() -> None:
    ram = hardware.get("ddr4-3200")
    found = plan(of("llama-2-7b"), ram="32GiB", vram="10GiB", device=ram)
    assert found.n_gpu_layers == 33 and found.decode_ms is None, "a card of 10 GiB is not as slow as RAM"
    alone = plan(of("llama-2-7b"), ram="32GiB", device=ram)
    assert alone.decode_ms == pytest.approx(predict.bytes_per_token(of("llama-2-7b"), Settings()) / 51.2e9 * 1000)
