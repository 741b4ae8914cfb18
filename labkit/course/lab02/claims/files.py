"""The checks of the claims about what a GGUF file holds."""

from __future__ import annotations

import re
import struct
import zlib

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.terms import BUNDLED, NEAR, SEVEN_B
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab02.bench import QuantBench
from labkit.gguf.types import DEFAULT_ALIGNMENT, VALUE_TYPES
from labkit.settings import Settings

BACKENDS = ("cuda", "metal", "vulkan", "gpu", "backend", "device")


def c018(bench: Bench) -> Finding:
    """The tensor table of the bundled model is read as plain fields: length and bytes of the name, number of
    dimensions, 64 bits for each, type, 64 bits for the offset. Wrong if these fields end where the padding before the
    data begins: nothing is compressed, and no byte is left for sizes. Misleading if they do with 8 more bytes per
    tensor, for a size. Confirmed if they end there neither way and zlib cannot shorten the table either."""
    head = bench.part(QuantBench).head(BUNDLED)
    start, n_tensors = table_start(head)
    table = head[start:]
    shorter = len(zlib.compress(table, 9)) / len(table)
    plain, sized = (reads_to_the_end(head, start, n_tensors, extra) for extra in (0, 8))
    if not plain and not sized and shorter < 1 - NEAR:
        raise Unsettled("the tensor table has other fields than those that are known")
    if plain or sized:
        fields = f"plain fields {'without' if plain else 'and 8 bytes for'} a size, the offset in 64 bits"
    else:
        fields = "fields that cannot be read as they are"
    show = Figures()
    return show.finding(
        "wrong" if plain else "misleading" if sized else "confirmed",
        f"The table's {show(table_bytes=len(table))} are {show(tensors=n_tensors)} entries of {fields}, and zlib "
        f"would shorten it to {show(zlib_share=round(shorter, 3))}.",
    )


def c032(bench: Bench) -> Finding:
    """Moves: "migrat" occurs in llama.cpp's libraries. Neutral: no key of the bundled model's metadata names a backend.
    Kept: no weight of a 7B Q4_K_M is repacked for this CPU (predicted). Confirmed if it moves and is kept, roughly
    right if it moves only, misleading if it does not move but the file is neutral, wrong if neither."""
    keys = list(bench.header(BUNDLED).metadata)
    naming = [key for key in keys if any(word in key.lower() for word in BACKENDS)]
    moves, repacked = bench.in_libraries(b"migrat"), bench.part(QuantBench).repacked_bytes(SEVEN_B)
    show = Figures()
    show.keep(migrates=moves)
    return show.finding(
        ("roughly right" if repacked else "confirmed") if moves else "wrong" if naming else "misleading",
        f'"Migrat" occurs {"" if moves else "nowhere "}in llama.cpp\'s libraries, and '
        f"{show(keys_naming_backends=len(naming))} of {show(keys=len(keys))} metadata keys of {BUNDLED} name a "
        f"backend; when llama.cpp loads a 7B Q4_K_M, it repacks {show(relaid_bytes=repacked)} of its "
        f"{show(weights_bytes=bench.header(SEVEN_B).tensor_bytes)} for this CPU.",
    )


def c033(bench: Bench) -> Finding:
    """Whether a key of the bundled model's metadata is about paging, and one about the type of the cache; and whether
    the one file can be mapped, and used with caches of f16 and of q8_0 (llama.cpp's dry run). Confirmed if the metadata
    has both, roughly right if it has one; misleading if it has neither but both can be done, so that they are choices
    at run time; wrong if they cannot be done at all."""
    keys = list(bench.header(BUNDLED).metadata)
    paging = [key for key in keys if re.search(r"pag(e|ing)|mmap|mlock|load_mode", key)]
    cache = [key for key in keys if re.search(r"cache|\btype_[kv]\b|kv_type", key)]
    f16, q8 = bench.planned_kv_bytes(BUNDLED, *(Settings(type_k=name, type_v=name) for name in ("f16", "q8_0")))
    works = bench.can_map(BUNDLED) and q8 < f16
    inside, show = bool(paging) + bool(cache), Figures()
    return show.finding(
        "confirmed" if inside == 2 else "roughly right" if inside else "misleading" if works else "wrong",
        f"Of {BUNDLED}'s {show(keys=len(keys))} metadata keys {show(paging_keys=len(paging))} are about paging and "
        f"{show(cache_keys=len(cache))} about a cache type; the one file runs with a cache of {show(f16_bytes=f16)} "
        f"in f16 or {show(q8_0_bytes=q8)} in q8_0 for 512 tokens.",
    )


def table_start(head: bytes) -> tuple[int, int]:
    """Where the tensor table of a GGUF begins, and its number of entries. Metadata before it is skipped."""
    n_tensors, n_keys = struct.unpack_from("<QQ", head, 8)
    at = 24
    for _ in range(n_keys):
        at = _after_text(head, at)
        at = _after_value(head, at + 4, *struct.unpack_from("<I", head, at))
    return at, n_tensors


def _after_text(head: bytes, at: int) -> int:
    """Where a text ends that begins at ``at`` with its length."""
    return at + 8 + int(struct.unpack_from("<Q", head, at)[0])


def _after_value(head: bytes, at: int, kind: int) -> int:
    """Where a metadata value of this type ends."""
    code = VALUE_TYPES[kind].code
    if code:
        return at + len(struct.pack(f"<{code}", 0))
    if VALUE_TYPES[kind].name == "str":
        return _after_text(head, at)
    item, n_items = struct.unpack_from("<IQ", head, at)
    at += 12
    for _ in range(n_items):
        at = _after_value(head, at, item)
    return at


def reads_to_the_end(head: bytes, at: int, n_tensors: int, extra: int) -> bool:
    """Whether table entries with ``extra`` bytes more than the known fields end at the padding before the data."""
    try:
        for _ in range(n_tensors):
            after = _after_text(head, at)
            head[at + 8 : after].decode("ascii")
            (n_dims,) = struct.unpack_from("<I", head, after)
            at = after + 4 + 8 * n_dims + 4 + 8 + extra  # count, dimensions, type, offset
    except (struct.error, UnicodeDecodeError):
        return False
    return 0 <= len(head) - at < DEFAULT_ALIGNMENT and not any(head[at:])
