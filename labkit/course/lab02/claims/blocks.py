"""The checks of the claims about how quantized blocks are built.

Bits of a block are changed one by one, and ggml decodes it: what changes shows what each bit is for.
"""

from __future__ import annotations

import re

from labkit.course.claims.bench import Bench
from labkit.course.claims.finding import Figures, Finding
from labkit.course.claims.terms import BUNDLED
from labkit.course.claims.unsettled import Unsettled
from labkit.course.lab02.bench import QuantBench
from labkit.gguf.types import DEFAULT_ALIGNMENT, TYPES, GGMLType
from labkit.models.shapes import QUANTS
from labkit.units import KiB

PAGE_BYTES = 4 * KiB


def c017(bench: Bench) -> Finding:
    """What the claim says of a K-blob has three parts: every tensor of the bundled model starts on a 4 KiB page,
    K-quant blocks fill a page without a remainder, and the word occurs in llama.cpp's libraries. Confirmed if all three
    hold; wrong if no tensor starts on a page, no block fills one and the word does not occur; else misleading."""
    header, blocks = bench.header(BUNDLED), _k_types(bench)
    on_page, aligned = (sum(t.offset % size == 0 for t in header.tensors) for size in (PAGE_BYTES, DEFAULT_ALIGNMENT))
    fitting = sum(PAGE_BYTES % block.block_bytes == 0 for block in blocks)
    named = any(bench.in_libraries(word) for word in (b"kblob", b"k-blob", b"k_blob", b"knowledge blob"))
    if on_page == len(header.tensors) and fitting == len(blocks) and named:
        verdict = "confirmed"
    else:
        verdict = "misleading" if on_page or fitting or named else "wrong"
    q4, show = TYPES["Q4_K"].block_bytes, Figures()
    show.keep(named=named)
    return show.finding(
        verdict,
        f"Of {BUNDLED}'s {show(tensors=len(header.tensors))} tensors {show(tensors_on_a_page=on_page)} start on a "
        f"page of {PAGE_BYTES} bytes and {show(tensors_at_32_bytes=aligned):d} at a multiple of {DEFAULT_ALIGNMENT}; "
        f"{show(k_blocks_that_fit=fitting)} of {len(blocks)} kinds of K-quant blocks fill a page (one of Q4_K takes "
        f'{q4} bytes, and {PAGE_BYTES / q4:.2f} of them a page); "K-blob" occurs {"" if named else "nowhere "}in '
        "llama.cpp's libraries.",
    )


def c019(bench: Bench) -> Finding:
    """The smallest group of weights that shares a field, for each type that a mixture uses: how many weights of a block
    change with one bit of that field. Confirmed if it is 32 or 64 for all types, roughly right if for some, wrong if
    for none."""
    groups = {block.name: min(_groups(bench, block)) for block in _quantized(bench)}
    right = [name for name, size in groups.items() if size in (32, 64)]
    blocks = {block.name: block.block_elems for block in _quantized(bench)}
    show = Figures()
    show.keep(**{f"{name.lower()}_group": size for name, size in groups.items()})
    return show.finding(
        "confirmed" if len(right) == len(groups) else "roughly right" if right else "wrong",
        f"Weights share a scale by {_by_size(groups)}; a block as a whole has {_by_size(blocks)} weights.",
    )


def c020(bench: Bench) -> Finding:
    """Bits per weight that a block spends on fields that weights share, for each type that a mixture uses: a field is
    shared if changing one bit of it changes several weights of the decoded block. Confirmed if every type shares some
    and spends at most 1 bit on it, wrong if one shares nothing, else roughly right."""
    spent = {block.name: _shared_bits(bench, block) for block in _quantized(bench)}
    q4, most = TYPES["Q4_K"], max(spent, key=lambda name: spent[name])
    own, show = q4.bpw - spent["Q4_K"], Figures()
    show.keep(**{f"{name.lower()}_shared_bpw": bits for name, bits in spent.items()})
    return show.finding(
        "wrong" if min(spent.values()) <= 0 else "confirmed" if spent[most] <= 1 else "roughly right",
        f"Of Q4_K's {q4.bpw:g} bits per weight {own:g} are the weight's own and {spent['Q4_K']:g} are scales and "
        f"minima that the weights of a block share, and no type spends more than {spent[most]:g} on these ({most}); "
        f"with a 16-bit scale for each weight Q4_K would take {own + 16:g} bits, more than F16.",
    )


def c031(bench: Bench) -> Finding:
    """The error of normally distributed weights that ggml has rounded to Q4_K, as a share of their spread. No code with
    so many bits per weight has an error below 2 to the power of minus the bits (Shannon). Confirmed if the error is
    below that, so that a limit is broken. Misleading if not: memory is saved at the cost of precision, as by any
    rounding. Wrong if Q4_K saves nothing against F16."""
    block = TYPES["Q4_K"]
    error, limit = bench.part(QuantBench).rounding_error("Q4_K"), 2**-block.bpw
    saves, show = block.bpw < TYPES["F16"].bpw, Figures()
    return show.finding(
        "wrong" if not saves else "confirmed" if error < limit else "misleading",
        f"Q4_K stores a weight in {show(bpw=block.bpw)} bits instead of 16, with an error of "
        f"{show(error_share=round(error, 4)):.1%} of the weights' spread, where no code with as many bits has less "
        f"than {show(limit_share=round(limit, 4)):.1%}.",
    )


def c127(bench: Bench) -> Finding:
    """The K-quants that mixtures use, by the bits of their integers, as in their names. Confirmed if these go from 4 to
    8, wrong if none is in that range, else misleading."""
    blocks = _k_types(bench)
    bits = [int(block.name[1]) for block in blocks]
    if not any(4 <= n_bits <= 8 for n_bits in bits):
        verdict = "wrong"
    else:
        verdict = "confirmed" if (min(bits), max(bits)) == (4, 8) else "misleading"
    q8, show = TYPES["Q8_0"], Figures()
    listed = ", ".join(f"{block.name} {show(**{f'{block.name.lower()}_bpw': block.bpw})}" for block in blocks)
    return show.finding(
        verdict,
        f"Bits per weight of the K-quants that files use: {listed}; the file type with 8-bit integers, Q8_0, has "
        f"{q8.bpw:g} in the older block of {q8.block_elems}, and no file type uses Q8_K.",
    )


def _quantized(bench: Bench) -> list[GGMLType]:
    """The types that the mixtures give to weights, smallest first."""
    names = {name for quant in QUANTS for name in bench.header(f"llama-2-7b:{quant}").types}
    blocks = [TYPES[name] for name in names if TYPES[name].block_elems > 1]
    return sorted(blocks, key=lambda block: (block.bpw, block.name))


def _k_types(bench: Bench) -> list[GGMLType]:
    """Those of them that are K-quants."""
    return [block for block in _quantized(bench) if re.fullmatch(r"Q\d_K", block.name)]


def _groups(bench: Bench, block: GGMLType) -> list[int]:
    """How many weights each shared byte of a block changes."""
    groups = [count for count in bench.part(QuantBench).weights_changed(block.name) if count > 1]
    if not groups:
        raise Unsettled(f"no byte of a {block.name} block changes more than one weight")
    return groups


def _shared_bits(bench: Bench, block: GGMLType) -> float:
    """Bits per weight in bytes that change more than one weight."""
    changed = bench.part(QuantBench).weights_changed(block.name)
    return 8 * sum(count > 1 for count in changed) / block.block_elems


def _by_size(sizes: dict[str, int]) -> str:
    """``32 (Q4_0, Q8_0) or 256 (Q4_K)``."""
    names: dict[int, list[str]] = {}
    for name, size in sizes.items():
        names.setdefault(size, []).append(name)
    return " or ".join(f"{size} ({', '.join(names[size])})" for size in sorted(names))
