"""`pyreplog tail`: print the last entries, and new ones."""

from __future__ import annotations

import argparse

import pyreplog
from pyreplog.cli.cat import add_printing, printer
from pyreplog.errors import InvalidArgumentError

NAME = "tail"
HELP = "print the last entries of a log, and with -f new ones"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log")
    parser.add_argument("-n", metavar="N", type=int, default=10, dest="count", help="number of entries (default: 10)")
    parser.add_argument("-f", "--follow", action="store_true", help="continue with entries as they are appended")
    add_printing(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.count < 0:
        raise InvalidArgumentError(f"-n: expected at least 0, found {arguments.count}")
    records = printer(arguments)
    with pyreplog.open(arguments.log, "r") as log:  # goes on when one writer closes and another opens the log
        stop = log.end
        for batch in log.read(max(log.start, stop - arguments.count), stop):
            records.print(batch)
        records.flush()
        if arguments.follow:
            for batch in log.follow_batches(stop):
                records.print(batch)
                records.flush()
    return 0
