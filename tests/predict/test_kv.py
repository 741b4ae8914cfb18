"""The cache to the byte: all shapes and architectures against llama.cpp's plan, small ones against its buffers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.made_up import metadata
from support.paths import ROOT, SUPPORT
from support.small import small, write

from labkit import engine, gguf, predict
from labkit.gguf import GGUFError, Header, read_header
from labkit.models import lookup, shapes
from labkit.models.forge import forge
from labkit.predict import architectures
from labkit.settings import Settings
from labkit.units import KiB, MiB


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kv_grid = load(ROOT / "benchmarks" / "kv_grid.py")


def of(name: str) -> Header:
    return lookup.header(f"{name}:Q8_0")


# Every shape against the dry run


@pytest.mark.parametrize("name", shapes.names())
def test_every_shape_is_equal_to_the_dry_run(name: str, tmp_path: Path) -> None:
    made = forge(name, "Q8_0", path=tmp_path / "x.gguf")
    trained = shapes.get(name).number("context_length")
    every = [s for s in kv_grid.grid(made.header) if s.n_ctx <= 4096 or (s.type_v == "f16" and s.n_seq_max == 1)]
    assert {512, 4096, 32768, trained} == {s.n_ctx for s in every}
    more = [
        Settings(n_ctx=777, n_ubatch=200),
        Settings(n_ctx=300, n_seq_max=3, kv_unified=True),
        Settings(n_ctx=8192, n_batch=64, n_ubatch=64, n_seq_max=5),
        Settings(n_ctx=8192, flash_attn="off", type_k="q8_0"),
        Settings(n_ctx=8192, type_k="f32", type_v="bf16"),
        Settings(n_ctx=8192, type_k="q5_1", type_v="q5_1"),
        Settings(n_ctx=8192, type_k="iq4_nl", type_v="iq4_nl"),
    ]
    header = made.header
    assert predict.cache(header, Settings()).exact and predict.cache(header, Settings()).reason == ""
    with engine.Model(made.path, Settings(), dry=True) as model:
        for settings in every + more:
            cell = kv_grid.compare(header, model, settings)
            if shapes.get(name).arch == "deepseek2" and settings.type_k != settings.type_v:
                assert "does not support different K" in cell.refused
            else:
                assert cell.equal, kv_grid.show(name, cell)


def test_the_benchmark_counts_and_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert kv_grid.main(["smollm2-135m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 4 * 4 * 3 + 1 and lines[-1].startswith("48 equal, 0 different, 0 refused")
    monkeypatch.setattr(kv_grid, "logged", lambda nbytes: nbytes + 1)
    assert kv_grid.main(["smollm2-135m"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


# Every architecture against llama.cpp's plan, from metadata alone

SETTINGS = [
    {"n_ctx": 16384},
    {"n_ctx": 16384, "n_seq_max": 3},
    {"n_ctx": 16384, "n_seq_max": 3, "kv_unified": True, "type_k": "q8_0", "type_v": "q8_0"},
    {"n_ctx": 16384, "flash_attn": "off"},
    {"n_ctx": 16384, "swa_full": True},
]
UNTRIED = {
    "wavtokenizer-dec": "it makes sound and needs other hyperparameters",
    "jina-bert-v2": "llama.cpp cannot plan it without its tensors",
}
# Where the table alone does not show that a rule is right.
CHANGED: list[tuple[str, dict[str, Any]]] = [
    *((arch, {"nextn_predict_layers": 2}) for arch in ("glm4moe", "qwen3next", "bailingmoe3", "deepseek2", "mimo2")),
    *((arch, {"nextn_predict_layers": 1}) for arch in ("cohere2moe", "step35")),
    (
        "nemotron_h_moe",
        {"nextn_predict_layers": 1, "attention__head_count_kv": [2 if i in (1, 5, 11) else 0 for i in range(12)]},
    ),
    ("mimo2", {"attention__key_length": 96, "attention__value_length": 32}),
    ("mimo2", {"attention__key_length_swa": 96, "attention__value_length_swa": 32}),
    ("deci", {"attention__head_count_kv": [2, 0, 3, 6, 2, 2, 0, 1, 2, 2, 2, 2]}),
    *((arch, {"attention__sliding_window_pattern": 3}) for arch in ("gemma3", "cohere2moe", "gpt-oss", "llama4")),
    *((arch, {"attention__sliding_window": 0}) for arch in ("gemma3", "llama4", "smallthinker", "lfm2")),
    *((arch, {"attention__sliding_window": None}) for arch in ("gemma2", "gemma3", "llama4", "smallthinker")),
    *((arch, {"n_layer": 13}) for arch in ("laguna", "smallthinker", "cohere2moe")),  # one more that sees everything
    ("exaone4", {"n_layer": 64}),
    ("exaone4", {"n_layer": 64, "attention__sliding_window": None}),
    ("qwen35", {"full_attention_interval": 3}),
    ("minimax-01", {"attention__recurrent_layers": [i % 5 != 0 for i in range(12)]}),
]


Answers = list[tuple[Settings, dict[str, Any]]]
CASES: list[tuple[str, dict[str, Any]]] = [
    (arch, {}) for arch in sorted(architectures.KNOWN - UNTRIED.keys())
] + CHANGED


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answers]:
    """What llama.cpp says of each case and setting; it may abort, but not before it has said it of the first."""
    folder = tmp_path_factory.mktemp("headers")
    for i, (arch, changes) in enumerate(CASES):
        (folder / str(i)).write_bytes(gguf.write_header(metadata(arch, **changes), []))
    found: dict[str, Answers] = {}
    left = [str(i) for i in range(len(CASES))]
    while left:
        command = [sys.executable, str(SUPPORT / "dry_caches.py"), json.dumps(SETTINGS), *left]
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=environment, timeout=600, check=False
        )
        for line in filter(lambda line: line.startswith("{"), done.stdout.splitlines()):
            ((kind, value),) = json.loads(line).items()
            if kind == "file":
                left.remove(value)
                answer = found[value] = []
            elif kind == "settings":
                answer.append((Settings.of(value), {"kv": [], "rs": [], "refused": []}))
            else:
                assert answer, value
                answer[-1][1][kind].append(value)
    return found


def text(nbytes: int) -> str:
    return f"{kv_grid.logged(nbytes) / MiB:.2f}"


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{CASES[i][1] or 'as it is'}")
@pytest.mark.xdist_group("dry caches")
def test_every_known_architecture_is_equal_to_llama_cpps_plan(case: int, answers: dict[str, Answers]) -> None:
    arch, changes = CASES[case]
    header = read_header(gguf.write_header(metadata(arch, **changes), []))
    assert answers[str(case)]
    for settings, answer in answers[str(case)]:
        if answer["refused"]:
            assert arch == "grok" and settings.type_v == "q8_0", answer  # its flash attention is always off
            continue
        kept = predict.cache(header, settings)
        assert kept.exact
        groups = [[layer for layer in kept.layers if (layer.kind == "window") is w] for w in (False, True)]
        caches = [[text(sum(x.k_bytes for x in group)), text(sum(x.v_bytes for x in group))] for group in groups]
        assert len(answer["kv"]) == 2 or not any(layer.kind == "window" for layer in kept.layers)
        assert answer["kv"] == caches[: len(answer["kv"])], settings
        assert kept.kv_bytes == 0 or answer["kv"], settings
        assert answer["rs"] == ([[text(kept.recurrent_bytes)]] if kept.recurrent_bytes else []), settings


def test_what_the_kit_does_not_know_is_said() -> None:
    base = of("llama-3.2-1b")
    keys = {key.replace("llama.", "dots3note."): value for key, value in base.metadata.items()}
    for arch, reason in {**architectures.NOT_EXACT, "unheard-of": "labkit does not know this architecture"}.items():
        renamed = {key.replace("dots3note.", f"{arch}."): value for key, value in keys.items()}
        found = predict.cache(replace(base, metadata={**renamed, "general.architecture": arch}), Settings())
        assert (found.exact, found.reason) == (False, reason)
        assert found.kv_bytes == predict.kv_bytes(base, Settings())  # as if every layer were full
    assert architectures.KNOWN.isdisjoint(architectures.NOT_EXACT)


def test_no_architecture_is_forgotten() -> None:
    # llama.cpp 0c1e57098 names 153 (src/llama-arch.cpp); clip is no language model, gptj has no implementation.
    assert len(architectures.KNOWN | architectures.NOT_EXACT.keys()) == 153 - 2


def test_a_hyperparameter_that_is_no_number_is_refused() -> None:
    base = of("gemma-3-4b")
    header = replace(base, metadata={**base.metadata, "gemma3.attention.sliding_window": "wide"})
    with pytest.raises(GGUFError, match=r"'gemma3\.attention\.sliding_window' is not a number\.$"):
        predict.cache(header, Settings())


# Small ones, really allocated

SMALL = {
    "llama-3.2-1b": {},
    "gemma-3-4b": {"block_count": 7},
    "gemma-3n-e4b": {"block_count": 22, "embedding_length": 256, "feed_forward_length": 256},
    "gpt-oss-20b": {"embedding_length": 256, "feed_forward_length": 256, "expert_feed_forward_length": 256},
    "deepseek-v2-lite": {"block_count": 27, "embedding_length": 256, "expert_feed_forward_length": 256},
    "granite-4.0-h-tiny": {"block_count": 6, "embedding_length": 768, "ssm_inner_size": 1536, "ssm_time_step_rank": 24},
    "mamba-2.8b": {"embedding_length": 256, "ssm_inner_size": 512, "ssm_time_step_rank": 16},
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.live
def test_what_is_really_allocated(name: str, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    header = write(path, small(name, **SMALL[name]), "Q8_0")
    one = Settings(n_ctx=1024, n_threads=1)
    for settings in (one, replace(one, n_seq_max=2, type_k="q4_0", type_v="q4_0")):
        kept = predict.cache(header, settings)
        assert kept.exact and kept.bytes > 0
        with engine.Model(path, replace(settings, repack=False)) as model, engine.Context(model, settings) as context:
            allocated = {"kv": 0, "rs": 0}
            for buffer in context.buffers:
                if buffer.kind in allocated:
                    allocated[buffer.kind] += buffer.bytes
            assert allocated["kv"] == pytest.approx(kept.kv_bytes, abs=0.01 * MiB)
            assert allocated["rs"] == pytest.approx(kept.recurrent_bytes, abs=0.005 * MiB)
            if settings.n_seq_max == 1:
                context.decode([1, 2, 3])
                context.decode([4])
                assert context.logits().shape == (4096,)


# By hand


@pytest.mark.parametrize(("cache_type", "kib"), [("f16", 128), ("q8_0", 68), ("q4_0", 36)])
def test_llama_3_1_8b_per_token(cache_type: str, kib: int) -> None:
    settings = Settings(n_ctx=1024, type_k=cache_type, type_v=cache_type)
    header = of("llama-3.1-8b")
    assert predict.kv_bytes_per_token(header, settings) == kib * KiB
    assert predict.kv_bytes(header, settings) == 1024 * kib * KiB
    assert predict.kv_bytes_per_token(header, replace(settings, n_seq_max=4)) == kib * KiB


def test_llama_2_13b() -> None:
    settings = Settings(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    assert predict.kv_bytes(of("llama-2-13b"), settings) == 3_565_158_400


def test_the_known_log() -> None:
    keys = {"block_count": 24, "attention.head_count_kv": 2, "attention.key_length": 64, "attention.value_length": 64}
    base = of("llama-3.2-1b")
    header = replace(base, metadata={**base.metadata, **{f"llama.{key}": value for key, value in keys.items()}})
    found = predict.cache(header, Settings(n_ctx=8192))
    assert (found.k_bytes, found.v_bytes) == (48 * MiB, 48 * MiB)


def kinds(name: str) -> str:
    return "".join(layer.kind[0] for layer in predict.cache(of(name), Settings()).layers)


def test_which_layer_is_of_which_kind() -> None:
    assert kinds("llama-2-7b") == "f" * 32
    assert kinds("gemma-3-4b") == ("w" * 5 + "f") * 5 + "w" * 4
    assert kinds("gemma-3n-e4b") == ("w" * 4 + "f") * 4 + "s" * 15
    assert kinds("gpt-oss-20b") == "wf" * 12
    assert kinds("granite-4.0-h-tiny") == "r" * 5 + "f" + ("r" * 9 + "f") * 3 + "r" * 4
    assert kinds("mamba-2.8b") == "r" * 64
    assert kinds("deepseek-v2-lite") == "f" * 27


def test_a_latent_cache_holds_one_vector_for_keys_and_values() -> None:
    header = of("deepseek-v2-lite")
    found = predict.cache(header, Settings(n_ctx=4096))
    assert (found.k_bytes, found.v_bytes) == (27 * 4096 * (512 + 64) * 2, 0)
    older = {key: value for key, value in header.metadata.items() if not key.endswith("_mla")}
    older |= {
        "deepseek2.attention.head_count_kv": 16,
        "deepseek2.attention.key_length": 192,
        "deepseek2.attention.value_length": 128,
    }
    unpacked = predict.cache(replace(header, metadata=older), Settings(n_ctx=4096))
    assert (unpacked.k_bytes, unpacked.v_bytes) == (27 * 4096 * 16 * 192 * 2, 27 * 4096 * 16 * 128 * 2)


def test_a_recurrent_state_does_not_grow_with_the_context() -> None:
    header = of("mamba-2.8b")
    one = 64 * 4 * 5120 * (3 + 16)  # layers, f32, inner size, last inputs of the convolution and state
    for n_ctx, sequences in ((256, 1), (1 << 20, 1), (4096, 4)):
        settings = Settings(n_ctx=n_ctx, n_seq_max=sequences, type_k="q4_0", type_v="q4_0")
        assert predict.recurrent_bytes(header, settings) == sequences * one
        assert predict.kv_bytes(header, settings) == 0 == predict.kv_bytes_per_token(header, settings)
    assert one == 23.75 * MiB  # as the change that brought Mamba to llama.cpp says


def test_a_window_stops_growing() -> None:
    header = of("gpt-oss-20b")
    settings = Settings(n_ctx=32768)
    windowed, full = predict.cache(header, settings).layers[:2]
    assert (windowed.kind, windowed.cells, full.kind, full.cells) == ("window", 768, "full", 32768)  # 128 + 512, padded
    assert windowed.k_bytes * 32768 == full.k_bytes * 768
    whole = predict.cache(header, replace(settings, swa_full=True)).layers[0]
    assert (whole.kind, whole.cells) == ("window", 32768)
    assert predict.kv_bytes_per_token(header, settings) == 24 * 2 * 8 * 64 * 2


def test_all_layers_add_up() -> None:
    for name in shapes.names():
        found = predict.cache(of(name), Settings(n_ctx=2048, n_seq_max=2))
        assert [layer.layer for layer in found.layers] == list(range(shapes.get(name).n_layer))
        assert found.bytes == sum(layer.bytes for layer in found.layers) == found.kv_bytes + found.recurrent_bytes
        for layer in found.layers:
            assert (layer.bytes > 0) is (layer.kind not in ("shared", "none"))
            assert (layer.recurrent_bytes > 0) is (layer.kind == "recurrent")


def test_a_token_reads_what_is_kept_of_those_before_it() -> None:
    """Gemma 3: five layers in six keep a window; Granite 4: most keep a state; by hand, from their shapes."""
    header = of("gemma-3-12b")
    layers = predict.cache(header, Settings(n_ctx=65536, n_seq_max=2)).layers
    one = 2 * 8 * 256 * 2  # K and V, 8 heads of 256, f16
    assert {layer.token_bytes for layer in layers} == {one}
    assert {layer.kind: layer.read_bytes(100) for layer in layers} == {"full": 100 * one, "window": 100 * one}
    assert {layer.kind: layer.read_bytes(32000) for layer in layers} == {"full": 32000 * one, "window": 1536 * one}
    for sequences in (1, 3):
        layers = predict.cache(of("granite-4.0-h-tiny"), Settings(n_ctx=4096, n_seq_max=sequences)).layers
        [state] = {layer.read_bytes(1000) for layer in layers if layer.kind == "recurrent"}
        assert state == next(layer.recurrent_bytes for layer in layers if layer.kind == "recurrent") // sequences > 0
        assert {layer.token_bytes for layer in layers if layer.kind == "recurrent"} == {0}
