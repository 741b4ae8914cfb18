"""Write docs/api.md: every public function and class with one line, from the docstrings, which griffe reads.

uv run python docs/make_api.py          writes it
uv run python docs/make_api.py --check  says whether it is in step; the status is 1 if not
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

import labkit
from labkit.course import offers

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "api.md"
LABS_KINDS = {"figures": "figures", "panels": "panels", "check": "exercises"}  # public name -> kind of module in a lab
HEAD = """# Public functions

Written by `docs/make_api.py` from the docstrings; change those, then run it. `import labkit as lk`, then use a name as
it stands here: `help(lk.measure)` shows its arguments, units and errors.
"""


def main(argv: list[str]) -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in argv:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == text:
        return 0
    print("docs/api.md is out of step with the docstrings: run `uv run python docs/make_api.py`.")
    return 1


def page() -> str:
    """The whole text."""
    package = griffe.load("labkit", search_paths=[str(ROOT)])
    single, modules = [], []
    for name, where in sorted(labkit._WHERE.items(), key=lambda item: item[0].lower()):
        module, _, attribute = where.partition(":")
        if attribute:
            found = package[f"{module}.{attribute}"]
            if _is_described(found):
                single.append(_row(f"lk.{name}", found))
        elif name in LABS_KINDS:
            modules.append((name, _described(package[module]), _of_labs(package, name)))
        else:
            modules.append((name, _described(package[module]), _of_module(package[module], f"lk.{name}")))
    parts = [HEAD, "## On `lk` itself\n", _table(single)]
    for name, first_line, rows in modules:
        parts += [f"## `lk.{name}`\n", first_line + "\n", _table(rows)]
    return "\n".join(parts)


def _of_module(module: Any, prefix: str) -> list[str]:
    names = [str(name) for name in module.exports or ()] or [n for n in module.members if _is_own(module, n)]
    found = [(name, _resolved(module[name])) for name in sorted(names, key=str.lower)]
    return [_row(f"{prefix}.{name}", one) for name, one in found if _is_described(one)]


def _of_labs(package: Any, public: str) -> list[str]:
    rows = [
        row
        for lab in offers.labs()
        if LABS_KINDS[public] in package[f"course.{lab}"].members
        for row in _of_module(package[f"course.{lab}.{LABS_KINDS[public]}"], f"lk.{public}")
    ]
    if public == "figures":
        rows += _of_module(package["course.figures"], "lk.figures")
    return sorted(rows, key=str.lower)


def _is_own(module: Any, name: str) -> bool:
    """Whether a module without ``__all__`` defines this public function or class itself."""
    member = module.members[name]
    return not name.startswith("_") and not member.is_alias and (member.is_function or member.is_class)


def _resolved(member: Any) -> Any:
    return member.final_target if member.is_alias else member


def _is_described(found: Any) -> bool:
    found = _resolved(found)
    return bool(found.is_function or found.is_class)


def _described(found: Any) -> str:
    """The first line of a docstring."""
    found = _resolved(found)
    if found.docstring is None:
        raise ValueError(f"{found.path} has no docstring.")
    return str(found.docstring.value).strip().splitlines()[0].replace("``", "`").replace("|", "\\|")


def _row(name: str, found: Any) -> str:
    called = "()" if _resolved(found).is_function else ""
    return f"| `{name}{called}` | {_described(found)} |"


def _table(rows: list[str]) -> str:
    return "\n".join(["| name | what it does |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
