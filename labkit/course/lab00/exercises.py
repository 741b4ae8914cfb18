"""Checks of lab 00's exercises."""

from __future__ import annotations

from typing import Any

from labkit import predict
from labkit.course.checking import Verdict, check_number
from labkit.models.lookup import header
from labkit.settings import Settings
from labkit.units import GiB

__all__ = ["ceiling", "token_bytes"]


def token_bytes(answer: Any) -> Verdict:
    """Lab 00: bytes that Llama 2 7B Q4_K_M reads for one token (the cache left out)."""
    model = header("llama-2-7b:Q4_K_M")
    return check_number(
        answer,
        right=predict.bytes_per_token(model, Settings()),
        unit="bytes",
        slips={
            "you counted the token embedding, of which only one row is looked up": model.tensor_bytes,
            "that is the whole file, header included": model.file_bytes,
            "you left out the output matrix, which is multiplied once for every token": (
                predict.bytes_per_token(model, Settings()) - model.tensor("output.weight").nbytes
            ),
        },
    )


def ceiling(answer: Any) -> Verdict:
    """Lab 00: tokens per second that 50 GiB/s allow for Llama 2 13B Q4_K_M."""
    read = predict.bytes_per_token(header("llama-2-13b:Q4_K_M"), Settings())
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
