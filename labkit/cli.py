"""``labkit``: the measuring and the arithmetic, without the notebooks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from inspect import cleandoc

from labkit.commands import OK, WRONG, claims, doctor, forge, inspect, measure, plan, run, start
from labkit.commands.options import MODEL

COMMANDS = (doctor, start, run, inspect, forge, measure, plan, claims)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 for done, 1 when the answer is no, 2 for wrong usage or bad input."""
    args = _parser().parse_args(argv)
    args.words = ["labkit", *(sys.argv[1:] if argv is None else argv)]
    try:
        status: int = args.run(args)
        return status
    except KeyboardInterrupt:
        print("labkit: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return OK  # whoever reads the output has closed it
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError) as error:
        if args.debug:
            raise
        print(f"labkit: {error}", file=sys.stderr)
        return WRONG


def _parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="labkit",
        description="Predict, then measure on this machine, how llama.cpp runs a model.",
        epilog=f"MODEL is {MODEL}. Exit status: 0 done, 1 the answer is no, 2 wrong usage or bad input.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        text = cleandoc(command.__doc__ or "")
        one = commands.add_parser(command.__name__.rpartition(".")[2], help=text.partition("\n")[0], description=text)
        one.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if command is not start:
            one.add_argument("--json", action="store_true", help="print the result as JSON")
        command.options(one)
        one.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
