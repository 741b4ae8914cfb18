"""The checks of the claims about what fits in memory, and what that needs."""

from __future__ import annotations

import sys

from labkit import predict
from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.phases import read_share
from labkit.course.claims.terms import IDLE, MAPPED, RAM_BYTES, SEVEN_B, SYSTEM_BYTES, THIRTEEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab01.bench import REAL_BYTES, PagingBench
from labkit.settings import Settings
from labkit.units import GiB, fmt_bytes, fmt_ms

TOP_32_BIT_BYTES = 3 * GiB  # the most that a 32-bit program usually has for itself


def c014(bench: Bench) -> Finding:
    """Fits: a 13B Q4_K_M with 4096 tokens of f16 cache needs no more than 16 GiB less 2 GiB for the system (predicted).
    Idle: a model that fits in memory reads under 1 % of its weights from the disk per token. Misleading if both,
    confirmed if neither, else roughly right."""
    paging = bench.part(PagingBench)
    need = _needed_13b(bench, load_mode="mmap", kv="f16")
    run, model = bench.run(paging.choose(MAPPED, among=REAL_BYTES), MAPPED), paging.choose(MAPPED)
    ms = min(bench.run(model, MAPPED).timings.decode_ms)
    rate = predict.bytes_per_token(bench.header(model), Settings()) / ms * 1000
    per_token, share = predict.bytes_per_token(bench.header(THIRTEEN_B), Settings()), read_share(run)
    fits, idle = need <= RAM_BYTES - SYSTEM_BYTES, share <= IDLE
    show = Figures()
    show.keep(bytes_per_token_13b=per_token)
    return show.finding(
        "misleading" if fits and idle else "roughly right" if fits or idle else "confirmed",
        f"A 13B Q4_K_M needs {show(needed_13b_bytes=need)} at 4096 tokens; {run.model.name}, which fits in memory, "
        f"read {show(read_share_per_token=round(share, 4)):.1%} of its weights from the disk per token, and {model} "
        f"reads its weights from memory at {show(memory_bytes_per_s=round(rate))}, at which a token of a 13B takes "
        f"{fmt_ms(per_token / rate * 1000)}.",
    )


def c015(bench: Bench) -> Finding:
    """The conclusion holds if a 7B Q4_K_M is larger than the 3 GiB that a 32-bit program has at most. The reason, a
    limit of mmap, holds if this 64-bit process cannot map that file either. Confirmed if both hold, roughly right if
    only the conclusion does, misleading if only the reason does, else wrong."""
    if sys.maxsize <= 2**32:
        raise Unsettled("this Python is a 32-bit program itself, so a limit of mmap cannot be told from its own")
    file, maps = bench.header(SEVEN_B).file_bytes, bench.can_map(SEVEN_B)
    too_large, show = file > TOP_32_BIT_BYTES, Figures()
    show.keep(maps_whole_file=maps)
    return show.finding(
        {(1, 0): "confirmed", (1, 1): "roughly right", (0, 0): "misleading", (0, 1): "wrong"}[too_large, maps],
        f"A 7B Q4_K_M is {show(file_bytes=file)} and a 32-bit program has at most {fmt_bytes(TOP_32_BIT_BYTES)} of "
        f"addresses, but this 64-bit process {'can' if maps else 'cannot'} map that file in one piece.",
    )


def c016(bench: Bench) -> Finding:
    """What a 13B Q4_K_M needs at 4096 tokens without the 8-bit cache, and without mmap, against 16 GiB less 2 GiB for
    the system (predicted); and whether the word "paged" occurs in llama.cpp's libraries. Wrong if none of the three is
    required, confirmed if all are, else misleading."""
    f16 = _needed_13b(bench, load_mode="mmap", kv="f16")
    copied = _needed_13b(bench, load_mode="none", kv="q8_0")
    paged = bench.in_libraries(b"paged")
    required = sum(size > RAM_BYTES - SYSTEM_BYTES for size in (f16, copied)) + paged
    show = Figures()
    show.keep(paged_attention=paged)
    return show.finding(
        "wrong" if required == 0 else "confirmed" if required == 3 else "misleading",
        f"At 4096 tokens a 13B Q4_K_M needs {show(f16_cache_bytes=f16)} without the 8-bit cache and "
        f'{show(no_mmap_bytes=copied)} without mmap; "paged" occurs {"" if paged else "nowhere "}in llama.cpp\'s '
        "libraries.",
    )


def _needed_13b(bench: Bench, *, load_mode: str, kv: str) -> int:
    """Memory that a Llama 2 13B Q4_K_M needs at 4096 tokens, repack off."""
    settings = Settings(load_mode=load_mode, repack=False, n_ctx=4096, type_k=kv, type_v=kv)
    need = predict.memory(bench.header(THIRTEEN_B), settings, cpu_features=())
    return need.mapped_bytes + need.anon_floor_bytes
