"""Panels of lab 05 without a browser: moving a control or pressing a button changes what is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ipywidgets")

from support.lab05 import KILLED, ROWS, header, pressed
from support.panels import drawn, is_png, picture, run

from labkit import predict
from labkit.course import panels
from labkit.course.lab05.panels import MODELS
from labkit.experiments import pressure
from labkit.experiments.pressure import Pressured
from labkit.planning.context import longest_surviving_context, needed, pinned_bytes
from labkit.settings import Settings, SettingsError
from labkit.units import GiB, MiB, fmt_bytes


def test_the_budget_panel_says_what_must_stay_and_the_fate() -> None:
    panel = panels.LockBudget()
    chosen = Settings(load_mode="mmap+mlock", repack=False, n_ctx=4096)
    p = needed(header(), chosen, 4096)
    text = panel.text.value
    assert is_png(panel) and "reads no weight twice" in text
    assert f"locked weights {fmt_bytes(p.locked_bytes)}" in text and f"= {fmt_bytes(pinned_bytes(p))}" in text
    assert "8,192 tokens with locked weights" in text and "15,872 tokens with weights" in text
    before = picture(panel)
    panel.n_ctx.value = 12288
    assert picture(panel) != before and "kills" in panel.text.value
    panel.locked.value = False
    assert "again and again" in panel.text.value
    assert f"locked weights {fmt_bytes(p.locked_bytes)}" not in panel.text.value
    panel.cache.value = "q8_0"
    q8 = replace(chosen, type_k="q8_0", type_v="q8_0")
    assert f"{longest_surviving_context(header(), q8, 8 * GiB):,} tokens with locked weights" in panel.text.value
    panel.repack.value = True
    assert "repack copy" in panel.text.value


def test_only_model_and_limit_move_the_axes(monkeypatch: Any) -> None:
    asked = drawn(monkeypatch, "lock_budget")
    panel = panels.LockBudget()
    panel.n_ctx.value, panel.cache.value, panel.locked.value = 16384, "q4_0", False
    assert len(asked) == 4 and len({(how["top_bytes"], how["last"]) for how in asked}) == 1
    panel.limit.value = 30
    assert asked[-1]["top_bytes"] > asked[0]["top_bytes"] and asked[-1]["limit_bytes"] == 30 * GiB


@pytest.mark.parametrize("model", MODELS)
def test_every_model_can_be_drawn(model: str) -> None:
    assert is_png(panels.LockBudget([model], limit_gib=3.5))


def test_what_the_model_refuses_is_said_and_its_picture_hidden(monkeypatch: Any) -> None:
    def refuse(known: Any, chosen: Settings) -> None:
        raise SettingsError(f"n_ctx is {chosen.n_ctx:,}: write less.")

    panel = panels.LockBudget()
    monkeypatch.setattr(predict, "check", refuse)
    panel.n_ctx.value = 32768
    assert "n_ctx is 32,768" in panel.text.value and not is_png(panel)


def test_a_run_under_pressure_is_asked_for_as_chosen_and_added(monkeypatch: Any) -> None:
    asked: list[dict[str, Any]] = []

    def press(model: str, **how: Any) -> Pressured:
        asked.append({"model": model, **how})
        dies = how["load_mode"] == "none"
        return pressed(how["load_mode"], () if dies else (50, 60), **(KILLED if dies else {}))

    monkeypatch.setattr(pressure, "pressured", press)
    panel = panels.PressureRun("1100MiB", tokens=6, n_ctx=1024)
    assert not is_png(panel) and "1.07 GiB" in panel.text.value
    panel.load_mode.value, panel.kind.value = "mmap+mlock", "anonymous"
    panel.ballast.value = panel.ballast.max // panel.ballast.step * panel.ballast.step
    run(panel)
    assert is_png(panel) and panel.runner.state.value.count("ok")
    assert "median 55.0 ms, p95 60.0 ms, worst 60.0 ms" in panel.text.value
    told = asked[0]
    assert told["cap"] == 1100 * MiB and told["ballast"] == panel.ballast.value * MiB and told["kind"] == "anonymous"
    assert (told["load_mode"], told["tokens"], told["n_ctx"]) == ("mmap+mlock", 6, 1024)
    assert told["n_threads"] == 1 and not told["repack"]
    panel.load_mode.value = "none"
    before = picture(panel)
    run(panel)
    assert picture(panel) != before and len(panel.rows) == 2
    assert "oom-killed: the kernel killed it" in panel.runner.state.value and "oom-killed" in panel.text.value


def test_only_the_last_few_runs_are_drawn_and_what_is_refused_is_said(monkeypatch: Any) -> None:
    def refuse(model: str, **how: Any) -> Pressured:
        raise ValueError("a ballast has at least 1 MiB.")

    monkeypatch.setattr(pressure, "pressured", refuse)
    asked = drawn(monkeypatch, "latency")
    panel = panels.PressureRun(GiB, rows=[*ROWS, *ROWS], most_bytes=200 * MiB)
    assert [len(how["what"]) for how in asked] == [4] and is_png(panel)
    assert panel.ballast.max == 200 and panel.ballast.min >= 1
    run(panel)
    assert "a ballast has at least 1 MiB." in panel.runner.state.value and len(panel.rows) == 6
