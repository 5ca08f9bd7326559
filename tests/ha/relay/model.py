"""The parts that an applier uses, in memory and in small steps: a relay log, a database and a position file. Each step
may crash.

The relay log has segments of SEGMENT records. Each record has STRIDE bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pyreplog.ha.relay import Advance, Applied

STRIDE, SEGMENT = 1 << 18, 4
SEGMENT_BYTES = STRIDE * SEGMENT
UUID = bytes(range(16))


class Crash(BaseException):
    """The process ends here."""


class BrokenInvariantError(BaseException):
    """The invariant `name` does not hold. It is no Exception, as the applier would take that for an error of the
    callback."""

    def __init__(self, name: str, subject: str) -> None:
        super().__init__(f"{name}: {subject}")


def demand(holds: bool, name: str, subject: str) -> None:
    if not holds:
        raise BrokenInvariantError(name, subject)


class Steps:
    """Counts steps on the disk and in the database, and crashes at one of them."""

    def __init__(self, crash_at: int | None) -> None:
        self.done, self._crash_at = 0, crash_at

    def step(self) -> None:
        self.done += 1
        if self.done == self._crash_at:
            raise Crash


@dataclass(frozen=True)
class Record:
    entry: int
    key: bytes
    timestamp: int

    @property
    def position(self) -> int:
        return self.entry * STRIDE

    @property
    def raw(self) -> bytes:
        return self.entry.to_bytes(24) + bytes(STRIDE - 24)


class Batch(list[Record]):
    @property
    def timestamp(self) -> list[int]:
        return [record.timestamp for record in self]

    def keys(self) -> list[bytes]:
        return [record.key for record in self]


class Relay:
    """A copy of the master's records, from the segment of `start` on."""

    path, uuid, segment_bytes, truncation_count = "relay", UUID, SEGMENT_BYTES, 0

    def __init__(self, master: list[Record], start: int, steps: Steps) -> None:
        self._master, self._steps = master, steps
        self.start = self.end = self.received_end = start  # entry numbers; readers see records before `end`
        self.retention_floor = 1 << 62
        self.purged: Callable[[int], None] = lambda entry: None

    @property
    def tail(self) -> Any:
        return SimpleNamespace(end=self.received_end * STRIDE, end_entry=self.received_end)

    @property
    def start_position(self) -> int:
        return self.start * STRIDE

    @property
    def end_position(self) -> int:
        return self.end * STRIDE

    def position_of(self, entry: int) -> int:
        return entry * STRIDE

    def get(self, entry: int) -> Record:
        demand(self.start <= entry < self.end, "NothingIsReadThatIsNotThere", f"{entry}, {self.start} to {self.end}")
        return self._master[entry]

    def read(self, start: int, end: int, *, batch_bytes: int) -> Iterator[Batch]:
        demand(self.start <= start, "NothingIsReadThatIsNotThere", f"{start}, {self.start} to {self.end}")
        stop = min(end, self.end, (start // SEGMENT + 1) * SEGMENT, start + batch_bytes // STRIDE)
        yield Batch(self._master[start:stop])

    def trim(self, entry: int) -> None:
        self._steps.step()
        while (first := (self.start // SEGMENT + 1) * SEGMENT) <= min(entry, self.end):
            self.purged(first)
            self.start = first
            self._steps.step()

    def check_open(self) -> None:
        return


@dataclass
class Disk:
    """The state that survives a crash.

    Attributes:
        rows: applied entries, in their order.
        row: applied position in the database.
        file: applied position in the file.
    """

    rows: list[int] = field(default_factory=list)
    row: Applied | None = None
    file: Applied | None = None
    skipped: set[int] = field(default_factory=set)
    repeats: int = 0
    applied_to: int = 0  # each entry before this one was applied or skipped

    def skip(self, entry: int) -> None:
        """Count an entry as applied, as its skipping is stored."""
        self.skipped.add(entry)
        self.applied_to = entry + 1

    def add(self, record: Record, *, exactly_once: bool) -> None:
        """Make a row durable."""
        if record.entry == self.applied_to:
            self.applied_to += 1
        else:
            demand(record.entry < self.applied_to, "NothingSkipped", f"{record.entry} follows {self.applied_to - 1}")
            demand(not exactly_once, "ExactlyOnce", f"{record.entry} was applied again")
            stored = self.file.entry if self.file is not None else 0
            demand(stored <= record.entry, "OnlyTheLastBatchRepeats", f"{record.entry}, when {stored} was stored")
            self.repeats += 1
        self.rows.append(record.entry)


class Store:
    """The stored position, in the database or in a file."""

    def __init__(self, disk: Disk, steps: Steps, *, transactional: bool) -> None:
        self._disk, self._steps, self.transactional = disk, steps, transactional

    def load(self) -> Applied | None:
        return self._disk.row if self.transactional else self._disk.file

    def begin(self, applied: Applied) -> None:
        self._steps.step()
        self._put(applied)

    def save(self, advance: Advance) -> None:
        """Store the position in one step: replace a file, or commit a transaction."""
        self._steps.step()
        demand(self.load() == advance.before, "PositionsFollow", f"{advance}, {self.load()} is stored")
        self._put(advance.after)
        self._steps.step()

    def _put(self, applied: Applied) -> None:
        if self.transactional:
            self._disk.row = applied
        else:
            self._disk.file = applied


class Callback:
    """Applies records to the disk.

    Attributes:
        refuses: entries, and how often each is refused.
    """

    def __init__(self, disk: Disk, steps: Steps, *, exactly_once: bool, refuses: dict[int, int]) -> None:
        self._disk, self._steps, self._exactly_once, self._refuses = disk, steps, exactly_once, refuses
        self._at_work: dict[bytes, int] = {}  # by key, the entry that is prepared and not committed
        self.check: Callable[[Record], None] = lambda record: None

    def apply(self, batch: Batch, advance: Advance) -> None:
        self._check(batch, advance)
        self._refuse(batch, committing=False)
        self._refuse(batch, committing=True)
        self._commit(batch, advance)

    def apply_in_two(self, batch: Batch, advance: Advance) -> Generator[None, None, None]:
        self._check(batch, advance)
        keys = set(batch.keys())
        for key in keys:
            demand(
                key not in self._at_work, "KeysInOrder", f"{batch[0].entry} and {self._at_work.get(key)} share a key"
            )
        self._at_work.update(dict.fromkeys(keys, batch[0].entry))
        try:
            self._refuse(batch, committing=False)
            yield
            self._refuse(batch, committing=True)
            self._commit(batch, advance)
        finally:
            for key in keys:
                self._at_work.pop(key)

    def _check(self, batch: Batch, advance: Advance) -> None:
        for record in batch:
            self.check(record)
        entries = [record.entry for record in batch]
        demand(
            entries == list(range(advance.before.entry, advance.after.entry)), "AppliedInOrder", f"{entries}, {advance}"
        )

    def _refuse(self, batch: Batch, *, committing: bool) -> None:
        """Refuse entries with odd numbers when they are committed, and others before."""
        self._steps.step()
        for record in batch:
            if record.entry % 2 == committing and self._refuses.get(record.entry, 0):
                self._refuses[record.entry] -= 1
                raise ValueError(f"refused {record.entry}")

    def _commit(self, batch: Batch, advance: Advance) -> None:
        self._steps.step()
        if self._exactly_once:
            demand(self._disk.row == advance.before, "PositionsFollow", f"{advance}, {self._disk.row} is stored")
            self._disk.row = advance.after
        for record in batch:
            self._disk.add(record, exactly_once=self._exactly_once)
            if not self._exactly_once:
                self._steps.step()  # without a transaction, a part of the batch may remain
        self._steps.step()
