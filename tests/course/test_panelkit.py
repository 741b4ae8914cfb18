"""Panels and their parts without a browser."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("ipywidgets")

from matplotlib.figure import Figure
from support.panels import finish, is_png, picture, run, stop

from labkit.course import panelkit
from labkit.progress import Progress


class Square(panelkit.Panel):
    """A number and its picture; 13 is refused."""

    def __init__(self) -> None:
        self.drawn: list[int] = []
        self.number = panelkit.slider("number", most=20)
        super().__init__([self.number])
        self.on_change(self.redraw, self.number)

    def draw(self) -> None:
        if self.number.value == 13:
            raise ValueError("13 has no <picture>.")
        self.drawn.append(self.number.value)
        self.show(Figure(figsize=(1, 1)))
        self.write(f"{self.number.value}²", f"= {self.number.value**2}")


class Work:
    """A panel with nothing but a Run button."""

    def __init__(self, work: Any) -> None:
        self.runner = panelkit.Runner("Run", work)


def test_a_panel_has_no_picture_until_it_draws_one() -> None:
    panel = Square()
    assert picture(panel) == b""
    panel.number.value = 3
    assert is_png(panel) and panel.text.value.count("<p") == 2 and "= 9" in panel.text.value


def test_what_is_impossible_is_said_and_hides_the_picture_of_other_values() -> None:
    panel = Square()
    panel.number.value = 12
    panel.number.value = 13
    assert not is_png(panel)
    assert "13 has no &lt;picture&gt;." in panel.text.value
    panel.number.value = 14
    assert is_png(panel) and "196" in panel.text.value


def test_a_range_is_fitted_without_a_drawing() -> None:
    panel = Square()
    panel.number.value = 7
    panel.fit(panel.number, most=5, value=2)
    assert panel.drawn == [7] and (panel.number.max, panel.number.value) == (5, 2)
    panel.number.value = 4
    assert panel.drawn == [7, 4]


def test_a_notebook_gets_the_view() -> None:
    panel = Square()
    bundle = panel._repr_mimebundle_(include=None, exclude=None)
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.view.model_id
    assert "Square" in bundle["text/plain"]


@pytest.mark.parametrize(
    "control",
    [
        panelkit.slider("a", most=3),
        panelkit.slider("a", least=0.5, most=3, step=0.5, value=1),
        panelkit.steps("a", [1, 2]),
        panelkit.number("a", most=9),
        panelkit.entry("a", value="text", width="100px"),
    ],
    ids=lambda control: type(control).__name__,
)
def test_a_control_waits_until_the_hand_lets_go(control: Any) -> None:
    assert control.description == "a" and control.continuous_update is False


def test_numbers_are_offered_with_their_thousands_marked() -> None:
    control = panelkit.choice("n_ctx", [512, 4096], value=4096)
    assert control.options == (("512", 512), ("4,096", 4096)) and control.value == 4096
    assert panelkit.choice("type", ["f16", "q8_0"]).value == "f16"
    assert panelkit.choice("memory", [("no limit", None), ("1", 1)]).value is None


def test_text_of_a_model_cannot_become_html() -> None:
    assert "&lt;script&gt;" in panelkit.paragraph("<script>") and "<script>" not in panelkit.paragraph("<script>")


def test_sizes_are_said_with_their_sums_and_distances() -> None:
    assert panelkit.sum_of({"weights": 1 << 30, "nothing": 0, "cache": 1 << 20}) == "weights 1.00 GiB + cache 1.00 MiB"
    assert panelkit.less_or_more(1 << 20, 3 << 20) == "2.00 MiB less"
    assert panelkit.less_or_more(3 << 20, 1 << 20) == "2.00 MiB more"
    assert panelkit.axis_end(4096) == 4096 and panelkit.axis_end(4097) == 8192


def test_a_run_reports_its_progress_and_frees_the_buttons() -> None:
    seen: list[tuple[float, str, bool]] = []

    def work(progress: Progress, cancel: threading.Event) -> None:
        progress(0.25, "a <quarter>")
        seen.append((panel.runner.bar.value, panel.runner.state.value, panel.runner.run.disabled))

    panel = Work(work)
    run(panel)
    [(share, text, disabled)] = seen
    assert share == 0.25 and "a &lt;quarter&gt;" in text and disabled
    assert panel.runner.bar.value == 1.0


def test_stop_reaches_the_work_and_the_next_run_begins_afresh() -> None:
    heard: list[bool] = []
    panel = Work(lambda progress, cancel: heard.append(cancel.wait(60)))
    for _ in range(2):
        stop(panel)
    assert heard == [True, True]


def test_a_second_press_starts_nothing() -> None:
    begun: list[int] = []
    go = threading.Event()

    def work(progress: Progress, cancel: threading.Event) -> None:
        begun.append(1)
        go.wait(60)

    panel = Work(work)
    panel.runner.run.click()
    panel.runner.run.click()
    go.set()
    finish(panel)
    assert begun == [1]


@pytest.mark.parametrize("error", [ValueError("too small"), OSError("too small"), KeyError("too small")])
def test_whatever_the_work_raises_is_said_and_nothing_is_printed(error: Exception, capfd: Any) -> None:
    def work(progress: Progress, cancel: threading.Event) -> None:
        raise error

    panel = Work(work)
    run(panel)
    assert "too small" in panel.runner.state.value and capfd.readouterr() == ("", "")


def test_an_outcome_is_said_with_its_reason() -> None:
    runner = panelkit.Runner("Run", lambda progress, cancel: None)
    runner.write_outcome("ok", "")
    assert ">ok<" in runner.state.value
    runner.write_outcome("oom-killed", "no memory.")
    assert "oom-killed: no memory." in runner.state.value
