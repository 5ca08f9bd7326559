"""`pyreplog ha append` and `pyreplog ha read`: use a replica group as a client."""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyreplog import ha
from pyreplog.cli.cat import add_printing, printer
from pyreplog.cli.input import formats
from pyreplog.cli.input.row_reader import RowReader
from pyreplog.cli.input.source import InputSource
from pyreplog.cli.shared import serving, tls
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.cli.shared.progress import progress
from pyreplog.errors import InvalidArgumentError
from pyreplog.future import AppendFuture
from pyreplog.ha import GroupClient

_BATCH_BYTES = 1 << 20


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("addresses", metavar="HOST:PORT[,...]", help="nodes of the group; one running node is enough")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret that all nodes share")
    parser.add_argument(
        "--timeout-ms", metavar="MS", type=int, default=30_000, help="for each request (default: 30000)"
    )
    tls.add_client_arguments(parser)


def _connect(arguments: argparse.Namespace) -> GroupClient:
    return ha.connect(
        arguments.addresses.split(","), secret=serving.secret(arguments.secret_file), tls=tls.client_context(arguments),
        timeout_ms=arguments.timeout_ms,
    )  # fmt: skip


# ---- append ----------------------------------------------------------------------------------------------------


def add_append_arguments(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("values", metavar="VALUE", nargs="*", help="entries (default: the lines of --file)")
    parser.add_argument(
        "--file", metavar="FILE", default="-", help="its lines are entries; - (default): standard input"
    )
    parser.add_argument("--key", metavar="KEY", help="key of all entries")
    parser.add_argument("--batch", metavar="N", type=int, default=4096, help="lines at a time, at most (default: 4096)")


def run_append(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.batch <= 1 << 16:
        raise InvalidArgumentError(f"--batch: expected 1 to {1 << 16}, found {arguments.batch}")
    began = time.monotonic()
    with _connect(arguments) as client:
        appending = _Appending(client, None if arguments.key is None else os.fsencode(arguments.key))
        if arguments.values:
            appending.send([os.fsencode(value) for value in arguments.values])
        else:
            for lines in _lines(arguments, appending):
                appending.send(lines)
        appending.finish()
    _report(appending, arguments, time.monotonic() - began)
    return 0


class _Appending:
    """Batches that are being appended. first, last: numbers of the first and the last entry so far; None: none yet."""

    def __init__(self, client: GroupClient, key: bytes | None) -> None:
        self._client, self._key = client, key
        self._pending: deque[AppendFuture[Sequence[int]]] = deque()
        self.entries = self.bytes = 0
        self.first: int | None = None
        self.last: int | None = None

    def send(self, values: list[bytes]) -> None:
        """Append values in batches that fit a request. Raises the errors of `GroupClient.submit_batch`."""
        batch: list[bytes] = []
        size = 0
        for value in values:
            if batch and size + len(value) > _BATCH_BYTES:
                self._submit(batch)
                batch, size = [], 0
            batch.append(value)
            size += len(value)
        self._submit(batch)

    def _submit(self, values: list[bytes]) -> None:
        keys = None if self._key is None else [self._key] * len(values)
        self._pending.append(self._client.submit_batch(values, keys))
        self.bytes += sum(map(len, values))
        while self._pending and self._pending[0].done():
            self._settle()

    def finish(self) -> None:
        """Wait until all entries are committed."""
        while self._pending:
            self._settle()

    def _settle(self) -> None:
        numbers = self._pending.popleft().result()
        if numbers:
            self.entries += len(numbers)
            self.first = numbers[0] if self.first is None else self.first
            self.last = numbers[-1]


def _lines(arguments: argparse.Namespace, appending: _Appending) -> Iterator[list[bytes]]:
    with InputSource(arguments.file, None) as source:
        reader = RowReader(source, formats.of("lines", formats.ColumnMapping()))
        with progress(Path(source.label).name, start=0, total=source.size) as shown:
            while lines := reader.take(arguments.batch)[1].rows:
                yield lines
                shown.update(source.place.offset, appending.entries)


def _report(appending: _Appending, arguments: argparse.Namespace, seconds: float) -> None:
    if arguments.json:
        print_json({
            "entries": appending.entries, "first": appending.first, "last": appending.last, "bytes": appending.bytes,
            "seconds": round(seconds, 6),
        })  # fmt: skip
        return
    place = "" if appending.first is None else f", {appending.first:,} to {appending.last:,}"
    say(f"{counted(appending.entries, 'entry')}{place}; {amount(appending.bytes)} in {duration(seconds)}")


# ---- read ------------------------------------------------------------------------------------------------------


def add_read_arguments(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument(
        "--from", metavar="N", type=int, dest="start", help="first entry (default: the first of the log)"
    )
    parser.add_argument("--to", metavar="N", type=int, dest="stop", help="entry to stop before (default: the end)")
    parser.add_argument("-f", "--follow", action="store_true", help="continue with entries as they are committed")
    add_printing(parser)


def run_read(arguments: argparse.Namespace) -> int:
    if arguments.follow and arguments.stop is not None:
        raise InvalidArgumentError("--follow: expected without --to, found with it")
    records = printer(arguments)
    with _connect(arguments) as client:
        if arguments.follow:
            start = client.start() if arguments.start is None else arguments.start
            for batch in client.follow_batches(start):
                records.print(batch)
                records.flush()
        for batch in () if arguments.follow else client.read(arguments.start, arguments.stop):
            records.print(batch)
    return 0
