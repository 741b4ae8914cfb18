"""The committed labs: the static gate over each, and every stored claim run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import gate
from support.paths import ROOT
from support.profile import ENVIRON

LABS = sorted((ROOT / "labs").glob("[0-9][0-9]_*.ipynb"))
SOLUTIONS = sorted((ROOT / "labs" / "solutions").glob("*.ipynb"))


def _name(path: Path) -> str:
    return path.stem


def test_labs_00_and_01_are_there_and_every_notebook_is_numbered() -> None:
    assert {"00", "01"} <= {lab.name[:2] for lab in LABS}
    assert sorted((ROOT / "labs").glob("*.ipynb")) == LABS
    assert {path.name for path in SOLUTIONS} <= {path.name for path in LABS}


@pytest.mark.parametrize("lab", LABS, ids=_name)
def test_lab_passes_the_static_gate(lab: Path) -> None:
    assert gate.problems_of_lab(lab) == []


@pytest.mark.parametrize("lab", SOLUTIONS, ids=_name)
def test_solutions_pass_the_static_gate(lab: Path) -> None:
    assert gate.problems_of_solution(lab) == []


@pytest.mark.labs
@pytest.mark.parametrize("lab", LABS, ids=_name)
def test_lab_runs_here_and_its_stored_claims_hold(lab: Path) -> None:
    run_cells(lab)


@pytest.mark.parametrize("lab", SOLUTIONS, ids=_name)
def test_solutions_run_here_and_are_right(lab: Path) -> None:
    """They only compute, so they may run beside other tests."""
    run_cells(lab)


def run_cells(notebook: Path) -> None:
    """Let nbval run every cell in a fresh kernel and compare the marked ones.

    Labs run at the smallest size unless LABKIT_TEST_PROFILE says otherwise. The limits are for a cell that hangs.
    """
    flags = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=900", "-p", "no:cacheprovider", "--no-header"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "-n", "0", "--durations=5", str(notebook)],
        cwd=ROOT,
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
