"""`pyreplog ingest`: append the rows of a file or of standard input to a log, each row once."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pyreplog
from pyreplog.cli.input import bookmark, formats
from pyreplog.cli.input.bookmark import Bookmark, Settings
from pyreplog.cli.input.row_reader import RowReader, place_of
from pyreplog.cli.input.rows import RowFault, Rows
from pyreplog.cli.input.source import InputSource, MalformedRowError, SourceChangedError, SourcePosition
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.cli.shared.progress import ProgressBar, progress
from pyreplog.config import DURABILITIES
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import InvalidArgumentError
from pyreplog.log import CommitLog

NAME = "ingest"
HELP = "append the rows of a file or of standard input; run it again to continue after an interruption"

_SHOWN_FAULTS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log; created if needed")
    parser.add_argument(
        "file", metavar="SOURCE", nargs="?", default="-", help="file to read; - (default): standard input"
    )
    parser.add_argument(
        "--format", choices=formats.FORMATS, default="lines", help="format of the rows (default: lines)"
    )
    parser.add_argument("--key", metavar="COLUMN", help="column that becomes the entry's key")
    parser.add_argument(
        "--event-time", metavar="COLUMN", action="append", default=[],
        help="column that becomes the entry's event time; if repeated, the columns are joined by blanks",
    )  # fmt: skip
    parser.add_argument(
        "--event-time-format", metavar="FORMAT", default="iso",
        help="iso (default), s, ms or us since 1970, or a strptime format; UTC if it has no offset",
    )  # fmt: skip
    parser.add_argument(
        "--source", metavar="NAME",
        help="name of the source in the log (default: the path of the file; standard input without a name is "
        "appended again each time)",
    )  # fmt: skip
    parser.add_argument(
        "--durability", choices=DURABILITIES, default="appended", help="durability of each append (default: appended)"
    )
    parser.add_argument("--batch", metavar="N", type=int, default=4096, help="rows per append, at most (default: 4096)")
    parser.add_argument(
        "--on-error", choices=("stop", "skip"), default="stop", help="what to do at a malformed row (default: stop)"
    )


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.batch <= 1 << 20:
        raise InvalidArgumentError(f"--batch: expected 1 to {1 << 20}, found {arguments.batch}")
    columns = formats.ColumnMapping(arguments.key, tuple(arguments.event_time), arguments.event_time_format)
    row_format = formats.of(arguments.format, columns)
    with InputSource(arguments.file, arguments.source) as source:
        rows = RowReader(source, row_format)
        settings: Settings = {
            "format": arguments.format, "key": columns.key, "event_time": list(columns.event_time),
            "event_time_format": columns.event_time_format, "header": row_format.header,
        }  # fmt: skip
        with pyreplog.open(arguments.log, durability=arguments.durability) as log:
            ingestion = Ingestion(log, source, rows, settings, arguments.batch, skip=arguments.on_error == "skip")
            _run(ingestion, arguments)
            ingestion.check_columns()
    return 0


def _run(ingestion: Ingestion, arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    try:
        ingestion.resume()
        already, start = ingestion.entries, ingestion.source.place.offset
        with progress(Path(ingestion.source.label).name, start=start, total=ingestion.source.size) as shown:
            ingestion.run(shown)
    except KeyboardInterrupt:
        say(f"pyreplog: interrupted with {counted(ingestion.entries, 'record')} in the log", file=sys.stderr)
        raise
    seconds = time.monotonic() - began
    length = ingestion.source.place.offset - start
    if arguments.json:
        print_json({
            "source": ingestion.source.name, "added": ingestion.entries - already, "already": already,
            "skipped": ingestion.skipped, "bytes": length, "seconds": round(seconds, 6),
            "mb_per_s": round(length / seconds / 1e6, 3), "end": ingestion.log.end,
        })  # fmt: skip
        return
    say(
        f"{ingestion.source.label}: {counted(ingestion.entries - already, 'record')} added, "
        f"{already:,} {'was' if already == 1 else 'were'} there already, {counted(ingestion.skipped, 'row')} skipped; "
        f"{amount(length)} in {duration(seconds)}, "
        f"{length / seconds / 1e6:.1f} MB/s"
    )


class Ingestion:
    """Appends one source to one log.

    entries, skipped: rows of the source so far that are entries of the log, and that were malformed.
    """

    def __init__(
        self, log: CommitLog, source: InputSource, rows: RowReader, settings: Settings, batch: int, *, skip: bool
    ) -> None:
        self.log, self.source = log, source
        self.entries = self.skipped = 0
        self._rows, self._settings, self._batch, self._skip = rows, settings, batch, skip

    def resume(self) -> None:
        """Skip the rows that an earlier run has appended.

        Raises SourceChangedError if the source does not begin with them, and InvalidArgumentError if settings differ
        that determine how rows become entries.
        """
        if self.source.name is None:
            return
        resumption = bookmark.find(self.log, self.source.name, self.log.stats().segment_bytes)
        if resumption is None:
            return
        mark = resumption.bookmark
        for name, value in mark.settings.items():
            if value != self._settings.get(name):
                raise InvalidArgumentError(
                    f"{self.source.label} was ingested with {name} {value!r} before, found {self._settings.get(name)!r}"
                )
        self.source.skip_to(mark.place)
        self.entries, self.skipped = mark.entries, mark.skipped
        self._rows.form.unseen.intersection_update(mark.unseen)
        self._match(resumption.first, resumption.stored)

    def _match(self, entry: int, count: int) -> None:
        """Skip the rows of `count` entries from `entry` on, and check that they are the same."""
        while count:
            place, rows = self._rows.take(min(count, self._batch))
            if rows.faults and not self._skip:
                raise self._error(place, rows, *rows.faults[0])
            values = rows.kept().rows
            stored = self.log[entry : entry + len(values)]
            if values != stored or not len(rows):
                raise self._changed(place, entry, values, stored)
            self._count(rows)
            entry, count = entry + len(values), count - len(values)

    def _changed(
        self, place: SourcePosition, entry: int, values: list[bytes], stored: list[bytes]
    ) -> SourceChangedError:
        row = next((i for i, (value, known) in enumerate(zip(values, stored, strict=True)) if value != known), 0)
        found_text = repr(values[row][:80]) if values else "its end"
        return SourceChangedError(
            f"{self.source.label} has changed since it was ingested: in the rows from line {place.line} on, expected "
            f"{self.log[entry + row][:80]!r} (entry {entry + row}), found {found_text}"
        )

    def run(self, shown: ProgressBar) -> None:
        """Append all rows.

        Raises MalformedRowError, after all rows before it were appended, and the errors of appends.
        """
        while True:
            place, rows = self._rows.take(self._batch)
            faults = rows.faults
            if faults and not self._skip:
                self._append(place, rows.part(0, faults[0][0]))
                raise self._error(place, rows, *faults[0])
            if not len(rows):
                return
            self._append(place, rows)
            shown.update(self.source.place.offset, self.entries)

    def check_columns(self) -> None:
        """Raise InvalidArgumentError if rows were ingested and none has a wanted column."""
        missing = sorted(self._rows.form.unseen)
        if missing and self.entries:
            raise InvalidArgumentError(
                f"{self.source.label}: no row has {' or '.join(map(repr, missing))}; "
                f"{counted(self.entries, 'record')} {'was' if self.entries == 1 else 'were'} appended without it"
            )

    def _append(self, place: SourcePosition, rows: Rows) -> None:
        kept = rows.kept()
        if len(kept):
            mark = Bookmark(
                source=self.source.name, place=place, count=len(kept), entries=self.entries, skipped=self.skipped,
                settings=self._settings, unseen=tuple(sorted(self._rows.form.unseen)),
            )  # fmt: skip
            with defer_sigint:
                self.log.append_batch(kept.rows, kept.keys, kept.times, control=mark.encode())
        for i, fault in rows.faults[: max(_SHOWN_FAULTS - self.skipped, 0)]:
            say(f"pyreplog: skipped: {self._error(place, rows, i, fault)}", file=sys.stderr)
        self._count(rows)

    def _count(self, rows: Rows) -> None:
        self.entries += len(rows) - len(rows.dropped)
        self.skipped += len(rows.faults)

    def _error(self, place: SourcePosition, rows: Rows, row: int, fault: RowFault) -> MalformedRowError:
        return self._rows.fault(place_of(place, rows, row), fault.expected, fault.found)
