"""The `pyreplog` command: a parser, and one module per command, imported when it is used: some need much else.

A command module has NAME, HELP, add_arguments(parser) and run(arguments) -> exit code.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from pyreplog import __version__
from pyreplog.cli import EXIT_INTERRUPTED
from pyreplog.errors import ReplogError

COMMANDS = (
    "ingest",
    "cat",
    "tail",
    "stat",
    "fsck",
    "bench",
    "dump",
    "backup",
    "restore",
    "offload",
    "ledger",
    "cluster",
    "bookie",
    "ha",
    "topic",
    "subscription",
    "serve",
    "top",
    "report",
    "export",
)
"""In the order in which they are listed; each is a module of this package."""

EXIT_BROKEN_PIPE = 141


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """For these commands; their modules are imported."""
    made = argparse.ArgumentParser(
        prog="pyreplog", description="A commit log in a directory: fill, read, check, explain."
    )
    made.add_argument("--version", action="version", version=f"pyreplog {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        command = import_module(f"pyreplog.cli.{name}")
        one = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        one.add_argument("--json", action="store_true", help="print JSON on standard output")
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    return made


def _needed(argv: Sequence[str]) -> Sequence[str]:
    """The commands that these arguments can mean: what is no command gets help that lists them all."""
    if argv[:1] == ["--version"]:
        return ()
    return argv[:1] if argv and argv[0] in COMMANDS else COMMANDS


def _mend_streams() -> None:
    """What a command prints can be printed, whatever its streams are."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # closed: else the next file that is opened, one of a log, has its number
            while (opened := os.open(os.devnull, os.O_RDWR)) < number:
                continue
            setattr(sys, name, os.fdopen(opened, "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the locale's encoding does not have


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code. What goes wrong is one line on standard error."""
    _mend_streams()
    logging.basicConfig(format="pyreplog: %(message)s", level=logging.WARNING)
    given = sys.argv[1:] if argv is None else argv
    try:
        arguments = parser(_needed(given)).parse_args(given)
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
