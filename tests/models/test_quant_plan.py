"""Predicted types and sizes against llama.cpp's dry run, and against the files it really writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import SUPPORT
from support.small import small, write

from labkit import cli, gguf
from labkit.experiments.child import task
from labkit.models import lookup, mixtures, quant_plan, shapes
from labkit.models.forge import forge
from labkit.quant.imatrix import save

QUANTS = (
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_K_S", "Q4_K_M"),
    *("Q5_0", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_XS", "IQ4_NL"),
)


def dry_quantize(path: Path) -> dict[str, dict[str, Any]]:
    command = [sys.executable, str(SUPPORT / "dry_quantize.py"), str(path), *QUANTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=path.parent, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return {answer["quant"]: answer for answer in map(json.loads, done.stdout.splitlines())}


def really_quantize(source: Path, quant: str, **settings: Any) -> gguf.Header:
    """What llama.cpp writes, whatever the plan says."""
    target = source.with_name("quantized.gguf")
    job = {
        "source": str(source),
        "target": str(target),
        "ftype": mixtures.find(quant).ftype,
        "threads": 1,
        "allow_requantize": True,
        "token_embedding_type": None,
        "output_tensor_type": None,
        "imatrix": None,
        **settings,
    }
    task.run("labkit.quant.quantize:in_child", job, what="quantizing", on_step=lambda event: None)
    return gguf.read_header(target)


def assert_same(found: gguf.Header, wanted: quant_plan.QuantPlan) -> None:
    assert [(t.name, t.type, t.nbytes) for t in found.tensors] == [(t.name, t.type, t.nbytes) for t in wanted.tensors]
    assert found.file_bytes == wanted.file_bytes
    assert found.tensor_bytes == wanted.tensor_bytes and found.types == wanted.types
    assert found.bpw == wanted.bpw


@pytest.fixture
def header(smollm2_path: Path) -> gguf.Header:
    return gguf.read_header(smollm2_path)


# Types and fallbacks


def assert_dry_run_agrees(path: Path, header: gguf.Header) -> None:
    answers = dry_quantize(path)
    for quant in QUANTS:
        plan = quant_plan.plan_quant(header, quant)
        assert [[t.name, t.type] for t in plan.tensors] == answers[quant]["tensors"], quant
        assert plan.fallbacks == answers[quant]["n_fallbacks"], quant


def test_smollm2_gets_the_types_of_llama_cpps_dry_run(smollm2_path: Path, header: gguf.Header) -> None:
    assert_dry_run_agrees(smollm2_path, header)
    assert quant_plan.plan_quant(header, "Q4_K_M").fallbacks == 180


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.2-1b",
        "llama-2-7b",
        "mistral-7b",  # 7B with grouped heads
        "mixtral-8x7b",
        "qwen2.5-0.5b",  # rows of 896
    ],
)
def test_a_header_in_memory_is_enough_to_predict_what_the_dry_run_says(name: str, tmp_path: Path) -> None:
    made = forge(name, "F16", path=tmp_path / "f16.gguf")
    assert_dry_run_agrees(made.path, lookup.header(f"{name}:F16"))


# Sizes of real files


@pytest.mark.parametrize("quant", ["Q8_0", "Q2_K"])
@pytest.mark.live
def test_smollm2_files_are_as_large_as_predicted(quant: str, smollm2_path: Path, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.symlink_to(smollm2_path)
    assert_same(really_quantize(source, quant), quant_plan.plan_quant(gguf.read_header(smollm2_path), quant))


def tiny(name: str, tmp_path: Path, quant: str = "F16", **keys: int) -> Path:
    """Eight layers, so that the rules about the first eighth of them have something to do."""
    keys = {"block_count": 8, "embedding_length": 256, "feed_forward_length": 512, "vocab_size": 512, **keys}
    path = tmp_path / f"{name}.gguf"
    write(path, small(name, **keys), quant)
    return path


@pytest.mark.live
def test_small_real_files_are_as_predicted(tmp_path: Path) -> None:
    wide = tiny("qwen2.5-0.5b", tmp_path, block_count=2, embedding_length=896)
    experts = tiny("qwen3-30b-a3b", tmp_path, expert_feed_forward_length=256)
    for source, quant in ((wide, "Q3_K_L"), (experts, "Q4_K_M")):
        assert_same(really_quantize(source, quant), quant_plan.plan_quant(gguf.read_header(source), quant))


@pytest.mark.parametrize("quant", ["Q4_0", "Q5_0", "IQ4_XS", "IQ4_NL", "Q4_K_M"])
@pytest.mark.live
def test_an_importance_matrix_changes_the_types_as_predicted(quant: str, tmp_path: Path) -> None:
    source = tiny("llama-3.2-1b", tmp_path)
    header = gguf.read_header(source)
    weights = {
        t.name: np.ones(t.dims[0], np.float32) for t in header.tensors if t.name.startswith("blk.") and len(t.dims) > 1
    }
    save(tmp_path / "ones.npz", weights, n_tokens=1)
    plan = quant_plan.plan_quant(header, quant, imatrix=True)
    assert_same(really_quantize(source, quant, imatrix=str(tmp_path / "ones.npz")), plan)
    assert (plan == quant_plan.plan_quant(header, quant)) == (quant == "Q4_K_M")


def test_experts_are_counted_by_their_layer_with_an_importance_matrix() -> None:
    header = lookup.header("mixtral-8x7b:F16")
    changed = [t.name for t in quant_plan.plan_quant(header, "Q4_0", imatrix=True).tensors if t.type == "Q4_1"]
    assert changed == [f"blk.{i}.ffn_down_exps.weight" for i in range(4)]


@pytest.mark.live
def test_keys_that_llama_cpp_adds_or_drops_count(tmp_path: Path) -> None:
    shape = small("llama-3.2-1b", embedding_length=256, feed_forward_length=512, vocab_size=512)
    metadata = dict(shapes.metadata(shape, "F16"))
    del metadata["general.file_type"], metadata["general.quantization_version"]
    metadata["general.description"] = "x" * 21  # so that the header grows into the next 32 bytes
    table = [(t.name, t.dims, t.type) for t in shapes.tensors(shape, "F16")]
    table.append(("blk.0.extra.weight", (256, 1, 1), "F32"))  # llama.cpp writes one dimension

    def store(path: Path, rows: list[tuple[str, tuple[int, ...], str]], **more: object) -> None:
        head = gguf.write_header({**metadata, **more}, rows)
        path.write_bytes(head + bytes(gguf.read_header(head).file_bytes - len(head)))

    whole = tmp_path / "whole.gguf"
    store(whole, table)
    assert_same(really_quantize(whole, "Q4_K_M"), quant_plan.plan_quant(gguf.read_header(whole), "Q4_K_M"))

    for i, part in enumerate((table[:6], table[6:])):
        split = {
            "split.no": gguf.Typed("u16", i),
            "split.count": gguf.Typed("u16", 2),
            "split.tensors.count": gguf.Typed("i32", len(table)),
        }
        store(tmp_path / f"split-{i + 1:05}-of-00002.gguf", part, **split)
    first = tmp_path / "split-00001-of-00002.gguf"
    assert_same(really_quantize(first, "Q4_K_M"), quant_plan.plan_quant(gguf.read_header(first), "Q4_K_M"))


# Forced types


@pytest.mark.live
def test_forced_types_are_kept_where_they_fit(tmp_path: Path) -> None:
    heads = {"attention_head_count": 9, "attention_head_count_kv": 9, "rope_dimension_count": 32}
    untied = tiny("llama-2-7b", tmp_path, block_count=2, embedding_length=288, **heads)
    forced = {"token_embedding_type": "Q5_1", "output_tensor_type": "Q8_0"}
    plan = quant_plan.plan_quant(gguf.read_header(untied), "Q4_K_M", **forced)
    assert_same(really_quantize(untied, "Q4_K_M", **forced), plan)
    types = {t.name: t.type for t in plan.tensors}
    assert (types["token_embd.weight"], types["output.weight"]) == ("Q5_1", "Q8_0")


@pytest.mark.live
def test_a_forced_type_on_rows_that_do_not_divide_is_refused_because_llama_cpp_aborts(
    header: gguf.Header, smollm2_path: Path, tmp_path: Path
) -> None:
    for forced in ("Q4_K", "iq4_xs"):
        with pytest.raises(quant_plan.PlanError, match=rf"token_embedding_type={forced.upper()} .* 576 .* 256.*Q8_0"):
            quant_plan.plan_quant(header, "Q4_K_M", token_embedding_type=forced)
    source = tmp_path / "model.gguf"
    source.symlink_to(smollm2_path)
    with pytest.raises(task.TaskError, match=r"status -6: .*GGML_ASSERT\(n_per_row%QK_K == 0\)"):
        really_quantize(source, "Q4_K_M", token_embedding_type="IQ4_XS")


def test_other_settings_that_end_badly_are_refused_by_name(header: gguf.Header) -> None:
    with pytest.raises(quant_plan.PlanError, match=r"token_embedding_type=IQ2_XXS is not possible: choose one of F32"):
        quant_plan.plan_quant(header, "Q4_K_M", token_embedding_type="IQ2_XXS")
    with pytest.raises(quant_plan.PlanError, match=r"output_tensor_type .* token embedding is also the output layer"):
        quant_plan.plan_quant(header, "Q4_K_M", output_tensor_type="Q8_0")
    with pytest.raises(mixtures.ShapeError, match=r"no mixture 'Q9'.*Q4_K_M"):
        quant_plan.plan_quant(header, "Q9")


@pytest.mark.live
def test_another_alignment_is_refused_because_llama_cpp_would_write_an_unreadable_file(tmp_path: Path) -> None:
    shape = small("llama-3.2-1b", embedding_length=288, feed_forward_length=512, vocab_size=512)
    table = [(t.name, t.dims, t.type) for t in shapes.tensors(shape, "F16")]
    head = gguf.write_header(shapes.metadata(shape, "F16"), table, alignment=64)
    source = tmp_path / "aligned.gguf"
    source.write_bytes(head + bytes(gguf.read_header(head).file_bytes - len(head)))
    with pytest.raises(quant_plan.PlanError, match=r"general\.alignment is 64"):
        quant_plan.plan_quant(gguf.read_header(source), "Q4_K_M")
    with pytest.raises(gguf.GGUFError):
        really_quantize(source, "Q4_K_M")


# The command


def test_inspect_quant_follows_the_contract(capsys: pytest.CaptureFixture[str], header: gguf.Header) -> None:
    assert cli.main(["inspect", "smollm2", "--quant", "Q4_K_M", "--json"]) == 0
    quant = json.loads(capsys.readouterr().out)["quant"]
    plan = quant_plan.plan_quant(header, "Q4_K_M")
    assert (quant["file_bytes"], quant["fallbacks"]) == (plan.file_bytes, 180)
    assert [(t["name"], t["type"]) for t in quant["tensors"]] == [(t.name, t.type) for t in plan.tensors]
    fallen = {(t["wanted"], t["type"]) for t in quant["tensors"] if t["wanted"]}
    assert fallen == {("Q4_K", "Q5_0"), ("Q6_K", "Q8_0")}


def test_inspect_quant_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "smollm2", "--quant", "q4_k_m"]) == 0
    out = capsys.readouterr().out
    assert "as Q4_K_M: file 101 MiB, 6.17 bits per weight" in out
    assert "180 of 272 tensors fall back" in out
    assert cli.main(["inspect", "smollm2", "--quant", "Q9"]) == 2
    assert "no mixture 'Q9'" in capsys.readouterr().err
