"""The `pyreplog` command: a parser, and one module for each command, imported when the command is used.

A command module has NAME, HELP, add_arguments(parser) and run(arguments) -> exit code. A command that runs until it is
stopped has IS_SERVER: its log lines have a time and a level. Ctrl-C ends a command with exit code 130.
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
    "broker",
    "kafka",
    "partitions",
    "ha",
    "topic",
    "subscription",
    "geo",
    "serve",
    "top",
    "report",
    "export",
)
"""Names of the modules of this package, in the order in which they are listed."""

EXIT_BROKEN_PIPE = 141


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of these commands, whose modules are imported."""
    root = CommandParser(prog="pyreplog", description="Fill, read, check and serve logs, ledgers, topics, partitions.")
    root.set_defaults(json=False)
    root.add_argument("--version", action="version", version=f"pyreplog {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        command = import_module(f"pyreplog.cli.{name}")
        subparser = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run, is_server=getattr(command, "IS_SERVER", False))
    return root


def _needed(argv: Sequence[str]) -> Sequence[str]:
    """Return the commands that these arguments can mean. Help that lists commands needs all of them."""
    if argv[:1] == ["--version"]:
        return ()
    name = next((argument for argument in argv if argument != "--json"), None)
    return [name] if name in COMMANDS else COMMANDS


def _repair_streams() -> None:
    """Replace streams that are closed, and let those that cannot encode a character escape it."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # closed: the next opened file, such as one of a log, would get its number
            while (opened := os.open(os.devnull, os.O_RDWR)) < number:
                continue
            setattr(sys, name, os.fdopen(opened, "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # for names that the locale's encoding cannot represent


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code. An error is one line on standard error."""
    _repair_streams()
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
        finally:  # also if parsing ends the program: errors of the flush at exit could not be caught
            sys.stdout.flush()
            sys.stderr.flush()
        return code
    except BrokenPipeError:
        _discard_output()
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


def _discard_output() -> None:
    """Discard the remaining output, because its reader is gone; Python would complain at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _log_lines(*, timed: bool) -> None:
    """Log to standard error. timed: with time (UTC) and level, for servers."""
    handler = logging.StreamHandler()
    formatter = _OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s" if timed else "pyreplog: %(message)s")
    formatter.default_time_format, formatter.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class _OneLine(logging.Formatter):
    """Formats a message on one line, though it may quote any path."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return shown(super().formatMessage(record))
