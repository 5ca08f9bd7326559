"""`pyreplog topic publish`: publish arguments, or the lines of a file or of standard input."""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyreplog.cli.input import formats
from pyreplog.cli.input.row_reader import RowReader
from pyreplog.cli.input.source import InputSource
from pyreplog.cli.shared import targets
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.cli.shared.progress import progress
from pyreplog.errors import InvalidArgumentError
from pyreplog.future import AppendFuture
from pyreplog.topic.model.positions import PartitionRange


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_topic_arguments(parser)
    parser.add_argument("values", metavar="VALUE", nargs="*", help="messages (default: the lines of --file)")
    parser.add_argument(
        "--file", metavar="FILE", default="-", help="its lines are messages; - (default): standard input"
    )
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key", metavar="KEY", help="key of all messages")
    keys.add_argument("--key-separator", metavar="TEXT", help="text that separates the key of a message from its value")
    add_properties(parser, "property of all messages")
    parser.add_argument("--producer", metavar="NAME", help="name of the producer")
    clusters = parser.add_mutually_exclusive_group()
    clusters.add_argument(
        "--replicate-to", metavar="CLUSTER", action="append",
        help="name of the only other cluster to which all messages are replicated; may be repeated",
    )  # fmt: skip
    clusters.add_argument(
        "--no-replication", action="store_const", const=[], dest="replicate_to",
        help="replicate the messages to no other cluster",
    )  # fmt: skip
    parser.add_argument("--batch", metavar="N", type=int, default=4096, help="lines at a time, at most (default: 4096)")


def add_properties(parser: argparse.ArgumentParser, whose: str) -> None:
    parser.add_argument(
        "--property", metavar="NAME=VALUE", action="append", default=[], dest="properties",
        help=f"{whose}; may be repeated",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.batch <= 1 << 20:
        raise InvalidArgumentError(f"--batch: expected 1 to {1 << 20}, found {arguments.batch}")
    began = time.monotonic()
    with targets.topic(arguments) as topic:
        publishing = Publishing(topic if arguments.producer is None else topic.producer(arguments.producer), arguments)
        for values in [list(map(os.fsencode, arguments.values))] if arguments.values else _lines(arguments, publishing):
            publishing.send(values)
        publishing.finish()
    _report(publishing, arguments, time.monotonic() - began)
    return 0


def properties(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the values of `--property`. Raises InvalidArgumentError."""
    values = {}
    for item in arguments.properties:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise InvalidArgumentError(f"--property: expected NAME=VALUE, found {item!r}")
        values[name] = value
    return values


class Publishing:
    """Batches that are being published. to: a topic or a producer.

    first, last: offsets of the first and the last message so far; None: none yet, or each of `partitions` has its own.
    """

    def __init__(self, to: Any, arguments: argparse.Namespace) -> None:
        self._to = to
        self._key = None if arguments.key is None else os.fsencode(arguments.key)
        self._separator = None if arguments.key_separator is None else os.fsencode(arguments.key_separator)
        self._properties = properties(arguments)
        self._replicate_to: list[str] | None = arguments.replicate_to
        self._pending: deque[AppendFuture[range] | AppendFuture[list[PartitionRange]]] = deque()
        self.messages = self.bytes = 0
        self.partitions: set[int] = set()
        self.first: int | None = None
        self.last: int | None = None
        if self._separator == b"":
            raise InvalidArgumentError("--key-separator: expected a text, found an empty one")

    def send(self, lines: list[bytes]) -> None:
        """Publish lines. Raises the errors of `Publisher.publish`."""
        keys, values = self._split(lines)
        properties_of_each = [self._properties] * len(values) if self._properties else None
        self._pending.append(
            self._to.submit_batch(values, keys, properties=properties_of_each, replicate_to=self._replicate_to)
        )
        self.bytes += sum(map(len, values))
        while self._pending and self._pending[0].done():
            self._settle()

    def finish(self) -> None:
        """Wait until all messages are confirmed."""
        while self._pending:
            self._settle()

    def _split(self, lines: list[bytes]) -> tuple[list[bytes | None] | None, list[bytes]]:
        if self._separator is None:
            return None if self._key is None else [self._key] * len(lines), lines
        parts = [line.partition(self._separator) for line in lines]
        keys = [key if separator else None for key, separator, _ in parts]
        return keys, [value if separator else line for line, separator, value in parts]

    def _settle(self) -> None:
        stored: Any = self._pending.popleft().result()
        if not stored:
            return
        if isinstance(stored[0], PartitionRange):
            self.messages += sum(len(part.offsets) for part in stored)
            self.partitions |= {part.partition for part in stored}
        else:
            self.messages += len(stored)
            self.first = stored[0] if self.first is None else self.first
            self.last = stored[-1]


def _lines(arguments: argparse.Namespace, publishing: Publishing) -> Iterator[list[bytes]]:
    with InputSource(arguments.file, None) as source:
        reader = RowReader(source, formats.of("lines", formats.ColumnMapping()))
        with progress(Path(source.label).name, start=0, total=source.size) as shown:
            while lines := reader.take(arguments.batch)[1].rows:
                yield lines
                shown.update(source.place.offset, publishing.messages)


def _report(publishing: Publishing, arguments: argparse.Namespace, seconds: float) -> None:
    done = publishing
    if arguments.json:
        where = {"partitions": sorted(done.partitions)} if done.partitions else {}
        print_json({
            "topic": arguments.topic, "messages": done.messages, "first": done.first, "last": done.last, **where,
            "bytes": done.bytes, "seconds": round(seconds, 6),
        })  # fmt: skip
        return
    place = "" if done.first is None else f", offsets {done.first:,} to {done.last:,}"
    place += f", to {counted(len(done.partitions), 'partition')}" if done.partitions else ""
    rate = f"{amount(done.bytes)} in {duration(seconds)}, {done.bytes / seconds / 1e6:.1f} MB/s"
    say(f"{arguments.topic}: {counted(done.messages, 'message')}{place}; {rate}")
