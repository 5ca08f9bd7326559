"""The `pyreplog` command: a parser, and one module per command.

A command module has NAME, HELP, add_arguments(parser) and run(arguments) -> exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from pyreplog import __version__
from pyreplog.cli import (
    backup,
    bench,
    bookie,
    cat,
    cluster,
    dump,
    fsck,
    ha,
    ingest,
    ledger,
    restore,
    serve,
    stat,
    subscription,
    tail,
    top,
    topic,
)
from pyreplog.errors import ReplogError

COMMANDS = (
    ingest,
    cat,
    tail,
    stat,
    fsck,
    bench,
    dump,
    backup,
    restore,
    ledger,
    cluster,
    bookie,
    ha,
    topic,
    subscription,
    serve,
    top,
)

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="pyreplog", description="A commit log in a directory: fill, read, check, explain."
    )
    made.add_argument("--version", action="version", version=f"pyreplog {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        one = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        one.add_argument("--json", action="store_true", help="print JSON on standard output")
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code. What goes wrong is one line on standard error."""
    logging.basicConfig(format="pyreplog: %(message)s", level=logging.WARNING)
    arguments = parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except ReplogError as error:
        print(f"pyreplog: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        print(f"pyreplog: {error}", file=sys.stderr)
        return ReplogError.exit_code
