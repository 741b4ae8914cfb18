"""Which llama-cpp-python is installed: found without importing it, and said in one sentence where it is another."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.small import small, write

from labkit import engine
from labkit.experiments.measure import measure


def test_the_pin_is_the_one_in_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'"llama-cpp-python=={engine.PINNED}"' in text


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the oracle is /proc/cpuinfo")
def test_cpu_features_are_ones_the_cpu_has() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    names = {"avx2": "avx2", "avx512": "avx512f", "amx_int8": "amx_int8", "neon": "asimd", "dotprod": "asimddp"}
    for ours, theirs in names.items():
        if ours in (engine.cpu_features() or ()):
            assert theirs in flags


def test_another_version_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.3.2")
    said = engine.version_problem()
    assert said and "llama-cpp-python 0.3.2 is installed" in said
    assert f"pip install llama-cpp-python=={engine.PINNED}" in said
    found = engine.info()
    assert (found.version, found.problem, found.devices) == ("0.3.2", said, ())
    path = tmp_path / "small.gguf"
    write(path, small(), "Q4_0")
    run = measure(path)
    assert (run.outcome, run.reason, run.measured) == ("refused", said, None)


def test_a_missing_engine_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert engine.installed_version() is None
    said = engine.version_problem()
    assert said and said.startswith("llama-cpp-python is not installed: run `pip install llama-cpp-python==")
    assert engine.info().problem == said


def test_cpu_features_without_an_engine_are_unknown() -> None:
    code = (
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "from labkit import engine; print(engine.cpu_features())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "None\n"


def test_a_child_that_needs_no_arrays_starts_without_numpy() -> None:
    """It takes a third of the time in which such a process starts."""
    code = (
        "import sys, labkit.engine, labkit.experiments.child.__main__, labkit.experiments.child.device_worker\n"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
