"""Open JupyterLab on a lab.

In a clone of the repository the labs are opened where they are. Otherwise they are first copied to the folder
llm-memory-labs in the current one; files that are there already are kept.
"""

from __future__ import annotations

import argparse


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lab", nargs="?", default="00", help="which lab, as in 01 (default 00)")
    parser.add_argument("--no-browser", action="store_true", help="print the address instead of opening it")
    parser.add_argument("--port", type=int, help="port on 127.0.0.1 (default: the first free one from 8888)")


def run(args: argparse.Namespace) -> int:
    from labkit import workspace

    return workspace.start(args.lab, browser=not args.no_browser, port=args.port)
