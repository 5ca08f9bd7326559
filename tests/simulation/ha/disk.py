"""A node's directory: a log of records, and what it remembers of terms and members."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyreplog.ha.protocol.mark import Mark
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.terms import Terms

RECORD_BYTES = 10


def mark(records: int) -> Mark:
    """The end of a log of so many records."""
    return Mark(RECORD_BYTES * records, records)


@dataclass
class Disk:
    """records: beyond `synced` they are in the page cache only. Terms and members are stored atomically."""

    records: list[str] = field(default_factory=list)
    synced: int = 0
    terms: Terms = field(default_factory=Terms)
    members: Members | None = None

    @property
    def end(self) -> Mark:
        return mark(len(self.records))

    @property
    def synced_end(self) -> Mark:
        return mark(self.synced)

    def sync(self) -> None:
        self.synced = len(self.records)

    def cut(self, to: Mark) -> None:
        del self.records[to.entry :]
        self.synced = min(self.synced, to.entry)

    def cut_power(self, keep: int) -> None:
        """Of what was not synced, `keep` records happen to be there."""
        del self.records[self.synced + keep :]
        self.sync()

    def reboot(self) -> None:
        """As the next process finds it: files are read back."""
        self.terms = Terms.decode(Path("terms"), self.terms.encode())
        if self.members is not None:
            self.members = Members.decode(Path("members"), self.members.encode())
