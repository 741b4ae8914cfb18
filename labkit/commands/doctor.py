"""Say what works on this computer, and what to do about the rest.

The exit status is 1 if a lab cannot run here.
"""

from __future__ import annotations

import argparse

from labkit.commands import NO, OK
from labkit.commands.options import print_json


def options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(args: argparse.Namespace) -> int:
    from labkit.course import readiness

    found = readiness.examine()
    if args.json:
        print_json(found.to_dict())
    else:
        print(found)
    return OK if found.ok else NO
