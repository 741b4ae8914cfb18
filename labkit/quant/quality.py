"""How well a model predicts a text, and how far its predictions are from those of a reference model.

The figures are those of llama-perplexity --kl-divergence (tools/perplexity in llama.cpp), but every token of a chunk
except its first is predicted here, not only those of its second half, so perplexity is higher than there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.experiments.child import task
from labkit.models import lookup
from labkit.progress import Progress, bar
from labkit.quant import texts
from labkit.settings import Settings
from labkit.units import MiB

if TYPE_CHECKING:
    from labkit.engine import Context

ROWS_BYTES = 32 * MiB  # of logits that each model may keep at once, however large the vocabulary


@dataclass(frozen=True)
class Quality:
    """A model compared with a reference on one text.

    Attributes:
        perplexity: exp of the mean negative log-likelihood of the text's tokens; 1 if each was certain.
        reference_perplexity: that of the reference.
        kld_mean: mean over tokens of the Kullback-Leibler divergence of the model's prediction from the reference's, in
            nats; 0 if they are the same.
        kld_mean_error: standard error of that mean. A smaller difference is not significant.
        kld_p99: 99th percentile of the divergence.
        top1: share of tokens for which both models think the same next token the likeliest.
        n_tokens: number of predictions compared.
        seconds: how long it took, loading included.
    """

    perplexity: float
    reference_perplexity: float
    kld_mean: float
    kld_mean_error: float
    kld_p99: float
    top1: float
    n_tokens: int
    seconds: float


def quality(
    model: str | Path,
    reference: str | Path,
    *,
    text: str = "english",
    tokens: int = 512,
    threads: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **settings: Any,
) -> Quality:
    """Compare a model's predictions with a reference's, token by token, in a child process.

    The reference for a quantized model is its F16 original. Of SmolLM2 the kit has no such original: the F16 that
    ``quantize("smollm2", "F16")`` makes is dequantized from Q4_1, so what Q4_1 itself lost is not counted.

    Both models are loaded at the same time. Besides weights and caches they take ``ROWS_BYTES`` of logits each.

    Args:
        model: a path or ``smollm2``.
        reference: the same; ``model`` itself to compare settings.
        text: ``"english"``, ``"korean"`` (the evaluation texts of the kit), or the text itself.
        tokens: how many of its tokens to read, in chunks of 256.
        threads: by default one less than there are cores.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, comparing ends.
        **settings: of ``model`` only, such as ``type_k="q4_0"``; the reference has the defaults.

    Raises:
        SettingsError: a setting is unknown, out of range or contradicts another.
        GGUFError, ModelError: there is no such model, or it cannot be read.
        TaskError: a model is forged, vocabularies differ, the text is too short, or llama.cpp failed.
        Cancelled: ``cancel`` was set.
    """
    Settings.of(settings)
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("comparing"))
        paths = {
            "model": str(texts.readable(lookup.find(model))),
            "reference": str(texts.readable(lookup.find(reference))),
        }
        started = time.monotonic()
        job = {
            **paths,
            "text": texts.get(text, texts.EVALUATION),
            "tokens": tokens,
            "settings": settings,
            "threads": threads or task.default_threads(),
        }
        result = task.run(
            "labkit.quant.quality:in_child",
            job,
            what=f"comparing {Path(paths['model']).name} with {Path(paths['reference']).name}",
            on_step=lambda event: report(event["share"], f"{event['tokens']} tokens compared"),
            cancel=cancel,
        )
        return Quality(**result, seconds=time.monotonic() - started)


@dataclass(frozen=True)
class TokenScore:
    """One prediction of two models. Losses are negative log-likelihoods of the text's next token, in nats."""

    loss: float
    reference_loss: float
    kld: float
    same_top: bool


@dataclass(frozen=True)
class Judgement:
    """What a reference predicts, computed once for all contexts that are compared with it."""

    log_p: NDArray[np.float64]
    p: NDArray[np.float64]
    top: int

    @classmethod
    def of(cls, row: NDArray[np.float32]) -> Judgement:
        """From its logits, shape (n_vocab,)."""
        log_p = _log_softmax(row)
        return cls(log_p, np.exp(log_p), int(row.argmax()))

    def score(self, row: NDArray[np.float32], target: int) -> TokenScore:
        """Compare a model's logits for the same token."""
        log_q = _log_softmax(row)
        kld = float(np.einsum("i,i->", self.p, self.log_p - log_q))  # BLAS would start threads for so little
        return TokenScore(-float(log_q[target]), -float(self.log_p[target]), kld, int(row.argmax()) == self.top)


def score(row: NDArray[np.float32], reference: NDArray[np.float32], target: int) -> TokenScore:
    """Compare two rows of logits for the next token.

    Args:
        row: the model's, shape (n_vocab,).
        reference: the reference's.
        target: the text's next token.
    """
    return Judgement.of(reference).score(row, target)


def scores(chunk: Sequence[int], reference: Context, others: Sequence[Context]) -> Iterator[list[TokenScore]]:
    """Run a chunk of text through all contexts side by side; for each token but the first, one score for each other.

    No context holds more rows than its ``n_batch``.
    """
    rows = zip(*(context.rows(chunk[:-1]) for context in (reference, *others)), strict=True)
    for target, (reference_row, *other_rows) in zip(chunk[1:], rows, strict=True):
        judgement = Judgement.of(reference_row)
        yield [judgement.score(row, target) for row in other_rows]


def _log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithms of the probabilities that a row of logits stands for."""
    shifted = row.astype(np.float64)
    shifted -= shifted.max()  # exp of large scores would overflow
    shifted -= math.log(np.exp(shifted).sum())
    return shifted


def summary(scores: Sequence[TokenScore]) -> dict[str, Any]:
    """The fields of ``Quality`` but ``seconds``, from one or more scores."""
    klds = np.array([s.kld for s in scores])
    mean, error = mean_and_error(klds)
    return {
        "perplexity": math.exp(math.fsum(s.loss for s in scores) / len(scores)),
        "reference_perplexity": math.exp(math.fsum(s.reference_loss for s in scores) / len(scores)),
        "kld_mean": mean,
        "kld_mean_error": error,
        "kld_p99": float(np.percentile(klds, 99)),
        "top1": sum(s.same_top for s in scores) / len(scores),
        "n_tokens": len(scores),
    }


def mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean and its standard error, which is nan for a single value."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return float(values.mean()), spread / math.sqrt(len(values))


def rows_at_once(n_vocab: int, budget_bytes: int) -> int:
    """How many rows of logits fit, at least one and no more than ``texts.CHUNK``."""
    return max(1, min(texts.CHUNK, budget_bytes // (4 * n_vocab)))


def in_child(
    *,
    model: str,
    reference: str,
    text: str,
    tokens: int,
    settings: dict[str, Any],
    threads: int,
    send: Callable[..., None],
) -> dict[str, Any]:
    """The child's part of ``quality``."""
    from labkit import engine

    plain = Settings(n_ctx=texts.CHUNK, n_threads=threads)
    changed = Settings.of({"n_ctx": texts.CHUNK, "n_threads": threads, **settings})
    with engine.Model(Path(reference), plain) as judge, engine.Model(Path(model), changed) as judged:
        ids = judge.tokenize(text)
        if judged.n_vocab != judge.n_vocab or judged.tokenize(text) != ids:
            names = f"{Path(model).name} and {Path(reference).name}"
            raise ValueError(f"{names} have different vocabularies: compare a model with its own quantizations.")
        n_rows = rows_at_once(judge.n_vocab, ROWS_BYTES)
        chunks = texts.chunks(ids, tokens, judge.bos)
        total = sum(len(chunk) - 1 for chunk in chunks)
        found: list[TokenScore] = []
        with (
            engine.Context(judge, replace(plain, n_batch=n_rows, n_ubatch=n_rows)) as reference_context,
            engine.Context(judged, replace(changed, n_batch=n_rows, n_ubatch=n_rows)) as context,
        ):
            for chunk in chunks:
                for (one,) in scores(chunk, reference_context, [context]):
                    found.append(one)
                    if len(found) % 32 == 0:
                        send("compared", tokens=len(found), share=len(found) / total)
    return summary(found)
