"""What fsck reports: each damage, and the state of the whole log."""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT, HEADER, RECORD, INDEX = "segment", "header", "record", "index"
CHECKPOINT, MARKER, PAGE = "checkpoint", "marker", "tail page"
"""Parts of a log: a segment as a whole (missing, of another log or place, of another size), its header, a record, an
index file, the checkpoint, the marker of a truncation, the tail page of a log that is open."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Stored bytes that are not what was written.

    part: what is damaged. position: bytes since the log began; since the file began where the file is no segment.
    costs_entries: whether entries cannot be read because of it; then `entry` is the first of them and `resumes` the
    first intact one behind (None: unknown, or none). intact_before, intact_after: how many entries of the log are
    intact in front of it and behind it.
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
    """A log as fsck found it. Positions and sizes in bytes; `start` and `end` are entry numbers (None: unknown), `end`
    one past the last.

    entries: intact ones. lost: numbers missing between intact ones. writer: process that has the log open (0: its id is
    unknown), None: nobody. torn_bytes: behind the end, left by a crash; the next writer cuts them and keeps them in
    `aside/`. notes: what is unusual and harmless.
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
        """Whether nothing is damaged."""
        return not self.damages

    @property
    def first_loss(self) -> Damage | None:
        """The damage nearest to the log's start that costs entries."""
        return min((d for d in self.damages if d.costs_entries), key=lambda d: d.position, default=None)
