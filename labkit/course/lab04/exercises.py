"""The checks of lab 04: which layers leave for a device, what they take there, and what crosses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from numbers import Real
from typing import Any

from labkit import gguf, predict
from labkit.course.checking import Verdict, check_function, check_number
from labkit.gguf import Header
from labkit.models.forge import header_bytes
from labkit.models.tensor_types import layer_of
from labkit.planning.tuner import MARGIN_BYTES, tune
from labkit.predict import hardware
from labkit.predict.hparams import EMBEDDING
from labkit.predict.offload import Side, Split
from labkit.settings import Settings
from labkit.units import GiB

__all__ = ["crossing_bytes", "device_bytes", "hop_ms", "layers_for_13b", "leaves_first", "plus_one"]

CARD = "rtx-4090"  # behind PCIe 4.0 x16
CARD_BYTES = 10 * GiB
WHOLE = Settings(n_ctx=4096)
NEAR = 0.01
ROUNDED = 0.05  # of a figure that one writes with one digit


def plus_one(answer: Any) -> Verdict:
    """Lab 04: the smallest n_gpu_layers that takes all of Llama 2 7B, which has 32 blocks, to the device."""
    n_layer = _header("llama-2-7b").n_layer
    right = _split("llama-2-7b", -1).n_gpu_layers
    more = answer if _is_number(answer) and (answer > right + 1 or answer == -1) else math.nan
    return check_number(
        answer,
        right=right,
        unit="layers",
        slips={
            "those are the blocks; the output layer counts as one more": n_layer,
            "the token embedding never leaves, so it does not count": right + 1,
            "that takes everything too; the smallest number that does is asked for": more,
        },
    )


def leaves_first(answer: Any) -> Verdict:
    """Lab 04: what is on the device with n_gpu_layers=4 of Llama 3.2 1B, which has 16 blocks.

    Args:
        answer: block numbers and ``"output"`` or ``"embedding"``, in any order: ``["output", 3, 7]``.
    """
    split = _split("llama-3.2-1b", 4)
    n_layer, n = len(split.layers_on), split.n_gpu_layers
    right = {i for i, side in enumerate(split.layers_on) if side} | ({"output"} if split.output_on else set())
    if answer is None or answer is ...:
        return Verdict("not attempted", "put your answer in place of the three dots.")
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        kind = type(answer).__name__
        return Verdict("wrong", f"your answer is a {kind}; a list of block numbers and names is asked for.")
    mine = {_part(item) for item in answer}
    if mine == right:
        return Verdict("right", f"{_listed(right)}.")
    last, first = set(range(n_layer - n, n_layer)), set(range(n))
    slips: dict[str, set[int | str]] = {
        "the output layer takes one of the four places": {*last},
        "the output layer is missing, which leaves before any block": right - {"output"},
        "the output layer takes one of the four places, so only three blocks leave": {*last, "output"},
        "the last blocks leave first, after the output layer": {*first},
        "the last blocks leave, not the first": {*range(n - 1), "output"},
        "the last blocks leave, not the first; and the output layer counts as one of the four": {*first, "output"},
    }
    if "embedding" in mine:
        reason = "; the token embedding never leaves: one row of it is looked up for a token."
    else:
        slip = next((text for text, wrong in slips.items() if mine == wrong), None)
        reason = f"; {slip}." if slip else "."
    return Verdict("wrong", f"yours is {_listed(mine) or 'nothing'}, expected {_listed(right)}{reason}")


def device_bytes(answer: Any) -> Verdict:
    """Lab 04: bytes on the device for Llama 3.2 1B Q4_K_M with all layers there and n_ctx 4096, within 1 %.

    Args:
        answer: the number; or a function (n_gpu_layers) -> bytes.
    """
    unlike: dict[str, Callable[[Side], float]] = {
        "you left out the cache; it lies where its layers lie": lambda side: side.total_bytes - side.kv_bytes,
        "you left out the compute buffer, which the device needs as well": (
            lambda side: side.total_bytes - side.compute_bytes
        ),
        "those are the weights alone; cache and compute buffer lie there too": lambda side: side.weights_bytes,
        "its output layer is a copy of the token embedding, so that tensor is on both sides: you counted it once": (
            lambda side: side.total_bytes - _header("llama-3.2-1b").tensor(EMBEDDING).nbytes
        ),
        "the embedding itself stays on the host; only its copy, the output layer, is on the device": (
            lambda side: side.total_bytes + _header("llama-3.2-1b").tensor(EMBEDDING).nbytes
        ),
        "you took GB for GiB: a GiB is 1024³ bytes": lambda side: side.total_bytes / GiB * 1e9,
        "that is GiB, not bytes": lambda side: side.total_bytes / GiB,
    }

    def there(n: int) -> Side:
        return _split("llama-3.2-1b", n).devices[0]

    if callable(answer):
        return check_function(
            answer,
            right=lambda n: there(n).total_bytes,
            cases=((17,), (9,), (1,)),
            slips={text: lambda n, wrong=wrong: wrong(there(n)) for text, wrong in unlike.items()},
            same=lambda mine, theirs: _is_number(mine) and abs(mine - theirs) <= NEAR * theirs,
            show=_plain,
        )
    side = there(-1)
    return check_number(
        answer,
        right=side.total_bytes,
        unit="bytes",
        within=NEAR,
        slips={text: wrong(side) for text, wrong in unlike.items()},
    )


def crossing_bytes(answer: Any) -> Verdict:
    """Lab 04: bytes that go from one block of Llama 2 7B to the next for each token, if the two lie on two sides."""
    header = _header("llama-2-7b")
    n_embd = int(header.key("embedding_length"))
    right = 4 * n_embd
    return check_number(
        answer,
        right=right,
        unit="bytes",
        slips={
            "those are elements; each is a 32-bit number, of 4 bytes": n_embd,
            "between blocks numbers have 32 bits, not 16": 2 * n_embd,
            "those are bits: 8 of them are a byte": 8 * right,
            "that is KiB, not bytes": right / 1024,
            "that is there and back; one crossing is asked for": 2 * right,
            "those are the logits, which cross once at the end": 4 * predict.n_vocab(header),
            "weights stay where they are; only the activation crosses": _if_near(answer, _block_bytes(header), 0.25),
        },
    )


def hop_ms(answer: Any) -> Verdict:
    """Lab 04: milliseconds that these bytes take over PCIe 4.0 x16, at its 31.5 GB/s and without any waiting."""
    header = _header("llama-2-7b")
    link = hardware.get(CARD).link_bytes_per_s
    assert link is not None
    right = 4 * int(header.key("embedding_length")) / link * 1000
    return check_number(
        answer,
        right=right,
        unit="milliseconds",
        within=ROUNDED,
        slips={
            "that is the time for a block's weights, which stay where they are: only the activation crosses": (
                _if_near(answer, _block_bytes(header) / link * 1000, 0.25)
            ),
            "you divided bits by bytes: 8 bits are a byte": 8 * right,
            "you divided bytes by bits: 8 bits are a byte": right / 8,
            "those are seconds": right / 1000,
            "those are microseconds": right * 1000,
            "you took GiB for GB: links are told in units of 10⁹ bytes": right * 1e9 / GiB,
            "5 ms is what the article says; compute what really crosses": 5.0,
        },
    )


def layers_for_13b(answer: Any) -> Verdict:
    """Lab 04: the most layers of Llama 2 13B Q4_K_M for a card of 10 GiB, 1 GiB of it left free, at n_ctx 4096."""
    header = _header("llama-2-13b")
    right = tune(header, vram=CARD_BYTES, settings=WHOLE, margin=MARGIN_BYTES).n_gpu_layers
    room, cache_bytes = CARD_BYTES - MARGIN_BYTES, predict.kv_bytes(header, WHOLE)
    return check_number(
        answer,
        right=right,
        unit="layers",
        slips={
            "those are the blocks; n_gpu_layers counts the output layer too": right - 1,
            "that is one too many: it no longer fits": right + 1,
            "that is what stays on the host": header.n_layer + 1 - right,
            "you left out the cache; it lies where its layers lie": _most(room, lambda s: s.total_bytes - s.kv_bytes),
            "you left out the margin of 1 GiB": _most(CARD_BYTES, lambda side: side.total_bytes),
            "you took GB for GiB: a GiB is 1024³ bytes": _most(9 * 10**9, lambda side: side.total_bytes),
            "the cache of the layers on the host stays there: you put all of it on the card": (
                _most(room, lambda side: side.total_bytes - side.kv_bytes + cache_bytes)
            ),
            "that is all of its layers, which do not fit": header.n_layer + 1,
        },
    )


def _most(room: int, size: Callable[[Side], int]) -> int:
    """The most layers of Llama 2 13B whose size is at most ``room``."""
    n = range(_header("llama-2-13b").n_layer + 2)
    return max(i for i in n if i == 0 or size(_split("llama-2-13b", i).devices[0]) <= room)


def _block_bytes(header: Header) -> float:
    """Weights of one block, on average."""
    return sum(tensor.nbytes for tensor in header.tensors if layer_of(tensor.name) >= 0) / header.n_layer


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
    """``output, 13, 14, 15``."""
    return ", ".join(map(str, sorted(parts, key=lambda part: (isinstance(part, int), part))))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _if_near(answer: Any, value: float, within: float) -> float:
    """The answer itself if it is about ``value``; else nothing equals it."""
    return answer if _is_number(answer) and abs(answer / value - 1) <= within else math.nan


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"n_gpu_layers {value[0]}"
    return f"{value:,.0f} bytes" if _is_number(value) else repr(value)


@cache
def _split(shape: str, n_gpu_layers: int) -> Split:
    return predict.offload(_header(shape), replace(WHOLE, n_gpu_layers=n_gpu_layers))


@cache
def _header(shape: str) -> Header:
    return gguf.read_header(header_bytes(shape, "Q4_K_M"))


CHECKS: tuple[Callable[[Any], Verdict], ...] = (
    plus_one,
    leaves_first,
    device_bytes,
    crossing_bytes,
    hop_ms,
    layers_for_13b,
)
