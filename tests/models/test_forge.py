"""Forged files: exact sizes, valid contents, and llama.cpp running them."""

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import gguf as reference
import numpy as np
import pytest
from support.paths import SUPPORT

from labkit import gguf
from labkit.blocks.random import SUPPORTED, random_blocks
from labkit.files import disk_bytes
from labkit.models import lookup, shapes
from labkit.models.forge import ForgeError, default_path, forge, models_dir
from labkit.units import KiB, MiB

ONE_PER_ARCHITECTURE = [
    "llama-3.2-1b",
    "mixtral-8x7b",
    "qwen2.5-0.5b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "gemma-3-4b",
    "phi-3-mini",
    "gemma-3n-e4b",
    "gpt-oss-20b",
    "deepseek-v2-lite",
    "granite-4.0-h-tiny",
    "mamba-2.8b",
]
# How many layers it takes until there is one of each kind; llama.cpp tells a DeepSeek-V2-Lite by its 27.
N_LAYER = {"gemma-3n-e4b": 22, "deepseek-v2-lite": 27, "granite-4.0-h-tiny": 6}
Usage = namedtuple("Usage", "total used free")


def small(name: str) -> shapes.Shape:
    """Few layers, narrow in all that need not be wide."""
    shape = shapes.get(name)
    keys = {**shape.keys, "block_count": N_LAYER.get(name, 2), "vocab_size": 512, "feed_forward_length": 512}
    if shape.number("expert_count") > 8:
        keys["expert_count"] = 16
    if shape.number("expert_feed_forward_length"):
        keys["expert_feed_forward_length"] = 256
    if name in ("gemma-3n-e4b", "deepseek-v2-lite"):
        keys |= {"embedding_length": 512}
    return replace(shape, keys=keys)


def decode(*paths: Path, dry: bool = False) -> list[dict]:
    script = str(SUPPORT / "load_forged.py")
    command = [sys.executable, script, *(["--dry"] if dry else []), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_llama_2_7b_is_byte_exact_and_takes_no_disk(tmp_path):
    made = forge("llama-2-7b", "Q4_K_M", path=tmp_path / "7b.gguf")
    assert made.header.tensor_bytes == 4_080_263_168
    assert made.file_bytes == made.path.stat().st_size == made.header.data_offset + 4_080_263_168
    assert made.disk_bytes == disk_bytes(made.path) < 128 * KiB
    assert made.header.metadata["labkit.forged"] is True
    assert made.header.metadata["labkit.fill"] == "zeros"
    assert os.listdir(tmp_path) == ["7b.gguf"]


def test_another_reader_sees_the_same_file(tmp_path):
    made = forge("gemma-3-4b", "Q3_K_M", path=tmp_path / "x.gguf")
    reader = reference.GGUFReader(made.path)
    theirs = [(t.name, tuple(map(int, t.shape)), t.tensor_type.name, t.data_offset) for t in reader.tensors]
    assert theirs == [(t.name, t.dims, t.type, t.offset) for t in made.header.tensors]
    for key, value in shapes.metadata("gemma-3-4b", "Q3_K_M").items():
        assert reader.fields[key].contents() == pytest.approx(value), key
    assert reader.fields["gemma3.block_count"].types == [reference.GGUFValueType.UINT32]
    assert reader.fields["gemma3.rope.freq_base"].types == [reference.GGUFValueType.FLOAT32]


def test_a_header_needs_no_disk():
    header = lookup.header("llama-2-70b:Q4_K_M")
    assert header.path is None and header.n_layer == 80
    assert header.file_bytes == header.data_offset + header.tensor_bytes


def test_the_same_file_is_reused_and_another_is_not(tmp_path):
    path = tmp_path / "x.gguf"
    shape = small("llama-3.2-1b")
    first = forge(shape, "Q4_0", path=path)
    again = forge(shape, "Q4_0", path=path)
    filled = forge(shape, "Q4_0", path=path, fill=True)
    seeded = forge(shape, "Q4_0", path=path, fill=True, seed=1)
    assert [f.reused for f in (first, again, filled, seeded)] == [False, True, False, False]
    assert seeded.header.metadata["labkit.fill"] == "random"
    assert seeded.header.metadata["labkit.seed"] == 1


def test_default_paths_keep_the_kinds_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    made = forge("smollm2-135m", "q8_0")
    assert made.path == tmp_path / "forged" / "smollm2-135m-Q8_0.gguf"
    assert default_path("smollm2-135m", "Q8_0", fill=True).name == "smollm2-135m-Q8_0-filled.gguf"
    assert default_path("smollm2-135m", "Q8_0", fill=True, seed=3).name == "smollm2-135m-Q8_0-filled-3.gguf"
    monkeypatch.delenv("LABKIT_HOME")
    assert models_dir() == Path.home() / ".cache" / "labkit" / "forged"


def test_there_are_random_blocks_for_every_type_of_every_mixture():
    used = {t.type for name in shapes.names() for quant in shapes.QUANTS for t in shapes.tensors(name, quant)}
    assert used <= set(SUPPORTED)
    with pytest.raises(ValueError, match="IQ1_S"):
        random_blocks("IQ1_S", 1, seed=0)


# Where each type keeps its f16 scales (ggml-common.h).
SCALES_AT = {
    "F32": [],
    "F16": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "IQ4_NL": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_XS": [0],
    "MXFP4": [],
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_random_blocks_are_ordinary_weights(name):
    blocks = random_blocks(name, 4096, seed=0)
    assert blocks.shape == (4096, gguf.TYPES[name].block_bytes)
    for at in SCALES_AT[name]:
        scales = np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)
        assert np.isfinite(scales).all()
        assert (np.abs(scales) >= np.finfo(np.float16).smallest_normal).all()
    weights = reference.quants.dequantize(blocks, reference.GGMLQuantizationType[name]).astype(np.float64)
    assert np.isfinite(weights).all()
    assert abs(weights.mean()) < 0.001
    assert 0.018 < weights.std() < 0.022
    assert np.array_equal(blocks, random_blocks(name, 4096, seed=0))
    assert not np.array_equal(blocks, random_blocks(name, 4096, seed=1))


@pytest.mark.parametrize("quant", ["Q4_K_M", "Q2_K", "F16"])
def test_filled_files_hold_ordinary_weights_and_norms_of_one(quant, tmp_path):
    made = forge(small("qwen3-30b-a3b"), quant, path=tmp_path / "x.gguf", fill=True)
    assert made.disk_bytes >= made.header.tensor_bytes
    data = {}
    for tensor in reference.GGUFReader(made.path).tensors:
        weights = reference.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(weights).all()
        if tensor.name.endswith("_norm.weight"):
            assert (weights == 1).all()
        else:
            assert 0.018 < weights.std() < 0.022, tensor.name
            data[tensor.name] = tensor.data.tobytes()
    assert len(set(data.values())) == len(data)


@pytest.mark.live
def test_llama_cpp_runs_both_kinds_of_every_architecture(tmp_path):
    paths = []
    for name in ONE_PER_ARCHITECTURE:
        for fill in (False, True):
            path = tmp_path / f"{name}-{'random' if fill else 'zeros'}.gguf"
            paths.append(forge(small(name), "Q4_K_M", path=path, fill=fill).path)
    assert {shapes.get(name).arch for name in ONE_PER_ARCHITECTURE} == {shapes.get(n).arch for n in shapes.names()}
    results = decode(*paths)
    assert [r["file"] for r in results] == [p.name for p in paths]
    for result in results:
        assert result["finite"], result
        if "random" in result["file"]:
            assert 0.1 < result["std"] < 10, result
            assert result["different"] == 3, result
        else:
            assert result["std"] == 0, result


@pytest.mark.live
def test_llama_cpp_runs_random_weights_of_every_mixture(tmp_path):
    shape = small("llama-3.2-1b")
    paths = [forge(shape, quant, path=tmp_path / f"{quant}.gguf", fill=True).path for quant in shapes.QUANTS]
    for result in decode(*paths):
        assert result["finite"] and 0.1 < result["std"] < 10, result


def test_llama_cpp_plans_every_shape_at_full_size(tmp_path):
    paths = [forge(name, "Q4_K_M", path=tmp_path / f"{name}.gguf").path for name in shapes.names()]
    for name, result in zip(shapes.names(), decode(*paths, dry=True), strict=True):
        shape = shapes.get(name)
        widths = {"deepseek-v2-lite": 512 + 64, "granite-4.0-h-tiny": 2 * 4 * 128, "mamba-2.8b": 0}
        n_layer = {"granite-4.0-h-tiny": 4, "gemma-3n-e4b": 20}.get(name, shape.n_layer)  # those with a cache
        width = widths[name] if name in widths else 2 * shape.head_dim * shape.number("attention.head_count_kv")
        assert result["kv_bytes"] == pytest.approx(n_layer * 512 * 2 * width, rel=0.01), name


def test_rope_factors_are_real_even_in_a_sparse_file(tmp_path):
    made = forge("llama-3.2-1b", "Q4_K_M", path=tmp_path / "x.gguf")
    at = made.header.tensor("rope_freqs.weight")
    values = np.fromfile(made.path, np.float32, 32, offset=at.offset)
    assert values == pytest.approx(shapes.rope_freqs(shapes.get("llama-3.2-1b")))


def test_progress_rises_to_one(tmp_path):
    seen: list[float] = []
    shape = replace(small("phi-3-mini"), tied=False)
    forge(shape, "F16", path=tmp_path / "x.gguf", fill=True, progress=lambda f, text: seen.append(f))
    assert seen == sorted(seen) and len(seen) > 3 and seen[-1] == 1.0


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 300 * MiB))
    with pytest.raises(ForgeError, match="has 300 MiB free"):
        forge("smollm2-135m", "Q4_K_M", path=tmp_path / "x.gguf", fill=True)
    assert os.listdir(tmp_path) == []
    assert forge("smollm2-135m", "Q4_K_M", path=tmp_path / "x.gguf").disk_bytes < MiB
    monkeypatch.setattr(sys.modules["labkit.models.forge"], "mark_sparse", lambda file: False)
    with pytest.raises(ForgeError, match="has 300 MiB free"):
        forge("smollm2-135m", "Q8_0", path=tmp_path / "y.gguf")
    assert os.listdir(tmp_path) == ["x.gguf"]


def test_an_interrupted_forge_leaves_nothing(tmp_path):
    def interrupt(fraction, text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forge("smollm2-135m", "Q4_K_M", path=tmp_path / "x.gguf", fill=True, progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (tmp_path / f".x.gguf.{child.pid}.part").write_bytes(b"half")
    (tmp_path / f".x.gguf.{os.getppid()}.part").write_bytes(b"being written")
    forge("smollm2-135m", "Q4_K_M", path=tmp_path / "x.gguf")
    assert sorted(os.listdir(tmp_path)) == [f".x.gguf.{os.getppid()}.part", "x.gguf"]


def test_a_file_that_was_not_forged_is_left_alone(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(ForgeError, match=r"x\.gguf exists and was not forged"):
        forge("smollm2-135m", "Q4_K_M", path=path)
    assert path.read_bytes() == b"precious"
    with pytest.raises(ForgeError, match=r"cannot be written .*choose another path"):
        forge("smollm2-135m", "Q4_K_M", path=path / "below" / "x.gguf")
