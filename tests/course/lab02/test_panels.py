"""Panels of lab 02 without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipywidgets")

from support.panels import drawn, is_png, picture, run

from labkit.blocks import decode
from labkit.course import panels
from labkit.gguf import read_header
from labkit.gguf.tensor_data import read_blocks
from labkit.models.quant_plan import plan_quant

TENSOR = "blk.3.attn_q.weight"


def shown_weight(panel: Any) -> float:
    """The weight that the first line of the text comes to."""
    return float(panel.text.value.split("</p>")[0].split("= ")[-1].replace("−", "-"))


def test_the_block_explorer_shows_the_weight_that_the_controls_choose(smollm2_path: Path) -> None:
    panel = panels.BlockExplorer(smollm2_path, tensors=[TENSOR])
    before = picture(panel)
    panel.weight.value = 17
    panel.block.value = 5
    assert picture(panel) != before and "weight 17 = " in panel.text.value
    weights = decode("Q4_1", read_blocks(read_header(smollm2_path), TENSOR, first=5, n=1))
    assert shown_weight(panel) == pytest.approx(weights[17])


def test_another_tensor_is_drawn_once_from_its_first_weight(smollm2_path: Path, monkeypatch: Any) -> None:
    header = read_header(smollm2_path)
    panel = panels.BlockExplorer(smollm2_path, tensors=[TENSOR, "token_embd.weight"])
    panel.block.value, panel.weight.value = 7, 20
    asked = drawn(monkeypatch, "block_map")
    panel.tensor.value = "token_embd.weight"
    assert len(asked) == 1 and (panel.block.value, panel.weight.value) == (0, 0)
    first = decode(header.tensor("token_embd.weight").type, read_blocks(header, "token_embd.weight", first=0, n=1))
    assert shown_weight(panel) == pytest.approx(first[0])


@pytest.mark.live
def test_a_file_type_is_quantized_compared_and_drawn(smollm2_path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    panel = panels.WhatItCosts(smollm2_path, quants=["Q4_0"])
    assert panel.matrix.disabled and not is_png(panel)
    run(panel)
    row = panel.rows["Q4_0"]
    assert row.kld > 0.05 and row.file_bytes == plan_quant(read_header(smollm2_path), "Q4_0").file_bytes
    assert is_png(panel) and f"{row.kld:.4f}" in panel.text.value
