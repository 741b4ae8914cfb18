"""Panels without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipywidgets")

from labkit.blocks import decode
from labkit.course import panels
from labkit.course.figures import SpeedRow
from labkit.course.panelkit import say
from labkit.experiments.run import Run
from labkit.gguf import read_header
from labkit.gguf.tensor_data import read_blocks
from labkit.models.quant_plan import plan_quant
from labkit.units import GiB

WAIT_S = 60


def test_the_residency_panel_follows_its_slider(smollm2_path: Path) -> None:
    panel = panels.Residency(smollm2_path)
    before = bytes(panel.image.value)
    panel.slider.value = 40
    assert bytes(panel.image.value) != before and bytes(panel.image.value).startswith(b"\x89PNG")
    touched = smollm2_path.stat().st_size * 40 // 100
    assert f"touched {touched / 2**20:.1f} MiB" in panel.text.value
    panel.slider.value = 10
    assert "touched 0 B" not in panel.text.value  # moving back forgets nothing
    panel.again.click()
    assert panel.slider.value == 0 and "touched 0 B" in panel.text.value
    panel.close()


def test_the_load_panel_predicts_then_measures(smollm2_path: Path) -> None:
    panel = panels.WhereItIs([str(smollm2_path)])
    mapped = panel.text.value
    panel.load_mode.value = "none"
    assert panel.text.value != mapped and "predicted for the next run" in panel.text.value
    panel.runner.run.click()
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    [run] = panel.runs
    assert isinstance(run, Run) and run.ok and run.settings.load_mode == "none"
    assert bytes(panel.image.value).startswith(b"\x89PNG") and "ok" in panel.runner.state.value
    assert not panel.runner.run.disabled and panel.runner.stop.disabled


def test_a_bad_model_is_said_in_the_panel_and_the_button_comes_back(smollm2_path: Path, tmp_path: Path) -> None:
    panel = panels.WhereItIs([str(smollm2_path)])
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    panel.model.options = [str(smollm2_path), str(bad)]
    panel.model.value = str(bad)
    assert "not a GGUF" in panel.text.value
    panel.runner.run.click()
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    assert "not a GGUF" in panel.runner.state.value and not panel.runner.run.disabled


def test_stop_ends_a_run() -> None:
    panel = panels.Ask("Tell a very long story.", tokens=900)
    panel.runner.run.click()
    panel.runner.stop.click()
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    assert not panel.runner.thread.is_alive() and "interrupted" in panel.runner.state.value


def test_the_answer_appears(smollm2_path: Path) -> None:
    panel = panels.Ask("Name a colour.", tokens=5)
    panel.runner.run.click()
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    assert len(panel.answer.value) > len("<p></p>") and "per token" in panel.runner.state.value


def test_text_of_the_model_cannot_become_html(smollm2_path: Path) -> None:
    assert say("<script>") == '<p style="margin:2px 0">&lt;script&gt;</p>'


def test_what_if_moves_the_roofline_and_claims_no_measurement() -> None:
    panel = panels.WhatIf([SpeedRow("a model", 4 * GiB, 100.0, measured_ms=120.0)], bandwidth_bytes_per_s=40 * GiB)
    before = bytes(panel.image.value)
    panel.slider.value = 80
    assert bytes(panel.image.value) != before
    assert "a model: at best 50.0 ms, 20.0 tokens/s" in panel.text.value and "120" not in panel.text.value


@pytest.mark.skipif(sys.platform == "win32", reason="sizes differ")
def test_controls_carry_text_and_wait_for_the_hand_to_let_go(smollm2_path: Path) -> None:
    panel = panels.WhatIf([SpeedRow("m", GiB, 1.0)], bandwidth_bytes_per_s=GiB)
    assert panel.slider.description and not panel.slider.continuous_update


def test_a_file_type_is_quantized_judged_and_drawn(smollm2_path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    panel = panels.WhatItCosts(smollm2_path, quants=["Q4_0"])
    panel.runner.run.click()
    assert panel.runner.thread is not None
    panel.runner.thread.join(WAIT_S)
    row = panel.rows["Q4_0"]
    assert row.kld > 0.05 and row.file_bytes == plan_quant(read_header(smollm2_path), "Q4_0").file_bytes
    assert bytes(panel.image.value).startswith(b"\x89PNG") and "divergence" in panel.runner.state.value


def test_the_block_explorer_shows_the_weight_that_the_slider_says(smollm2_path: Path) -> None:
    panel = panels.BlockExplorer(smollm2_path, tensors=["blk.3.attn_q.weight"])
    before = bytes(panel.image.value)
    panel.weight.value = 17
    assert bytes(panel.image.value) != before and "weight 17 = " in panel.text.value
    panel.block.value = 5
    header = read_header(smollm2_path)
    weights = decode("Q4_1", read_blocks(header, "blk.3.attn_q.weight", first=5, n=1))
    assert float(panel.text.value.split("</p>")[0].split("= ")[-1].replace("−", "-")) == pytest.approx(weights[17])
