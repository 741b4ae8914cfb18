"""JupyterLab in headless Chromium, driven as a person would: open a notebook, Run All, move a slider, press Run."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.profile import ENVIRON

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
RUN_ALL_S = 400
RESULT_S = 180

# What the page's own model of the notebook says; cells off screen are in the model, not always in the page.
STATE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const kernel = panel.sessionContext.session?.kernel?.status ?? "none";
  const cells = [...panel.content.model.cells].filter(c => c.type === "code" && c.sharedModel.getSource().trim());
  const errors = [];
  for (const cell of cells)
    for (let i = 0; i < cell.outputs.length; i++) {
      const out = cell.outputs.get(i).toJSON();
      if (out.output_type === "error") errors.push(`${out.ename}: ${out.evalue}`);
    }
  const open = cells.filter(c => c.executionCount === null || c.executionState === "running").length;
  return {kernel, cells: cells.length, open, errors};
}"""


@contextmanager
def jupyterlab(folder: Path, scratch: Path) -> Iterator[str]:
    """JupyterLab on 127.0.0.1 with a token, a free port and settings of its own; yields "http://…/lab?token=…"."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    homes = {name: str(scratch / name.lower()) for name in (
        "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
    )}  # fmt: skip
    tracker = Path(homes["JUPYTERLAB_SETTINGS_DIR"], "@jupyterlab", "notebook-extension", "tracker.jupyterlab-settings")
    tracker.parent.mkdir(parents=True)
    tracker.write_text(json.dumps({"windowingMode": "none"}))  # every cell in the page, for scrolling and screenshots
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1",
               f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
               f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    with (scratch / "server.log").open("w") as log:
        server = subprocess.Popen(command, env={**ENVIRON, **homes}, stdout=log, stderr=log, cwd=folder)
    try:
        until(lambda: _answers(f"http://127.0.0.1:{port}/api?token={token}"), 60, "JupyterLab answers")
        yield f"http://127.0.0.1:{port}/lab?token={token}"
    finally:
        server.terminate()  # it ends its kernels first
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of `condition`; fails, naming `what`, when none comes in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.25)
    return value


def open_notebook(page: Any, url: str, name: str) -> None:
    page.goto(url.replace("/lab?", f"/lab/tree/{name}?") + "&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_function(
        "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel", timeout=60_000
    )
    until(lambda: page.evaluate(STATE)["kernel"] == "idle", 60, "the kernel is idle")
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")


def run_all(page: Any) -> int:
    """Clear the outputs, Run → Run All Cells, wait until the last cell is done. Returns the number of code cells."""
    page.evaluate("() => window.jupyterapp.commands.execute('editmenu:clear-all')")
    assert page.evaluate(STATE)["open"] == page.evaluate(STATE)["cells"], "the old outputs are still there"
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
    page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click()

    def done() -> Any:
        state = page.evaluate(STATE)
        assert not state["errors"], state["errors"]
        return state if state["kernel"] == "idle" and not state["open"] else None

    return int(until(done, RUN_ALL_S, "every cell has run")["cells"])


def _images(cell: Any) -> list[str]:
    return [str(image.get_attribute("src")) for image in cell.locator(".jupyter-widgets img").all()]


def _run_button(cell: Any) -> Any | None:
    for button in cell.locator("button.jupyter-button").all():
        if button.inner_text().strip().startswith("Run") and button.is_visible() and button.is_enabled():
            return button
    return None


def move_slider(cell: Any) -> bool:
    """Press an arrow key on the first slider of the cell that is not at its end."""
    for handle in cell.locator(".noUi-handle, .ui-slider-handle").all():
        if handle.is_visible():
            before = handle.get_attribute("aria-valuenow")
            handle.focus()
            handle.press("ArrowRight")
            if before == handle.get_attribute("aria-valuenow"):
                handle.press("ArrowLeft")
            return True
    return False


def use_panels(page: Any) -> tuple[int, int]:
    """Use the first slider and the first Run button; each must change a picture of its cell.

    Returns:
        How many sliders were moved and how many Run buttons pressed: at most one each.
    """
    cells = page.locator(".jp-Cell:has(.jupyter-widgets)").all()
    moved = pressed = 0
    for cell in cells:
        before = _images(cell)
        if not before or (moved and pressed):
            continue
        can_move = not moved and cell.locator(".noUi-handle, .ui-slider-handle").count() > 0
        button = None if pressed else _run_button(cell)
        if not can_move and button is None:
            continue
        cell.scroll_into_view_if_needed()
        if can_move:
            moved += move_slider(cell)
        if button is not None:
            button.click()
            pressed += 1
        until(lambda cell=cell, before=before: _images(cell) != before, RESULT_S, "a picture changes")
        if button is not None:
            until(lambda cell=cell: _run_button(cell), RESULT_S, "the Run button is free again")
    state = until(lambda: (s := page.evaluate(STATE))["kernel"] == "idle" and s, RESULT_S, "the kernel is idle again")
    assert not state["errors"], state["errors"]
    return moved, pressed


def screenshots(page: Any, folder: Path, name: str) -> list[Path]:
    """The whole notebook, a window's height at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    scroller = page.locator(".jp-NotebookPanel:visible .jp-WindowedPanel-outer").first
    shots = []
    step = scroller.evaluate("e => e.clientHeight - 80")
    total = scroller.evaluate("e => e.scrollHeight")
    for number, top in enumerate(range(0, max(total - 80, 1), step)):
        scroller.evaluate("(e, top) => e.scrollTo(0, top)", top)
        page.wait_for_timeout(300)
        shots.append(folder / f"{name}-{number:02d}.png")
        page.screenshot(path=str(shots[-1]))
    return shots
