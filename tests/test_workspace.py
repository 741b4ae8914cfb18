"""Finding the labs, and the command that opens JupyterLab on one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.paths import ROOT

from labkit import workspace


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A labs folder as an installed wheel has it: no pyproject.toml beside it."""
    folder = tmp_path / "site" / "_labs"
    (folder / "solutions").mkdir(parents=True)
    for name in ("00_start_here.ipynb", "01_mmap.ipynb", "10_later.ipynb", "notes.ipynb", "solutions/01_mmap.ipynb"):
        (folder / name).write_text(name)
    monkeypatch.setattr(workspace, "labs_dir", lambda: folder)
    return folder


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_all_labs_in_order_when_none_is_named(labs: Path) -> None:
    assert names(workspace.lab_paths()) == ["00_start_here.ipynb", "01_mmap.ipynb", "10_later.ipynb"]
    assert workspace.lab_paths([]) == workspace.lab_paths(None)


@pytest.mark.parametrize("name", ["1", "01", "01_mm", "01_mmap.ipynb"])
def test_a_lab_has_several_names(labs: Path, name: str) -> None:
    assert names(workspace.lab_paths([name])) == ["01_mmap.ipynb"]


def test_the_order_asked_for_is_kept_and_repeats_are_not(labs: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine.ipynb"
    other.touch()
    assert names(workspace.lab_paths(["10", "00", str(other), "0"])) == [
        "10_later.ipynb",
        "00_start_here.ipynb",
        "mine.ipynb",
    ]


@pytest.mark.parametrize("name", ["2", "x", "", "notes", "../00", "01_mmap.ipynb.bak", "gone.ipynb"])
def test_an_unknown_lab_is_refused_with_the_labs_there_are(labs: Path, name: str) -> None:
    with pytest.raises(ValueError, match="the labs here are 00, 01, 10"):
        workspace.lab_paths([name])


def option(command: list[str], name: str) -> str:
    [value] = [part.split("=", 1)[1] for part in command if part.startswith(f"--{name}=")]
    return value


def test_a_wheel_copies_the_labs_and_never_overwrites(labs: Path, tmp_path: Path) -> None:
    target = tmp_path / "here"
    command = workspace.start_command(workspace=target)
    assert option(command, "ServerApp.root_dir") == str(target)
    assert option(command, "LabApp.default_url") == "/lab/tree/labs/00_start_here.ipynb"
    assert option(command, "ServerApp.ip") == "127.0.0.1"
    assert (target / "labs" / "solutions" / "01_mmap.ipynb").read_text() == "solutions/01_mmap.ipynb"

    (target / "labs" / "01_mmap.ipynb").write_text("my own work")
    (target / "labs" / "00_start_here.ipynb").unlink()
    workspace.start_command(workspace=target)
    assert (target / "labs" / "01_mmap.ipynb").read_text() == "my own work"
    assert (target / "labs" / "00_start_here.ipynb").exists()


def test_a_checkout_opens_in_place(labs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (labs.parent / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    command = workspace.start_command("1", browser=False, port=8899)
    assert option(command, "ServerApp.root_dir") == str(labs.parent)
    assert option(command, "LabApp.default_url") == "/lab/tree/labs/01_mmap.ipynb"
    assert option(command, "ServerApp.port") == "8899" and "--no-browser" in command
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert names(list(tmp_path.iterdir())) == ["site"], "something was copied"


def test_root_is_allowed_only_for_root(labs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uid, wanted in ((0, True), (1000, False)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid, raising=False)
        assert ("--allow-root" in workspace.start_command(workspace=tmp_path / "w")) is wanted


@pytest.mark.live
def test_jupyterlab_understands_the_options(labs: Path, tmp_path: Path) -> None:
    """Ask it for its resulting configuration: a misspelt option would be missing there."""
    command = workspace.start_command(browser=False, port=8899, workspace=tmp_path / "w")
    shown = subprocess.run([*command, "--show-config-json"], capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    for value in ("127.0.0.1", str(tmp_path / "w"), "/lab/tree/labs/00_start_here.ipynb", "8899"):
        assert value in shown.stdout


def test_without_jupyterlab_one_sentence_says_what_to_install(labs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setattr(workspace, "find_spec", absent)
    with pytest.raises(ModuleNotFoundError, match="pip install 'llm-memory-labs\\[lab\\]'"):
        workspace.start_command()


def test_this_checkout_is_recognised() -> None:
    assert workspace.in_checkout()
    assert workspace.labs_dir() == ROOT / "labs"
