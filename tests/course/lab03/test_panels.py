"""Panels of lab 03 without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ipywidgets")

from support.panels import drawn, is_png, picture, run, stop

from labkit import predict
from labkit.course import panels
from labkit.course.lab03.panels.context_cost import MODELS
from labkit.course.lab03.panels.slot_map import traces
from labkit.experiments import cache_trace
from labkit.models import lookup
from labkit.planning.context import CONTEXTS, longest_context
from labkit.quant.cache_quality import CacheQuality
from labkit.quant.quality import Quality
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes


def test_the_cost_panel_says_the_figures_of_the_formulas() -> None:
    panel = panels.ContextCost()
    assert is_png(panel)
    header = lookup.header("llama-2-13b:Q4_K_M")
    chosen = Settings(n_ctx=8192)
    assert "cache 6.25 GiB" in panel.text.value and "800 KiB" in panel.text.value
    assert f"{longest_context(header, chosen, 14 * GiB):,} tokens" in panel.text.value
    before = picture(panel)
    panel.n_ctx.value = 32768
    assert picture(panel) != before
    assert "cache 25.0 GiB" in panel.text.value and "more than the limit of 14.0 GiB" in panel.text.value
    panel.type_k.value = "q8_0"
    mixed = predict.kv_bytes(header, Settings(n_ctx=32768, type_k="q8_0"))
    assert "q8_0/f16" in panel.text.value and f"cache {fmt_bytes(mixed)}" in panel.text.value
    panel.n_seq.value = 4
    assert "4 sequences" in panel.text.value
    panel.limit.value = 126
    assert "less than the limit of 126 GiB" in panel.text.value


def test_only_model_and_machine_move_the_axes_of_the_cost_panel(monkeypatch: Any) -> None:
    asked = drawn(monkeypatch, "context_budget")
    panel = panels.ContextCost(["llama-3.1-8b:Q4_K_M", "qwen3-30b-a3b:Q4_K_M"])
    for value in (512, 131072):
        panel.n_ctx.value = value
    panel.type_v.value, panel.n_seq.value = "q4_0", 16
    assert len(asked) == 5
    assert {how["top_bytes"] for how in asked} == {32 * GiB}
    assert {(how["what"][0].n_ctx, how["what"][-1].n_ctx) for how in asked} == {(CONTEXTS[0], CONTEXTS[-1])}
    assert [how["selected"] for how in asked] == [8192, 512, 131072, 131072, 131072]
    panel.limit.value = 62
    assert asked[-1]["top_bytes"] == 128 * GiB and asked[-1]["limit_bytes"] == 62 * GiB


def test_the_cost_panel_says_what_a_model_refuses_and_hides_its_picture() -> None:
    panel = panels.ContextCost(["deepseek-v2-lite:Q4_K_M"])
    panel.type_k.value = "q8_0"
    assert "type_v" in panel.text.value and not is_png(panel)
    panel.type_v.value = "q8_0"
    assert "q8_0: weights" in panel.text.value and is_png(panel)


def test_the_cost_panel_counts_a_further_token_not_a_window() -> None:
    panel = panels.ContextCost(["gemma-3-12b:Q4_K_M"])
    assert "64.0 KiB" in panel.text.value  # 8 of its 48 layers keep everything


def test_the_cost_panel_takes_any_model_and_any_machine() -> None:
    assert "smollm2, 8,192 tokens" in panels.ContextCost(["smollm2"], machine_gib=4096).text.value
    with pytest.raises(ValueError, match="machine_gib is 2"):
        panels.ContextCost(machine_gib=2)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_cost_panel_can_be_drawn(model: str) -> None:
    panel = panels.ContextCost([model], machine_gib=12)
    assert is_png(panel) and model in panel.text.value and "limit of 10.0 GiB" in panel.text.value


@pytest.mark.live
def test_a_trace_runs_and_the_slider_walks_through_it() -> None:
    panel = panels.SlotMap()
    assert panel.runner.run.description.startswith("Run") and "Run a trace" in panel.text.value
    run(panel)
    steps = traces()["requests come and go"]
    assert [shot.step for shot in panel.snapshots] == list(steps)
    assert panel.step.value == panel.step.max == len(steps) - 1 and is_png(panel)
    assert f"{len(steps)} steps ran" in panel.runner.state.value and "no room" in panel.text.value
    last = picture(panel)
    panel.step.value = 0
    assert picture(panel) != last
    assert "step 1 of" in panel.text.value and "60 of 256 cells are in use" in panel.text.value
    panel.trace.value = "a long chat drops old tokens"
    run(panel)
    assert panel.step.value == len(panel.snapshots) - 1 == 4
    assert [shot.status for shot in panel.snapshots] == [0, 1, 0, 0, 0], "room is made after the refusal"
    again = panels.SlotMap({"mine": (cache_trace.add(0, 5),)}, snapshots=panel.snapshots)
    assert is_png(again) and "step 5 of 5" in again.text.value and again.trace.value == "mine"


def test_an_impossible_trace_is_said_in_the_panel() -> None:
    panel = panels.SlotMap({"wrong": (cache_trace.add(7, 5),)})
    run(panel)
    assert "there is no sequence 7" in panel.runner.state.value


@pytest.mark.live
def test_stop_ends_a_comparison() -> None:
    panel = panels.CacheQuality(tokens=4096)
    stop(panel)
    assert not panel.rows and "cancelled" in panel.runner.state.value


@pytest.mark.live
def test_a_pair_is_compared_and_added() -> None:
    known = CacheQuality("f16", "q4_0", True, False, True, Quality(9, 9, 0.006, 0.001, 0.1, 0.9, 99, 1.0), 32, (), ())
    panel = panels.CacheQuality([known], tokens=48)
    before = picture(panel)
    assert is_png(panel)
    panel.type_k.value, panel.type_v.value = "q4_0", "f16"
    run(panel)
    assert set(panel.rows) == {("f16", "q4_0", True), ("q4_0", "f16", True)}
    assert picture(panel) != before
    assert "q4_0/f16, K was rotated" in panel.text.value
    rotated = panel.rows["q4_0", "f16", True].quality.kld_mean
    panel.rotation.value = False
    run(panel)
    assert "q4_0/f16, nothing was rotated" in panel.text.value
    assert panel.rows["q4_0", "f16", False].quality.kld_mean != rotated and len(panel.rows) == 3
