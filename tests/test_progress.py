"""Progress bars: in a notebook and on a terminal only, for work that takes a while, and gone afterwards."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from labkit import progress
from labkit.progress import bar


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines as a terminal shows them, without what stands behind them."""
        lines: list[list[str]] = [[]]
        row = column = 0
        text = self.getvalue().replace("\x1b[A", "\v")
        for char in text:
            if char == "\r":
                column = 0
            elif char == "\n":
                row, column = row + 1, 0
            elif char == "\v":
                row -= 1
            else:
                lines += [[] for _ in range(row + 1 - len(lines))]
                lines[row] += " " * (column + 1 - len(lines[row]))
                lines[row][column] = char
                column += 1
        return ["".join(line).rstrip() for line in lines]


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """To set ``sys.stderr`` in the test itself: pytest puts its own there when the test begins."""
    monkeypatch.setattr(progress, "DELAY_S", 0.05)
    return monkeypatch


def _wait() -> None:
    """Longer than the delay here, and than tqdm's least time between two changes of a bar."""
    time.sleep(0.11)


def test_without_a_terminal_nothing_is_written(capsys: pytest.CaptureFixture[str], stderr: pytest.MonkeyPatch) -> None:
    with bar("work") as report:
        _wait()
        report(0.5, "half")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_one_line_with_the_time_left_that_is_gone_afterwards(stderr: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    stderr.setattr(sys, "stderr", terminal)
    threads = threading.active_count()
    with bar("measuring x") as report:
        _wait()
        report(0.5, "decode, token 2 of 4")
        [line] = terminal.screen()
        assert line == f"measuring x  50%|{'█' * 12}{' ' * 12}| 00:00 left, decode, token 2 of 4"
        _wait()
        report(1.0, "ok")
        assert terminal.screen() == [f"measuring x 100%|{'█' * 24}| 00:00 left, ok"]
    assert terminal.screen() == [""] and "\n" not in terminal.getvalue()
    assert threading.active_count() == threads, "a thread goes on after the bar"


def test_the_time_left_is_as_long_for_each_part_as_so_far(stderr: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    stderr.setattr(sys, "stderr", terminal)
    with bar("x") as report:
        _wait()
        report(0.001, "a")
        [line] = terminal.screen()
    minutes, seconds = line.rsplit("| ", 1)[-1].split()[0].split(":")
    assert 100 <= 60 * int(minutes) + int(seconds) <= 600, "0.11 s for a thousandth"


@pytest.mark.parametrize(("fraction", "shown"), [(-1.0, "  0%"), (7.0, "100%")])
def test_fractions_outside_0_and_1_are_clamped(stderr: pytest.MonkeyPatch, fraction: float, shown: str) -> None:
    terminal = Terminal()
    stderr.setattr(sys, "stderr", terminal)
    with bar("x") as report:
        _wait()
        report(fraction, "a")
        assert terminal.screen()[0].startswith(f"x {shown}")


def test_a_bar_inside_another_has_its_own_line_and_both_go(stderr: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    stderr.setattr(sys, "stderr", terminal)
    with bar("outer") as report, bar("inner") as report_inner:
        _wait()
        report(0.25, "a")
        report_inner(0.75, "b")
        outer, inner = terminal.screen()
        assert outer.startswith("outer  25%") and inner.startswith("inner  75%")
    assert not any(terminal.screen())


def test_the_line_goes_also_after_an_error(stderr: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    stderr.setattr(sys, "stderr", terminal)
    with pytest.raises(ZeroDivisionError), bar("x") as report:
        _wait()
        report(0.5, "half")
        assert "half" in terminal.getvalue()
        raise ZeroDivisionError
    assert terminal.screen() == [""]


def test_short_work_shows_no_bar(stderr: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    stderr.setattr(sys, "stderr", terminal)
    stderr.setattr(progress, "DELAY_S", 3600)
    with bar("x") as report:
        _wait()
        report(0.5, "half")
    assert terminal.getvalue() == ""
