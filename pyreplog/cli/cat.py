"""`pyreplog cat`: print entries."""

from __future__ import annotations

import argparse

import pyreplog
from pyreplog.cli.shared.output import RecordPrinter

NAME = "cat"
HELP = "print the entries of a log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log")
    parser.add_argument(
        "--from", metavar="N", type=int, dest="start", help="first entry (default: the first of the log)"
    )
    parser.add_argument("--to", metavar="N", type=int, dest="stop", help="entry to stop before (default: the end)")
    add_printing(parser)


def add_printing(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select how records are printed."""
    parser.add_argument("--keys", action="store_true", help="print key and a tab before each value")
    parser.add_argument(
        "--format", choices=("raw", "json"), default="raw",
        help="raw (default): the value and a line feed; json (as --json): one object a line",
    )  # fmt: skip


def printer(arguments: argparse.Namespace) -> RecordPrinter:
    """Return the printer that the arguments select."""
    return RecordPrinter(as_json=arguments.json or arguments.format == "json", keys=arguments.keys)


def run(arguments: argparse.Namespace) -> int:
    records = printer(arguments)
    with pyreplog.open(arguments.log, "r") as log:
        for batch in log.read(arguments.start, arguments.stop):
            records.print(batch)
    return 0
