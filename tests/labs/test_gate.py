"""Each static check of the labs catches the defect it is there for, and passes a good lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from support import gate

SPINE = """
# Where is the model when it is loaded?
## What you will learn
## Setup
>import labkit as lk
## Act 1 · Mapped is not resident
>my_prediction_mib = None
>print(lk.fmt_bytes(1))  # NBVAL_CHECK_OUTPUT
## Act 2 · What llama.cpp does
![bars of memory](figure.png)
>print("it holds")  # NBVAL_CHECK_OUTPUT
## Exercises
>answer = ...
>lk.check.kv_bytes(answer)
## A failure on purpose
## Checkpoint
<details></details><details></details><details></details>
## In practice
## Claims this lab settles
## Where next
"""


def build(text: str) -> Any:
    """A notebook from lines: those that start with '>' are code cells, executed; the rest are markdown cells."""
    cells = []
    for line in text.strip().splitlines():
        if line.startswith(">"):
            output = [new_output("stream", name="stdout", text="it holds\n")] if gate.MARK in line else []
            count = sum(cell.cell_type == "code" for cell in cells) + 1
            cells.append(new_code_cell(line[1:], execution_count=count, outputs=output))
        else:
            cells.append(new_markdown_cell(line))
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def solution() -> Any:
    return build(">import labkit as lk\n>answer = 5\n>lk.check.kv_bytes(answer)")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def write_lab(nb: Any, answers: Any = None, name: str = "01_mmap.ipynb") -> Path:
        (tmp_path / "figure.png").touch()
        (tmp_path / "solutions").mkdir()
        nbformat.write(nb, tmp_path / name)
        nbformat.write(answers or solution(), tmp_path / "solutions" / name)
        return tmp_path / name

    return write_lab


def test_a_good_lab_and_its_solutions_pass(write: Callable[..., Path]) -> None:
    path = write(build(SPINE))
    assert gate.problems_of_lab(path) == []
    assert gate.problems_of_solution(path.parent / "solutions" / path.name) == []


# What to change in the good lab (old text, new text), and the words the report must contain.
TEXT_DEFECTS = {
    "two titles": ("## Act 1", "# A second title?\n## Act 1", "there are 2"),
    "no title": ("# Where is the model when it is loaded?\n", "", "there are 0"),
    "title is no question": ("when it is loaded?", "when it is loaded", "not a question"),
    "a part is missing": ("## Checkpoint\n", "", "'Checkpoint' is missing"),
    "an act is missing": ("## Act 2", "## Interlude", "'Act 2' is missing"),
    "parts in the wrong order": ("## Act 1 · Mapped", "## Where next\n## Act 1 · Mapped", "'Where next'"),
    "a part stands twice": ("## In practice", "## In practice\n## In practice", "2 times"),
    "a skipped heading level": ("## In practice", "## In practice\n#### Deep", "skips a level"),
    "an act without a checked cell": (
        '>print("it holds")  # NBVAL_CHECK_OUTPUT',
        '>print("it holds")',
        "no cell is marked",
    ),
    "two folded answers": (
        "<details></details><details></details><details></details>",
        "<details><details>",
        "2 folded",
    ),
    "an image without alt text": ("![bars of memory]", "![]", "no alt text"),
    "an img tag without alt text": ("## In practice", '## In practice\n<img src="figure.png">', "no alt text"),
    "a link to nowhere": ("## In practice", "## In practice\n[next](02_gone.ipynb)", "leads nowhere"),
    "labkit imported twice": ("## In practice", "## In practice\n>import labkit as lk", "stands in 2 cells"),
    "labkit not imported": (">import labkit as lk\n", ">import os\n", "stands in 0 cells"),
    "a module imported": (">import labkit as lk", ">import labkit as lk; import labkit.engine", "import labkit.engine"),
    "a name imported": (
        ">import labkit as lk",
        ">import labkit as lk; from labkit.engine import load",
        "from labkit.engine",
    ),
    "something private": (
        ">my_prediction_mib",
        ">x = lk.engine._load().y; my_prediction_mib",
        "private: lk.engine._load",
    ),
    "private on a result": (">my_prediction_mib", ">x = lk.load()._pid; my_prediction_mib", "private: lk.load()._pid"),
    "waiting for the keyboard": (">my_prediction_mib = None", '>my_prediction_mib = input("?")', "calls input()"),
    "a prediction given away": (">my_prediction_mib = None", ">my_prediction_mib = 3891", "starts as None"),
    "an answer given away": (">answer = ...", ">answer = 5", "gives its answer away"),
    "an exercise without check": (">lk.check.kv_bytes(answer)", ">print(answer)", "no lk.check"),
    "an exercise without solution": (
        "kv_bytes(answer)",
        "kv_bytes(answer); lk.check.other(...)",
        "'other' has no solution",
    ),
    "a path of a home folder": (
        "## In practice",
        "## In practice\nSee /home/someone/model.gguf",
        "/home/someone/model.gguf",
    ),
    "a path on Windows": ("## In practice", "## In practice\nSee C:\\models\\m.gguf", "C:\\models\\m.gguf"),
}


@pytest.mark.parametrize("defect", TEXT_DEFECTS)
def test_a_defect_in_the_text_is_caught(defect: str, write: Callable[..., Path]) -> None:
    old, new, words = TEXT_DEFECTS[defect]
    assert SPINE.count(old) == 1, "the fixture no longer applies"
    problems = gate.problems_of_lab(write(build(SPINE.replace(old, new))))
    assert any(words in problem for problem in problems), problems


def _uncounted(nb: Any) -> None:
    gate.code_cells(nb)[1].execution_count = None


def _recounted(nb: Any) -> None:
    gate.code_cells(nb)[0].execution_count = 9


def _error(nb: Any) -> None:
    gate.code_cells(nb)[0].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=[])]


def _stderr(nb: Any) -> None:
    gate.code_cells(nb)[0].outputs = [new_output("stream", name="stderr", text="warning")]


def _path_in_html(nb: Any) -> None:
    gate.code_cells(nb)[0].outputs = [new_output("display_data", data={"text/html": "<b>/tmp/x/model.gguf</b>"})]


def _widget_state(nb: Any) -> None:
    nb.metadata["widgets"] = {}


def _widget_view(nb: Any) -> None:
    data = {gate.WIDGET_VIEW: {"model_id": "1"}, "text/plain": "VBox()"}
    gate.code_cells(nb)[0].outputs = [new_output("display_data", data=data)]


def _kernel(nb: Any) -> None:
    nb.metadata["kernelspec"]["name"] = "my-venv"


def _silent_checked_cell(nb: Any) -> None:
    next(cell for cell in gate.code_cells(nb) if gate.MARK in cell.source).outputs = []


def _fat(nb: Any) -> None:
    gate.code_cells(nb)[0].outputs = [new_output("display_data", data={"image/png": "A" * gate.MAX_BYTES})]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_uncounted, "execution counts"),
        (_recounted, "execution counts"),
        (_error, "stores an error: ValueError"),
        (_stderr, "stderr"),
        (_path_in_html, "/tmp/x/model.gguf"),
        (_widget_state, "widget state"),
        (_widget_view, "view of a widget"),
        (_kernel, "'my-venv'"),
        (_silent_checked_cell, "no text to compare"),
        (_fat, "kB"),
    ],
)
def test_a_defect_in_the_stored_outputs_is_caught(
    spoil: Callable[[Any], None], words: str, write: Callable[..., Path]
) -> None:
    nb = build(SPINE)
    spoil(nb)
    problems = gate.problems_of_lab(write(nb))
    assert len(problems) == 1 and words in problems[0], problems


def test_a_lab_with_exercises_needs_solutions(write: Callable[..., Path]) -> None:
    path = write(build(SPINE))
    (path.parent / "solutions" / path.name).unlink()
    assert gate.problems_of_lab(path) == ["it has exercises but no notebook of the same name in solutions/"]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (">import labkit as lk\n>lk.check.kv_bytes(...)", "'kv_bytes' has no solution"),
        (">import labkit as lk\n>lk.check.kv_bytes(5); lk.check.extra(6)", "'extra' has no exercise"),
    ],
)
def test_solutions_that_drift_from_the_exercises_are_caught(
    answers: str, words: str, write: Callable[..., Path]
) -> None:
    problems = gate.problems_of_lab(write(build(SPINE), build(answers)))
    assert len(problems) == 1 and words in problems[0], problems


def test_a_stub_may_be_a_function_and_its_check_a_later_cell() -> None:
    stub = new_notebook(
        cells=[new_code_cell("def bits(x):\n    'Bits.'\n    ..."), new_code_cell("lk.check.bits(bits)")]
    )
    done = new_notebook(cells=[new_code_cell("def bits(x):\n    return 8 * x"), new_code_cell("lk.check.bits(bits)")])
    assert gate.check_exercises(stub, done) == []


def test_lab_00_may_leave_out_what_only_later_labs_have() -> None:
    short = build("# What is this machine?\n## What you will learn\n## Setup\n## Where next")
    assert gate.check_spine(short, whole=False) == []
    assert len(gate.check_spine(short, whole=True)) == 7


def test_headings_in_code_fences_do_not_count() -> None:
    nb = new_notebook(cells=[new_markdown_cell("# Why?\n```\n# a comment\n```")])
    assert gate.check_title(nb) == []


def test_paths_that_are_the_same_everywhere_are_allowed() -> None:
    nb = new_notebook(cells=[new_markdown_cell("Read /proc/self/smaps, ~/.cache/labkit and https://x.org/home/me/y.")])
    assert gate.check_paths(nb) == []
