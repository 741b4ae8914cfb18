"""Panels of lab 03 without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

from typing import Any

import pytest
from support.panels import WAIT_S, is_png, run

pytest.importorskip("ipywidgets")

from labkit import gguf, predict
from labkit.course import figures, panels
from labkit.course.figures import SpeedRow
from labkit.course.lab03.panels import MODELS, traces
from labkit.experiments import cache_trace
from labkit.models.forge import header_bytes
from labkit.planning.context import CONTEXTS, longest_context
from labkit.quant.cache_quality import CacheQuality
from labkit.quant.quality import Quality
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes


@pytest.fixture
def drawn(monkeypatch: Any) -> list[dict[str, Any]]:
    """What ``context_budget`` was asked to draw."""
    asked: list[dict[str, Any]] = []
    draw = figures.context_budget

    def record(rows: Any, **how: Any) -> Any:
        asked.append({"rows": rows, **how})
        return draw(rows, **how)

    monkeypatch.setattr(figures, "context_budget", record)
    return asked


def test_the_cost_panel_says_the_figures_of_the_formulas() -> None:
    panel = panels.ContextCost()
    assert is_png(panel)
    header = gguf.read_header(header_bytes("llama-2-13b", "Q4_K_M"))
    chosen = Settings(n_ctx=8192)
    assert "cache 6.25 GiB" in panel.text.value and "A further token of context takes 800 KiB" in panel.text.value
    assert f"up to {longest_context(header, chosen, 14 * GiB):,} tokens of context" in panel.text.value
    before = bytes(panel.image.value)
    panel.n_ctx.value = 32768
    assert bytes(panel.image.value) != before
    assert "cache 25.0 GiB" in panel.text.value and "more than the limit of 14.0 GiB" in panel.text.value
    panel.type_k.value = "q8_0"
    mixed = predict.kv_bytes(header, Settings(n_ctx=32768, type_k="q8_0"))
    assert "q8_0/f16" in panel.text.value and f"cache {fmt_bytes(mixed)}" in panel.text.value
    panel.n_seq.value = 4
    assert "for 4 sequences" in panel.text.value
    panel.limit.value = 126
    assert "less than the limit of 126 GiB" in panel.text.value


def test_only_model_and_machine_move_the_axes_of_the_cost_panel(drawn: list[dict[str, Any]]) -> None:
    panel = panels.ContextCost(["llama-3.1-8b:Q4_K_M", "qwen3-30b-a3b:Q4_K_M"])
    for value in (512, 131072):
        panel.n_ctx.value = value
    panel.type_v.value, panel.n_seq.value = "q4_0", 16
    assert len(drawn) == 5
    assert {how["top_bytes"] for how in drawn} == {32 * GiB}
    assert {(how["rows"][0].n_ctx, how["rows"][-1].n_ctx) for how in drawn} == {(CONTEXTS[0], CONTEXTS[-1])}
    assert [how["selected"] for how in drawn] == [8192, 512, 131072, 131072, 131072]
    panel.limit.value = 62
    assert drawn[-1]["top_bytes"] == 128 * GiB and drawn[-1]["limit_bytes"] == 62 * GiB


def test_the_cost_panel_says_what_a_model_refuses_and_hides_its_picture() -> None:
    panel = panels.ContextCost(["deepseek-v2-lite:Q4_K_M"])
    panel.type_k.value = "q8_0"
    assert "write the same type for both" in panel.text.value and panel.image.layout.visibility == "hidden"
    panel.type_v.value = "q8_0"
    assert "q8_0: weights" in panel.text.value and panel.image.layout.visibility == "visible"


def test_the_cost_panel_counts_a_further_token_not_a_window() -> None:
    panel = panels.ContextCost(["gemma-3-12b:Q4_K_M"])
    assert "A further token of context takes 64.0 KiB" in panel.text.value  # 8 of its 48 layers keep everything


def test_the_cost_panel_takes_any_model_and_any_machine() -> None:
    assert "smollm2, 8,192 tokens" in panels.ContextCost(["smollm2"], machine_gib=4096).text.value
    with pytest.raises(ValueError, match="machine_gib is 2"):
        panels.ContextCost(machine_gib=2)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_cost_panel_can_be_drawn(model: str) -> None:
    panel = panels.ContextCost([model], machine_gib=12)
    assert is_png(panel) and model in panel.text.value and "limit of 10.0 GiB" in panel.text.value


def test_a_trace_runs_and_the_slider_walks_through_it() -> None:
    panel = panels.SlotMap()
    assert panel.runner.run.description.startswith("Run") and "Run a trace" in panel.text.value
    run(panel)
    steps = traces()["requests come and go"]
    assert [shot.step for shot in panel.snapshots] == list(steps)
    assert panel.step.value == panel.step.max == len(steps) - 1 and is_png(panel)
    assert f"{len(steps)} steps ran" in panel.runner.state.value and "no room" in panel.text.value
    last = bytes(panel.image.value)
    panel.step.value = 0
    assert bytes(panel.image.value) != last
    assert "step 1 of" in panel.text.value and "60 of 256 cells are in use" in panel.text.value
    panel.trace.value = "a long chat makes room"
    run(panel)
    assert panel.step.value == len(panel.snapshots) - 1 == 4
    assert [shot.status for shot in panel.snapshots] == [0, 1, 0, 0, 0], "room is made after the refusal"
    again = panels.SlotMap({"mine": (cache_trace.add(0, 5),)}, snapshots=panel.snapshots)
    assert is_png(again) and "step 5 of 5" in again.text.value and again.trace.value == "mine"


def test_an_impossible_trace_is_said_in_the_panel() -> None:
    panel = panels.SlotMap({"wrong": (cache_trace.add(7, 5),)})
    run(panel)
    assert "there is no sequence 7" in panel.runner.state.value


def test_stop_ends_a_comparison() -> None:
    panel = panels.CacheQuality(tokens=4096)
    panel.runner.run.click()
    panel.runner.stop.click()
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    assert not panel.runner.thread.is_alive() and not panel.rows


def test_a_pair_is_compared_and_added() -> None:
    known = CacheQuality("f16", "q4_0", True, False, True, Quality(9, 9, 0.006, 0.001, 0.1, 0.9, 99, 1.0), 32, (), ())
    panel = panels.CacheQuality([known], tokens=48)
    before = bytes(panel.image.value)
    assert is_png(panel)
    panel.type_k.value, panel.type_v.value = "q4_0", "f16"
    run(panel)
    assert set(panel.rows) == {("f16", "q4_0", True), ("q4_0", "f16", True)}
    assert bytes(panel.image.value) != before
    assert "q4_0/f16, K was rotated" in panel.text.value
    rotated = panel.rows["q4_0", "f16", True].quality.kld_mean
    panel.rotation.value = False
    run(panel)
    assert "q4_0/f16, nothing was rotated" in panel.text.value
    assert panel.rows["q4_0", "f16", False].quality.kld_mean != rotated and len(panel.rows) == 3


def test_what_if_keeps_its_axis(monkeypatch: Any) -> None:
    asked: list[Any] = []
    draw = figures.speed_check

    def record(rows: Any, **how: Any) -> Any:
        fig = draw(rows, **how)
        asked.append(fig.axes[0].get_xlim())
        return fig

    monkeypatch.setattr(figures, "speed_check", record)
    panel = panels.WhatIf([SpeedRow("a model", 4 * GiB, 100.0)], bandwidth_bytes_per_s=40 * GiB)
    for bandwidth in (5, 80, 1000):
        panel.slider.value = bandwidth
    assert len(asked) == 4 and set(asked) == {(0.0, 200.0)}
