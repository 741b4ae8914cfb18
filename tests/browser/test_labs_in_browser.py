"""The labs in a real browser. Needs Chromium and the package playwright: uv run --group browser pytest tests/browser.

LABKIT_SHOTS=FOLDER opens every lab and keeps screenshots there, to be looked at. Without it only the shortest labs are
opened: the others take minutes, and their cells run in `tests/test_labs.py` anyway.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from support import jupyter_browser as jb
from support.paths import ROOT

LABS = sorted((ROOT / "labs").glob("[0-9][0-9]_*.ipynb"))
if "LABKIT_SHOTS" not in os.environ:
    LABS = [lab for lab in LABS if lab.name.startswith(("00_", "05_"))]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="the package playwright is not installed"
    ),
]

PANEL = """
import io, threading, time
import ipywidgets as widgets
from matplotlib.figure import Figure

def picture(n):
    figure = Figure(figsize=(3, 2))
    figure.add_subplot().bar(range(n), range(n))
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()

slider = widgets.IntSlider(value=3, min=1, max=9, description="bars", continuous_update=False)
image = widgets.Image(value=picture(3), width=300)
button = widgets.Button(description="Run it")
second = widgets.Image(value=picture(2), width=300)
"""
SHOW = """
slider.observe(lambda change: setattr(image, "value", picture(change["new"])), "value")
widgets.VBox([slider, image])
"""
RUN = """
def work():
    time.sleep(1)
    second.value = picture(7)
    button.disabled = False

def clicked(_):
    button.disabled = True
    threading.Thread(target=work).start()

button.on_click(clicked)
widgets.VBox([button, second])
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=jb.FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def lab_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JupyterLab on a copy of the labs and two notebooks made here."""
    folder = tmp_path_factory.mktemp("labs")
    for lab in LABS:
        shutil.copy(lab, folder)
    good = [
        new_markdown_cell("# A panel?"),
        *map(new_code_cell, (PANEL, SHOW, RUN)),
        new_markdown_cell("text\n\n" * 80),
    ]
    bad = [new_code_cell("print(1)"), new_code_cell("1 / 0"), new_code_cell("print(2)")]
    dead = [new_code_cell(PANEL), new_code_cell("widgets.VBox([slider, image])")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    for name, cells in (("good", good), ("bad", bad), ("dead", dead)):
        nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / f"{name}.ipynb")
    with jb.jupyterlab(folder, tmp_path_factory.mktemp("jupyter")) as url:
        yield url


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    return Path(os.environ.get("LABKIT_SHOTS") or tmp_path)


def test_the_driver_moves_presses_and_photographs(page: Any, lab_url: str, shots: Path) -> None:
    jb.open_notebook(page, lab_url, "good.ipynb")
    assert jb.run_all(page) == 3
    assert jb.use_panels(page) == (1, 1)
    assert len({shot.read_bytes() for shot in jb.screenshots(page, shots, "good")}) > 1


def test_the_driver_notices_a_failing_cell(page: Any, lab_url: str) -> None:
    jb.open_notebook(page, lab_url, "bad.ipynb")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        jb.run_all(page)


def test_the_driver_notices_a_dead_slider(page: Any, lab_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jb, "RESULT_S", 3)
    jb.open_notebook(page, lab_url, "dead.ipynb")
    jb.run_all(page)
    with pytest.raises(AssertionError, match="a picture changes"):
        jb.use_panels(page)


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_lab_runs_and_its_panels_answer(lab: Path, page: Any, lab_url: str, shots: Path) -> None:
    jb.open_notebook(page, lab_url, lab.name)
    try:
        assert jb.run_all(page) > 1
        moved, pressed = jb.use_panels(page)
    finally:
        jb.screenshots(page, shots, lab.stem)
    assert moved or pressed, "the lab has no panel that was used"
    if not lab.name.startswith("00_"):
        assert (moved, pressed) == (1, 1), "a lab has a slider and a Run button"


def test_jupyterlab_asks_nothing_on_its_first_start(page: Any, lab_url: str) -> None:
    """Its question about news would cover a corner of every page; the kit's wheel ships a setting against it."""
    jb.open_notebook(page, lab_url, "bad.ipynb")
    page.wait_for_timeout(3000)
    assert page.locator(".Toastify__toast").count() == 0
