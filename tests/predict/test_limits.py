"""What the kit refuses before llama.cpp does, against what llama.cpp refuses."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from labkit import engine, predict
from labkit.gguf import read_header
from labkit.models import lookup, shapes
from labkit.models.forge import forge, header_bytes
from labkit.settings import CACHE_TYPES, Settings, SettingsError

LLAMA = shapes.get("llama-2-7b")
SHAPES = [
    "llama-3.2-1b",
    "gemma-3-4b",
    "phi-3-mini",
    "deepseek-v2-lite",
    shapes.variant(LLAMA, "heads-of-80", {"embedding_length": 2560, "rope.dimension_count": 80, "block_count": 2}),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: getattr(shape, "name", shape))
def test_the_kit_refuses_the_cache_types_that_llama_cpp_refuses(shape: str | shapes.Shape, tmp_path: Path) -> None:
    made = forge(shape, "Q8_0", path=tmp_path / "model.gguf")
    refused: dict[str, set[tuple[str, str]]] = {"kit": set(), "llama.cpp": set()}
    with engine.Model(made.path, Settings(), dry=True) as model:
        for type_k, type_v in itertools.product(CACHE_TYPES, repeat=2):
            settings = Settings(type_k=type_k, type_v=type_v)
            try:
                engine.Context(model, settings).close()
            except engine.EngineError:
                refused["llama.cpp"].add((type_k, type_v))
            try:
                predict.check(made.header, settings)
            except SettingsError:
                refused["kit"].add((type_k, type_v))
    assert refused["kit"] == refused["llama.cpp"]


def test_without_flash_attention_the_head_is_no_limit() -> None:
    header = read_header(header_bytes(SHAPES[-1], "Q8_0"))
    with pytest.raises(SettingsError, match=r"type_k is q8_0, whose blocks hold 32 values: this model's heads have 80"):
        predict.check(header, Settings(type_k="q8_0"))
    predict.check(header, Settings(type_k="q8_0", flash_attn="off"))


def test_one_vector_for_both_has_one_type() -> None:
    header = lookup.header("deepseek-v2-lite:Q8_0")
    with pytest.raises(SettingsError, match="type_k is q8_0 and type_v f16: this model keeps one vector for both"):
        predict.check(header, Settings(type_k="q8_0"))


@pytest.mark.parametrize(("n_ctx", "fits"), [(4096, True), (131072, True), (131073, False), (10_000_000, False)])
def test_a_context_far_beyond_the_trained_one_is_refused(n_ctx: int, fits: bool) -> None:
    header = lookup.header("llama-2-13b:Q4_K_M")
    settings = Settings(n_ctx=n_ctx)
    if fits:
        predict.check(header, settings)
    else:
        with pytest.raises(SettingsError, match=f"n_ctx is {n_ctx:,}: this model was trained for 4,096 tokens"):
            predict.check(header, settings)
