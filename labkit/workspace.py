"""Find the labs, and open JupyterLab on one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

WORKSPACE = "llm-memory-labs"


def labs_dir() -> Path:
    """The folder with the labs: inside the installed package, or beside it in a checkout.

    Raises:
        FileNotFoundError: neither is there.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_labs", package.parent / "labs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        "the labs are missing from this installation: reinstall llm-memory-labs or clone the repository"
    )


def in_checkout() -> bool:
    """Whether this is a clone of the repository rather than an installed wheel."""
    return labs_dir().parent.joinpath("pyproject.toml").is_file()


def lab_paths(which: Sequence[str] | None = None) -> list[Path]:
    """The notebooks to run, in the order asked for; every lab when ``which`` is empty.

    Args:
        which: "1", "01", the start of a lab's name ("01_mmap"), or a path to a notebook.

    Raises:
        ValueError: no lab has that name.
    """
    labs = sorted(labs_dir().glob("[0-9][0-9]_*.ipynb"))
    if not which:
        return labs
    found: list[Path] = []
    for name in which:
        if name.endswith(".ipynb") and Path(name).is_file():
            found.append(Path(name))
            continue
        prefix = name.zfill(2) + "_" if name.isdecimal() else name
        matches = [lab for lab in labs if prefix and lab.name.startswith(prefix)]
        if not matches:
            known = ", ".join(lab.name[:2] for lab in labs) or "none"
            raise ValueError(f"there is no lab {name!r}: the labs here are {known}")
        found += matches
    return list(dict.fromkeys(found))


def start_command(
    lab: str = "00", *, browser: bool = True, port: int | None = None, workspace: str | os.PathLike[str] | None = None
) -> list[str]:
    """The command line that opens JupyterLab on a lab, on this machine only.

    In a checkout the labs are opened where they are. From an installed wheel they are copied to ``workspace`` first
    (default: llm-memory-labs in the current folder); files that are already there are kept.

    Raises:
        ValueError: no such lab.
        ModuleNotFoundError: JupyterLab is not installed.
    """
    if find_spec("jupyterlab") is None:
        raise ModuleNotFoundError("JupyterLab is not installed: pip install 'llm-memory-labs[lab]'", name="jupyterlab")
    [notebook, *_] = lab_paths([lab])
    root = labs_dir().parent
    if not in_checkout():
        root = Path(workspace or WORKSPACE).resolve()
        _copy_missing(labs_dir(), root / "labs")
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/labs/{notebook.name}",
    ]
    if port is not None:
        command.append(f"--ServerApp.port={port}")
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # Jupyter refuses root otherwise; a container often has no other user
    return command


def start(lab: str = "00", *, browser: bool = True, port: int | None = None) -> int:
    """Open JupyterLab on a lab and stay until it ends; see ``start_command``.

    Returns:
        JupyterLab's exit status. (On Linux and macOS this process becomes JupyterLab and does not return.)
    """
    command = start_command(lab, browser=browser, port=port)
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(command[0], command)
    return subprocess.call(command)


def _copy_missing(source: Path, target: Path) -> None:
    """Copy the files that are missing; a lab that a learner has edited is never overwritten."""
    for item in sorted(source.rglob("*")):
        copy = target / item.relative_to(source)
        if item.is_file() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(item, copy)
