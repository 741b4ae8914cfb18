"""Predictions against llama.cpp itself: dry runs for caches and compute buffers, its log for repacking, the kernel for
the resident set."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small import small, write

from labkit import engine, gguf, predict
from labkit.engine.log import LOG_RESOLUTION_BYTES
from labkit.experiments.measure import measure
from labkit.gguf import GGUFError, Header, read_header, row_bytes
from labkit.models import lookup, shapes
from labkit.models.forge import forge
from labkit.settings import CACHE_TYPES, Settings
from labkit.units import MiB

HERE = engine.cpu_features() or frozenset()
AVX2 = frozenset({"avx2"})
AVX512 = frozenset({"avx2", "avx512"})
DOTPROD = frozenset({"neon", "dotprod"})
I8MM = frozenset({"neon", "matmul_int8"})
ARM = DOTPROD | I8MM


def of(name: str, quant: str = "Q4_K_M") -> Header:
    return lookup.header(f"{name}:{quant}")


def changed(header: Header, **metadata: Any) -> Header:
    names = {key.replace("__", "."): value for key, value in metadata.items()}
    return replace(header, metadata={**header.metadata, **names})


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Header, engine.Model]]:
    """Every shape of the catalogue, open in the engine without its weights."""
    folder = tmp_path_factory.mktemp("planned")
    paths = {name: forge(name, "Q4_K_M", path=folder / f"{name}.gguf") for name in shapes.names()}
    return {name: (made.header, engine.Model(made.path, Settings(), dry=True)) for name, made in paths.items()}


def plan(model: engine.Model, settings: Settings) -> tuple[int, int, int, int]:
    """KV, compute and output bytes as llama.cpp plans them, and how many caches there are."""
    with engine.Context(model, settings) as context:
        size = {buffer.kind: buffer.bytes for buffer in context.buffers}
        return sum(cache.bytes for cache in context.kv), size["compute"], size["output"], len(context.kv)


# Against dry runs


@pytest.mark.parametrize("name", shapes.names())
@pytest.mark.xdist_group("dry models")
def test_cache_output_and_compute_of_every_shape(name: str, planned: dict[str, tuple[Header, engine.Model]]) -> None:
    header, model = planned[name]
    for cache_type in CACHE_TYPES:
        for n_ctx in (512, 4096):
            settings = Settings(n_ctx=n_ctx, type_k=cache_type, type_v=cache_type)
            kv, compute, output, n_caches = plan(model, settings)
            assert predict.kv_bytes(header, settings) == pytest.approx(kv, abs=2 * n_caches * LOG_RESOLUTION_BYTES)
            predicted = predict.memory(header, settings, cpu_features=None)
            assert predicted.output_bytes == pytest.approx(output, abs=LOG_RESOLUTION_BYTES)
            found, exact = predict.compute_bytes(header, settings)
            assert (predicted.compute_bytes, predicted.compute_exact) == (found, exact)
            assert found == pytest.approx(compute, abs=LOG_RESOLUTION_BYTES if exact else 0.2 * compute), settings


@pytest.mark.xdist_group("dry models")
def test_where_the_compute_buffer_is_said_to_be_exact(planned: dict[str, tuple[Header, engine.Model]]) -> None:
    exact = {name for name, (header, _) in planned.items() if predict.compute_bytes(header, Settings(n_ctx=4096))[1]}
    by_arch = {name for name in planned if shapes.get(name).arch in ("llama", "qwen2", "qwen3")}
    narrow = {"smollm2-135m", "llama-3.2-3b"}  # a feed-forward of less than three times n_embd: ggml may leave holes
    assert exact == by_arch - narrow


VARIANTS = [
    Settings(n_ctx=300),
    Settings(n_ctx=1),
    Settings(n_ctx=777, n_ubatch=200),
    Settings(n_ctx=32768),
    Settings(n_ctx=2048, n_ubatch=2048),
    Settings(n_ctx=4096, n_ubatch=1),
    Settings(n_ctx=4096, n_batch=64, n_ubatch=64),
    Settings(n_ctx=4096, n_outputs_max=1),
    Settings(n_ctx=8192, swa_full=True),
    Settings(n_ctx=8192, n_ubatch=64),
    Settings(n_ctx=4096, type_k="q8_0", type_v="q4_0"),
    Settings(n_ctx=4096, type_k="f32", type_v="f16"),
    Settings(n_ctx=4096, flash_attn="on"),
    Settings(n_ctx=4096, flash_attn="off"),
    Settings(n_ctx=4096, flash_attn="off", type_k="q8_0"),
    Settings(n_ctx=4096, n_seq_max=3),
    Settings(n_ctx=4096, n_seq_max=4, kv_unified=True),
    Settings(n_ctx=512, n_seq_max=16),
]


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda s: ",".join(f"{k}={v}" for k, v in difference(s)))
@pytest.mark.xdist_group("dry models")
def test_variants(settings: Settings, planned: dict[str, tuple[Header, engine.Model]]) -> None:
    for name in ("llama-2-7b", "llama-3.2-1b", "qwen3-1.7b", "gemma-3-4b", "phi-3-mini"):
        header, model = planned[name]
        kv, compute, output, n_caches = plan(model, settings)
        assert predict.kv_bytes(header, settings) == pytest.approx(kv, abs=2 * n_caches * LOG_RESOLUTION_BYTES), name
        predicted = predict.memory(header, settings, cpu_features=None)
        assert predicted.output_bytes == pytest.approx(output, abs=LOG_RESOLUTION_BYTES), name
        if predicted.compute_exact:
            assert predicted.compute_bytes == pytest.approx(compute, abs=LOG_RESOLUTION_BYTES), name
        else:
            assert 0.4 * compute < predicted.compute_bytes < 1.4 * compute, name


def difference(settings: Settings) -> Iterable[tuple[str, Any]]:
    default = Settings().to_dict()
    return [(name, value) for name, value in settings.to_dict().items() if value != default[name]]


@pytest.mark.xdist_group("dry models")
def test_an_f32_cache_is_copied(planned: dict[str, tuple[Header, engine.Model]]) -> None:
    header, model = planned["llama-2-7b"]
    settings = Settings(n_ctx=32768, n_ubatch=1, type_k="f32", type_v="f32")
    assert predict.compute_bytes(header, settings)[0] == pytest.approx(plan(model, settings)[1], rel=0.01)


# The cache, by hand


def test_layers_without_attention_have_no_cache() -> None:
    base = of("llama-3.2-1b")
    one = predict.kv_bytes(changed(base, llama__block_count=1), Settings())
    four = changed(base, llama__block_count=4, llama__attention__head_count_kv=[8, 0, 0, 8])
    assert predict.kv_bytes(four, Settings()) == 2 * one
    no_key = replace(base, metadata={k: v for k, v in base.metadata.items() if not k.endswith("head_count_kv")})
    assert predict.kv_bytes(no_key, Settings()) == 4 * predict.kv_bytes(base, Settings())  # 32 heads instead of 8


def test_a_window_is_never_larger_than_the_context() -> None:
    header = of("gemma-3-4b")
    for n_ctx in (256, 512, 1024, 1536):
        small_context = predict.kv_bytes(header, Settings(n_ctx=n_ctx))
        assert small_context == predict.kv_bytes(header, Settings(n_ctx=n_ctx, swa_full=True))
    long = Settings(n_ctx=32768)
    assert predict.kv_bytes(header, long) < predict.kv_bytes(header, replace(long, swa_full=True)) / 4


def test_what_is_no_language_model_says_so() -> None:
    header = of("llama-3.2-1b")
    stripped = replace(header, tensors=tuple(t for t in header.tensors if t.name != "token_embd.weight"))
    with pytest.raises(GGUFError, match=r"there is no token_embd\.weight in it, so this is not a language model\.$"):
        predict.memory(stripped, Settings(), cpu_features=None)


# Repacking

# Which types ggml copies on which CPU, and in multiples of how many rows: read off
# ggml_repack_get_optimal_repack_type in ggml/src/ggml-cpu/repack.cpp, one line per `if`.
REPACKED = {
    ("Q4_0", AVX2): 8,
    ("Q4_0", AVX512): 8,
    ("Q4_0", DOTPROD): 4,
    ("Q4_0", I8MM): 4,
    ("Q4_0", frozenset({"vxe"})): 4,
    ("Q4_K", AVX2): 8,
    ("Q4_K", AVX512): 8,
    ("Q4_K", DOTPROD): 8,
    ("Q4_K", I8MM): 8,
    ("Q2_K", AVX512): 8,
    ("Q5_K", DOTPROD): 8,
    ("Q5_K", I8MM): 8,
    ("Q6_K", DOTPROD): 8,
    ("Q6_K", I8MM): 8,
    ("IQ4_NL", AVX2): 8,
    ("IQ4_NL", AVX512): 8,
    ("IQ4_NL", DOTPROD): 4,
    ("MXFP4", AVX2): 8,
    ("MXFP4", AVX512): 8,
    ("MXFP4", DOTPROD): 4,
    ("Q8_0", DOTPROD): 4,
    ("Q8_0", I8MM): 4,
    ("Q1_0", DOTPROD): 4,
    ("Q1_0", I8MM): 4,
}
CPUS = (frozenset(), AVX2, AVX512, DOTPROD, I8MM, frozenset({"neon"}), frozenset({"dotprod"}), frozenset({"vxe"}))


def one_tensor(name: str, type_name: str, *dims: int) -> Header:
    table = [("token_embd.weight", (256, 32), "F32"), ("output.weight", (256, 32), "F32"), (name, dims, type_name)]
    return read_header(gguf.write_header(shapes.metadata("llama-3.2-1b", "F16"), table))


@pytest.mark.parametrize("type_name", gguf.TYPES)
def test_the_table_of_repacked_types(type_name: str) -> None:
    for cpu in CPUS:
        for rows in (1, 2, 4, 8, 12, 16):
            header = one_tensor("blk.0.attn_q.weight", type_name, 256, rows)
            step = REPACKED.get((type_name, cpu))
            expected = ["blk.0.attn_q.weight"] if step and rows % step == 0 else []
            assert [t.name for t in predict.repacked(header, cpu_features=cpu)] == expected, (cpu, rows)


@pytest.mark.parametrize(
    ("name", "dims", "copied"),
    [
        ("blk.0.ffn_up.weight", (256, 16), True),
        ("blk.0.ffn_up_exps.weight", (256, 16, 4), True),
        ("blk.0.attn_k_b.weight", (256, 16, 4), False),  # three dimensions in an ordinary MUL_MAT
        ("blk.0.attn_norm.weight", (256,), False),
        ("per_layer_token_embd.weight", (256, 16), False),
        ("position_embd.weight", (256, 16), False),
        ("token_types.weight", (256, 16), False),
    ],
)
def test_only_matrix_products_are_repacked(name: str, dims: tuple[int, ...], copied: bool) -> None:
    assert bool(predict.repacked(one_tensor(name, "Q4_0", *dims), cpu_features=AVX2)) is copied


def test_a_tied_embedding_is_copied_as_the_output_layer() -> None:
    tied, untied = small(), replace(small(), tied=False)
    for shape, copied in ((tied, True), (untied, False)):
        table = [(t.name, t.dims, "Q4_0" if len(t.dims) > 1 else "F32") for t in shapes.tensors(shape, "F16")]
        header = read_header(gguf.write_header(shapes.metadata(shape, "F16"), table))
        names = {t.name for t in predict.repacked(header, cpu_features=AVX2)}
        assert ("token_embd.weight" in names) is copied
        assert ("output.weight" in names) is not copied
        kept = predict.memory(header, Settings(load_mode="none"), cpu_features=AVX2).heap_bytes
        norms = sum(t.nbytes for t in header.tensors if t.type == "F32")
        assert kept == header.tensor("token_embd.weight").nbytes + norms


MODELS = [
    ("llama-3.2-1b", "Q4_K_M"),
    ("llama-3.2-1b", "Q4_0"),
    ("llama-3.2-1b", "Q2_K"),
    ("llama-3.2-1b", "IQ4_NL"),
    ("llama-3.2-1b", "Q8_0"),
    ("llama-3.2-1b", "Q6_K"),
    ("qwen2.5-0.5b", "Q4_K_M"),
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("mixtral-8x7b", "Q4_0"),
    ("gemma-3-4b", "Q4_0"),
    ("phi-3-mini", "Q4_K_M"),
]


@pytest.mark.parametrize(("name", "quant"), MODELS)
@pytest.mark.live
def test_repacked_bytes_are_the_engines(name: str, quant: str, tmp_path: Path) -> None:
    narrow = {"vocab_size": 1024, "feed_forward_length": 768}
    if name == "mixtral-8x7b":
        narrow |= {"embedding_length": 1024, "attention_head_count": 8, "attention_head_count_kv": 2}
    header = write(tmp_path / "x.gguf", small(name, **narrow), quant)
    check_buffers(tmp_path / "x.gguf", header)


@pytest.mark.live
def test_repacked_bytes_of_a_tied_model_whose_embedding_is_repacked(tmp_path: Path) -> None:
    header = write(
        tmp_path / "x.gguf", small(), "F16", type_of=lambda tensor: "Q4_K" if len(tensor.dims) > 1 else tensor.type
    )
    check_buffers(tmp_path / "x.gguf", header)


def check_buffers(path: Path, header: Header) -> None:
    """Loaded by mmap and by read, llama.cpp's buffers are the predicted ones, to the resolution of its log."""
    for load_mode in ("mmap", "none"):
        settings = Settings(load_mode=load_mode)
        predicted = predict.memory(header, settings, cpu_features=HERE)
        with engine.Model(path, settings) as model:
            found = {buffer.device: buffer.bytes for buffer in model.buffers}
        padding = 32 * len(header.tensors)  # ggml aligns each tensor in a buffer
        assert found.get("CPU_REPACK", 0) == pytest.approx(predicted.repack_bytes, abs=LOG_RESOLUTION_BYTES + padding)
        if load_mode == "mmap":
            assert found["CPU_Mapped"] == pytest.approx(predicted.mapped_bytes, abs=LOG_RESOLUTION_BYTES + 2 * 4096)
        else:
            assert found["CPU"] == pytest.approx(predicted.heap_bytes, abs=LOG_RESOLUTION_BYTES + padding)


def test_without_repacking_everything_stays_where_it_is() -> None:
    header = of("llama-2-7b")
    for settings, features in ((Settings(repack=False), AVX512), (Settings(), None), (Settings(), frozenset())):
        predicted = predict.memory(header, settings, cpu_features=features)
        assert predicted.repack_bytes == 0 and predicted.heap_bytes == 0
        assert predicted.mapped_bytes == pytest.approx(header.tensor_bytes, abs=2 * 4096)


def test_repacking_doubles_a_7b() -> None:
    predicted = predict.memory(of("llama-2-7b"), Settings(), cpu_features=AVX2)
    assert round(predicted.repack_bytes / MiB) == 2943
    assert predicted.mapped_bytes > 3.5 * 2**30  # what lies between tensors used in place stays mapped


@pytest.mark.parametrize("load_mode", ["auto", "mmap", "mmap+mlock", "none", "mlock", "dio"])
@pytest.mark.parametrize("repack", [True, False])
def test_every_tensor_is_somewhere(load_mode: str, repack: bool) -> None:
    for name in ("llama-2-7b", "smollm2-135m", "qwen3-30b-a3b"):
        header = of(name)
        for features in (AVX2, ARM):
            p = predict.memory(header, Settings(load_mode=load_mode, repack=repack), cpu_features=features)
            assert p.weights_bytes == header.tensor_bytes
            if "mmap" in load_mode or load_mode == "auto":
                assert p.heap_bytes == 0 and header.tensor_bytes <= p.mapped_bytes + p.repack_bytes + 4096
            else:
                twice = (
                    header.tensor("token_embd.weight").nbytes if features is ARM and repack and name[0] == "s" else 0
                )
                assert p.mapped_bytes == 0 and p.heap_bytes + p.repack_bytes == header.tensor_bytes + twice
            assert p.locked_bytes == {"mmap+mlock": p.mapped_bytes, "mlock": p.heap_bytes}.get(load_mode, 0)
            parts = p.heap_bytes + p.repack_bytes + p.kv_bytes + p.output_bytes + p.python_bytes
            assert parts < p.rss_anon_bytes <= p.anon_floor_bytes == parts + p.compute_bytes


def test_a_split_file_is_mapped_part_by_part() -> None:
    header = of("llama-2-7b")
    half = len(header.tensors) // 2
    second = tuple(
        replace(t, part=1, offset=t.offset - header.tensors[half].offset + 4096) for t in header.tensors[half:]
    )
    split = replace(header, tensors=header.tensors[:half] + second)
    whole = predict.memory(header, Settings(repack=False), cpu_features=None).mapped_bytes
    parts = predict.memory(split, Settings(repack=False), cpu_features=None).mapped_bytes
    assert 0 <= parts - whole <= 2 * 4096


# Under a cap


def test_a_cap_leaves_less_room_for_pages_of_the_file() -> None:
    header = of("llama-2-7b")
    free = predict.memory(header, Settings(), cpu_features=None)
    tight = predict.memory(header, Settings(), cpu_features=None, cap_bytes=1024 * MiB)
    none = predict.memory(header, Settings(), cpu_features=None, cap_bytes=64 * MiB)
    assert tight.rss_anon_bytes == free.rss_anon_bytes == none.rss_anon_bytes
    assert tight.rss_file_bytes - predict.PYTHON_FILE_BYTES == 1024 * MiB - tight.rss_anon_bytes
    assert none.rss_file_bytes == predict.PYTHON_FILE_BYTES
    ample = predict.memory(header, Settings(), cpu_features=None, cap_bytes=16 * 2**30)
    assert ample == free


# Speed


def test_bytes_per_token_of_an_untied_model() -> None:
    header = of("llama-2-7b")
    embedding = header.tensor("token_embd.weight").nbytes
    assert predict.bytes_per_token(header, Settings()) == header.tensor_bytes - embedding
    at_200 = predict.bytes_per_token(header, Settings(n_ctx=4096), n_past=200)
    assert at_200 - (header.tensor_bytes - embedding) == 200 * 32 * 2 * row_bytes("F16", 4096)
    two = Settings(n_ctx=4096, n_seq_max=2)
    assert predict.bytes_per_token(header, two, n_past=200) == at_200


def test_bytes_per_token_of_a_tied_model() -> None:
    header = of("smollm2-135m")
    assert predict.bytes_per_token(header, Settings()) == header.tensor_bytes


def test_bytes_per_token_of_a_mixture_of_experts() -> None:
    header = of("qwen3-30b-a3b")
    experts = sum(t.nbytes for t in header.tensors if "_exps." in t.name)
    always = header.tensor_bytes - experts - header.tensor("token_embd.weight").nbytes
    assert predict.bytes_per_token(header, Settings()) == pytest.approx(always + experts * 8 / 128, abs=200)
    assert predict.bytes_per_token(header, Settings()) < header.tensor_bytes / 8


def test_the_roofline() -> None:
    assert predict.decode_ms(4_000_000_000, bandwidth_bytes_per_s=20e9) == pytest.approx(200)
    assert predict.decode_ms(0, bandwidth_bytes_per_s=20e9, overhead_ms=3) == 3
    assert predict.decode_ms(10**9, bandwidth_bytes_per_s=1e9, overhead_ms=5) == pytest.approx(1005)


def test_the_cliff() -> None:
    common = {"warm_ms": 40.0, "needed_bytes": 686 * MiB, "disk_bytes_per_s": 2.0e9}
    assert predict.paging_ms(600 * MiB, cap_bytes=686 * MiB, **common) == 40.0
    assert predict.paging_ms(600 * MiB, cap_bytes=900 * MiB, **common) == 40.0
    below = predict.paging_ms(600 * MiB, cap_bytes=685 * MiB, **common)
    assert below == pytest.approx(40 + 600 * MiB / 2.0e9 * 1000)
    assert predict.paging_ms(600 * MiB, cap_bytes=300 * MiB, **common) == below


def test_a_prediction_is_plain_numbers() -> None:
    values = vars(predict.memory(of("smollm2-135m"), Settings(), cpu_features=AVX2))
    assert json.loads(json.dumps(values)) == values
    assert values["decode_ms"] is None


# Against the kernel


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(small(), "Q4_0", path=tmp_path_factory.mktemp("predict") / "small.gguf").path


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="anonymous and file-backed memory: Linux")
@pytest.mark.parametrize("n_ctx", [512, 4096])
@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("load_mode", ["mmap", "none"])
@pytest.mark.parametrize("model", ["smollm2", "forged"])
@pytest.mark.live
def test_the_resident_set_after_decode(model: str, load_mode: str, repack: bool, n_ctx: int, forged: Path) -> None:
    run = measure(
        forged if model == "forged" else model,
        tokens=3,
        load_mode=load_mode,
        repack=repack,
        n_ctx=n_ctx,
        n_threads=1,
    )
    assert run.outcome == "ok", run.reason
    p, m = run.predicted, run.measured
    assert m is not None and m.rss_anon_bytes is not None and m.rss_file_bytes is not None
    for predicted, measured in ((p.rss_anon_bytes, m.rss_anon_bytes), (p.rss_file_bytes, m.rss_file_bytes)):
        assert abs(predicted - measured) <= max(0.02 * measured, 24 * MiB)
    assert run.buffer_bytes(kind="kv") == pytest.approx(p.kv_bytes, abs=LOG_RESOLUTION_BYTES)
    in_buffers = p.repack_bytes + p.heap_bytes + p.mapped_bytes
    assert run.buffer_bytes(kind="model") == pytest.approx(in_buffers, abs=3 * LOG_RESOLUTION_BYTES)
