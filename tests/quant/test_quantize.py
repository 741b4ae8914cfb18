"""Quantizing in a child: what is refused, what is reused, and that nothing half-written is left."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from support.small import small, write

from labkit import files as kit_files
from labkit import gguf
from labkit.experiments.child import task
from labkit.models import mixtures, quant_plan
from labkit.models.forge import forge
from labkit.models.lookup import ModelError
from labkit.quant.imatrix import ImatrixError, load, save
from labkit.quant.quantize import Cancelled, QuantizeError, quantize
from labkit.units import GiB


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled F16 model of 9 MiB."""
    shape = small(embedding_length=256, feed_forward_length=1024)
    return forge(shape, "F16", path=tmp_path_factory.mktemp("quantize") / "small.gguf", fill=True).path


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(task, "Child", refuse)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# The result


@pytest.mark.live
def test_the_file_is_what_the_plan_says(source: Path, tmp_path: Path) -> None:
    header = gguf.read_header(source)
    made = quantize(source, "q4_k_m", out=tmp_path / "out.gguf")
    plan = quant_plan.plan_quant(header, "Q4_K_M")
    found = gguf.read_header(made.path)
    assert [(t.name, t.type) for t in found.tensors] == [(t.name, t.type) for t in plan.tensors]
    assert made.path.stat().st_size == made.file_bytes == plan.file_bytes
    assert (made.quant, made.types, made.fallbacks, made.reused) == ("Q4_K_M", plan.types, plan.fallbacks, False)
    assert made.seconds is not None and made.seconds >= 0
    assert files(tmp_path) == ["out.gguf"]


@pytest.mark.live
def test_weights_survive_quantizing(source: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    quantize(source, "Q8_0", out=tmp_path / "out.gguf")
    before, after = (
        {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}
        for path in (source, tmp_path / "out.gguf")
    )
    for name, weights in before.items():
        # Q8_0 rounds to 1/127 of the largest weight of 32, and halves at most that.
        assert np.abs(after[name] - weights).max() <= np.abs(weights).max() / 127 * 0.51, name


@pytest.mark.live
def test_progress_rises_and_names_every_tensor(source: Path) -> None:
    seen: list[tuple[float, str]] = []
    quantize(source, "Q4_0", progress=lambda share, text: seen.append((share, text)))
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] == 1.0
    names = [t.name for t in quant_plan.plan_quant(gguf.read_header(source), "Q4_0").tensors]
    assert [text for _, text in seen[:-1]] == names


@pytest.mark.live
def test_the_same_file_is_found_again_and_only_the_same(
    source: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quantize(source, "Q4_0")
    assert first.path.parent == home / "quantized"
    with monkeypatch.context() as patch:
        patch.setattr(task, "Child", None)  # none is started
        again = quantize(source, "q4_0")
    assert (again.path, again.reused, again.seconds) == (first.path, True, None)
    assert (again.types, again.file_bytes, again.fallbacks) == (first.types, first.file_bytes, first.fallbacks)
    other = quantize(source, "Q4_0", token_embedding_type="Q5_0")
    os.utime(source)
    changed = quantize(source, "Q4_0")
    assert len({first.path, other.path, changed.path}) == 3 and not (other.reused or changed.reused)
    first.path.write_bytes(first.path.read_bytes()[:-64])  # someone damaged it
    os.utime(source, ns=(0, 0))
    os.rename(first.path, quantize(source, "Q4_0").path)
    assert not quantize(source, "Q4_0").reused


@pytest.mark.live
def test_an_importance_matrix_changes_the_weights_and_the_name(source: Path, tmp_path: Path) -> None:
    header = gguf.read_header(source)
    weights = {
        t.name: np.linspace(1, 100, t.dims[0], dtype=np.float32)
        for t in header.tensors
        if t.name.startswith("blk.") and len(t.dims) > 1
    }
    save(tmp_path / "i.npz", weights, n_tokens=1)
    assert {name: values.tolist() for name, values in load(tmp_path / "i.npz").items()} == {
        name: values.tolist() for name, values in weights.items()
    }
    plain, weighted = quantize(source, "Q3_K_M"), quantize(source, "Q3_K_M", imatrix=tmp_path / "i.npz")
    assert plain.path != weighted.path and "imatrix" in weighted.path.name
    assert plain.types == weighted.types
    assert plain.path.read_bytes() != weighted.path.read_bytes()


# Refusals


@pytest.mark.usefixtures("no_child")
def test_what_would_fail_is_refused_by_name_before_anything_starts(
    source: Path, smollm2_path: Path, tmp_path: Path, home: Path
) -> None:
    with pytest.raises(mixtures.ShapeError, match=r"no mixture 'Q4_K_X'.*Q4_K_M"):
        quantize(source, "Q4_K_X")
    with pytest.raises(quant_plan.PlanError, match=r"token_embedding_type=Q4_K does not fit token_embd.*576.*Q8_0"):
        quantize(smollm2_path, "Q4_K_M", token_embedding_type="q4_k")
    with pytest.raises(QuantizeError, match=r"quantized already \(.* is Q.*allow_requantize is off"):
        quantize(smollm2_path, "Q4_K_M", allow_requantize=False)
    with pytest.raises(ModelError, match="no model 'nothing'"):
        quantize("nothing", "Q4_K_M")
    with pytest.raises(gguf.GGUFError, match="no such file"):
        quantize(tmp_path / "nothing.gguf", "Q4_K_M")
    (tmp_path / "mine.gguf").write_text("mine")
    with pytest.raises(QuantizeError, match=r"mine\.gguf exists and is not overwritten"):
        quantize(source, "Q4_K_M", out=tmp_path / "mine.gguf")
    assert (tmp_path / "mine.gguf").read_text() == "mine"
    with pytest.raises(QuantizeError, match="cannot be written"):
        quantize(source, "Q4_K_M", out=tmp_path / "mine.gguf" / "x.gguf")
    assert not home.exists()


@pytest.mark.usefixtures("no_child")
def test_importance_matrices_that_do_not_belong_are_refused(source: Path, tmp_path: Path) -> None:
    for name, values in (("blk.0.attn_q.weight", np.ones(7)), ("blk.77.attn_q.weight", np.ones(256))):
        save(tmp_path / "i.npz", {name: values.astype(np.float32)}, n_tokens=1)
        with pytest.raises(QuantizeError, match=rf"i\.npz is an importance matrix of another model.*{name}"):
            quantize(source, "Q4_K_M", imatrix=tmp_path / "i.npz")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    (tmp_path / "text.npz").write_text("no")
    for bad in ("other.npz", "text.npz", "missing.npz"):
        with pytest.raises(ImatrixError, match=rf"{bad} is not an importance matrix"):
            quantize(source, "Q4_K_M", imatrix=tmp_path / bad)


@pytest.mark.usefixtures("no_child")
def test_a_full_disk_is_noticed_beforehand(source: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        total: int
        used: int
        free: int

    need = quant_plan.plan_quant(gguf.read_header(source), "Q8_0").file_bytes + kit_files.SPARE_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GiB, GiB - need + 1, need - 1))
    with pytest.raises(QuantizeError, match=r"small\.gguf cannot be quantized to Q8_0: .* MiB free: delete something"):
        quantize(source, "Q8_0")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GiB, GiB - need, need))
    with pytest.raises(AssertionError, match="a child was started"):
        quantize(source, "Q8_0")
    assert files(home) == []


# Nothing half-written is left


def meanwhile(action: Callable[[], None]) -> Callable[[float, str], None]:
    """A progress callback that acts once quantizing is under way."""
    done = []

    def progress(share: float, text: str) -> None:
        if text.startswith("blk.1.") and not done:
            done.append(True)
            action()

    return progress


def kill_child() -> None:
    (child,) = (p for p in psutil.Process().children() if "labkit.experiments.child" in p.cmdline())
    child.kill()


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A sparse model that takes seconds to quantize, so that it can be stopped on the way."""
    path = tmp_path / "slow.gguf"
    write(path, small(block_count=40), "F16")
    return path


@pytest.fixture
def no_orphans() -> Iterator[None]:
    yield
    assert not [p for p in psutil.Process().children() if "labkit.experiments.child" in p.cmdline()]


@pytest.mark.live
@pytest.mark.usefixtures("no_orphans")
def test_a_killed_child_is_reported_and_leaves_nothing(slow: Path, home: Path) -> None:
    with pytest.raises(task.TaskError, match=r"quantizing slow\.gguf to Q8_0 was killed from outside \(signal 9\)"):
        quantize(slow, "Q8_0", threads=1, progress=meanwhile(kill_child))
    assert files(home) == []


@pytest.mark.live
@pytest.mark.usefixtures("no_orphans")
def test_cancel_and_ctrl_c_leave_nothing(slow: Path, home: Path) -> None:
    cancel = threading.Event()
    with pytest.raises(Cancelled, match=r"quantizing slow\.gguf to Q8_0 was cancelled"):
        quantize(slow, "Q8_0", threads=1, progress=meanwhile(cancel.set), cancel=cancel)
    assert files(home) == []
    with pytest.raises(KeyboardInterrupt):
        quantize(slow, "Q8_0", threads=1, progress=meanwhile(raise_interrupt))
    assert files(home) == []


@pytest.mark.live
def test_an_abort_of_llama_cpp_leaves_nothing(source: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant_plan, "_checked", lambda forced, tensor: forced)  # as if nothing were refused
    with pytest.raises(task.TaskError, match=r"to Q8_0 ended with status -6: .*GGML_ASSERT\(imatrix != NULL\)"):
        quantize(source, "Q8_0", token_embedding_type="IQ2_XXS")
    assert files(home) == []


@pytest.mark.live
def test_what_llama_cpp_refuses_is_passed_on(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "strange.gguf"
    write(path, small(embedding_length=256, feed_forward_length=256), "F16", llama__rope__dimension_count=6)
    with pytest.raises(task.TaskError, match=r"llama\.cpp cannot quantize strange\.gguf: invalid n_rot: 6"):
        quantize(path, "Q8_0")
    assert files(home) == []


@pytest.mark.live
def test_remains_of_a_killed_process_are_swept(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    dead, alive, other = (tmp_path / f".{name}.part" for name in ("out.gguf.99999999", "out.gguf.1", "o.gguf.99999999"))
    for path in (dead, alive, other):
        path.write_text("half")
    quantize(source, "Q4_0", out=target)
    assert [path.exists() for path in (target, dead, alive, other)] == [True, False, True, True]
