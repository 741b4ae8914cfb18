"""Perplexity, divergence and importance against definitions computed another way, live on the bundled model."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small import small

from labkit import engine, gguf
from labkit.experiments.child import task
from labkit.files import data_path
from labkit.models.forge import forge
from labkit.quant import texts
from labkit.quant.imatrix import MeanSquares, collect, load
from labkit.quant.quality import ROWS_BYTES, in_child, quality, score, summary
from labkit.quant.quantize import quantize
from labkit.settings import Settings, SettingsError
from labkit.system import probe
from labkit.units import MiB

SENTENCE = "The kettle boils, the tea is ready, and the cat is asleep on the chair by the window."


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for the module, so that SmolLM2 is made F16 once."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("LABKIT_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def f16() -> Path:
    return quantize("smollm2", "F16").path


def compared(model: Path, reference: Path, text: str, tokens: int) -> dict[str, Any]:
    """The child's part, in this process."""
    how: dict[str, Any] = {"settings": {}, "threads": 1, "send": lambda *_, **__: None}
    return in_child(model=str(model), reference=str(reference), text=text, tokens=tokens, **how)


def log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    total = math.fsum(math.exp(x - top) for x in row)
    return [x - top - math.log(total) for x in row]


# The arithmetic


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_a_score_is_what_the_definitions_say(scale: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        row, reference = (rng.normal(0, scale, 300).astype(np.float32) for _ in range(2))
        target = int(rng.integers(300))
        found = score(row, reference, target)
        log_q, log_p = log_softmax(row.tolist()), log_softmax(reference.tolist())
        kld = math.fsum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True))
        assert found.kld == pytest.approx(kld, rel=1e-9, abs=1e-12)
        assert found.loss == pytest.approx(-log_q[target], rel=1e-9)
        assert found.reference_loss == pytest.approx(-log_p[target], rel=1e-9)
        assert found.same_top == (int(np.argmax(row)) == int(np.argmax(reference)))


def test_a_known_divergence() -> None:
    half, quarter = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32))
    assert score(quarter, half, 0).kld == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-6)
    assert score(half, quarter, 0).kld == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-6)
    assert score(half, half, 1).kld == 0


def test_the_summary_of_scores() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(50, 2, 9)).astype(np.float32)
    scores = [score(row, reference, 3) for row, reference in rows]
    found = summary(scores)
    losses = [-log_softmax(row.tolist())[3] for row, _ in rows]
    assert found["perplexity"] == pytest.approx(math.exp(math.fsum(losses) / 50))
    klds = sorted(s.kld for s in scores)
    assert klds[-2] < found["kld_p99"] < klds[-1]
    assert found["kld_mean"] == pytest.approx(math.fsum(klds) / 50)
    spread = math.sqrt(math.fsum((k - found["kld_mean"]) ** 2 for k in klds) / 49)
    assert found["kld_mean_error"] == pytest.approx(spread / math.sqrt(50))
    assert found["top1"] == sum(np.argmax(a) == np.argmax(b) for a, b in rows) / 50
    assert found["n_tokens"] == 50


def test_chunks_hold_every_token_once_and_begin_as_texts_do() -> None:
    ids = list(range(10, 610))
    assert texts.chunks(ids, 600, None) == [ids[:256], ids[256:512], ids[512:]]
    assert texts.chunks(ids, 257, None) == [ids[:256]]  # one token alone predicts nothing
    assert texts.chunks([1, *ids], 301, 1) == [[1, *ids[:255]], [1, *ids[255:300]]]
    assert texts.chunks(ids, 3, 1) == [[1, 10, 11, 12]]
    assert texts.chunks([1, *ids], 5, 1, size=3) == [[1, 10, 11], [1, 12, 13]]
    assert texts.chunks(ids, 20, None, size=16) == [ids[:16], ids[16:20]]
    for few in ([], [10]):
        for size in (256, 16):
            with pytest.raises(ValueError, match="at least two tokens"):
                texts.chunks(few, 600, None, size=size)


def test_the_texts_are_long_enough_and_share_no_sentence() -> None:
    for language, least in (("english", 2000), ("korean", 1000)):
        halves = [texts.get(language, part) for part in (texts.CALIBRATION, texts.EVALUATION)]
        assert all(len(half.split()) >= least for half in halves)
        sentences = [{s.strip() for s in half.replace("\n", " ").split(".") if s.strip()} for half in halves]
        assert not sentences[0] & sentences[1]
        assert all(data_path(f"texts/{language}_{part}.txt").is_file() for part in ("calibration", "evaluation"))
    assert texts.get("a text of my own", texts.EVALUATION) == "a text of my own"


# Models


@pytest.mark.live
def test_a_model_compared_with_itself_loses_nothing(f16: Path) -> None:
    seen: list[float] = []
    same = quality(f16, f16, tokens=80, progress=lambda share, text: seen.append(share))
    assert same.kld_mean <= 1e-6 and same.kld_p99 <= 1e-6
    assert (same.top1, same.n_tokens) == (1.0, 79)
    assert same.perplexity == same.reference_perplexity
    assert seen == sorted(seen) and seen and seen[-1] <= 1.0


@pytest.mark.live
def test_perplexity_is_that_of_decoding_token_by_token(smollm2_path: Path) -> None:
    settings = Settings(n_ctx=256, n_threads=1)
    with engine.Model(smollm2_path, settings) as model, engine.Context(model, settings) as context:
        ids = model.tokenize(SENTENCE)
        losses = []
        for token, following in itertools.pairwise(ids):
            context.decode([token])
            losses.append(-log_softmax(context.logits().tolist())[following])
    found = quality("smollm2", "smollm2", text=SENTENCE, threads=1)
    assert found.n_tokens == len(ids) - 1 == len(losses)
    # Products of 20 rows at once are summed in another order than those of one row.
    assert found.perplexity == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=0.01)


@pytest.mark.live
def test_a_quantized_cache_is_compared_like_a_model() -> None:
    coarse = quality("smollm2", "smollm2", text=SENTENCE, type_k="q4_0", type_v="q4_0")
    fine = quality("smollm2", "smollm2", text=SENTENCE, type_k="q8_0", type_v="q8_0")
    assert 0 < fine.kld_mean < coarse.kld_mean
    assert coarse.reference_perplexity == fine.reference_perplexity != coarse.perplexity


@pytest.mark.live
def test_rows_come_in_batches_of_bounded_size_and_say_the_same(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    original = engine.Context.decode

    def watched(self: engine.Context, tokens: list[int], **kwargs: Any) -> None:
        batches.append(len(tokens))
        original(self, tokens, **kwargs)

    monkeypatch.setattr(engine.Context, "decode", watched)

    def run(rows: int) -> tuple[dict[str, Any], int]:
        batches.clear()
        monkeypatch.setattr(sys.modules["labkit.quant.quality"], "ROWS_BYTES", rows * 4 * 49152)
        found = compared(smollm2_path, smollm2_path, SENTENCE, 64)
        return found, max(batches)

    (whole, all_at_once), (few, six) = run(100), run(6)
    assert (all_at_once, six) == (whole["n_tokens"], 6)
    assert few["perplexity"] == pytest.approx(whole["perplexity"], rel=0.01)
    assert few["kld_mean"] <= 1e-6 and few["n_tokens"] == whole["n_tokens"]


@pytest.mark.live
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_vocabulary_of_150_thousand_takes_no_more_memory_than_its_rows(tmp_path: Path) -> None:
    path = forge(small("qwen2.5-0.5b", vocab_size=151_936), "Q4_0", path=tmp_path / "wide.gguf").path
    n = ROWS_BYTES // (4 * 151_936)
    settings = Settings(n_ctx=256, n_batch=n, n_ubatch=n, n_threads=1)

    def anonymous() -> int:
        found = probe.process(os.getpid()).rss_anon_bytes
        assert found is not None
        return found

    with engine.Model(path, settings) as model, engine.Context(model, settings) as context:
        before, most = anonymous(), 0
        for row in context.rows(range(255)):
            assert row.shape == (151_936,)
            most = max(most, anonymous())
    # llama.cpp keeps a batch of rows twice: where they are computed and where they are handed out.
    assert most - before < 2 * ROWS_BYTES + 16 * MiB < 255 * 4 * 151_936


@pytest.mark.live
def test_rows_are_the_logits_of_a_fresh_context(smollm2_path: Path) -> None:
    settings = Settings(n_ctx=256, n_batch=4, n_ubatch=4, n_threads=1)
    with engine.Model(smollm2_path, settings) as model, engine.Context(model, settings) as context:
        ids = model.tokenize(SENTENCE)[:10]
        rows = [row.copy() for row in context.rows(ids)]
        again = [row.copy() for row in context.rows(ids)]  # nothing of the first time is remembered
        assert np.array_equal(rows, again)
        for n in (4, 8, 10):  # the ends of batches, where decode gives logits, too
            context.clear()
            context.decode(ids[:n])
            assert np.array_equal(context.logits(), rows[n - 1])


@pytest.mark.live
def test_what_cannot_be_compared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = forge(small(), "Q4_0", path=tmp_path / "forged.gguf").path
    with pytest.raises(task.TaskError, match=r"forged\.gguf is forged and has no vocabulary"):
        quality(forged, "smollm2")
    with pytest.raises(task.TaskError, match="forged and has no vocabulary"):
        collect(forged)
    with pytest.raises(task.TaskError, match="at least two tokens"):
        quality("smollm2", "smollm2", text="a")
    with pytest.raises(SettingsError, match=r"type_kk is not a setting: did you mean type_k\?"):
        quality("smollm2", "smollm2", type_kk="q4_0")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(task.Cancelled, match=r"comparing .* was cancelled"):
        quality("smollm2", "smollm2", cancel=cancel)


def test_models_with_other_vocabularies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        n_vocab, bos = 100, None

        def __init__(self, path: Path, settings: Settings) -> None:
            self.path = path

        def __enter__(self) -> Model:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def tokenize(self, text: str) -> list[int]:
            return [1, 2, 3] if self.path.name == "a" else [1, 2, 4]

    monkeypatch.setattr(engine, "Model", Model)
    with pytest.raises(ValueError, match="b and a have different vocabularies"):
        compared(Path("b"), Path("a"), "text", 10)


# The importance matrix


def test_mean_squares_of_rows_are_kept_per_expert() -> None:
    rng = np.random.default_rng(5)
    squares = MeanSquares()
    rows = rng.normal(size=(40, 6)).astype(np.float32)
    experts = rng.integers(0, 2, 40).astype(np.int32)  # the third is never chosen
    for part in (slice(0, 15), slice(15, 40)):
        squares("w", rows[part], experts[part], 3)
    found = squares.result()["w"].reshape(3, 6)
    for expert in (0, 1):
        assert found[expert] == pytest.approx((rows[experts == expert].astype(float) ** 2).mean(axis=0), rel=1e-6)
    assert found[2].tolist() == [1] * 6
    squares("bad", np.full((1, 2), np.inf, np.float32), np.zeros(1, np.int32), 1)
    with pytest.raises(ValueError, match="infinite or undefined values before bad"):
        squares.result()


@pytest.mark.live
def test_importance_of_the_first_layer_is_that_of_its_normalized_embeddings(smollm2_path: Path) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    made = collect("smollm2", text=SENTENCE)
    found = load(made.path)
    header = gguf.read_header(smollm2_path)
    assert set(found) == {t.name for t in header.tensors if t.name.startswith("blk.") and len(t.dims) > 1}
    assert all(len(values) == header.tensor(name).dims[0] for name, values in found.items())
    with engine.Model(smollm2_path, Settings()) as model:
        ids = model.tokenize(SENTENCE)
    embedding, norm = header.tensor("token_embd.weight"), header.tensor("blk.0.attn_norm.weight")
    stored = np.memmap(smollm2_path, np.uint8, "r", embedding.offset, (embedding.dims[1], gguf.row_bytes("Q8_0", 576)))
    rows = dequantize(stored[ids], GGMLQuantizationType[embedding.type]).astype(float)
    rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + header.key("attention.layer_norm_rms_epsilon"))
    wanted = ((rows * np.memmap(smollm2_path, "<f4", "r", norm.offset, (576,))) ** 2).mean(axis=0)
    assert found["blk.0.attn_q.weight"] == pytest.approx(wanted, rel=1e-4)
    for same in ("attn_k", "attn_v"):
        assert np.array_equal(found[f"blk.0.{same}.weight"], found["blk.0.attn_q.weight"])
    assert np.array_equal(found["blk.7.ffn_up.weight"], found["blk.7.ffn_gate.weight"])
    assert (made.n_tokens, made.n_tensors, made.reused) == (len(ids), 210, False)
    again = collect("smollm2", text=SENTENCE)
    assert (again.path, again.reused, again.n_tokens) == (made.path, True, made.n_tokens)
    assert collect("smollm2", text=SENTENCE, tokens=9).path != made.path


@pytest.mark.live
def test_rows_of_a_mixture_of_experts_are_handed_to_their_experts(tmp_path: Path) -> None:
    shape = small("qwen3-30b-a3b", embedding_length=256, expert_feed_forward_length=256, vocab_size=512)
    path = forge(shape, "F16", path=tmp_path / "experts.gguf", fill=True).path
    settings = Settings(n_ctx=256, n_threads=1, n_outputs_max=1)
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}

    def add(name: str, rows: np.ndarray, experts: np.ndarray, n_expert: int) -> None:
        sums[name] = (rows.astype(float) ** 2).sum(axis=0)
        counts[name] = np.bincount(experts, minlength=n_expert)

    with engine.Model(path, settings) as model, engine.Context(model, settings, on_matmul=add) as context:
        context.decode(list(range(20)))
    used = shape.number("expert_used_count")
    assert used == 2
    # The router sees each row once, the experts see it once for each of those it was sent to.
    assert sums["blk.0.ffn_up_exps.weight"] == pytest.approx(used * sums["blk.0.ffn_gate_inp.weight"], rel=1e-5)
    for part in ("gate", "up", "down"):
        found = counts[f"blk.0.ffn_{part}_exps.weight"]
        assert len(found) == 8 and found.sum() == 20 * used and found.max() <= 20
    assert counts["blk.0.attn_q.weight"].tolist() == [20]


@pytest.mark.live
def test_an_importance_matrix_helps_on_text_it_was_not_collected_on(f16: Path) -> None:
    made = collect(f16, tokens=128)
    assert made.n_tokens == 128
    plain = quality(quantize(f16, "Q5_0").path, f16, tokens=64)
    weighted = quality(quantize(f16, "Q5_0", imatrix=made).path, f16, tokens=64)
    assert plain.n_tokens == weighted.n_tokens == 63
    assert weighted.kld_mean < 0.85 * plain.kld_mean
    assert plain.reference_perplexity < weighted.perplexity < plain.perplexity
