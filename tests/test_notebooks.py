"""Running notebooks without a browser: what is saved, what is left alone, and what is said when a cell fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import notebooks


def write(path: Path, *sources: str) -> Path:
    cells = [new_markdown_cell("# Why?"), *(new_code_cell(source) for source in sources)]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": {"name": "elsewhere", "display_name": "x"}}), path)
    return path


@pytest.mark.live
def test_a_saved_run_is_numbered_tidy_and_idempotent(tmp_path: Path) -> None:
    path = write(
        tmp_path / "01_x.ipynb",
        f"import sys\nprint(sys.executable == {sys.executable!r})",
        "",
        "import ipywidgets\nipywidgets.IntSlider()",
        "import os\nos.path.basename(os.getcwd())",
    )
    path.chmod(0o640)
    seen: list[tuple[int, int]] = []
    result = notebooks.execute(path, save=True, on_cell=lambda number, count: seen.append((number, count)))

    assert (result.lab, result.ok, result.cells, result.error) == ("01_x", True, 3, None)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    saved = nbformat.read(path, as_version=4)
    nbformat.validate(saved)
    code = [cell for cell in saved.cells if cell.cell_type == "code" and cell.source]
    assert [cell.execution_count for cell in code] == [1, 2, 3]
    assert code[0].outputs[0].text == "True\n", "the kernel is not this Python"
    assert code[1].outputs == [], "a view of a widget was stored"
    assert code[2].outputs[0].data["text/plain"] == repr(tmp_path.name), "it did not run in its own folder"
    assert "widgets" not in saved.metadata and saved.metadata.kernelspec.name == "python3"
    assert all("execution" not in cell.metadata for cell in saved.cells)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path], "a temporary file was left"

    first = path.read_bytes()
    assert notebooks.execute(path, save=True).ok
    assert path.read_bytes() == first, "saving the same run twice makes a difference"


@pytest.mark.parametrize("widgets", [True, False], ids=["with ipywidgets", "without ipywidgets"])
@pytest.mark.live
def test_nothing_of_a_progress_bar_is_saved(tmp_path: Path, widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path / "01_x.ipynb",
        "" if widgets else "import sys\nsys.modules['ipywidgets'] = None",
        "import time\nfrom labkit import progress\nprogress.DELAY_S = 0.05",
        "with progress.bar('outer') as outer, progress.bar('inner') as inner:\n"
        "    time.sleep(0.2)\n    outer(0.5, 'half')\n    inner(0.5, 'half')",
        "with progress.bar('failing') as report:\n    time.sleep(0.2)\n    report(0.5, 'half')\n    1 / 0",
    )
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].metadata["tags"] = ["raises-exception"]
    nbformat.write(notebook, path)
    shown: list[Any] = []
    tidy = notebooks.tidy

    def spy(notebook: Any) -> None:
        shown.extend(out for cell in notebook.cells[1:] for out in cell.outputs if out.output_type == "display_data")
        tidy(notebook)

    monkeypatch.setattr(notebooks, "tidy", spy)
    assert notebooks.execute(path, save=True).ok
    assert len(shown) == (3 if widgets else 0) and all(notebooks.WIDGET_VIEW in out.data for out in shown)
    *others, failing = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] for cell in others)
    assert [out.output_type for out in failing.outputs] == ["error"]


@pytest.mark.live
def test_without_save_the_file_is_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path / "01_x.ipynb", "print(1)")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert notebooks.execute(path).ok
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ValueError('no model\\nmore')", "cell 2 raised ValueError: no model"),
        ("import time; time.sleep(60)", "cell 2 ran longer than 1 s"),
        ("import os; os._exit(3)", "the kernel ended in cell 2"),
    ],
)
@pytest.mark.live
def test_a_failed_run_is_reported_and_never_saved(tmp_path: Path, source: str, error: str) -> None:
    path = write(tmp_path / "01_x.ipynb", "print(1)", source, "print(3)")
    before = path.read_bytes()
    result = notebooks.execute(path, save=True, timeout_s=1)
    assert (result.ok, result.error) == (False, error)
    assert path.read_bytes() == before


@pytest.mark.live
def test_paths_of_this_machine_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "01_x.ipynb", "print('/home/' + 'someone/model.gguf')\nprint('/proc/self/maps')")
    assert notebooks.execute(path).machine_paths == ("/home/someone/model.gguf",)


@pytest.mark.live
def test_run_prints_a_line_per_lab_or_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = str(write(tmp_path / "01_good.ipynb", "print(1)"))
    bad = str(write(tmp_path / "02_bad.ipynb", "1 / 0"))
    assert notebooks.run([good]) == 0
    out, err = capfd.readouterr()
    assert re.fullmatch(r"lab 01 · 1 cells · \d+ s · ok\n", out) and err == "", "the kernel is not quiet"
    assert notebooks.run([good, bad], json=True) == 1
    [first, second] = json.loads(capfd.readouterr().out)
    assert (first["lab"], first["ok"], first["error"]) == ("01_good", True, None)
    assert second["error"] == "cell 1 raised ZeroDivisionError: division by zero"


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a process")
@pytest.mark.live
def test_an_interrupt_ends_the_kernel_and_leaves_the_file(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    source = f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(120)"
    path = write(tmp_path / "01_x.ipynb", source)
    before = path.read_bytes()
    code = f"from labkit import notebooks; notebooks.run([{str(path)!r}], save=True)"
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    try:
        _wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
        parent.send_signal(signal.SIGINT)
        parent.communicate(timeout=150)
    finally:
        parent.kill()
    assert parent.returncode != 0
    kernel = int(pid_file.read_text())
    _wait_until(lambda: not psutil.pid_exists(kernel))
    assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["01_x.ipynb", "pid"]


def test_tidy_takes_out_what_differs_between_saves() -> None:
    view = new_output("display_data", data={notebooks.WIDGET_VIEW: {}, "text/plain": "VBox()"})
    cell = new_code_cell("x", outputs=[view, new_output("stream", text="kept")])
    cell.metadata.update({"execution": {"iopub.execute_input": "2026-01-01"}, "tags": ["kept"]})
    notebook = new_notebook(
        cells=[cell], metadata={"widgets": {}, "language_info": {"name": "python", "version": "3.11.7"}}
    )
    notebooks.tidy(notebook)
    assert "widgets" not in notebook.metadata and notebook.metadata["language_info"] == {"name": "python"}
    assert cell.metadata == {"tags": ["kept"]}
    assert [out.get("text") for out in cell.outputs] == ["kept"]


def _wait_until(condition: Callable[[], bool], seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
