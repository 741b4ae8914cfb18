"""Documents that must keep up with the code."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

from support.paths import ROOT

from labkit import __version__


def make_api() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_public_functions_is_in_step() -> None:
    assert make_api().main(["--check"]) == 0


def test_every_package_and_root_module_stands_in_the_module_map() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text[text.index("## Where things are") :].split("\n## ")[0]
    listed = set(re.findall(r"`([a-z_0-9]+)(?:/|\.py)`", "".join(re.findall(r"(?m)^\|([^|]*)\|", table))))
    folder = ROOT / "labkit"
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert listed == packages | modules


def test_the_changelog_has_this_version_and_the_usual_parts() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"(?m)^## \[(.+?)\]", text)
    assert versions[0] == "Unreleased" and (__version__ in versions or versions == ["Unreleased"])
    parts = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"(?m)^### (.+)$", text)) <= parts
