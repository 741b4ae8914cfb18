"""Runs kept in files: those that come with the kit, for systems that cannot make them, and those you save.

A kept run names the machine, the date and the command that made it. Whoever maintains the kit makes the files in
``datasets/runs`` anew, on a machine that can cap and lock memory, with ``python -m labkit.experiments.recordings``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.experiments.run import Run
from labkit.files import data_path

MOST_SAMPLES = 100


def recorded(name: str) -> tuple[Run, ...]:
    """Runs made elsewhere that come with the kit (``datasets/runs/NAME.json``); each says where and when.

    Raises:
        FileNotFoundError: there are none of this name.
    """
    return load(data_path(f"runs/{name}.json"))


def origin(run: Run) -> str:
    """Where and when a recorded run was made, as in ``recorded on AMD EPYC, 2026-11-29``."""
    label = run.recorded or {}
    return f"recorded on {label.get('machine')}, {label.get('date')}"


def labelled(run: Run, *, date: str, command: str, **also: Any) -> Run:
    """The run as it may be kept and shown elsewhere: labelled, without this machine's path, at most 100 samples."""
    step = -(-len(run.samples) // MOST_SAMPLES) or 1
    label = {"machine": run.machine.get("cpu_name"), "date": date, "command": command, **also}
    return replace(run, samples=run.samples[::step], recorded=label, model=replace(run.model, path=""))


def save(runs: Iterable[Run], path: str | Path) -> None:
    """Write runs to one file, a line each; label them first."""
    rows = ",\n".join(json.dumps(run.to_dict()) for run in runs)
    Path(path).write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def load(path: str | Path) -> tuple[Run, ...]:
    """Read runs that ``save`` wrote, or the one that ``labkit measure --json`` printed.

    Raises:
        ValueError: the file holds something else.
        OSError: it cannot be read.
    """
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    return tuple(Run.from_dict(row) for row in (rows if isinstance(rows, list) else [rows]))
