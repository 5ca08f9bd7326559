"""Snapshot: what is known without reading a log through, of one moment: the same for all steps of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.model.positions import TopicPosition

if TYPE_CHECKING:
    from pyreplog.ledger.ledgermetadata import LedgerMetadata

WINDOW_MAX_S = 100 * 365 * 86400
"""A hundred years: it begins at a time that calendars have."""

Ranges = NDArray[np.int64]
"""int64[n, 2]: from the first to before the second, ascending."""


class SegmentSnapshot(NamedTuple):
    """A stretch of a topic, or of a log, that is removed as a whole: a ledger, or a segment file.

    name: id of the ledger, or file. start, end: offsets of the first entry and behind the last. size: bytes of its
    values; of a file: of it. created_us, closed_us: when it was begun and ended; None: it goes on (is_closed is False),
    or nobody knows.
    """

    name: str
    start: int
    end: int
    size: int
    created_us: int | None
    closed_us: int | None
    is_closed: bool


@dataclass(frozen=True, kw_only=True)
class TopicSnapshot:
    """A topic, each partition by itself, or a log (entries and size of its totals are 0 then).

    name: as the store of topics has it; topic, partition: as rows say it. start, end: of what there is. segments: in
    order, some of them empty.
    """

    name: str
    topic: str
    partition: int
    start: TopicPosition
    end: TopicPosition
    segments: tuple[SegmentSnapshot, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SubscriptionSnapshot:
    """A durable subscription of one topic or partition, as far as its state was stored.

    on: `TopicSnapshot.name` of its topic. mark: everything before it is acknowledged. acked: offsets beyond the mark
    that are, too. backlog_*: what is not, up to the topic's end: messages; bytes of the entries that hold them, each of
    which counts in full. oldest_us, newest_us: when the first and the last of them were appended; None: there is none,
    or it cannot be read. moved_us: when the mark last moved, or the position was set; None: not known. marks: int64[n,
    2], (time, mark from then on), ascending: as far back as is known. is_system: it is this package's own.
    """

    on: str
    topic: str
    partition: int
    name: str
    mark: TopicPosition
    end: int
    acked: Ranges = field(default_factory=lambda: np.empty((0, 2), np.int64), compare=False)
    backlog_messages: int
    backlog_bytes: int
    moved_us: int | None
    oldest_us: int | None = None
    newest_us: int | None = None
    marks: Ranges = field(default_factory=lambda: np.empty((0, 2), np.int64), compare=False)
    is_system: bool = False

    def mark_at(self, time_us: int) -> int | None:
        """Where the mark was; None: not known."""
        at = int(np.searchsorted(self.marks[:, 0], time_us, side="right")) - 1
        return None if at < 0 else int(self.marks[at, 1])

    @property
    def oldest(self) -> int | None:
        """Offset of the first message that is not acknowledged; None: there is none."""
        return next(self._open(), (None, None))[0]

    @property
    def newest(self) -> int | None:
        """Of the last one."""
        stop = self.end
        for low, high in reversed(self.acked.tolist()):
            if high < stop:
                break
            stop = min(stop, low)
        return stop - 1 if stop > self.mark.offset else None

    def _open(self) -> Iterator[tuple[int, int]]:
        """Ranges of offsets that are not acknowledged."""
        at = self.mark.offset
        for low, high in self.acked.tolist():
            if at < min(low, self.end):
                yield at, min(low, self.end)
            at = high
        if at < self.end:
            yield at, self.end


@dataclass(frozen=True, kw_only=True)
class LedgerSnapshot:
    """A ledger of a cluster. metadata: quorums, fragments, state; without what only writers need. entries: how many are
    certain: of a closed one, all; of others, those that are confirmed; None: nobody could tell."""

    metadata: LedgerMetadata
    entries: int | None


class UnknownState(NamedTuple):
    """What could not be asked, and so is not among the snapshot. on: name of the topic. subscription: of it; None: the
    topic itself, with all its subscriptions. why: in one line."""

    on: str
    subscription: str | None
    why: str

    def __str__(self) -> str:
        of = "" if self.subscription is None else f"subscription {self.subscription} of "
        return f"could not ask: {of}topic {self.on}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is known of logs, topics and ledgers at one moment, without reading them through; made by `gather`.

    Attributes:
        as_of_us: the moment, microseconds since 1970-01-01 UTC.
        window_s: seconds over which present rates are taken.
        topics: the topics, in order.
        subscriptions: their subscriptions, in order.
        ledgers: the ledgers, cursor ledgers included, by id.
        logs: logs that belong to no cluster.
        unknown: topics and subscriptions whose bookies did not answer.

    Raises:
        InvalidArgumentError: `window_s` is outside its bounds.
    """

    as_of_us: int
    window_s: float = 300.0
    topics: tuple[TopicSnapshot, ...] = ()
    subscriptions: tuple[SubscriptionSnapshot, ...] = ()
    ledgers: tuple[LedgerSnapshot, ...] = ()
    logs: tuple[TopicSnapshot, ...] = ()
    unknown: tuple[UnknownState, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.window_s <= WINDOW_MAX_S:
            raise InvalidArgumentError(
                f"window_s: expected more than 0 seconds, at most {WINDOW_MAX_S:,}, found {self.window_s}"
            )

    @property
    def since_us(self) -> int:
        """Beginning of the window, microseconds since 1970-01-01 UTC."""
        return self.as_of_us - round(self.window_s * 1e6)

    @property
    def readers(self) -> list[SubscriptionSnapshot]:
        """Subscriptions that users made."""
        return [one for one in self.subscriptions if not one.is_system]
