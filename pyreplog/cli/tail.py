"""`pyreplog tail`: print the last entries, and new ones."""

from __future__ import annotations

import argparse

import pyreplog
from pyreplog.cli.cat import add_printing, partition_printer, printer
from pyreplog.cli.shared.partition_records import PartitionRecords, partition_reader
from pyreplog.errors import InvalidArgumentError
from pyreplog.log import LogReader

NAME = "tail"
HELP = "print the last entries of a log, and with -f new ones"

_WAIT_US = 200_000


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
        reader = partition_reader(log)
        if reader is not None:
            _tail_partition(arguments, log, PartitionRecords(log, reader, arguments.isolation))
            return 0
        stop = log.end
        for batch in log.read(max(log.start, stop - arguments.count), stop):
            records.print(batch)
        records.flush()
        if arguments.follow:
            for batch in log.follow_batches(stop):
                records.print(batch)
                records.flush()
    return 0


def _tail_partition(arguments: argparse.Namespace, log: LogReader, records: PartitionRecords) -> None:
    """Print the last offsets of a partition, of which markers and aborted records take some, and go on behind them."""
    shown, stop = partition_printer(arguments), records.end
    for record in records.read(max(log.start, stop - arguments.count), stop):
        shown.print(record)
    shown.flush()
    while arguments.follow:
        visible = log.end_position
        end = records.end
        if end == stop:
            log.wait_growth(visible, _WAIT_US)
            continue
        for record in records.read(stop, end):
            shown.print(record)
        shown.flush()
        stop = end
