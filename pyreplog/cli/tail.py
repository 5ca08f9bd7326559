"""`pyreplog tail`: print the last entries, and those to come."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pyreplog
from pyreplog import LogReader
from pyreplog._native.batch import RecordBatch
from pyreplog.cli.cat import add_printing, printer
from pyreplog.errors import InvalidArgumentError
from pyreplog.log import names

NAME = "tail"
HELP = "print the last entries of a log, and with -f those to come"

_LOOK_S = 1.0  # how often a follower of a log without a writer looks whether there is one now


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log")
    parser.add_argument("-n", metavar="N", type=int, default=10, dest="count", help="how many entries (default: 10)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with entries as they are appended")
    add_printing(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.count < 0:
        raise InvalidArgumentError(f"-n: expected at least 0, found {arguments.count}")
    records = printer(arguments)
    path = Path(arguments.log)
    with pyreplog.open(path, "r") as log:
        stop = log.end
        for batch in log.scan(max(log.start, stop - arguments.count), stop):
            records.print(batch)
    records.flush()
    if arguments.follow:
        for batch in follow(path, stop):
            records.print(batch)
            records.flush()
    return 0


def follow(path: Path, entry: int) -> Iterator[RecordBatch]:
    """Batches from `entry` on, for ever, over whatever writers come and go."""
    while True:
        opened = _writers(path)
        with pyreplog.open(path, "r") as log:
            while log.live or _writers(path) == opened:
                for batch in _new(log, entry):
                    entry = batch[-1].entry + 1
                    yield batch


def _new(log: LogReader, entry: int) -> Iterator[RecordBatch]:
    return log.follow_batches(entry, timeout=_LOOK_S)


def _writers(path: Path) -> int:
    """A number that changes when a writer opens the log."""
    return (path / names.CHECKPOINT).stat().st_mtime_ns
