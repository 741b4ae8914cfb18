"""What a committed lab must be. Each check returns sentences, one per defect; an empty list means it passes.

The checks are static: they read the notebook and run nothing. `test_gate.py` shows each one its defect.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat

from labkit.notebooks import WIDGET_VIEW, machine_paths

MAX_BYTES = 400_000
MARK = "# NBVAL_CHECK_OUTPUT"

# The spine of a lab: second-level headings in this order. Lab 00 has the parts marked True, later labs have them all.
SPINE: list[tuple[str, str, bool]] = [
    ("What you will learn", r"what you(?:'ll| will)", True),
    ("Setup", r"set-?up", True),
    ("Act 1", r"act 1\b", False),
    ("Act 2", r"act 2\b", False),
    ("Act 3", r"act 3\b", False),
    ("Exercises", r"exercises?\b", False),
    ("A failure on purpose", r".*\b(?:failure|on purpose)\b", False),
    ("Checkpoint", r"checkpoint\b", False),
    ("In practice", r"in practice\b", False),
    ("Claims", r"(?:the )?claims?\b", False),
    ("Where next", r"where next\b", True),
]
OPTIONAL = {"Act 3"}

Notebook = Any


def read(path: Path) -> Notebook:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(nb: Notebook) -> list[Any]:
    return [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]


def headings(nb: Notebook) -> list[tuple[int, str]]:
    """(level, text) of every markdown heading, code fences left out."""
    found = []
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.M | re.S)
            found += [(len(marks), text.strip()) for marks, text in re.findall(r"^(#{1,6})\s+(.+)$", prose, flags=re.M)]
    return found


def sections(nb: Notebook) -> dict[str, list[Any]]:
    """Cells under each second-level heading; a heading in the middle of a cell claims the whole cell."""
    found: dict[str, list[Any]] = {}
    current = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and (match := re.search(r"^##\s+(.+)$", cell.source, flags=re.M)):
            current = match.group(1).strip()
        found.setdefault(current, []).append(cell)
    return found


def section(nb: Notebook, pattern: str) -> list[Any]:
    for name, cells in sections(nb).items():
        if re.match(pattern, name, flags=re.I):
            return cells
    return []


def tree(cell: Any) -> ast.Module:
    """A cell's syntax tree, IPython's % and ! lines left out."""
    lines = ["pass" if line.startswith(("%", "!")) else line for line in cell.source.splitlines()]
    return ast.parse("\n".join(lines))


def nodes(nb: Notebook) -> Iterator[tuple[int, ast.AST]]:
    """(number of the code cell, node) for every node of every code cell."""
    for number, cell in enumerate(code_cells(nb), 1):
        for node in ast.walk(tree(cell)):
            yield number, node


# --- reading order -------------------------------------------------------------------------------------------------


def check_title(nb: Notebook) -> list[str]:
    titles = [text for level, text in headings(nb) if level == 1]
    if len(titles) != 1:
        return [f"one title is wanted, there are {len(titles)}"]
    if headings(nb)[0] != (1, titles[0]):
        return ["the title is not the first heading"]
    if "?" not in titles[0]:
        return [f"the title is not a question: {titles[0]!r}"]
    return []


def check_spine(nb: Notebook, *, whole: bool = True) -> list[str]:
    """Second-level headings: the parts of a lab, each once, in order. Others may stand between them.

    Args:
        whole: every part is wanted; otherwise (lab 00) only those marked in SPINE.
    """
    second = [text for level, text in headings(nb) if level == 2]
    problems = []
    last, last_name = -1, ""
    for name, pattern, always in SPINE:
        places = [i for i, text in enumerate(second) if re.match(pattern, text, flags=re.I)]
        if not places:
            if (whole or always) and name not in OPTIONAL:
                problems.append(f"the part {name!r} is missing")
            continue
        if len(places) > 1:
            problems.append(f"the part {name!r} stands {len(places)} times")
        if places[0] < last:
            problems.append(f"the part {name!r} stands before {last_name!r}")
        last, last_name = max(last, places[0]), name
    return problems


def check_heading_levels(nb: Notebook) -> list[str]:
    problems = []
    for (above, _), (level, text) in zip(headings(nb), headings(nb)[1:], strict=False):
        if level > above + 1:
            problems.append(f"the heading {text!r} skips a level")
    return problems


def check_folded_answers(nb: Notebook) -> list[str]:
    cells = section(nb, r"checkpoint\b")
    folded = sum(cell.source.count("<details") for cell in cells)
    return [f"the checkpoint has {folded} folded answers, three are wanted"] if cells and folded < 3 else []


# --- stored outputs ------------------------------------------------------------------------------------------------


def check_counts(nb: Notebook) -> list[str]:
    counts = [cell.execution_count for cell in code_cells(nb)]
    wanted = list(range(1, len(counts) + 1))
    return [] if counts == wanted else [f"execution counts are {counts}, not 1..{len(counts)}: run it with --save"]


def check_errors(nb: Notebook) -> list[str]:
    problems = []
    for number, cell in enumerate(code_cells(nb), 1):
        for out in cell.outputs:
            if out.output_type == "error":
                problems.append(f"cell {number} stores an error: {out.ename}")
            elif out.output_type == "stream" and out.name == "stderr":
                problems.append(f"cell {number} stores text written to stderr")
    return problems


def check_paths(nb: Notebook) -> list[str]:
    return [f"a path of some machine stands in it: {path}" for path in machine_paths(nb)]


def check_widgets(nb: Notebook) -> list[str]:
    problems = ["widget state is stored"] if "widgets" in nb.metadata else []
    for number, cell in enumerate(code_cells(nb), 1):
        if any(WIDGET_VIEW in out.get("data", {}) for out in cell.outputs):
            problems.append(f"cell {number} stores a view of a widget, which shows as an error when reopened")
    return problems


def check_kernel(nb: Notebook) -> list[str]:
    name = nb.metadata.get("kernelspec", {}).get("name")
    return [] if name == "python3" else [f"the kernel is {name!r}, not 'python3'"]


def check_size(path: Path) -> list[str]:
    size = path.stat().st_size
    return [] if size <= MAX_BYTES else [f"it is {size / 1000:.0f} kB, more than {MAX_BYTES / 1000:.0f}"]


def check_checked_cells(nb: Notebook) -> list[str]:
    """Every act has a cell that nbval compares, and every such cell prints something to compare."""
    problems = []
    acts = {name: cells for name, cells in sections(nb).items() if re.match(r"act \d", name, flags=re.I)}
    for name, cells in (acts or {"the lab": nb.cells}).items():
        if not any(MARK in cell.source for cell in cells if cell.cell_type == "code"):
            problems.append(f"{name}: no cell is marked {MARK}")
    for number, cell in enumerate(code_cells(nb), 1):
        if MARK in cell.source and not _printed(cell).strip():
            problems.append(f"cell {number} is marked {MARK} but stores no text to compare")
    return problems


def _printed(cell: Any) -> str:
    texts = []
    for out in cell.outputs:
        texts.append(out.get("text", "") if out.get("name") == "stdout" else out.get("data", {}).get("text/plain", ""))
    return "".join(texts)


# --- the code ------------------------------------------------------------------------------------------------------


def check_imports(nb: Notebook) -> list[str]:
    """`import labkit as lk`, in the one setup cell, and nothing private."""
    problems = []
    setup: list[int] = []
    for number, node in nodes(nb):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "labkit" and alias.asname == "lk":
                    setup.append(number)
                elif alias.name.split(".")[0] == "labkit":
                    problems.append(f"cell {number}: import {alias.name}: write 'import labkit as lk'")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "labkit":
            problems.append(f"cell {number}: from {node.module} import …: write 'import labkit as lk'")
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            owner = node.value
            while isinstance(owner, ast.Attribute | ast.Call):
                owner = owner.func if isinstance(owner, ast.Call) else owner.value
            if isinstance(owner, ast.Name) and owner.id in ("lk", "labkit"):
                problems.append(f"cell {number} uses something private: {ast.unparse(node)}")
    if len(setup) != 1:
        problems.append(f"'import labkit as lk' stands in {len(setup)} cells, one is wanted")
    return problems


def check_never_waits(nb: Notebook) -> list[str]:
    """No cell waits for the keyboard, and an unset prediction is None, so that Run All reaches the end."""
    problems = []
    for number, node in nodes(nb):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "input":
            problems.append(f"cell {number} calls input()")
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                is_prediction = isinstance(target, ast.Name) and re.search(r"guess|my_prediction", target.id)
                if is_prediction and isinstance(node.value, ast.Constant) and node.value.value is not None:
                    problems.append(f"cell {number}: a prediction starts as None, not {ast.unparse(node.value)}")
    return problems


def check_images(nb: Notebook) -> list[str]:
    problems = []
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            problems += [
                f"an image has no alt text: {link}" for link in re.findall(r"!\[\s*\]\(([^)]*)\)", cell.source)
            ]
            for tag in re.findall(r"<img\b[^>]*>", cell.source):
                if not re.search(r"\balt\s*=\s*[\"'][^\"']+[\"']", tag):
                    problems.append(f"an image has no alt text: {tag}")
    return problems


def check_links(nb: Notebook, folder: Path) -> list[str]:
    """Links to files of the repository lead to a file."""
    problems = []
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", cell.source):
                if "://" not in link and not link.startswith("mailto:") and not (folder / link).exists():
                    problems.append(f"a link leads nowhere: {link}")
    return problems


# --- exercises -----------------------------------------------------------------------------------------------------


def exercises(nb: Notebook) -> dict[str, bool]:
    """Name of every `lk.check.NAME(…)` in the notebook → whether its answer is still open (`...`)."""
    open_names: set[str] = set()
    found: dict[str, bool] = {}
    for cell in code_cells(nb):
        for node in ast.walk(tree(cell)):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        (open_names.add if _is_gap(node.value) else open_names.discard)(target.id)
            elif isinstance(node, ast.FunctionDef):
                (open_names.add if any(map(_is_gap, ast.walk(node))) else open_names.discard)(node.name)
        for node in ast.walk(tree(cell)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("lk.check."):
                answers = [*node.args, *(keyword.value for keyword in node.keywords)]
                found[node.func.attr] = any(  # type: ignore[attr-defined]
                    _is_gap(answer) or (isinstance(answer, ast.Name) and answer.id in open_names) for answer in answers
                )
    return found


def _is_gap(node: ast.AST) -> bool:
    if isinstance(node, ast.Dict):
        return bool(node.values) and all(map(_is_gap, node.values))
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def check_exercises(nb: Notebook, solution: Notebook | None) -> list[str]:
    """Stubs are open in the lab and answered in its solutions, and the two ask the same."""
    asked = exercises(nb)
    if not asked:
        return ["the part 'Exercises' has no lk.check"] if section(nb, r"exercises?\b") else []
    problems = [f"the exercise {name!r} gives its answer away" for name, is_open in asked.items() if not is_open]
    if solution is None:
        return [*problems, "it has exercises but no notebook of the same name in solutions/"]
    answered = exercises(solution)
    problems += [f"the exercise {name!r} has no solution" for name in asked if answered.get(name, True)]
    problems += [f"the solution {name!r} has no exercise" for name in answered if name not in asked]
    return problems


# --- together ------------------------------------------------------------------------------------------------------

ANY_NOTEBOOK: list[Callable[[Notebook], list[str]]] = [
    check_counts,
    check_errors,
    check_paths,
    check_widgets,
    check_kernel,
    check_imports,
    check_never_waits,
    check_images,
]


def problems_of_solution(path: Path) -> list[str]:
    nb = read(path)
    return [problem for check in ANY_NOTEBOOK for problem in check(nb)] + check_links(nb, path.parent)


def problems_of_lab(path: Path) -> list[str]:
    nb = read(path)
    answers = path.parent / "solutions" / path.name
    found = [problem for check in ANY_NOTEBOOK for problem in check(nb)]
    found += check_title(nb) + check_spine(nb, whole=not path.name.startswith("00_")) + check_heading_levels(nb)
    found += check_folded_answers(nb) + check_checked_cells(nb) + check_size(path) + check_links(nb, path.parent)
    return found + check_exercises(nb, read(answers) if answers.is_file() else None)
