"""A node's directory: a log of records, and what it remembers of terms and members."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyreplog.ha.protocol.members import Members
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import Terms

RECORD_BYTES = 10
SEGMENT_RECORDS = 3


def mark(records: int) -> LogPosition:
    """The end of a log of so many records."""
    return LogPosition(RECORD_BYTES * records, records)


@dataclass
class Disk:
    """records: beyond `synced` they are in the page cache only; of those before `start`, which retention has removed,
    nobody but the invariants knows. Terms and members are stored atomically. shown, unreplicated: the tail page's words,
    which last as long as the machine's power: how many records readers were shown, and whether enough replicas may not
    have them. is_made: whether there is a log, though it may hold nothing."""

    records: list[str] = field(default_factory=list)
    is_made: bool = False
    synced: int = 0
    start: int = 0
    shown: int = 0
    unreplicated: bool = False
    terms: Terms = field(default_factory=Terms)
    members: Members | None = None

    @property
    def start_mark(self) -> LogPosition:
        return mark(self.start)

    @property
    def shown_mark(self) -> LogPosition:
        """Nothing was shown of a log that begins there: that it was committed before it was removed is not known."""
        return mark(self.shown if self.shown > self.start else 0)

    @property
    def end(self) -> LogPosition:
        return mark(len(self.records))

    @property
    def synced_end(self) -> LogPosition:
        return mark(self.synced)

    def sync(self) -> None:
        self.synced = len(self.records)

    def cut(self, to: LogPosition) -> None:
        del self.records[to.entry :]
        self.synced, self.shown = min(self.synced, to.entry), min(self.shown, to.entry)

    def cut_power(self, keep: int) -> None:
        """Of what was not synced, `keep` records happen to be there."""
        del self.records[self.synced + keep :]
        self.sync()
        self.shown, self.unreplicated = min(self.start, self.shown), False

    def make(self, removed: list[str]) -> None:
        """An empty copy of a log of which so much is removed already."""
        self.records, self.is_made = list(removed), True
        self.synced = self.start = self.shown = len(removed)

    def trim_to(self, floor: int, keep: int) -> int:
        """Where retention lets the log begin: whole segments go, none at or behind record `floor`, and none while no
        more than `keep` records are there."""
        start = self.start
        while start + SEGMENT_RECORDS <= min(floor, len(self.records)) and len(self.records) - start > keep:
            start += SEGMENT_RECORDS
        return start

    def reboot(self) -> None:
        """As the next process finds it: files are read back."""
        self.terms = Terms.decode(Path("terms"), self.terms.encode())
        if self.members is not None:
            self.members = Members.decode(Path("members"), self.members.encode())
