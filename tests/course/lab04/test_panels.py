"""Panels of lab 04 without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ipywidgets")

from support.lab04 import POINTS, STAYS, header, ran
from support.panels import drawn, is_png, picture, run

from labkit import engine, predict
from labkit.course import panels
from labkit.course.lab04.panels import offload_run
from labkit.course.lab04.panels.models import MODELS
from labkit.course.lab04.panels.offload import DEVICES
from labkit.experiments.offload_sweep import OffloadPoint
from labkit.planning.tuner import tune
from labkit.predict import Speeds
from labkit.settings import Settings, SettingsError
from labkit.units import GiB, MiB, fmt_bytes

needs_rpc = pytest.mark.skipif(engine.library("ggml-rpc") is None, reason="this llama.cpp was built without RPC")


def test_the_panel_says_the_bytes_of_both_sides() -> None:
    panel = panels.Offload()
    assert is_png(panel) and panel.text.value.count("nothing") == 2
    before = picture(panel)
    panel.layers.value = 25
    assert picture(panel) != before
    split = predict.offload(header("llama-2-13b"), Settings(n_ctx=4096, n_gpu_layers=25))
    text = panel.text.value
    assert "n_gpu_layers 25 of 41" in text
    assert f"device {fmt_bytes(split.devices[0].total_bytes)}" in text
    assert f"cache {fmt_bytes(split.devices[0].kv_bytes)}" in text
    assert f"host {fmt_bytes(split.host.total_bytes)} (mapped {fmt_bytes(split.host.mapped_bytes)}" in text
    assert "tokens/s (predicted" in text and "2 crossings with 145 KiB" in text
    panel.layers.value = 41
    assert "more than the device" in panel.text.value and "tokens/s" not in panel.text.value
    panel.kqv.value = False
    assert "82 crossings" in panel.text.value, "in and out of each of 40 attentions, and at both ends"
    panel.cache.value = "q8_0"
    stays = Settings(n_ctx=4096, n_gpu_layers=41, type_k="q8_0", type_v="q8_0", offload_kqv=False)
    assert f"cache {fmt_bytes(predict.kv_bytes(header('llama-2-13b'), stays))}" in panel.text.value


def test_a_device_with_shared_memory_needs_room_for_both_sides() -> None:
    panel = panels.Offload(["llama-2-70b:Q4_K_M"], devices=[("apple-m2", "16GiB"), "rtx-4090"])
    whole = header("llama-2-70b")
    both = predict.offload(whole, Settings(n_ctx=4096), pinned_host=True)
    assert "RAM is 16.0 GiB" in panel.text.value and "together" in panel.text.value
    assert fmt_bytes(both.host.total_bytes + both.devices[0].total_bytes) in panel.text.value
    panel.device.value = ("rtx-4090", None)
    assert "RAM is 16.0 GiB" in panel.text.value and "together" not in panel.text.value


def test_only_the_model_moves_the_axis_of_the_panel(monkeypatch: Any) -> None:
    asked = drawn(monkeypatch, "offload_plan")
    panel = panels.Offload(["llama-3.1-8b:Q4_K_M", "llama-3.2-1b:Q4_K_M"])
    panel.layers.value = 20
    panel.device.value = ("rtx-4090", None)
    panel.n_ctx.value, panel.kqv.value = 8192, False
    assert len(asked) == 5 and len({how["top_bytes"] for how in asked}) == 1
    assert asked[0]["vram_bytes"] == 7 * GiB and asked[2]["vram_bytes"] == 23 * GiB, "1 GiB is left free"
    panel.model.value = "llama-3.2-1b:Q4_K_M"
    assert panel.layers.max == 17 and panel.layers.value == 0
    assert asked[-1]["top_bytes"] < asked[0]["top_bytes"] and len(asked) == 6, "one change is one picture"


def test_what_the_model_refuses_is_said_and_its_picture_hidden(monkeypatch: Any) -> None:
    def refuse(known: Any, chosen: Settings) -> None:
        raise SettingsError(f"n_ctx is {chosen.n_ctx:,}: write less.")

    some = [panels.Offload(["llama-2-7b:Q4_K_M"]), panels.Tuner(["llama-2-7b:Q4_K_M"])]
    monkeypatch.setattr(predict, "check", refuse)
    for panel in some:
        panel.n_ctx.value = 32768
        assert "n_ctx is 32,768" in panel.text.value and not is_png(panel)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_can_be_drawn(model: str) -> None:
    panel = panels.Offload([model])
    panel.layers.value = panel.layers.max
    assert is_png(panel) and f"n_gpu_layers {panel.layers.max} of {panel.layers.max}" in panel.text.value
    assert is_png(panels.Tuner([model]))


def test_devices_are_told_apart_by_name_and_memory() -> None:
    panel = panels.Offload()
    names = [name for name, _ in panel.device.options]
    assert len(set(names)) == len(DEVICES) == len(names)
    assert "NVIDIA GeForce RTX 4060, 8 GiB" in names and "Apple M2, 16 GiB" in names
    assert "NVIDIA GeForce RTX 3060 12 GB" in names


def test_the_tuner_finds_what_tune_finds_and_says_the_flags(monkeypatch: Any) -> None:
    asked = drawn(monkeypatch, "tuner_search")
    panel = panels.Tuner()
    assert "n_gpu_layers 35 of 41" in panel.text.value
    assert "llama-server -m llama-2-13b-Q4_K_M.gguf -ngl 35 -c 4096" in panel.text.value
    assert "PARAMETER num_gpu 35" in panel.text.value and "GPU Offload: 35" in panel.text.value
    panel.vram.value = 6
    best = tune(header("llama-2-13b"), vram="6GiB", settings=Settings(n_ctx=4096)).n_gpu_layers
    assert f"-ngl {best} " in panel.text.value
    panel.n_ctx.value, panel.cache.value, panel.margin.value = 2048, "q8_0", 0
    assert len(asked) == 5 and len({how["top_bytes"] for how in asked}) == 1
    assert asked[-1]["margin_bytes"] == 0 and len(asked[-1]["splits"]) == 42


def test_the_tuner_says_what_cannot_be() -> None:
    panel = panels.Tuner(["llama-2-13b:Q4_K_M", "qwen3-30b-a3b:Q4_K_M"])
    panel.vram.value = 0.5
    assert "512 MiB" in panel.text.value and not is_png(panel)
    panel.vram.value = 8
    assert "512 MiB" not in panel.text.value and is_png(panel)
    assert panel.experts.disabled, "this model has none"
    panel.model.value = "qwen3-30b-a3b:Q4_K_M"
    assert not panel.experts.disabled
    panel.experts.value = True
    assert "-ncmoe" in panel.text.value
    panel.vram.value = 2
    assert "experts" in panel.text.value and "llama-server" not in panel.text.value
    panel.vram.value, panel.model.value = 8, "llama-2-13b:Q4_K_M"
    assert "n_gpu_layers" in panel.text.value and is_png(panel)


@pytest.mark.live
@needs_rpc
def test_a_run_adds_a_point_and_a_second_joins_it() -> None:
    panel = panels.OffloadRun(tokens=2, speeds=Speeds(20e9, 20e9), n_ctx=256, n_batch=64, n_ubatch=64)
    assert panel.runner.run.description.startswith("Run") and not is_png(panel)
    panel.layers.value = 17
    assert "predicted" in panel.text.value and "ms per token" in panel.text.value
    run(panel)
    assert is_png(panel) and "ok" in panel.runner.state.value
    assert "n_gpu_layers 17: host" in panel.text.value and "file-backed" in panel.text.value
    before = picture(panel)
    run(panel)
    [point] = panel.points
    assert point.n_gpu_layers == 17 and len(point.runs) == 2 and point.predicted_ms
    panel.picture.value = "time"
    assert picture(panel) != before
    panel.memory.value = 256 * MiB
    run(panel)
    assert "256 MiB" in panel.runner.state.value and len(point.runs) == 2
    assert not panel.points[0].runs[-1].ok and len(panel.points) == 1


def test_earlier_points_are_shown_at_once_and_kept_apart_by_their_cache(monkeypatch: Any) -> None:
    monkeypatch.setattr(offload_run, "measure", lambda *what, **how: ran(how["n_gpu_layers"], kqv=how["offload_kqv"]))
    panel = panels.OffloadRun([*POINTS, *STAYS], tokens=2)
    assert is_png(panel)
    panel.layers.value, panel.kqv.value = 8, False
    run(panel)
    assert len(panel.points) == len(POINTS) + len(STAYS)
    assert [len(point.runs) for point in panel.points] == [1] * len(POINTS) + [2, 1]
    panel.layers.value = 3
    run(panel)
    assert isinstance(panel.points[-1], OffloadPoint) and panel.points[-1].n_gpu_layers == 3
    assert panel.points[-1].predicted_ms is None
