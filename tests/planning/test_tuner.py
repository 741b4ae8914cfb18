"""The largest n_gpu_layers against a search through all of them, and against a device whose memory is full."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.full_run import RUN
from support.small import small, write

from labkit import predict
from labkit.experiments import offload_sweep
from labkit.experiments.device import problem
from labkit.experiments.offload_sweep import verify
from labkit.experiments.run import Run
from labkit.gguf import Header
from labkit.models import lookup
from labkit.planning.tuner import MARGIN_BYTES, experts_regex, tune
from labkit.predict.offload import offload
from labkit.settings import Settings
from labkit.units import GiB, MiB


def of(name: str, quant: str = "Q4_K_M") -> Header:
    return lookup.header(f"{name}:{quant}")


def device_bytes(header: Header, n: int, **settings: object) -> int:
    return offload(header, replace(Settings(n_ctx=4096), n_gpu_layers=n, **settings)).devices[0].total_bytes  # type: ignore[arg-type]


@cache
def all_sizes(name: str) -> tuple[int, ...]:
    """The device's bytes for every n_gpu_layers."""
    header = of(name)
    return tuple(device_bytes(header, n) for n in range(header.n_layer + 2))


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-2-13b", "qwen3-30b-a3b", "gemma-3-4b"])
@pytest.mark.parametrize("vram", [300 * MiB, 1 * GiB, 3 * GiB, 10 * GiB, 24 * GiB])
def test_the_answer_is_that_of_trying_all(name: str, vram: int) -> None:
    header, sizes = of(name), all_sizes(name)
    assert list(sizes) == sorted(sizes), "more layers never take less"
    tuned = tune(header, vram=vram, margin=100 * MiB, settings=Settings(n_ctx=4096))
    assert tuned.n_gpu_layers == max(n for n, size in enumerate(sizes) if size <= vram - 100 * MiB)
    assert tuned.split.devices[0].total_bytes == sizes[tuned.n_gpu_layers]
    assert all(sizes[n] == size for n, size in tuned.tried)
    assert tuned.fits and tuned.reason.endswith(".") and tuned.reason.count(". ") == 0


def exactly(header: Header, n: int, **settings: object) -> int:
    """n_gpu_layers where the device has room for what n layers take, to the byte."""
    used = replace(Settings(n_ctx=4096), **settings)  # type: ignore[arg-type]
    return tune(header, vram=device_bytes(header, n, **settings), margin=0, settings=used).n_gpu_layers


def test_the_output_layer_is_one_more() -> None:
    header = of("llama-2-7b")
    assert exactly(header, 33) == 33 and exactly(header, 32) == 32
    assert tune(header, vram="24GiB").n_gpu_layers == header.n_layer + 1
    almost = device_bytes(header, 33) - 1
    assert tune(header, vram=almost, margin=0, settings=Settings(n_ctx=4096)).n_gpu_layers == 32


def test_what_others_leave_out_changes_the_answer() -> None:
    """The compute buffer, the cache beside its layers, and the second copy of a tied embedding."""
    wide = of("llama-3.1-8b")
    at = [offload(wide, Settings(n_ctx=4096, n_gpu_layers=n)).devices[0] for n in range(34)]
    right = tune(wide, vram="4GiB", settings=Settings(n_ctx=4096)).n_gpu_layers
    without = max(n for n, side in enumerate(at) if side.total_bytes - side.compute_bytes <= 4 * GiB - MARGIN_BYTES)
    assert without > right, "258 MiB for the logits of a batch are more than a block"

    header = of("llama-2-13b")
    at = [offload(header, Settings(n_ctx=4096, n_gpu_layers=n)).devices[0] for n in range(42)]
    right = tune(header, vram="10GiB", settings=Settings(n_ctx=4096)).n_gpu_layers
    without = max(n for n, side in enumerate(at) if side.total_bytes - side.kv_bytes <= 10 * GiB - MARGIN_BYTES)
    assert right == 35 and without == 41, "a 13B on a 10 GB card"
    kept = tune(header, vram="10GiB", settings=Settings(n_ctx=4096, offload_kqv=False))
    assert kept.n_gpu_layers == 41 and kept.split.devices[0].kv_bytes == 0
    assert kept.split.host.kv_bytes == predict.kv_bytes(header, Settings(n_ctx=4096))
    smaller = tune(header, vram="10GiB", settings=Settings(n_ctx=4096, type_k="q8_0", type_v="q8_0"))
    assert smaller.n_gpu_layers > right

    tied = of("llama-3.2-1b")
    embedding = tied.tensor("token_embd.weight").nbytes
    all_on_it = device_bytes(tied, 17)
    assert tune(tied, vram=all_on_it - embedding, margin=0, settings=Settings(n_ctx=4096)).n_gpu_layers < 17


def test_a_budget_below_one_layer_is_a_sentence() -> None:
    tuned = tune(of("llama-2-7b"), vram="128MiB", margin=0)
    assert tuned.n_gpu_layers == 0 and tuned.split.devices[0].total_bytes == 0 and tuned.fits
    assert tuned.reason.startswith("no layer fits: the output layer alone needs ")
    with pytest.raises(ValueError, match="leaves nothing"):
        tune(of("llama-2-7b"), vram="1GiB")


def test_the_hosts_memory_is_limited_too() -> None:
    header = of("llama-2-70b")
    free = tune(header, vram="8GiB", cpu_features={"avx2"})
    tight = tune(header, vram="8GiB", ram="16GiB", cpu_features={"avx2"})
    assert free.fits and not tight.fits and tight.n_gpu_layers == free.n_gpu_layers
    assert "the kernel cannot take back" in tight.reason
    assert tune(header, vram="8GiB", ram="16GiB", settings=Settings(repack=False), cpu_features={"avx2"}).fits


def test_experts_on_the_cpu() -> None:
    header = of("qwen3-30b-a3b")
    settings = Settings(n_ctx=4096)
    tuned = tune(header, vram="8GiB", settings=settings, experts_on_cpu=True)
    assert tuned.n_gpu_layers == 49 and 0 < tuned.n_cpu_moe < 48 and tuned.fits

    def at(n: int) -> int:
        used = replace(settings, n_gpu_layers=49)
        return offload(header, used, on_cpu=experts_regex(n)).devices[0].total_bytes

    assert at(tuned.n_cpu_moe) <= 7 * GiB < at(tuned.n_cpu_moe - 1)
    layers = tune(header, vram="8GiB", settings=settings)
    assert tuned.split.host.read_bytes < 0.7 * layers.split.host.read_bytes, "only routed experts are read"
    assert tune(header, vram="40GiB", experts_on_cpu=True).n_cpu_moe == 0
    small_one = tune(header, vram="1GiB", margin=0, settings=settings, experts_on_cpu=True)
    assert not small_one.fits and small_one.n_cpu_moe == 48
    with pytest.raises(ValueError, match="no experts"):
        tune(of("llama-2-7b"), vram="8GiB", experts_on_cpu=True)


@pytest.mark.live
@pytest.mark.skipif(problem() is not None, reason="the loopback device needs a llama.cpp with RPC")
def test_a_device_with_so_much_memory_takes_these_layers_and_no_more(tmp_path: Path) -> None:
    keys = {"embedding_length": 1024, "attention_head_count": 16, "attention_head_count_kv": 8}
    shape = small("llama-3.2-1b", block_count=16, feed_forward_length=4096, **keys)
    header = write(tmp_path / "x.gguf", shape, "Q4_K_M")
    settings = Settings(n_ctx=4096, n_threads=1)
    vram = offload(header, replace(settings, n_gpu_layers=9)).devices[0].total_bytes + 2 * MiB
    tuned = tune(header, vram=vram, margin=0, settings=settings)
    assert tuned.n_gpu_layers == 9

    seen = verify(tmp_path / "x.gguf", tuned, vram=vram, settings=settings)
    assert seen.right and seen.fits.ok and seen.fits.settings.n_gpu_layers == 9
    assert seen.one_more is not None and seen.one_more.settings.n_gpu_layers == 10
    assert "has no room for a buffer" in seen.one_more.reason
    too_much = verify(tmp_path / "x.gguf", replace(tuned, n_gpu_layers=12), vram=vram, settings=settings)
    assert not too_much.right and not too_much.fits.ok


def test_there_is_no_layer_more_than_all() -> None:
    tuned = tune(of("llama-3.2-1b"), vram=8 * GiB)
    asked: list[int] = []

    def measure(model: object, **how: Any) -> Run:
        asked.append(how["n_gpu_layers"])
        assert how["device_memory"] == 7 * GiB and how["devices"] == ("loopback",)
        return RUN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload_sweep, "measure", measure)
        seen = verify("llama-3.2-1b:Q4_K_M", tuned, vram=7 * GiB)
    assert asked == [17] and seen.one_more is None and seen.right


def test_experts_on_the_host_cannot_be_verified() -> None:
    tuned = tune(of("qwen3-30b-a3b"), vram=12 * GiB, experts_on_cpu=True)
    with pytest.raises(ValueError, match="experts that stay on the host cannot be verified here"):
        verify("qwen3-30b-a3b:Q4_K_M", tuned, vram=11 * GiB)
