"""Checks of lab 01's exercises."""

from __future__ import annotations

from typing import Any

from labkit import predict
from labkit.course.checking import Verdict, check_function, check_number
from labkit.models.lookup import header
from labkit.settings import Settings

__all__ = ["cliff", "pages", "repack"]

PAGE_BYTES = 4096


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
            "you assumed that the tensor starts at the start of a page, but its offset decides": lambda o, n: (
                -(-n // PAGE_BYTES)
            ),
            "you always added one page, but a tensor that ends where a page ends needs no further one": (
                lambda o, n: n // PAGE_BYTES + 1
            ),
        },
    )


def repack(answer: Any) -> Verdict:
    """Lab 01: bytes that an AVX2 machine copies when it repacks Llama 2 7B Q4_K_M."""
    model = header("llama-2-7b:Q4_K_M")
    embedding = model.tensor("token_embd.weight").nbytes
    right = sum(t.nbytes for t in predict.repacked(model, cpu_features={"avx2"}))
    return check_number(
        answer,
        right=right,
        unit="bytes",
        slips={
            "you counted the token embedding; its rows are looked up, not multiplied, so it is not repacked": right
            + embedding,
            "you counted every tensor; AVX2 repacks Q4_K and leaves Q6_K and F32 as they are": model.tensor_bytes,
            "you counted the Q6_K tensors; there is no AVX2 layout for them": (
                right + sum(t.nbytes for t in model.tensors if t.type == "Q6_K")
            ),
        },
    )


def cliff(answer: Any) -> Verdict:
    """Lab 01: the smallest cap under which Llama 3.2 1B Q4_K_M (mapped, repack off, n_ctx 512) reads no page twice."""
    model = header("llama-3.2-1b:Q4_K_M")
    need = predict.memory(model, Settings(repack=False), cpu_features=())
    return check_number(
        answer,
        right=need.mapped_bytes + need.rss_anon_bytes,
        unit="bytes",
        within=0.02,
        slips={
            "you counted the file only; cache, buffers and Python count towards the same cap": need.mapped_bytes,
            "you counted anonymous memory only; under that cap the pages of the file are read again for each token": (
                need.rss_anon_bytes
            ),
            "you added the whole compute buffer; only the part that a small batch touches is resident": (
                need.mapped_bytes + need.anon_floor_bytes
            ),
        },
    )
