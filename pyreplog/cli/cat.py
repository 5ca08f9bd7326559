"""`pyreplog cat`: print entries."""

from __future__ import annotations

import argparse

import pyreplog
from pyreplog.cli.shared.output import RecordPrinter
from pyreplog.cli.shared.partition_records import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    PartitionRecords,
    ShownRecordPrinter,
    partition_reader,
)

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
    parser.add_argument(
        "--isolation", choices=(READ_UNCOMMITTED, READ_COMMITTED), default=READ_UNCOMMITTED,
        help="of a partition's log: up to the high watermark (default), or up to the last stable offset and without "
        "aborted transactions",
    )  # fmt: skip


def printer(arguments: argparse.Namespace) -> RecordPrinter:
    """Return the printer that the arguments select."""
    return RecordPrinter(as_json=arguments.json or arguments.format == "json", keys=arguments.keys)


def partition_printer(arguments: argparse.Namespace) -> ShownRecordPrinter:
    """Return the printer of a partition's records that the arguments select."""
    return ShownRecordPrinter(as_json=arguments.json or arguments.format == "json", keys=arguments.keys)


def run(arguments: argparse.Namespace) -> int:
    records = printer(arguments)
    with pyreplog.open(arguments.log, "r") as log:
        reader = partition_reader(log)
        if reader is not None:
            shown = partition_printer(arguments)
            for record in PartitionRecords(log, reader, arguments.isolation).read(arguments.start, arguments.stop):
                shown.print(record)
            return 0
        for batch in log.read(arguments.start, arguments.stop):
            records.print(batch)
    return 0
