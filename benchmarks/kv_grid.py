"""Every shape's cache, predicted and as llama.cpp plans it: ``uv run python benchmarks/kv_grid.py [SHAPE...]``.

Prints a line for each setting and ends with how many are equal. Equal means that llama.cpp's log, which has two
decimals of a MiB, shows the digits that the predicted bytes give, for the K and the V of each cache and for the
recurrent state. The exit status is 1 if one differs.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit import engine, predict
from labkit.engine.log import parse_recurrent
from labkit.gguf import Header
from labkit.models import shapes
from labkit.models.forge import forge
from labkit.settings import Settings
from labkit.units import MiB

TYPES = (("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"))
SEQUENCES = ((1, False), (4, False), (4, True))

Sizes = tuple[tuple[int, int], ...]
"""(K, V) of the cache of full layers, of that of windowed ones, then (state, 0)."""


@dataclass(frozen=True)
class Cell:
    """One setting: bytes as the log would show them, predicted and planned. ``refused`` is llama.cpp's reason."""

    settings: Settings
    predicted: Sizes
    planned: Sizes | None
    refused: str

    @property
    def equal(self) -> bool:
        return self.predicted == self.planned


def compare(header: Header, model: engine.Model, settings: Settings) -> Cell:
    """One setting of a model that is open in the engine without its weights."""
    kept = predict.cache(header, settings)
    groups = [[layer for layer in kept.layers if (layer.kind == "window") is windowed] for windowed in (False, True)]
    sizes = [(sum(each.k_bytes for each in group), sum(each.v_bytes for each in group)) for group in groups]
    sizes.append((kept.recurrent_bytes, 0))
    predicted = tuple((logged(k), logged(v)) for k, v in sizes)
    try:
        with engine.Context(model, settings) as context:
            planned = [(each.k_bytes, each.v_bytes) for each in context.kv]
            planned += [(0, 0)] * (2 - len(planned))
            return Cell(settings, predicted, (*planned, (parse_recurrent(context.log), 0)), "")
    except engine.EngineError as error:
        return Cell(settings, predicted, None, str(error))


def logged(nbytes: int) -> int:
    """Bytes as they are read back from llama.cpp's log: it divides a C float and prints two decimals of a MiB."""
    (single,) = struct.unpack("<f", struct.pack("<f", nbytes))
    return round(float(f"{single / MiB:.2f}") * MiB)


def grid(header: Header) -> Iterator[Settings]:
    """All settings of one model."""
    trained = int(header.key("context_length"))
    windowed = any(layer.kind == "window" for layer in predict.cache(header, Settings()).layers)
    for n_ctx in sorted({512, 4096, 32768, trained}):
        for type_k, type_v in TYPES:
            for n_seq_max, unified in SEQUENCES:
                for swa_full in (False, True) if windowed else (False,):
                    yield Settings(
                        n_ctx=n_ctx,
                        type_k=type_k,
                        type_v=type_v,
                        n_seq_max=n_seq_max,
                        kv_unified=unified,
                        swa_full=swa_full,
                    )


def show(name: str, cell: Cell) -> str:
    s = cell.settings
    what = f"{s.n_seq_max} seq{' unified' if s.kv_unified else ''}{' swa_full' if s.swa_full else ''}"
    answer = "refused" if cell.planned is None else "equal" if cell.equal else "DIFFERENT"
    sides = [" ".join(f"{k / MiB:.2f}+{v / MiB:.2f}" for k, v in side) for side in (cell.predicted, cell.planned or ())]
    return f"{name:19} {s.n_ctx:8} {s.type_k:>4}/{s.type_v:4} {what:22} {sides[0]:42} {sides[1]:42} {answer}"


def main(names: list[str]) -> int:
    try:
        for name in names:
            shapes.get(name)
    except shapes.ShapeError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'MiB of K+V: full layers, windowed layers, state':58} {'predicted':42} llama.cpp's dry run")
    counts = {"equal": 0, "different": 0, "refused": 0}
    for name in names or shapes.names():
        with tempfile.TemporaryDirectory() as folder:
            made = forge(name, "Q8_0", path=Path(folder) / "model.gguf")
            with engine.Model(made.path, Settings(), dry=True) as model:
                for settings in grid(made.header):
                    cell = compare(made.header, model, settings)
                    counts["refused" if cell.planned is None else "equal" if cell.equal else "different"] += 1
                    print(show(name, cell))
    print(", ".join(f"{n} {what}" for what, n in counts.items()), "(refused: K and V of two types where they are one)")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare every shape's cache with llama.cpp's dry run.")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="as in llama-2-7b (default: all)")
    sys.exit(main(parser.parse_args().shapes))
