"""Shapes and mixtures against published figures, a published file, and llama.cpp's own dry-run quantization."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.paths import SUPPORT

from labkit import gguf
from labkit.files import data_path
from labkit.models import lookup, mixtures, shapes, tensor_types
from labkit.models.forge import forge

# Parameters the hub shows for the source repository (safetensors; for Gemma the text model, as Keras Hub counts it).
N_PARAMS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-3-4b": 3_880_099_328,
    "gemma-3-12b": 11_765_788_416,
    "gemma-3n-e4b": 6_868_990_448,
    "phi-3-mini": 3_821_079_552,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v2-lite": 15_706_484_224,
    "granite-4.0-h-tiny": 6_939_037_248,
    "mamba-2.8b": 2_768_345_600,
    "smollm2-135m": 134_515_008,
}

# Bytes of all tensors in published files, as llama.cpp reports them ("size" in /v1/models and in llama-bench).
TENSOR_BYTES = [
    ("llama-2-7b", "Q4_K_M", 4_080_263_168),
    ("llama-3.1-8b", "Q4_K_M", 4_912_898_304),
    ("llama-3.2-1b", "Q4_K_M", 799_862_912),
    ("llama-3.2-1b", "Q8_0", 1_313_251_456),
    ("llama-3.2-3b", "Q8_0", 3_414_061_312),
    ("qwen2.5-7b", "Q4_K_M", 4_677_120_000),
    ("qwen3-1.7b", "Q8_0", 1_828_474_880),
    ("qwen3-1.7b", "Q4_K_M", 1_101_457_408),
    ("qwen3-8b", "Q4_K_M", 5_021_827_072),
    ("qwen3-30b-a3b", "Q4_K_M", 18_550_716_416),
    ("gemma-3-4b", "Q4_K_M", 2_483_218_432),
    ("gemma-3-12b", "Q4_K_M", 7_294_024_704),
]


def test_every_shape_has_the_published_number_of_parameters():
    assert set(shapes.names()) == set(N_PARAMS)
    for name, n_params in N_PARAMS.items():
        shape = shapes.get(name)
        trained = sum(math.prod(t.dims) for t in shapes.tensors(shape, "F16") if t.name != "rope_freqs.weight")
        assert trained == shape.n_params == n_params, name


@pytest.mark.parametrize(("name", "quant", "nbytes"), TENSOR_BYTES)
def test_tensor_bytes_equal_those_of_published_files(name, quant, nbytes):
    assert sum(t.nbytes for t in shapes.tensors(name, quant)) == nbytes


def test_what_llama_cpps_log_says_of_published_files():
    def n_tensors(shape):
        return sum(1 for _ in shapes.layout(shape))

    gpt_oss = shapes.tensors("gpt-oss-20b", "MXFP4_MOE")
    assert round(sum(t.nbytes for t in gpt_oss) / 2**30, 2) == 11.27
    assert n_tensors(shapes.get("mamba-2.8b")) == 642  # "loaded meta data with … 642 tensors"
    # Files of before the split of kv_b into k_b and v_b have 377.
    assert n_tensors(shapes.get("deepseek-v2-lite")) == 377 + 27
    e2b = shapes.variant(shapes.get("gemma-3n-e4b"), "gemma-3n-e2b", {"block_count": 30, "feed_forward_length": 8192})
    assert n_tensors(e2b) == 727 and round(e2b.n_params / 1e9, 2) == 4.46


def test_lists_have_a_value_for_each_layer():
    shape = shapes.get("granite-4.0-h-tiny")
    assert [shape.number("attention.head_count_kv", layer=i) for i in (0, 5, 6, 35)] == [0, 4, 0, 4]
    for name in shapes.names():
        for value in shapes.get(name).keys.values():
            assert isinstance(value, (int, float, str)) or len(value) == shapes.get(name).n_layer
    small = shapes.variant(shape, "small", {"block_count": 6})
    assert len(shapes.metadata(small, "Q8_0")["granitehybrid.attention.head_count_kv"]) == 6


def test_what_the_converter_keeps_in_f32():
    kept = {
        name.split(".", 2)[-1]
        for name, dims in shapes.layout(shapes.get("gemma-3n-e4b"))
        if len(dims) > 1 and tensor_types.converted(name, dims) == "F32"
    }
    assert kept == {"altup_correct_coef.weight", "altup_predict_coef.weight"}
    assert tensor_types.converted("altup_proj.weight", (2048, 2048, 3)) == "F16"
    assert tensor_types.converted("blk.0.ssm_a", (16, 5120)) == "F32"


def test_shapes_say_where_they_are_from():
    for name in shapes.names():
        shape = shapes.get(name)
        assert shape.source.startswith("https://huggingface.co/") and shape.source.endswith("/config.json")
        assert shape.licence and shape.title


def test_smollm2_equals_the_bundled_file():
    header = gguf.read_header(lookup.bundled())
    shape = shapes.get("smollm2-135m")
    ours = {(t.name, t.dims, t.type) for t in shapes.tensors(shape, "Q4_1")}
    assert ours == {(t.name, t.dims, t.type) for t in header.tensors}
    meta = shapes.metadata(shape, "Q4_1")
    theirs = {k: v for k, v in header.metadata.items() if k.startswith("llama.") or k == "general.file_type"}
    assert {k: meta.get(k) for k in theirs} == pytest.approx(theirs, rel=1e-6)


def dry_quantize(path: Path, *quants: str) -> list[dict]:
    command = [sys.executable, str(SUPPORT / "dry_quantize.py"), str(path), *quants]
    done = subprocess.run(command, capture_output=True, text=True, cwd=path.parent, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "name",
    [
        "llama-2-7b",
        "llama-2-70b",  # attn_v of 70B models
        "llama-3.2-1b",  # tied, rope_freqs
        "mixtral-8x7b",  # the rules for eight experts
        "qwen2.5-0.5b",  # rows of 896: fallbacks; biases
        "qwen3-30b-a3b",
        "gemma-3-4b",
        "phi-3-mini",  # fused matrices
        "gemma-3n-e4b",  # matrices that stay f16
        "gpt-oss-20b",  # rows of 2880: fallbacks
        "deepseek-v2-lite",  # stacks that are no experts
        "granite-4.0-h-tiny",
        "mamba-2.8b",
        "smollm2-135m",  # rows of 576: nearly everything falls back
    ],
)
def test_every_tensor_gets_the_type_llama_cpp_would_give_it(name, tmp_path):
    made = forge(name, "F16", path=tmp_path / "f16.gguf")
    answers = dry_quantize(made.path, *shapes.QUANTS)
    assert [a["quant"] for a in answers] == list(shapes.QUANTS)
    for answer in answers:
        ours = shapes.tensors(name, answer["quant"])
        assert [[t.name, t.type] for t in ours] == answer["tensors"], answer["quant"]
        assert sum(t.wanted is not None for t in ours) == answer["n_fallbacks"], answer["quant"]


def made_up(arch: str, n_layer: int, n_head: int, n_head_kv: int, n_expert: int, tied: bool, width: int):
    meta = {
        "general.architecture": arch,
        f"{arch}.block_count": n_layer,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": 256,
        f"{arch}.feed_forward_length": 512,
        f"{arch}.attention.head_count": n_head,
        f"{arch}.attention.head_count_kv": n_head_kv,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.attention.layer_norm_epsilon": 1e-5,
        f"{arch}.vocab_size": 64,
        "tokenizer.ggml.model": "none",
    }
    if n_expert:
        meta |= {f"{arch}.expert_count": n_expert, f"{arch}.expert_used_count": 1}
    names = ["token_embd.weight", *([] if tied else ["output.weight"])]
    for i in range(n_layer):
        parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down", "ffn_gate_inp"]
        names += [f"blk.{i}.{part}.weight" for part in parts]
        names += [f"blk.{i}.attn_qkv.weight"] if i % 3 == 0 else []
    return meta, [(name, (width, 8), "F16") for name in names]


@pytest.mark.parametrize(
    "model",
    [
        ("falcon", 32, 4, 1, 0, False, 256),
        ("falcon", 60, 4, 1, 0, True, 256),
        ("llama", 80, 4, 4, 0, False, 256),  # 65B, not 70B
        ("llama", 80, 4, 1, 8, False, 256),
        ("qwen2", 80, 4, 4, 0, True, 256),  # 70B by its layers alone
        ("deci", 80, 4, 2, 0, False, 256),
        ("llama", 9, 4, 1, 0, False, 100),  # not even blocks of 32: F16
        ("llama", 9, 4, 1, 0, True, 96),
    ],
    ids=str,
)
def test_rules_that_no_listed_shape_needs_are_llama_cpps_too(model, tmp_path):
    meta, tensors = made_up(*model)
    head = gguf.write_header(meta, tensors)
    path = tmp_path / "made_up.gguf"
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(gguf.read_header(head).file_bytes)
    traits = tensor_types.traits(meta, [name for name, _, _ in tensors])
    for answer in dry_quantize(path, *shapes.QUANTS):
        ours = tensor_types.assign(tensors, answer["quant"], traits)
        assert [[c.name, c.type] for c in ours] == answer["tensors"], answer["quant"]


def test_traits_of_a_real_file_and_of_layers_that_differ():
    header = gguf.read_header(lookup.bundled())
    traits = tensor_types.traits(header.metadata, [t.name for t in header.tensors])
    assert traits == mixtures.Traits(arch="llama", n_layer=30, n_gqa=3, n_expert=0, tied=True)
    mixed = {
        "general.architecture": "deci",
        "deci.block_count": 2,
        "deci.attention.head_count": [8, 0],
        "deci.attention.head_count_kv": [2, 0],
    }
    assert tensor_types.traits(mixed, ["output.weight"]).n_gqa == 4
    with pytest.raises(ValueError, match="no architecture"):
        tensor_types.traits({}, [])


def test_use_more_bits_in_32_layers():
    chosen = [i for i in range(32) if mixtures.use_more_bits(i, 32)]
    assert chosen == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


def test_names_are_found_in_any_case_and_near_misses_are_offered():
    assert shapes.get("Llama-2-7B") is shapes.get("llama-2-7b")
    assert shapes.tensors("llama-2-7b", "q4_k_m") is shapes.tensors("llama-2-7b", "Q4_K_M")
    with pytest.raises(shapes.ShapeError, match=r"no shape 'llama-2-8b'.*llama-2-7b"):
        shapes.get("llama-2-8b")
    with pytest.raises(shapes.ShapeError, match=r"no mixture 'Q9'.*Q4_K_M"):
        shapes.tensors("llama-2-7b", "Q9")


def test_variants_of_a_shape_have_their_own_tensors():
    shape = shapes.get("llama-2-7b")
    small = replace(shape, keys={**shape.keys, "block_count": 2})
    assert len(shapes.tensors(small, "Q8_0")) == 2 * 9 + 3
    assert len(shapes.tensors(shape, "Q8_0")) == 32 * 9 + 3


def test_rope_factors_are_those_of_llama_3():
    shape = shapes.get("llama-3.1-8b")
    values = shapes.rope_freqs(shape)
    assert shapes.rope_freqs(shapes.get("llama-2-7b")) is None
    assert values is not None and len(values) == 64
    for i, value in enumerate(values):
        # Definition of rope_type "llama3": waves longer than 8192 tokens are stretched 8 times, those shorter than
        # 8192 / 4 are left alone, and in between the frequency is interpolated.
        wavelength = 2 * math.pi * 500000 ** (2 * i / 128)
        if wavelength < 8192 / 4:
            assert value == 1
        elif wavelength > 8192:
            assert value == 8
        else:
            smooth = (8192 / wavelength - 1) / 3
            assert value == pytest.approx(1 / ((1 - smooth) / 8 + smooth))
            assert 1 < value < 8


def test_data_files_are_found_or_refused():
    assert data_path("shapes.json").is_file()
    with pytest.raises(FileNotFoundError, match="no data file 'nothing'"):
        data_path("nothing")
