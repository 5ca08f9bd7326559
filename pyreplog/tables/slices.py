"""Slices: the part of one segment file that one task reads, as the planner sends it to an executor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pyreplog.errors import CorruptionError

NO_PARTITION = -1
"""Partition number of a log that is no partition of a topic."""

Range = tuple[int, int]
"""The first number, and the one after the last."""


@dataclass(frozen=True)
class RecordFilter:
    """The records of a slice that are wanted; None: all.

    entries: range of entry numbers (in a bookie's log: of their ledgers). times: range of append times, microseconds
    since 1970. ledgers: disjoint ranges of ledger ids, ascending. aborted: transactions whose batches are left out:
    (producer id, position of the first batch, position behind the marker).
    """

    entries: Range | None = None
    times: Range | None = None
    ledgers: tuple[Range, ...] | None = None
    aborted: tuple[tuple[int, int, int], ...] = ()


ALL = RecordFilter()


class SliceOrigin(NamedTuple):
    """The values that all rows of a slice share.

    topic: None for entries of ledgers. segment: name of the segment file; None: the rows were read through a bookie.
    bookie: the bookie whose copies are read. clusters: those of origins, as of `TopicPart`.
    """

    topic: str | None = None
    partition: int = NO_PARTITION
    segment: str | None = None
    bookie: str | None = None
    clusters: bytes = b""


@dataclass(frozen=True)
class LogName:
    """The log of a slice. topic: None for a bookie's log. bookie: id of the bookie. partition: of a topic."""

    directory: str
    topic: str | None
    uuid: bytes
    bookie: str | None = None
    partition: int = NO_PARTITION


@dataclass(frozen=True)
class Slice:
    """Records of a segment that begin at offsets from `start` to before `until`; none reaches beyond `stop`.

    base, epoch: identify the segment. fault: (position, expected, found) if the planner could not read the file.
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
        """Approximate bytes of log."""
        return self.until - self.start

    @cached_property
    def origin(self) -> SliceOrigin:
        return SliceOrigin(self.log.topic, self.log.partition, Path(self.path).name, self.log.bookie)

    def corruption(self) -> CorruptionError:
        """Return the fault as an exception."""
        assert self.fault is not None, "a slice without a fault has no error"
        return CorruptionError(self.path, *self.fault)
