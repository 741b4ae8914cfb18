"""Checks of lab 04's exercises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from numbers import Real
from typing import Any

from labkit import predict
from labkit.course.checking import (
    DOTS,
    Verdict,
    byte_slips,
    check_function,
    check_number,
    is_open,
    near,
    wrong,
)
from labkit.gguf import Header
from labkit.models.lookup import header
from labkit.models.tensor_types import layer_of
from labkit.planning.tuner import MARGIN_BYTES, tune
from labkit.predict import hardware
from labkit.predict.hparams import EMBEDDING
from labkit.predict.offload import Side, Split
from labkit.settings import Settings
from labkit.units import GiB

__all__ = ["crossing_bytes", "crossing_ms", "device_bytes", "layers_for_13b", "leaves_first", "plus_one"]

SMALL, SEVEN, THIRTEEN = "llama-3.2-1b:Q4_K_M", "llama-2-7b:Q4_K_M", "llama-2-13b:Q4_K_M"
CARD = "rtx-4090"  # behind PCIe 4.0 x16
CARD_BYTES = 10 * GiB
WHOLE = Settings(n_ctx=4096)
NEAR = 0.01
ROUNDED = 0.05  # of a figure that is written with one digit


def plus_one(answer: Any) -> Verdict:
    """Lab 04: the smallest n_gpu_layers that takes all of Llama 2 7B, which has 32 blocks, to the device."""
    right = _split(SEVEN, -1).n_gpu_layers
    return check_number(
        answer,
        right=right,
        unit="layers",
        slips={
            "those are the blocks; the output layer counts as one more": header(SEVEN).n_layer,
            "the token embedding stays on the host, so it does not count": right + 1,
            "that takes everything too; the smallest number that does is asked for": lambda n: n > right + 1 or n == -1,
        },
    )


def leaves_first(answer: Any) -> Verdict:
    """Lab 04: what is on the device with n_gpu_layers=4 of Llama 3.2 1B, which has 16 blocks.

    Args:
        answer: block numbers and ``"output"`` or ``"embedding"``, in any order: ``["output", 3, 7]``.
    """
    split = _split(SMALL, 4)
    n_layer, n = len(split.layers_on), split.n_gpu_layers
    right = {i for i, side in enumerate(split.layers_on) if side} | ({"output"} if split.output_on else set())
    if is_open(answer):
        return Verdict("not attempted", DOTS)
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        kind = type(answer).__name__
        return Verdict("wrong", f"your answer is a {kind}; a list of block numbers and names is asked for.")
    mine = {_part(item) for item in answer}
    if mine == right:
        return Verdict("right", f"{_listed(right)}.")
    last, first = set(range(n_layer - n, n_layer)), set(range(n))
    slips: dict[str, set[int | str]] = {
        "the output layer is one of the four": {*last},
        "the output layer is missing, which is offloaded before any block": right - {"output"},
        "the output layer is one of the four, so only three blocks are offloaded": {*last, "output"},
        "the output layer is offloaded first, then the last blocks": {*first},
        "the last blocks are offloaded, not the first": {*range(n - 1), "output"},
        "the last blocks are offloaded, not the first; and the output layer is one of the four": {*first, "output"},
    }
    slip = next((text for text, leads in slips.items() if mine == leads), None)
    if "embedding" in mine:
        slip = "the token embedding stays on the host, where one row of it is looked up for each token"
    return wrong(f"yours is {_listed(mine) or 'nothing'}", _listed(right), slip)


def device_bytes(answer: Any) -> Verdict:
    """Lab 04: bytes on the device for Llama 3.2 1B Q4_K_M with all layers there and n_ctx 4096, within 1 %.

    Args:
        answer: the number; or a function (n_gpu_layers) -> bytes.
    """
    embedding = header(SMALL).tensor(EMBEDDING).nbytes
    slips: dict[str, Callable[[Side], float]] = {
        "you left out the cache, which is where its layers are": lambda side: side.total_bytes - side.kv_bytes,
        "you left out the compute buffer, which the device needs as well": (
            lambda side: side.total_bytes - side.compute_bytes
        ),
        "those are the weights alone; cache and compute buffer are there too": lambda side: side.weights_bytes,
        "its output layer is a copy of the token embedding, so that tensor is on both sides: you counted it once": (
            lambda side: side.total_bytes - embedding
        ),
        "the embedding itself stays on the host; only its copy, the output layer, is on the device": (
            lambda side: side.total_bytes + embedding
        ),
        "you took GB for GiB: a GiB is 1024³ bytes": lambda side: side.total_bytes / GiB * 1e9,
        "that is GiB, not bytes": lambda side: side.total_bytes / GiB,
    }

    def on_device(n: int) -> Side:
        return _split(SMALL, n).devices[0]

    if callable(answer):
        return check_function(
            answer,
            right=lambda n: on_device(n).total_bytes,
            cases=((17,), (9,), (1,)),
            slips={text: lambda n, leads=leads: leads(on_device(n)) for text, leads in slips.items()},
            within=NEAR,
            unit="bytes",
            case=lambda n: f"n_gpu_layers {n}",
        )
    side = on_device(-1)
    return check_number(
        answer,
        right=side.total_bytes,
        unit="bytes",
        within=NEAR,
        slips={text: leads(side) for text, leads in slips.items()},
    )


def crossing_bytes(answer: Any) -> Verdict:
    """Lab 04: bytes that go from one block of Llama 2 7B to the next for each token, if the two are on two sides."""
    model = header(SEVEN)
    n_embd = int(model.key("embedding_length"))
    right = 4 * n_embd
    return check_number(
        answer,
        right=right,
        unit="bytes",
        slips={
            "those are elements; each is a 32-bit number, of 4 bytes": n_embd,
            "between blocks numbers have 32 bits, not 16": 2 * n_embd,
            **byte_slips(right),
            "that is there and back; one crossing is asked for": 2 * right,
            "those are the logits, which cross once at the end": 4 * predict.n_vocab(model),
            "weights stay where they are; only the activation crosses": near(_block_bytes(model), 0.25),
        },
    )


def crossing_ms(answer: Any) -> Verdict:
    """Lab 04: milliseconds that these bytes take over PCIe 4.0 x16, at its 31.5 GB/s and without any waiting."""
    model = header(SEVEN)
    link = hardware.get(CARD).link_bytes_per_s
    assert link is not None
    right = 4 * int(model.key("embedding_length")) / link * 1000
    return check_number(
        answer,
        right=right,
        unit="milliseconds",
        within=ROUNDED,
        slips={
            "that is the time for a block's weights, which stay where they are: only the activation crosses": (
                near(_block_bytes(model) / link * 1000, 0.25)
            ),
            "you divided bits by bytes: 8 bits are a byte": 8 * right,
            "you divided bytes by bits: 8 bits are a byte": right / 8,
            "those are seconds": right / 1000,
            "those are microseconds": right * 1000,
            "you took GiB for GB: speeds of links are given in units of 10⁹ bytes": right * 1e9 / GiB,
            "5 ms is what the article says; compute the time of the bytes that cross": 5.0,
        },
    )


def layers_for_13b(answer: Any) -> Verdict:
    """Lab 04: the most layers of Llama 2 13B Q4_K_M for a card of 10 GiB, 1 GiB of it left free, at n_ctx 4096."""
    model = header(THIRTEEN)
    right = tune(model, vram=CARD_BYTES, settings=WHOLE, margin=MARGIN_BYTES).n_gpu_layers
    room, cache_bytes = CARD_BYTES - MARGIN_BYTES, predict.kv_bytes(model, WHOLE)
    return check_number(
        answer,
        right=right,
        unit="layers",
        slips={
            "those are the blocks; n_gpu_layers counts the output layer too": right - 1,
            "that is one too many: it does not fit": right + 1,
            "that is what stays on the host": model.n_layer + 1 - right,
            "you left out the cache, which is where its layers are": _most(room, lambda s: s.total_bytes - s.kv_bytes),
            "you left out the margin of 1 GiB": _most(CARD_BYTES, lambda side: side.total_bytes),
            "you took GB for GiB: a GiB is 1024³ bytes": _most(9 * 10**9, lambda side: side.total_bytes),
            "the cache of the layers on the host stays there: you put all of it on the card": (
                _most(room, lambda side: side.total_bytes - side.kv_bytes + cache_bytes)
            ),
            "that is all of its layers, which do not fit": model.n_layer + 1,
        },
    )


def _most(room: int, size: Callable[[Side], int]) -> int:
    """The most layers of Llama 2 13B whose size on the device is at most ``room``."""
    n = range(header(THIRTEEN).n_layer + 2)
    return max(i for i in n if i == 0 or size(_split(THIRTEEN, i).devices[0]) <= room)


def _block_bytes(model: Header) -> float:
    """The weights of one block in bytes, on average."""
    return sum(tensor.nbytes for tensor in model.tensors if layer_of(tensor.name) >= 0) / model.n_layer


def _part(item: Any) -> int | str:
    """A block's number, ``output`` or ``embedding``, however it is written."""
    if isinstance(item, str):
        word = item.strip().lower()
        if number := re.fullmatch(r"(?:blk\.|block |layer )?(\d+)", word):
            return int(number[1])
        if "emb" in word:
            return "embedding"
        return "output" if word.startswith("output") else word
    is_whole = isinstance(item, Real) and not isinstance(item, bool) and float(item).is_integer()
    return int(item) if is_whole else repr(item)


def _listed(parts: Iterable[int | str]) -> str:
    """The parts as text: ``output, 13, 14, 15``."""
    return ", ".join(map(str, sorted(parts, key=lambda part: (isinstance(part, int), part))))


@cache
def _split(model: str, n_gpu_layers: int) -> Split:
    """What host and device hold."""
    return predict.offload(header(model), replace(WHOLE, n_gpu_layers=n_gpu_layers))
