"""Write a model of a published shape without its weights.

llama.cpp loads and computes it as it would the published one; the text it writes means nothing. Without arguments,
list the shapes and mixtures.
"""

from __future__ import annotations

import argparse

from labkit.commands import OK
from labkit.commands.options import print_json
from labkit.units import fmt_bytes


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shape", metavar="SHAPE", nargs="?", help="as in llama-2-7b; none lists them")
    parser.add_argument("quant", metavar="QUANT", nargs="?", help="as in Q4_K_M")
    parser.add_argument(
        "--fill",
        action="store_true",
        help="write random weights; by default the file is sparse and takes no disk space",
    )
    parser.add_argument("--out", metavar="FILE", help="the file to write (default: one in labkit's cache)")


def run(args: argparse.Namespace) -> int:
    from labkit.models import shapes
    from labkit.models.forge import forge
    from labkit.progress import bar

    if args.shape is None:
        known = {name: shapes.get(name).title for name in shapes.names()}
        if args.json:
            print_json({"shapes": known, "quants": list(shapes.QUANTS)})
        else:
            print("\n".join(f"{name:16} {title}" for name, title in known.items()))
            print(f"mixtures: {', '.join(shapes.QUANTS)}")
        return OK
    if args.quant is None:
        raise ValueError(f"name a mixture too: one of {', '.join(shapes.QUANTS)}.")
    with bar(f"forging {args.shape}") as report:
        made = forge(args.shape, args.quant, path=args.out, fill=args.fill, progress=report)
    if args.json:
        sizes = {"file_bytes": made.file_bytes, "disk_bytes": made.disk_bytes, "tensor_bytes": made.header.tensor_bytes}
        print_json({"path": str(made.path), **sizes, "filled": args.fill, "reused": made.reused})
    else:
        print(f"{made.path}: {fmt_bytes(made.file_bytes)}, {fmt_bytes(made.disk_bytes)} on disk")
        print("It has the shape and types of the named model and no knowledge: the text it writes means nothing.")
    return OK
