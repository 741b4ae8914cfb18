"""Verdicts of a plan, what its advice is worth, and its shape as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit import hardware, predict
from labkit.forge import forge, header_bytes
from labkit.gguf import Header, read_header
from labkit.planning import Plan, plan
from labkit.settings import Settings
from labkit.units import GiB, MiB

AVX2 = {"avx2"}


def of(name: str, quant: str = "Q4_K_M") -> Header:
    return read_header(header_bytes(name, quant))


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
    assert changes["repack=False"].saves_bytes == locked.split.host.repack_bytes


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
