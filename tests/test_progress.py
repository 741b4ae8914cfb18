"""Progress bars: where someone is looking, for work that takes a while, and gone afterwards."""

from __future__ import annotations

import io
import sys
import time
import types
from typing import Any

import pytest

from labkit import progress
from labkit.progress import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> str:
        """The last line as a terminal shows it: a carriage return goes back to its beginning."""
        shown: list[str] = []
        for part in self.getvalue().split("\r"):
            shown[: len(part)] = part
        return "".join(shown)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    fake = Terminal()
    # Not sys.stderr itself: pytest puts its own there when the test begins.
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=fake, modules=sys.modules))
    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    return fake


def test_nobody_looking_means_nothing_written(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    with bar("work") as report:
        report(0.5, "half")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_one_line_that_is_gone_afterwards(terminal: Terminal) -> None:
    with bar("measuring x") as report:
        report(0.0, "start")
        assert terminal.screen().rstrip() == f"measuring x [{'.' * 24}]   0% start"
        report(0.5, "decode, token 2 of 4")
        assert terminal.screen().rstrip() == f"measuring x [{'#' * 12}{'.' * 12}]  50% decode, token 2 of 4"
        report(1.0, "ok")
        assert terminal.screen().rstrip() == f"measuring x [{'#' * 24}] 100% ok"
    assert terminal.screen().strip() == ""
    assert "\n" not in terminal.getvalue() and terminal.getvalue().endswith("\r")


def test_shares_outside_0_and_1_are_clamped(terminal: Terminal) -> None:
    with bar("x") as report:
        report(-1, "a")
        assert "  0% a" in terminal.screen()
        report(7, "b")
        assert "100% b" in terminal.screen()


def test_the_line_goes_also_after_an_error(terminal: Terminal) -> None:
    with pytest.raises(ZeroDivisionError), bar("x") as report:
        report(0.5, "half")
        assert "half" in terminal.screen()
        raise ZeroDivisionError
    assert terminal.screen().strip() == ""


def test_short_work_shows_no_bar(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 3600)
    with bar("x") as report:
        report(0.5, "half")
    assert terminal.getvalue() == ""


class Output:
    """A notebook cell's outputs, as display handles change them."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, view: Any, *, display_id: bool) -> Any:
        assert display_id
        self.shown.append(view.data)
        at = len(self.shown) - 1
        return types.SimpleNamespace(update=lambda view: self.shown.__setitem__(at, view.data))


def test_a_notebook_shows_one_output_that_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    import IPython.display

    output = Output()
    kernel = types.SimpleNamespace(kernel=object())
    monkeypatch.setattr(IPython, "get_ipython", lambda: kernel)
    monkeypatch.setattr(IPython.display, "display", output.display)
    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    with bar("measuring <x>") as report:
        report(0.25, "load & go")
        assert len(output.shown) == 1
        assert 'value="0.250"' in output.shown[0] and "measuring &lt;x&gt;: load &amp; go" in output.shown[0]
        report(0.5, "too soon to be drawn")
        assert 'value="0.250"' in output.shown[0]
        later = time.monotonic() + 10
        monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: later))
        report(0.75, "decode")
        assert len(output.shown) == 1 and 'value="0.750"' in output.shown[0]
    assert output.shown == [""]


def test_plain_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    assert progress._in_kernel() is False
    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace())
    assert progress._in_kernel() is False
