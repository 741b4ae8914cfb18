"""Panels of lab 00 without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from support.panels import drawn, picture, run, stop

from labkit.course import panels
from labkit.course.figures import SpeedRow
from labkit.units import GiB


def test_what_if_moves_the_roofline_and_claims_no_measurement() -> None:
    panel = panels.WhatIf([SpeedRow("a model", 4 * GiB, 100.0, measured_ms=120.0)], bandwidth_bytes_per_s=40 * GiB)
    before = picture(panel)
    panel.slider.value = 80
    assert picture(panel) != before
    assert "50.0 ms" in panel.text.value and "20.0 tokens/s" in panel.text.value and "120" not in panel.text.value


def test_what_if_keeps_its_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = drawn(monkeypatch, "speed_check")
    panel = panels.WhatIf([SpeedRow("a model", 4 * GiB, 100.0)], bandwidth_bytes_per_s=40 * GiB)
    for bandwidth in (5, 80, 1000):
        panel.slider.value = bandwidth
    assert [how["axis_ms"] for how in asked] == [{"a model": 200.0}] * 4


@pytest.mark.live
def test_the_answer_appears() -> None:
    panel = panels.Ask("Name a colour.", tokens=5)
    run(panel)
    assert len(panel.text.value) > len("<p></p>") and "ms per token" in panel.runner.state.value


@pytest.mark.live
def test_stop_ends_a_run() -> None:
    panel = panels.Ask("Tell a very long story.", tokens=900)
    stop(panel)
    assert "interrupted" in panel.runner.state.value
