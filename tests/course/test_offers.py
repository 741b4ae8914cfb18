"""A lab is found by its folder: nothing outside of it names what it offers."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import labkit as lk
import labkit.course
from labkit import cli
from labkit.course import claims, offers
from labkit.course.claims import ledger, rules

pytest.importorskip("ipywidgets")

LAB99 = {
    "__init__.py": "",
    "figures.py": """
from matplotlib.figure import Figure

__all__ = ["drawing_of_lab_99"]


def drawing_of_lab_99() -> Figure:
    return Figure(figsize=(1, 1))
""",
    "panels.py": """
from labkit.course import figures
from labkit.course.panelkit import Panel

__all__ = ["PanelOfLab99"]


class PanelOfLab99(Panel):
    def __init__(self) -> None:
        super().__init__()
        self.redraw()

    def draw(self) -> None:
        self.show(figures.drawing_of_lab_99())
""",
    "exercises.py": """
from labkit.course.checking import Verdict, check_number

__all__ = ["answer_of_lab_99"]


def answer_of_lab_99(answer: object) -> Verdict:
    return check_number(answer, right=99, unit="labs", slips={})
""",
    "claims.py": """
from labkit.course.claims.finding import Finding


def c999(bench: object) -> Finding:
    "Right if 99 is 99."
    return Finding("confirmed", "99 is 99.", {"labs": 99})


CHECKS = {"C999": c999}
""",
    "needs.py": """
from labkit.course.readiness import LabCheck


def check(found: object) -> LabCheck:
    return LabCheck(False, "a lab of its own is wanted.")
""",
}


@contextmanager
def made_up_lab(folder: Path) -> Iterator[None]:
    """A folder ``lab99`` beside the labs; nothing of it is left afterwards."""
    for name, text in LAB99.items():
        path = folder / "lab99" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    labkit.course.__path__.append(str(folder))
    rules.checks.cache_clear()
    importlib.invalidate_caches()
    try:
        yield
    finally:
        labkit.course.__path__.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith("labkit.course.lab99")]:
            del sys.modules[name]
        vars(labkit.course).pop("lab99", None)
        for entry in [entry for entry in sys.path_importer_cache if entry.startswith(str(folder))]:
            del sys.path_importer_cache[entry]
        rules.checks.cache_clear()


def everything_offered() -> dict[str, Any]:
    """What the labs offer now, and where Python looks for it."""
    for kind in (*offers.NAMED, "needs"):
        list(offers.modules(kind))
    known = (*sys.modules, *vars(labkit.course), *sys.path_importer_cache)
    return {
        "names": {kind: offers.names(kind) for kind in offers.NAMED},
        "claims": sorted(rules.checks()),
        "labs": offers.labs(),
        "left over": [name for name in known if "lab99" in name],
        "path": list(labkit.course.__path__),
    }


def test_a_new_folder_is_a_new_lab(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    known = {**ledger._ledger(), "C999": replace(claims.get("C001"), id="C999", lab="99", expected="confirmed")}
    monkeypatch.setattr(ledger, "_ledger", lambda: known)
    before = everything_offered()
    with made_up_lab(tmp_path):
        assert lk.figures.png(lk.figures.drawing_of_lab_99()).startswith(b"\x89PNG")
        assert bytes(lk.panels.PanelOfLab99().image.value).startswith(b"\x89PNG")
        assert lk.check.answer_of_lab_99(99) and not lk.check.answer_of_lab_99(98)
        for kind, facade in zip(offers.NAMED, (lk.figures, lk.panels, lk.check), strict=True):
            [new] = set(offers.names(kind)) - set(before["names"][kind])
            assert new in dir(facade)
        assert set(rules.checks()) - set(before["claims"]) == {"C999"} and "99" in claims.rule("C999")
        assert cli.main(["claims", "C999", "--json"]) == 0
        [row] = json.loads(capsys.readouterr().out)
        assert (row["id"], row["verdict"], row["figures"], row["lab"]) == ("C999", "confirmed", {"labs": 99}, "99")
        [needs] = [module for module in offers.modules("needs") if "lab99" in module.__name__]
        assert not needs.check(None).ok
    assert everything_offered() == before
    with pytest.raises(AttributeError, match="drawing_of_lab_99"):
        lk.figures.drawing_of_lab_99  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("labkit.course.lab99")


@pytest.mark.parametrize("kind", offers.NAMED)
def test_what_a_lab_names_is_there_and_no_other_lab_names_it(kind: str) -> None:
    offered = Counter(name for module in offers.modules(kind) for name in module.__all__)
    assert set(offered.values()) == {1}, offered.most_common(3)
    for module in offers.modules(kind):
        for name in module.__all__:
            assert offers.find(kind, name) is getattr(module, name)


def test_no_two_labs_check_the_same_claim() -> None:
    checked = Counter(identifier for module in offers.modules("claims") for identifier in module.CHECKS)
    assert set(checked.values()) == {1} and set(checked) == set(rules.checks())
    for module in offers.modules("claims"):
        lab = module.__name__.split(".")[-2].removeprefix("lab")
        assert {claims.get(identifier).lab for identifier in module.CHECKS} == {lab}


def test_every_lab_says_what_it_needs() -> None:
    assert len(list(offers.modules("needs"))) == len(offers.labs()) > 0


def test_a_name_that_no_lab_offers_is_an_attribute_error() -> None:
    for facade in (lk.figures, lk.panels, lk.check):
        with pytest.raises(AttributeError, match="nonsense"):
            facade.nonsense  # noqa: B018
