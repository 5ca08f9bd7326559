"""A slice: a stretch of one segment file that one task reads, as it travels from the planner to an executor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pyreplog.errors import CorruptionError

NO_PARTITION = -1
"""Of what is no partition of a topic."""

Range = tuple[int, int]
"""From the first number to before the second."""


@dataclass(frozen=True)
class RecordFilter:
    """Which records of a slice are wanted; None: all.

    entries: numbers (of a bookie's log: in their ledgers). times: of appending, microseconds since the epoch. ledgers:
    any of these ranges of ids, which ascend and have no number twice.
    """

    entries: Range | None = None
    times: Range | None = None
    ledgers: tuple[Range, ...] | None = None


ALL = RecordFilter()


class SliceOrigin(NamedTuple):
    """What all rows of a slice have in common. topic: None for entries of ledgers. segment: the name of its file; None:
    it does not matter where the rows lie. bookie: whose copies they are."""

    topic: str | None = None
    partition: int = NO_PARTITION
    segment: str | None = None
    bookie: str | None = None


@dataclass(frozen=True)
class LogName:
    """The log that a slice is of. topic: None for a bookie's. bookie: its id."""

    directory: str
    topic: str | None
    uuid: bytes
    bookie: str | None = None


@dataclass(frozen=True)
class Slice:
    """Records of a segment that begin at offsets `start` to before `until`, none of them reaching beyond `stop`.

    base, epoch: of the segment that is meant. fault: (position, expected, found) when the planner saw that the file
    cannot be read.
    """

    log: LogName
    path: str
    base: int
    epoch: int
    start: int
    until: int
    stop: int
    wanted: RecordFilter = ALL
    fault: tuple[int, str, str] | None = None

    @property
    def size(self) -> int:
        """Bytes of log, about."""
        return self.until - self.start

    @cached_property
    def origin(self) -> SliceOrigin:
        return SliceOrigin(self.log.topic, NO_PARTITION, Path(self.path).name, self.log.bookie)

    def corruption(self) -> CorruptionError:
        """The fault as an exception."""
        assert self.fault is not None, "asked for that of a slice without one"
        return CorruptionError(self.path, *self.fault)
