"""What a quantized cache costs in quality: pairs of types for K and V against f16, each token of a text scored.

Small losses show only in a model whose weights are F16. With quantized weights llama.cpp rounds activations to 8 bits,
and a difference in the last bit of the cache is enough to round some of them differently: with SmolLM2 as it is bundled
(Q4_1) a bf16 cache has a divergence of 0.003 and a q8_0 cache hardly more; with its F16 they have 0.00004 and 0.0002.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.engine.log import parse_rotation
from labkit.experiments.child import task
from labkit.models import lookup
from labkit.progress import Progress, bar
from labkit.quant import texts
from labkit.quant.quality import ROWS_BYTES, Quality, TokenScore, mean_and_error, rows_at_once, scores, summary
from labkit.settings import Settings, SettingsError

BIN_TOKENS = 32


@dataclass(frozen=True)
class CacheQuality:
    """One pair of cache types, compared with f16/f16 of the same model on the same text.

    Attributes:
        rotated: whether llama.cpp was allowed to rotate what it quantizes (its default).
        k_rotated: whether it rotated K, by its log: it does if K is quantized and the size of a head is a multiple of
            64.
        v_rotated: the same for V.
        quality: of which ``seconds`` is the time of the whole call, all pairs together.
        kld_by_position: mean divergence in nats, in bins of ``bin_tokens`` positions from the start of a chunk. The
            first bin is of tokens predicted from 1 to ``bin_tokens`` others; the last may hold fewer.
        kld_by_position_error: standard errors of these means; nan where a bin holds a single token.
    """

    type_k: str
    type_v: str
    rotated: bool
    k_rotated: bool
    v_rotated: bool
    quality: Quality
    bin_tokens: int
    kld_by_position: tuple[float, ...]
    kld_by_position_error: tuple[float, ...]


def cache_quality(
    model: str | Path = "smollm2",
    *,
    pairs: Sequence[tuple[str, str]],
    rotation: Sequence[bool] = (True,),
    tokens: int = 256,
    chunk: int = texts.CHUNK,
    bin_tokens: int = BIN_TOKENS,
    text: str = "english",
    threads: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[CacheQuality, ...]:
    """Compare pairs of cache types with f16/f16, flash attention on everywhere, in one child process.

    The model is loaded once, and the contexts of the reference and of all pairs read the text side by side. Logits of
    all contexts together take no more than four times ``quality.ROWS_BYTES``.

    Args:
        model: a path or ``smollm2``; not a forged one. Best is ``quantize("smollm2", "F16").path``.
        pairs: types of K and V, such as ``[("q8_0", "q8_0"), ("q8_0", "q4_0")]``.
        rotation: ``(True, False)`` measures each pair twice, the second time with ``LLAMA_ATTN_ROT_DISABLE=1``: K and V
            are then stored as they are, not multiplied by a Hadamard matrix before they are rounded.
        tokens: how many of the text's tokens to read.
        chunk: how many the model reads at once. To see whether the loss grows along a context, make it long (1024) and
            read several chunks: a loss shows with some words more than with others, and each chunk has other words at a
            position.
        bin_tokens: width of the bins of ``kld_by_position``.
        text: ``"english"``, ``"korean"`` (the evaluation texts of the kit), or the text itself.
        threads: by default one less than there are cores.
        progress: called with the fraction done and a text; by default a bar appears in a notebook or terminal.
        cancel: when set, comparing ends.

    Returns:
        For each of ``pairs``, in order, one entry for each of ``rotation``.

    Raises:
        SettingsError: a cache type is unknown.
        GGUFError, ModelError: there is no such model, or it cannot be read.
        TaskError: the model is forged, the text or a chunk is too short, or llama.cpp refused a type, as it does when
            a head's size is not a multiple of the type's block.
        Cancelled: ``cancel`` was set.
    """
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise SettingsError(f"pairs has {pair!r}: write the types of K and V, as in ('q8_0', 'q4_0').")
        Settings(type_k=pair[0], type_v=pair[1])
    if tokens < 2:
        raise task.TaskError(f"tokens is {tokens}: give at least 2, or there is nothing to predict.")
    if chunk < 3 or bin_tokens < 1:
        raise task.TaskError(f"chunk is {chunk} and bin_tokens {bin_tokens}: give at least 3 and 1.")
    path = texts.readable(lookup.find(model))
    started = time.monotonic()
    with ExitStack() as stack:
        report = progress or stack.enter_context(bar("comparing caches"))
        job = {
            "model": str(path),
            "text": texts.get(text, texts.EVALUATION),
            "tokens": tokens,
            "chunk": chunk,
            "bin_tokens": bin_tokens,
            "caches": [[type_k, type_v, rotated] for type_k, type_v in pairs for rotated in rotation],
            "threads": threads or task.default_threads(),
        }
        result = task.run(
            "labkit.quant.cache_quality:in_child",
            job,
            what=f"comparing caches of {path.name}",
            on_step=lambda event: report(event["share"], f"{event['tokens']} tokens compared"),
            cancel=cancel,
        )
    seconds = time.monotonic() - started
    return tuple(_entry(values, seconds=seconds, bin_tokens=bin_tokens) for values in result["caches"])


def _entry(values: dict[str, Any], *, seconds: float, bin_tokens: int) -> CacheQuality:
    """The result for one pair, from what the child returned."""
    by_position = values.pop("by_position")
    return CacheQuality(
        **{**values, "quality": Quality(**values["quality"], seconds=seconds)},
        bin_tokens=bin_tokens,
        kld_by_position=tuple(mean for mean, _ in by_position),
        kld_by_position_error=tuple(error for _, error in by_position),
    )


def in_child(
    *,
    model: str,
    text: str,
    tokens: int,
    caches: Sequence[tuple[str, str, bool]],
    chunk: int,
    bin_tokens: int,
    threads: int,
    send: Callable[..., None],
) -> dict[str, Any]:
    """The child's part of ``cache_quality``."""
    from labkit import engine

    plain = Settings(n_ctx=chunk, n_threads=threads)
    with ExitStack() as stack:
        opened = stack.enter_context(engine.Model(Path(model), plain))
        n_rows = rows_at_once(opened.n_vocab, 2 * ROWS_BYTES // (1 + len(caches)))
        chunks = texts.chunks(opened.tokenize(text), tokens, opened.bos, size=chunk)

        def context(type_k: str, type_v: str, rotated: bool) -> engine.Context:
            # llama.cpp reads the variable with getenv whenever it makes a cache; any number but 0 disables.
            os.environ["LLAMA_ATTN_ROT_DISABLE"] = "0" if rotated else "1"
            settings = Settings(
                n_ctx=chunk,
                n_batch=n_rows,
                n_ubatch=n_rows,
                n_threads=threads,
                type_k=type_k,
                type_v=type_v,
                flash_attn="on",
            )
            return stack.enter_context(engine.Context(opened, settings))

        reference = context("f16", "f16", True)
        judged = [context(*cache) for cache in caches]
        total = sum(len(part) - 1 for part in chunks)
        found: list[list[TokenScore]] = []
        positions: list[int] = []
        for part in chunks:
            for position, row in enumerate(scores(part, reference, judged)):
                found.append(row)
                positions.append(position)
                if len(found) % 16 == 0:
                    send("compared", tokens=len(found), share=len(found) / total)
        each = zip(caches, judged, zip(*found, strict=True), strict=True)
        return {
            "caches": [
                {
                    "type_k": type_k,
                    "type_v": type_v,
                    "rotated": rotated,
                    **dict(zip(("k_rotated", "v_rotated"), parse_rotation(context.log), strict=True)),
                    "quality": summary(of_one),
                    "by_position": binned(of_one, positions, bin_tokens),
                }
                for (type_k, type_v, rotated), context, of_one in each
            ]
        }


def binned(found: Sequence[TokenScore], positions: Sequence[int], bin_tokens: int) -> list[tuple[float, float]]:
    """Mean divergence and its standard error in each bin of positions."""
    klds, bins = np.array([one.kld for one in found]), np.array(positions) // bin_tokens
    return [mean_and_error(klds[bins == b]) for b in range(int(bins.max()) + 1)]
