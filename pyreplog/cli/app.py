"""The `pyreplog` command: a parser, and one module per command, imported when it is used: some need much else.

A command module has NAME, HELP, add_arguments(parser) and run(arguments) -> exit code. One that runs until it is told
to end has IS_SERVER: its log lines say when, and how bad it is.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module

from pyreplog import __version__
from pyreplog.cli import EXIT_INTERRUPTED
from pyreplog.cli.shared.output import say, shown
from pyreplog.cli.shared.parsers import CommandParser
from pyreplog.errors import ReplogError

COMMANDS = (
    "ingest",
    "cat",
    "tail",
    "stat",
    "cursor",
    "fsck",
    "bench",
    "dump",
    "backup",
    "restore",
    "offload",
    "ledger",
    "cluster",
    "bookie",
    "autorecovery",
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
    """Make the parser of these commands; their modules are imported."""
    made = CommandParser(prog="pyreplog", description="A commit log in a directory: fill, read, check, explain.")
    made.set_defaults(json=False)
    made.add_argument("--version", action="version", version=f"pyreplog {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        command = import_module(f"pyreplog.cli.{name}")
        one = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(one)
        one.set_defaults(run=command.run, is_server=getattr(command, "IS_SERVER", False))
    return made


def _needed(argv: Sequence[str]) -> Sequence[str]:
    """Return the commands that these arguments can mean; help that lists commands needs them all."""
    if argv[:1] == ["--version"]:
        return ()
    name = next((argument for argument in argv if argument != "--json"), None)
    return [name] if name in COMMANDS else COMMANDS


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
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
        finally:  # also when the arguments end the program: what is flushed at exit has nobody to catch its errors
            sys.stdout.flush()
            sys.stderr.flush()
        return code
    except BrokenPipeError:
        _let_go_of_pipes()
        return EXIT_BROKEN_PIPE


def _run(argv: Sequence[str]) -> int:
    try:
        arguments = parser(_needed(argv)).parse_args(argv)
        _log_lines(timed=arguments.is_server)
        return int(arguments.run(arguments))
    except ReplogError as error:
        say(f"pyreplog: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"pyreplog: {error}", file=sys.stderr)
        return ReplogError.exit_code


def _let_go_of_pipes() -> None:
    """Send the rest of the output nowhere: its reader has gone, and Python would complain again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _log_lines(*, timed: bool) -> None:
    """On standard error. timed: as of a server, in UTC."""
    handler = logging.StreamHandler()
    made = _OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s" if timed else "pyreplog: %(message)s")
    made.default_time_format, made.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    made.converter = time.gmtime
    handler.setFormatter(made)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class _OneLine(logging.Formatter):
    """A message may have a path in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return shown(super().formatMessage(record))
