"""Read a model's header: shape, tensor types, sizes. The weights are not read.

With an option from --ctx to --swa-full, also predict the cache and the buffers; without --ctx, for 512 tokens.
"""

from __future__ import annotations

import argparse

from labkit.commands import OK
from labkit.commands.options import MODEL, add_context, chosen, print_json


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    add_context(parser, "also predict the KV cache and compute buffer for N tokens")
    parser.add_argument(
        "--quant", metavar="QUANT", help="also predict each tensor's type and the size after quantizing, as in Q4_K_M"
    )


def run(args: argparse.Namespace) -> int:
    from labkit.inspection import inspect
    from labkit.settings import Settings

    given = chosen(args)
    found = inspect(args.model, settings=Settings.of(given) if given else None, quant=args.quant)
    if args.json:
        print_json(found.to_dict())
    else:
        print(found)
    return OK
