"""The checks of the labs' exercises: ``lk.check.NAME(answer)``. ``checking`` says how an answer is judged."""

from __future__ import annotations

from functools import cache
from typing import Any

from labkit import gguf, predict
from labkit.checking import Verdict, check_function, check_number
from labkit.exercises.lab_02 import bits as bits
from labkit.exercises.lab_02 import q4_k as q4_k
from labkit.exercises.lab_02 import q6_weight as q6_weight
from labkit.exercises.lab_02 import scales as scales
from labkit.exercises.lab_03 import crossover as crossover
from labkit.exercises.lab_03 import fits_in_16 as fits_in_16
from labkit.exercises.lab_03 import kv_of as kv_of
from labkit.exercises.lab_03 import kv_per_token_8b as kv_per_token_8b
from labkit.exercises.lab_03 import kv_per_token_13b as kv_per_token_13b
from labkit.exercises.lab_03 import window_cells as window_cells
from labkit.exercises.lab_04 import crossing_bytes as crossing_bytes
from labkit.exercises.lab_04 import device_bytes as device_bytes
from labkit.exercises.lab_04 import hop_ms as hop_ms
from labkit.exercises.lab_04 import layers_for_13b as layers_for_13b
from labkit.exercises.lab_04 import leaves_first as leaves_first
from labkit.exercises.lab_04 import plus_one as plus_one
from labkit.exercises.lab_05 import context_for_locked_7b as context_for_locked_7b
from labkit.exercises.lab_05 import unlocked_part as unlocked_part
from labkit.exercises.lab_05 import will_lock_fit as will_lock_fit
from labkit.forge import header_bytes
from labkit.gguf import Header
from labkit.settings import Settings
from labkit.units import GiB

PAGE_BYTES = 4096


def token_bytes(answer: Any) -> Verdict:
    """Lab 00: bytes that Llama 2 7B Q4_K_M reads for one token (the cache left out)."""
    header = _header("llama-2-7b", "Q4_K_M")
    return check_number(
        answer,
        right=predict.bytes_per_token(header, Settings()),
        unit="bytes",
        slips={
            "you counted the token embedding, of which only one row is looked up": (header.tensor_bytes),
            "that is the whole file, header included": header.file_bytes,
            "you left out the output matrix, which is multiplied once for every token": (
                predict.bytes_per_token(header, Settings()) - header.tensor("output.weight").nbytes
            ),
        },
    )


def ceiling(answer: Any) -> Verdict:
    """Lab 00: tokens per second that 50 GiB/s allow for Llama 2 13B Q4_K_M."""
    read = predict.bytes_per_token(_header("llama-2-13b", "Q4_K_M"), Settings())
    right = 50 * GiB / read
    return check_number(
        answer,
        right=right,
        unit="tokens/s",
        within=0.02,
        slips={
            "that is milliseconds per token, not tokens per second": 1000 / right,
            "you took 50 GB/s for 50 GiB/s": 50e9 / read,
            "you divided bits by bytes: 8 bits are a byte": right / 8,
            "you divided the wrong way round": 1 / right,
        },
    )


def pages(answer: Any) -> Verdict:
    """Lab 01: a function (offset, nbytes) -> number of 4 KiB pages that hold a tensor."""
    cases = ((0, 4096), (0, 4097), (4095, 2), (1_788_064, 331_776), (4096, 8192), (100, 1))

    def right(offset: int, nbytes: int) -> int:
        return (offset + nbytes - 1) // PAGE_BYTES - offset // PAGE_BYTES + 1

    return check_function(
        answer,
        right=right,
        cases=cases,
        slips={
            "you divided and dropped the rest; the last, partly used page counts too": lambda o, n: n // PAGE_BYTES,
            "you assumed that the tensor starts at the start of a page; its offset decides": lambda o, n: (
                -(-n // PAGE_BYTES)
            ),
            "you always added one page; when the tensor ends at a page's end there is no further one": (
                lambda o, n: n // PAGE_BYTES + 1
            ),
        },
    )


def repack(answer: Any) -> Verdict:
    """Lab 01: bytes that an AVX2 machine copies when it repacks Llama 2 7B Q4_K_M."""
    header = _header("llama-2-7b", "Q4_K_M")
    embedding = header.tensor("token_embd.weight").nbytes
    right = sum(t.nbytes for t in predict.repacked(header, cpu_features={"avx2"}))
    return check_number(
        answer,
        right=right,
        unit="bytes",
        slips={
            "you counted the token embedding; its rows are looked up, not multiplied, so it is not repacked": right
            + embedding,
            "you counted every tensor; AVX2 repacks Q4_K and leaves Q6_K and F32 as they are": header.tensor_bytes,
            "you counted the Q6_K tensors; there is no AVX2 layout for them": (
                right + sum(t.nbytes for t in header.tensors if t.type == "Q6_K")
            ),
        },
    )


def cliff(answer: Any) -> Verdict:
    """Lab 01: the smallest cap that does not page, for Llama 3.2 1B Q4_K_M, mapped, repack off, n_ctx 512."""
    header = _header("llama-3.2-1b", "Q4_K_M")
    need = predict.memory(header, Settings(repack=False), cpu_features=())
    return check_number(
        answer,
        right=need.mapped_bytes + need.rss_anon_bytes,
        unit="bytes",
        within=0.02,
        slips={
            "you counted the file only; cache, buffers and Python need room in the same cap": need.mapped_bytes,
            "you counted anonymous memory only; below that it is killed, but it pages long before": need.rss_anon_bytes,
            "you added the whole compute buffer; only the part that a small batch touches is resident": (
                need.mapped_bytes + need.anon_floor_bytes
            ),
        },
    )


@cache
def _header(shape: str, quant: str) -> Header:
    return gguf.read_header(header_bytes(shape, quant))
