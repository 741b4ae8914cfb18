"""Panels of lab 01 without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipywidgets")

from support.memory_runs import run as made_up
from support.panels import drawn, is_png, picture, run

from labkit.course import panels
from labkit.system.mapping import MappedFile, Touch


def test_the_residency_panel_follows_its_slider(smollm2_path: Path) -> None:
    panel = panels.Residency(smollm2_path)
    before = picture(panel)
    panel.slider.value = 40
    assert is_png(panel) and picture(panel) != before
    touched = smollm2_path.stat().st_size * 40 // 100
    assert f"touched {touched / 2**20:.1f} MiB" in panel.text.value
    panel.slider.value = 10
    assert f"touched {touched / 2**20:.1f} MiB" in panel.text.value, "moving back changes nothing"
    panel.evict.click()
    assert panel.slider.value == 0 and "touched 0 B" in panel.text.value
    panel.close()


def test_what_the_system_does_not_count_is_unknown_and_not_zero(smollm2_path: Path, monkeypatch: Any) -> None:
    counts = iter([Touch(1, 1, 1.0, 3, 0, None), Touch(1, 1, 1.0, 4, 0, None)])
    monkeypatch.setattr(MappedFile, "touch", lambda self, offset, nbytes: next(counts))
    panel = panels.Residency(smollm2_path)
    panel.slider.value = 40
    panel.slider.value = 60
    minor, major, read = (part.rsplit(" ", 1)[1] for part in panel.text.value.removesuffix("</p>").split(",")[:3])
    assert (minor, major, read) == ("7", "0", "unknown")
    panel.close()


@pytest.mark.live
def test_the_load_panel_predicts_then_measures(smollm2_path: Path) -> None:
    panel = panels.WhereItIs([str(smollm2_path)])
    mapped = panel.text.value
    panel.load_mode.value = "none"
    assert panel.text.value != mapped and "predicted" in panel.text.value and not is_png(panel)
    run(panel)
    [measured] = panel.runs
    assert measured.ok and measured.settings.load_mode == "none"
    assert is_png(panel) and "ok" in panel.runner.state.value


def test_the_last_three_runs_are_drawn_with_what_tells_them_apart(monkeypatch: Any) -> None:
    asked = drawn(monkeypatch, "where_the_model_is")
    panels.WhereItIs(runs=[made_up()] * 4)
    [how] = asked
    assert len(how["what"]) == len(how["labels"]) == 3
    assert all(made_up().settings.load_mode in label for label in how["labels"])


def test_a_bad_model_is_said_in_the_panel_and_the_button_comes_back(smollm2_path: Path, tmp_path: Path) -> None:
    panel = panels.WhereItIs([str(smollm2_path)])
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    panel.model.options = [str(smollm2_path), str(bad)]
    panel.model.value = str(bad)
    assert "not a GGUF" in panel.text.value
    run(panel)
    assert "not a GGUF" in panel.runner.state.value
