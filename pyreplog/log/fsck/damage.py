"""Damage and FsckReport: the results of fsck."""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT, HEADER, RECORD, INDEX = "segment", "header", "record", "index"
CHECKPOINT, MARKER, PAGE = "checkpoint", "marker", "tail page"
"""Parts of a log: a whole segment (missing, of another log or base, of another size), its header, a record, an index
file, the checkpoint, the marker of a truncation, the tail page of an open log."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Stored bytes that are not the bytes that were written.

    Attributes:
        part: the damaged part: segment, header, record, index, checkpoint, marker or tail page.
        path: the damaged file.
        position: bytes from the beginning of the log; from the beginning of the file if the file is not a segment.
        expected: content that the format demands there.
        found: content of the file there.
        costs_entries: whether entries cannot be read because of the damage.
        entry: number of the first entry that cannot be read; None: unknown, or there is none.
        resumes: number of the first intact entry behind the damage; None: unknown, or there is none.
        intact_before: number of intact entries of the log before the damage.
        intact_after: number of intact entries of the log behind the damage.
    """

    part: str
    path: str
    position: int
    expected: str
    found: str
    costs_entries: bool
    entry: int | None
    resumes: int | None
    intact_before: int
    intact_after: int


@dataclass(frozen=True, kw_only=True)
class FsckReport:
    """The result of a verification.

    Attributes:
        path: directory of the log.
        uuid: identity of the log.
        segment_bytes: size of a segment file, bytes.
        writer: process that has the log open; 0: its id is unknown; None: no process.
        segments: number of segment files.
        indexes: number of index files.
        verified_bytes: bytes that were verified.
        start: number of the first entry; None: unknown.
        end: number of the last entry, plus one; None: unknown.
        start_position: position of the first segment, bytes from the beginning of the log.
        end_position: position behind the last intact record, bytes from the beginning of the log.
        entries: number of intact entries.
        lost: number of entries that are missing between intact entries.
        torn_bytes: bytes behind the end that a crash left. The next writer cuts them, and keeps copies in `aside/`.
        damages: all damage, in order.
        notes: unusual but harmless observations, one line each.
    """

    path: str
    uuid: str
    segment_bytes: int
    writer: int | None
    segments: int
    indexes: int
    verified_bytes: int
    start: int | None
    end: int | None
    start_position: int
    end_position: int
    entries: int
    lost: int
    torn_bytes: int
    damages: tuple[Damage, ...]
    notes: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether there is no damage."""
        return not self.damages

    @property
    def first_loss(self) -> Damage | None:
        """The damage nearest to the start of the log that costs entries; None: there is none."""
        return min((d for d in self.damages if d.costs_entries), key=lambda d: d.position, default=None)
