"""Reads rows of a source, as many at a time as one append takes."""

from __future__ import annotations

from pyreplog.cli.input.formats import Format
from pyreplog.cli.input.rows import LINE_MAX, Rows
from pyreplog.cli.input.source import InputSource, MalformedRowError, SourcePosition


class RowReader:
    """Reads a source from the end of its header on. Not thread-safe."""

    def __init__(self, source: InputSource, form: Format) -> None:
        self._source, self.form = source, form
        self._block = Rows([])
        self._at = 0
        while (length := form.begin(source.pending, source.at_end)) is None:
            source.fill()
        source.consume(length)

    def take(self, limit: int) -> tuple[SourcePosition, Rows]:
        """Return the next rows, at most `limit`, and where they begin; no rows at the end of the source.

        Raises MalformedRowError for a line that is too long.
        """
        if self._at == len(self._block):
            self._block, self._at = self._read(), 0
        place = self._source.place
        rows = self._block.part(self._at, self._at + limit)
        self._at += len(rows)
        self._source.consume(rows.length)
        return place, rows

    def _read(self) -> Rows:
        while True:
            data = self._source.pending
            self._check_tail(data)
            block = self.form.parse(data, self._source.at_end)
            if len(block) or self._source.at_end:
                self._check_rows(block)
                return block
            self._source.fill()

    def _check_tail(self, data: bytes) -> None:
        """Refuse an endless last line before it fills the memory."""
        start = data.rfind(b"\n") + 1
        if len(data) - start > LINE_MAX:
            raise self.fault(self._source.place.after(data[:start]), *_too_long(len(data) - start))

    def _check_rows(self, block: Rows) -> None:
        if max(map(len, block.rows), default=0) > LINE_MAX:
            row = next(i for i, row in enumerate(block.rows) if len(row) > LINE_MAX)
            raise self.fault(place_of(self._source.place, block, row), *_too_long(len(block.rows[row])))

    def fault(self, place: SourcePosition, expected: str, found: str) -> MalformedRowError:
        return MalformedRowError(self._source.label, place.line, place.offset, expected, found)


def place_of(place: SourcePosition, rows: Rows, row: int) -> SourcePosition:
    """Return where a row begins, of rows that begin at `place`."""
    return place.after(b"".join(each + b"\n" for each in rows.rows[:row]))


def _too_long(length: int) -> tuple[str, str]:
    return f"a line of at most {LINE_MAX} bytes", f"{length} bytes or more"
