"""Run the labs without a browser: ``labkit run``.

``execute`` runs a notebook in a fresh kernel of this environment; with ``save`` it writes the outputs back, tidied, so
that a committed notebook reads well and differs only where a measurement did.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labkit.files import new_file
from labkit.progress import bar
from labkit.workspace import lab_paths

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# Folders that differ from machine to machine. A lab may name /proc, /sys and /etc, which are the same everywhere.
_MACHINE_PATH = re.compile(r"(?<![\w./:~-])(?:/(?:home|root|Users|tmp|work|opt|mnt|private)/|[A-Z]:\\)[^\s'\"<>)\]]+")

OnCell = Callable[[int, int], None]


@dataclass(frozen=True)
class LabResult:
    """The result of running one lab.

    Attributes:
        lab: the name of its file without ``.ipynb``.
        cells: number of code cells.
        error: one sentence; None where every cell ran.
        machine_paths: absolute paths of this machine that stand in the notebook.
    """

    lab: str
    ok: bool
    seconds: float
    cells: int
    error: str | None = None
    machine_paths: tuple[str, ...] = ()


def execute(
    path: str | os.PathLike[str], *, timeout_s: float | None = 600, save: bool = False, on_cell: OnCell | None = None
) -> LabResult:
    """Run a notebook from top to bottom in a fresh kernel of this Python.

    The file is written only with ``save`` and only after every cell has run; it is replaced in one step.

    Args:
        path: the notebook. It runs in its own folder.
        timeout_s: longest time for one cell, in seconds; None for no limit.
        save: write the outputs back.
        on_cell: called with (number of the cell, number of code cells) as each code cell starts, counted from 1.

    Raises:
        ModuleNotFoundError: nbclient or ipykernel is not installed.
        KeyboardInterrupt: passed on after the kernel has ended.
    """
    for package in ("nbclient", "nbformat", "ipykernel"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"running labs needs {package}: pip install 'llm-memory-labs[lab]'", name=package)
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    path = Path(path)
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    order = [i for i, cell in enumerate(notebook.cells) if _is_code(cell)]
    at = 0

    def started(cell: Any, cell_index: int) -> None:
        nonlocal at
        if _is_code(cell):
            at = order.index(cell_index) + 1
            if on_cell is not None:
                on_cell(at, len(order))

    # No kernel folders: "python3" is then the interpreter we run in, whatever a user has installed under that name.
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=timeout_s,
        store_widget_state=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # it warns at every start that 127.0.0.1 is not encrypted
        resources={"metadata": {"path": str(path.resolve().parent)}},
        on_cell_start=started,
    )
    begin = time.perf_counter()
    error = None
    try:
        _finish(client)
    except CellExecutionError as fault:
        error = f"cell {at} raised {fault.ename}: {_first_line(fault.evalue)}"
    except CellTimeoutError:
        error = f"cell {at} ran longer than {timeout_s:g} s"
    except DeadKernelError:
        error = f"the kernel ended in cell {at}"
    seconds = time.perf_counter() - begin
    tidy(notebook)
    if save and error is None:
        with new_file(path) as part:
            part.write_text(nbformat.writes(notebook) + "\n", "utf-8", newline="\n")  # type: ignore[no-untyped-call]
    return LabResult(path.stem, error is None, seconds, len(order), error, tuple(machine_paths(notebook)))


def tidy(notebook: Any) -> None:
    """Take out, in place, what would differ between two saves of the same run: widget state, widget views, timestamps.

    A stored view of a widget without its state shows as an error when the notebook is opened, so views go too. Progress
    bars are such widgets.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata["kernelspec"] = dict(KERNELSPEC)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        cell.metadata.pop("ExecuteTime", None)
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if WIDGET_VIEW not in out.get("data", {})]


def machine_paths(notebook: Any) -> list[str]:
    """Absolute paths of one machine that stand in a notebook's text or outputs, each once."""
    found: dict[str, None] = {}
    for text in _texts(notebook):
        found.update(dict.fromkeys(_MACHINE_PATH.findall(text)))
    return list(found)


def run(labs: Sequence[str] | None = None, *, save: bool = False, json: bool = False) -> int:
    """Execute labs one after the other and report each on a line: the command ``labkit run``.

    A progress bar goes to stderr where that is a terminal, results to stdout.

    Returns:
        0 when every lab ran to its end, else 1.

    Raises:
        ValueError: no lab has one of the names.
    """
    results = []
    for path in lab_paths(labs):
        with bar(f"lab {path.stem[:2]}") as report:
            result = execute(path, save=save, on_cell=lambda n, count: report((n - 1) / count, f"cell {n} of {count}"))
        results.append(result)
        if not json:
            state = "ok" if result.ok else f"failed: {result.error}"
            print(f"lab {path.stem[:2]} · {result.cells} cells · {result.seconds:.0f} s · {state}", flush=True)
            for found in result.machine_paths:
                print(f"  a path of this machine stands in it: {found}")
    if json:
        print(jsonlib.dumps([asdict(result) for result in results], indent=1))
    return 0 if all(result.ok for result in results) else 1


def _finish(client: Any) -> None:
    """Run a notebook client to its end, in a thread: in the main one, nbclient takes Ctrl-C for a kernel that ended."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(client.async_execute(cleanup_kc=True))
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(loop.run_until_complete, task)
        try:
            future.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(task.cancel)
            wait([future])
            raise
        finally:
            if future.done():
                loop.close()


def _is_code(cell: Any) -> bool:
    return bool(cell.cell_type == "code" and cell.source.strip())


def _first_line(text: str) -> str:
    """The first line of a text, without blank lines before it."""
    return text.strip().splitlines()[0] if text.strip() else ""


def _texts(notebook: Any) -> Iterator[str]:
    """Everything a reader can read: sources, printed text, and the textual forms of displayed values."""
    for cell in notebook.cells:
        yield cell.source
        for out in cell.get("outputs", []):
            parts = [out.get("text", "")]
            parts += [value for kind, value in out.get("data", {}).items() if kind.startswith("text/")]
            for part in parts:
                yield "".join(part) if isinstance(part, list) else part
