"""Execute labs on this machine without a browser, and print a line for each.

Each runs in a fresh kernel, from top to bottom. The exit status is 1 if a cell of a lab raises an error or takes longer
than 600 s; such a lab is not saved.
"""

from __future__ import annotations

import argparse


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("labs", nargs="*", metavar="LAB", help="which labs, as in 00 01, or notebooks (default: all)")
    parser.add_argument("--save", action="store_true", help="write the outputs back into the notebooks")


def run(args: argparse.Namespace) -> int:
    from labkit import notebooks

    return notebooks.run(args.labs or None, save=args.save, json=args.json)
