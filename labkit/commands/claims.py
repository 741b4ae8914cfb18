"""List claims from articles and the verdicts on them; with IDs, settle these on this machine."""

from __future__ import annotations

import argparse


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="claims to settle now, as in C001; none lists all")
    parser.add_argument("--topic", help="only claims on this topic")


def run(args: argparse.Namespace) -> int:
    from labkit.course import claims

    status: int = claims.command(args.ids, topic=args.topic, as_json=args.json)
    return status
