"""The formats of `ingest`: how bytes become rows, with keys and event times.

`begin` returns the number of bytes before the first row (None: read more and ask again). `parse` takes all complete
rows of what was read; the last row of the source needs no line feed. Which rows are malformed depends only on their
bytes, not on how these were cut into blocks, so that a resumed run counts the same rows.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from pyreplog.cli.input import event_time
from pyreplog.cli.input.rows import KEY_MAX, LINE_MAX, RowFault, Rows
from pyreplog.cli.shared.output import plural
from pyreplog.errors import InvalidArgumentError

BOM = b"\xef\xbb\xbf"
FORMATS = ("lines", "csv", "jsonl")

Dropped = dict[int, RowFault | None]

csv.field_size_limit(LINE_MAX)


@dataclass(frozen=True)
class ColumnMapping:
    """The columns that become key and event time; several columns of an event time are joined by blanks."""

    key: str | None = None
    event_time: tuple[str, ...] = ()
    event_time_format: str = "iso"


class Format(Protocol):
    header: list[str]
    """Names of the columns, if the source begins with them."""
    unseen: set[str]
    """Wanted columns that no row has had so far."""

    def begin(self, data: bytes, at_end: bool) -> int | None: ...
    def parse(self, data: bytes, at_end: bool) -> Rows: ...


def of(name: str, columns: ColumnMapping) -> Format:
    """Return the format with a name in FORMATS. Raises InvalidArgumentError if it cannot have the columns."""
    if name == "csv":
        return Csv(columns)
    if name == "jsonl":
        return JsonLines(columns)
    if columns.key is not None or columns.event_time:
        raise InvalidArgumentError("--key and --event-time name columns, which lines do not have: use csv or jsonl")
    return Lines()


def _split(data: bytes, at_end: bool) -> list[bytes]:
    """Return the complete lines of `data`, without their line feeds."""
    lines = data.split(b"\n")
    if not at_end or not lines[-1]:
        lines.pop()
    return lines


class Lines:
    """Every line is a row, whatever it contains; an empty line is an empty value."""

    def __init__(self) -> None:
        self.header: list[str] = []
        self.unseen: set[str] = set()

    def begin(self, data: bytes, at_end: bool) -> int | None:
        return 0

    def parse(self, data: bytes, at_end: bool) -> Rows:
        return Rows(_split(data, at_end))


class _Columned:
    """Makes keys and event times from the texts of columns."""

    def __init__(self, columns: ColumnMapping) -> None:
        self.header: list[str] = []
        self.unseen: set[str] = set()
        self._columns = columns
        self._time = event_time.parser(columns.event_time_format)

    def _keys(self, texts: Sequence[str], dropped: Dropped) -> list[bytes | None]:
        """Return the keys of rows; an empty text is no key."""
        try:
            keys: list[bytes | None] = [text.encode("utf-8", "surrogateescape") or None for text in texts]
        except UnicodeEncodeError:
            keys = [self._key_or_fault(i, text, dropped) for i, text in enumerate(texts)]
        if max(map(len, texts), default=0) > KEY_MAX // 4:  # a character is at most 4 bytes
            for i, key in enumerate(keys):
                if key is not None and len(key) > KEY_MAX:
                    dropped.setdefault(i, RowFault(f"a key of at most {KEY_MAX} bytes", f"{len(key)} bytes"))
                    keys[i] = None
        return keys

    def _key_or_fault(self, row: int, text: str, dropped: Dropped) -> bytes | None:
        try:
            return text.encode("utf-8", "surrogateescape") or None
        except UnicodeEncodeError:
            dropped.setdefault(row, RowFault("a key of Unicode characters", ascii(text[:80])))
            return None

    def _times(self, texts: Sequence[str], dropped: Dropped) -> list[int | None]:
        try:
            return list(map(self._time, texts))
        except ValueError:
            return [self._time_or_fault(i, text, dropped) for i, text in enumerate(texts)]

    def _time_or_fault(self, row: int, text: str, dropped: Dropped) -> int | None:
        try:
            return self._time(text)
        except ValueError:
            expected = f"an event time of format {self._columns.event_time_format}"
            dropped.setdefault(row, RowFault(expected, repr(text[:80])))
            return None


class Csv(_Columned):
    """Comma-separated rows after a header row. A quoted field may contain commas, doubled quotes and line feeds."""

    def __init__(self, columns: ColumnMapping) -> None:
        super().__init__(columns)
        self._key = -1
        self._event_time: list[int] = []

    def begin(self, data: bytes, at_end: bool) -> int | None:
        length = len(BOM) if data.startswith(BOM) else 0
        rows, table, faults = _csv_rows(data[length:], at_end)
        for i, row in enumerate(rows):
            length += len(row) + 1
            if i in faults:
                raise InvalidArgumentError(f"header: expected a CSV row, found {row[:80]!r}")
            if table[i]:
                self._take_header(table[i])
                return length
        return len(data) if at_end else None

    def _take_header(self, header: list[str]) -> None:
        def index(column: str) -> int:
            if header.count(column) != 1:
                raise InvalidArgumentError(
                    f"column {column!r}: expected one of that name, found {header.count(column)} in {', '.join(header)}"
                )
            return header.index(column)

        self.header = header
        self._key = index(self._columns.key) if self._columns.key is not None else -1
        self._event_time = [index(column) for column in self._columns.event_time]

    def parse(self, data: bytes, at_end: bool) -> Rows:
        rows, table, dropped = _csv_rows(data, at_end)
        width, blank = len(self.header), [""] * len(self.header)
        for i, fields in enumerate(table):
            if len(fields) != width:
                dropped.setdefault(
                    i, RowFault(f"{width} {plural(width, 'column')}", f"{len(fields)}") if fields else None
                )
                table[i] = blank
        keys = self._keys([fields[self._key] for fields in table], dropped) if self._key >= 0 else None
        times = self._times(self._time_texts(table), dropped) if self._event_time else None
        return Rows(rows, keys, times, dropped)

    def _time_texts(self, table: list[list[str]]) -> list[str]:
        if len(self._event_time) == 1:
            return [fields[self._event_time[0]] for fields in table]
        return [" ".join([fields[i] for i in self._event_time]) for fields in table]


def _csv_rows(data: bytes, at_end: bool) -> tuple[list[bytes], list[list[str]], Dropped]:
    """Return the complete rows in `data`, their fields (none for a blank line), and the malformed rows."""
    lines = _split(data, at_end)
    texts = data.decode("utf-8", "surrogateescape").split("\n")[: len(lines)]
    if b'"' not in data:  # every line is a row
        with suppress(csv.Error):
            return lines, list(csv.reader(texts)), {}
    return _quoted_rows(lines, [text + "\n" for text in texts], at_end)


def _quoted_rows(lines: list[bytes], texts: list[str], at_end: bool) -> tuple[list[bytes], list[list[str]], Dropped]:
    """Return rows that may take several lines, as _csv_rows does.

    If the csv module finds no row, or one that is too long, only the first line is malformed, so that an unclosed quote
    does not lose the rows after it.
    """
    rows: list[bytes] = []
    table: list[list[str]] = []
    faults: Dropped = {}
    at = base = 0
    reader = csv.reader(texts, strict=True)
    while at < len(lines):
        fault = None
        try:
            fields = next(reader)
        except csv.Error as error:
            fields, fault = [], RowFault("a CSV row", str(error))
        stop = base + reader.line_num
        row = b"\n".join(lines[at:stop])
        if fault is not None and stop == len(lines) and not at_end and len(row) <= LINE_MAX:
            break  # perhaps a quoted field that continues after what was read
        if stop > at + 1 and (fault is not None or len(row) > LINE_MAX):
            row, fields, fault = lines[at], [], fault or RowFault("a CSV row", "a quote that is not closed")
            stop = base = at + 1
            reader = csv.reader(islice(texts, stop, None), strict=True)
        if fault is not None:
            faults[len(rows)] = fault
        rows.append(row)
        table.append(fields)
        at = stop
    return rows, table, faults


class JsonLines(_Columned):
    """One JSON value in each line; blank lines are allowed between them."""

    def __init__(self, columns: ColumnMapping) -> None:
        super().__init__(columns)
        decoder = json.JSONDecoder(parse_int=str, parse_float=str)  # numbers keep their digits
        self._decode: Callable[[str], Any] = decoder.decode
        self._wanted = {*columns.event_time} | ({columns.key} if columns.key is not None else set())
        self.unseen = set(self._wanted)

    def begin(self, data: bytes, at_end: bool) -> int | None:
        if len(data) < len(BOM) and not at_end:
            return None
        return len(BOM) if data.startswith(BOM) else 0

    def parse(self, data: bytes, at_end: bool) -> Rows:
        rows, dropped = _split(data, at_end), Dropped()
        objects = [self._object(i, row, dropped) for i, row in enumerate(rows)]
        keys = times = None
        if self._columns.key is not None:
            keys = self._keys(self._texts(objects, self._columns.key, dropped), dropped)
        if self._columns.event_time:
            parts = [self._texts(objects, column, dropped) for column in self._columns.event_time]
            times = self._times(parts[0] if len(parts) == 1 else list(map(" ".join, zip(*parts, strict=True))), dropped)
        return Rows(rows, keys, times, dropped)

    def _object(self, i: int, row: bytes, dropped: Dropped) -> dict[str, Any]:
        try:
            value = self._decode(row.decode())
        except (ValueError, RecursionError) as error:
            dropped[i] = RowFault("a JSON value", str(error)) if row.strip() else None
            return {}
        if isinstance(value, dict):
            return value
        if self._wanted:
            dropped[i] = RowFault("a JSON object", repr(row[:80]))
        return {}

    def _texts(self, objects: list[dict[str, Any]], column: str, dropped: Dropped) -> list[str]:
        """Return the values of a column as text; "" if it is missing or null."""
        if column in self.unseen and any(column in each for each in objects):
            self.unseen.discard(column)
        values: list[Any] = [each.get(column) for each in objects]
        if set(map(type, values)) == {str}:
            return values
        return [self._text(i, value, column, dropped) for i, value in enumerate(values)]

    def _text(self, row: int, value: Any, column: str, dropped: Dropped) -> str:
        if isinstance(value, dict | list):
            dropped.setdefault(row, RowFault(f"a text or a number in {column!r}", type(value).__name__))
        if isinstance(value, str):
            return value
        return "" if value is None else str(value).lower()
