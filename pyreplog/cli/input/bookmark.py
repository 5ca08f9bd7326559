"""Bookmarks: how far a source is ingested, stored in the log itself.

Every batch is appended after a control record, in the same call, that says where in the source the batch begins. A kill
or a power cut leaves a prefix of the log, and so of the last batch the control record and some of its first entries:
ingestion continues at the beginning of the batch, after as many rows as there are entries. No second file has to be
kept consistent, and a cut or a copy of the log takes the bookmarks along.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyreplog.cli.input.source import SourcePosition
from pyreplog.log import CommitLog, LogReader

_MARK = b'{"ingest":1,'

Settings = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Bookmark:
    """The control record of one batch.

    source: name of the source; None: it is not resumed. place: where the batch begins in the source. count: entries of
    the batch. entries, skipped: rows of the source before the batch that became entries, or were malformed. settings:
    how rows become entries; the next run must use the same. unseen: wanted columns that no row before the batch has.
    """

    source: str | None
    place: SourcePosition
    count: int
    entries: int
    skipped: int
    settings: Settings
    unseen: tuple[str, ...] = ()

    def encode(self) -> bytes:
        fields = {
            "ingest": 1, "source": self.source, "offset": self.place.offset, "line": self.place.line,
            "crc32c": self.place.crc, "count": self.count, "entries": self.entries, "skipped": self.skipped,
            "settings": self.settings, "unseen": self.unseen,
        }  # fmt: skip
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Bookmark | None:
        """Return the bookmark in a control record; None: it is another control record."""
        if not data.startswith(_MARK):
            return None
        fields = json.loads(data)
        return cls(
            source=fields["source"], place=SourcePosition(fields["offset"], fields["line"], fields["crc32c"]),
            count=fields["count"], entries=fields["entries"], skipped=fields["skipped"], settings=fields["settings"],
            unseen=tuple(fields.get("unseen", ())),
        )  # fmt: skip


@dataclass(frozen=True)
class Resumption:
    """Where to continue: the log has `stored` entries of the bookmark's batch, from number `first` on."""

    bookmark: Bookmark
    first: int
    stored: int


def find(log: CommitLog | LogReader, source: str, segment_bytes: int) -> Resumption | None:
    """Return the last bookmark of a source; None: there is none.

    Searches the log from its end, one segment at a time, so that an interrupted ingestion is found at once, and a new
    source costs a scan of the log.
    """
    following = log.end
    last = log.end_position // segment_bytes * segment_bytes
    for base in range(last, log.start_position - 1, -segment_bytes):
        batches = log.read_positions(base, base + segment_bytes, all_kinds=True)
        records = [batch[i] for batch in batches for i in (batch.kind > 2).nonzero()[0].tolist()]
        for record in reversed(records):
            mark = Bookmark.decode(record.value)
            if mark is not None and mark.source == source:
                # Entries that another program appended after a complete batch do not belong to it.
                return Resumption(mark, record.entry, min(following - record.entry, mark.count))
            following = record.entry
    return None
