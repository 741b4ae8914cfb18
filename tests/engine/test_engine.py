"""llama.cpp behind our names: live on the bundled model, and on small forged ones."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.small import small, write

from labkit import engine
from labkit.engine.log import parse_buffers
from labkit.gguf import read_header
from labkit.models.forge import forge
from labkit.settings import CACHE_TYPES, Settings
from labkit.units import MiB

QUESTION = "The capital of France is"
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[engine.Model]:
    with engine.Model(smollm2_path, Settings()) as model:
        yield model


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(small(), "Q4_0", path=tmp_path_factory.mktemp("engine") / "small.gguf").path


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads wait for each other, which takes long when something else runs on this computer."""
    monkeypatch.setattr("labkit.engine.context.usable_cores", lambda: 1)


def after_question(model: engine.Model, settings: Settings) -> np.ndarray:
    with engine.Context(model, settings) as context:
        context.decode(model.tokenize(QUESTION))
        return context.logits()


# What is installed


def test_this_build_is_described() -> None:
    found = engine.info()
    assert found.problem is None
    assert found.version == engine.PINNED == importlib.metadata.version("llama-cpp-python")
    cpu = next(device for device in found.devices if device.kind == "CPU")
    assert cpu.name == "CPU" and cpu.total_bytes and cpu.total_bytes > 256 * MiB
    assert set(found.cpu_features) == engine.cpu_features()


# Loading


def test_the_log_is_caught_also_after_a_collection(forged: Path) -> None:
    for _ in range(3):
        gc.collect()
        with engine.Model(forged, Settings()) as model:
            assert model.buffers == parse_buffers(model.log) and model.buffers
            assert any(line.startswith("load_tensors: loading model tensors") for line in model.log)
            with engine.Context(model, Settings()) as context:
                assert {buffer.kind for buffer in context.buffers} == {"kv", "compute", "output"}
                assert not set(context.log) & set(model.log) - {""}


def test_bad_files_are_errors_with_a_reason(tmp_path: Path, forged: Path) -> None:
    bad = tmp_path / "bad.gguf"
    cases = {
        "missing.gguf": None,
        "bad.gguf": b"this is no model at all, not even close to one",
        "empty.gguf": b"",
        "cut.gguf": forged.read_bytes()[:2000],
    }
    for name, content in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(engine.EngineError, match=rf"^llama\.cpp cannot load {name}: .+\.$") as error:
            engine.Model(tmp_path / name, Settings())
        assert "it gave no reason" not in str(error.value), name
    write(bad, small(), "Q4_0", llama__attention__head_count=7)
    with pytest.raises(engine.EngineError, match=r"cannot load bad\.gguf: "):
        engine.Model(bad, Settings())
    with engine.Model(forged, Settings()) as model:  # a failure leaves the engine usable
        assert model.n_layer == 2


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    shape = small()
    path = tmp_path / "invalid error, cannot be loaded.gguf"  # its name stands in the log and must not be the reason
    write(path, replace(shape, keys={**shape.keys, "block_count": 1}), "Q4_0", llama__block_count=2)
    with pytest.raises(engine.EngineError, match=r"tensor 'blk\.1\.attn_norm.weight' not found"):
        engine.Model(path, Settings())


def test_devices_are_refused_by_name(forged: Path) -> None:
    for name in ("CUDA0", "CPU", "RPC0[127.0.0.1:1]"):
        with pytest.raises(engine.EngineError) as error:
            engine.Model(forged, Settings(devices=(name,)))
        assert str(error.value).startswith(f"there is no device {name} to offload to: this build has ")


def test_closing_twice_is_harmless_and_a_closed_context_says_so(forged: Path) -> None:
    with engine.Model(forged, Settings()) as model:
        context = engine.Context(model, Settings())
        with pytest.raises(engine.EngineError, match="no logits before something is decoded"):
            context.logits()
        context.close()
        context.close()
        for use in (lambda: context.decode([1]), context.logits):
            with pytest.raises(engine.EngineError):
                use()
    model.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs an address-space limit")
def test_a_context_that_does_not_fit_is_an_error(forged: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from labkit import engine; from labkit.settings import Settings\n"
        "settings = Settings(n_ctx=1 << 24)\n"
        "with engine.Model(Path(sys.argv[1]), settings) as model:\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "    try: engine.Context(model, settings)\n"
        "    except engine.EngineError as error: print(error)\n"
        "    with engine.Context(model, Settings()) as context: context.decode([1]); print('usable')"
    )
    done = subprocess.run([sys.executable, "-c", code, forged], capture_output=True, text=True, timeout=300)
    first, second = done.stdout.splitlines()
    assert first.startswith("llama.cpp cannot make this context: ") and "no reason" not in first
    assert second == "usable"


# Tokens and text


def test_pieces_of_a_text_make_the_text(smollm2: engine.Model, smollm2_path: Path) -> None:
    tokens = read_header(smollm2_path).metadata["tokenizer.ggml.tokens"]
    assert smollm2.n_vocab == len(tokens) and smollm2.n_layer == read_header(smollm2_path).n_layer
    text = "Memory pages, déjà vu, 你好 and 🙂.\n"
    ids = smollm2.tokenize(text)
    assert b"".join(map(smollm2.piece, ids)) == text.encode()
    assert len(ids) > 10 and all(0 <= token < smollm2.n_vocab for token in ids)
    special = smollm2.tokenize("<|im_end|>")
    assert len(special) == 1 and smollm2.ends(special[0])
    assert not smollm2.ends(ids[0])
    assert smollm2.tokenize("") == []


def test_the_models_own_chat_template_is_used(smollm2: engine.Model) -> None:
    chat = smollm2.chat("Hello?")
    assert chat.endswith("<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n")
    long = "word " * 20_000
    assert long in smollm2.chat(long)


def test_a_forged_model_has_no_words(forged: Path) -> None:
    with (
        engine.Model(forged, Settings()) as model,
        pytest.raises(engine.EngineError, match="forged and has no vocabulary: give token ids"),
    ):
        model.tokenize("hello")


def test_stream_is_the_likeliest_text(smollm2: engine.Model) -> None:
    prompt = smollm2.tokenize(QUESTION)
    with engine.Context(smollm2, Settings()) as context:
        context.decode(prompt)
        streamed = list(context.stream(8))
    expected = []
    with engine.Context(smollm2, Settings()) as context:
        context.decode(prompt)
        for _ in range(8):
            expected.append(int(context.logits().argmax()))
            context.decode(expected[-1:])
    assert [token for token, *_ in streamed] == expected
    assert "".join(text for _, text, _ in streamed) == b"".join(map(smollm2.piece, expected)).decode()
    assert "Paris" in "".join(text for _, text, _ in streamed)


def test_stream_ends_with_the_models_turn(smollm2: engine.Model) -> None:
    with engine.Context(smollm2, Settings()) as context:
        prompt = smollm2.tokenize(smollm2.chat("Answer with one word: what is the capital of France?"))
        context.decode(prompt)
        pieces = list(context.stream(200))
    assert 0 < len(pieces) < 200
    assert not any("<|im_end|>" in text for _, text, _ in pieces)


def test_half_characters_are_held_back(smollm2: engine.Model) -> None:
    ids = smollm2.tokenize("🙂")
    assert len(ids) > 1
    with engine.Context(smollm2, Settings()) as context:
        wanted = iter(ids)
        context.likeliest = lambda: next(wanted)  # type: ignore[method-assign]
        texts = [text for _, text, _ in context.stream(len(ids))]
    assert "".join(texts) == "🙂" and texts[-1] == "🙂"


# Decoding


def test_settings_that_save_memory_do_not_change_the_answer(smollm2: engine.Model) -> None:
    base = after_question(smollm2, Settings())
    assert base.shape == (smollm2.n_vocab,) and base.dtype == np.float32 and np.isfinite(base).all()
    assert smollm2.piece(int(base.argmax())) == b" Paris"
    for other in (
        Settings(flash_attn="on"),
        Settings(flash_attn="off"),
        Settings(n_ubatch=2),
        Settings(n_batch=3, n_ubatch=2),
        Settings(n_ctx=256),
        Settings(n_threads=2),
        Settings(n_outputs_max=1),
        Settings(n_seq_max=2, kv_unified=True),
        Settings(n_seq_max=2),
        Settings(swa_full=True),
    ):
        found = after_question(smollm2, other)
        assert found.argmax() == base.argmax() and np.corrcoef(found, base)[0, 1] > 0.999, other


def test_logits_are_a_copy(smollm2: engine.Model) -> None:
    with engine.Context(smollm2, Settings()) as context:
        context.decode([1])
        first = context.logits()
        kept = first.copy()
        context.decode([2])
        assert (first == kept).all() and (context.logits() != kept).any()


@pytest.mark.parametrize("flash_attn", ["auto", "on", "off"])
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_every_cache_type_decodes(smollm2: engine.Model, cache_type: str, flash_attn: str) -> None:
    type_v = cache_type if flash_attn != "off" or cache_type in ("f32", "f16", "bf16") else "f16"
    settings = Settings(type_k=cache_type, type_v=type_v, flash_attn=flash_attn)
    with engine.Context(smollm2, settings) as context:
        (cache,) = context.kv
        assert (cache.type_k, cache.type_v) == (cache_type, type_v)
        context.decode(smollm2.tokenize(QUESTION))
        context.decode([1])
        assert np.isfinite(context.logits()).all() and context.logits().std() > 0.1


def test_ids_outside_the_vocabulary_are_refused(forged: Path) -> None:
    with engine.Model(forged, Settings()) as model, engine.Context(model, Settings()) as context:
        for bad in ([], [-1], [model.n_vocab], [1, 2, 1 << 31]):
            with pytest.raises(engine.EngineError, match=r"^give one or more token ids between 0 and 4095\.$"):
                context.decode(bad)
        context.decode([0, model.n_vocab - 1])
        assert context.n_past == 2


def test_a_full_cache_says_how_full(forged: Path) -> None:
    settings = Settings(n_ctx=256)
    with engine.Model(forged, settings) as model, engine.Context(model, settings) as context:
        assert context.n_ctx == 256
        context.decode([1] * 250)
        with pytest.raises(
            engine.EngineError, match=r"^the KV cache is full: 250 of 256 cells are taken, 7 more are needed\.$"
        ):
            context.decode([1] * 7)
        context.decode([1] * 6)
        with pytest.raises(engine.EngineError, match="256 of 256 cells"):
            context.decode([1])


def test_each_sequence_has_a_cache_of_its_own_size(forged: Path) -> None:
    settings = Settings(n_ctx=512, n_seq_max=2)
    with engine.Model(forged, settings) as model, engine.Context(model, settings) as context:
        context.decode([1] * 256)
        with pytest.raises(engine.EngineError, match="256 of 256 cells"):
            context.decode([1])


@pytest.mark.parametrize(
    "name", ["llama-3.2-1b", "mixtral-8x7b", "qwen2.5-0.5b", "qwen3-1.7b", "qwen3-30b-a3b", "gemma-3-4b", "phi-3-mini"]
)
def test_each_layer_is_reported_once_and_in_order(name: str, tmp_path: Path) -> None:
    shape = small(name, block_count=3, feed_forward_length=512, **{"vocab_size": 512})
    path = forge(shape, "Q4_0", path=tmp_path / "x.gguf").path
    seen: list[int] = []
    settings = Settings(n_ubatch=4)
    with engine.Model(path, settings) as model, engine.Context(model, settings, on_layer=seen.append) as context:
        gc.collect()
        context.decode([1, 2, 3])
        context.decode([4])
        assert seen == [0, 1, 2] * 2
        seen.clear()
        context.decode([5] * 8)  # two batches of four
        assert seen == [0, 1, 2] * 2
