"""What followers and leaders say to each other. An answer bears the number of its fetch; networks may reorder them."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart


class Fetch(NamedTuple):
    """A follower asks for the records from its log's end on.

    Attributes:
        number: of this fetch, among those of the follower.
        member: the follower, in its incarnation.
        epoch: of the leader that it follows.
        position: the end of its log, from which on it wants records.
        last_epoch: the epoch in which its log ends.
        synced: up to where its log is on its disk.
        high_watermark: which it knows of; a leader that knows more answers at once.
        log_start: offset before which it has deleted the records.
        leader_log_start: before which the leader has, so far as it knows; a leader that has more answers at once.
    """

    number: int
    member: Member
    epoch: LeaderEpoch
    position: LogPosition
    last_epoch: LeaderEpoch
    synced: LogPosition
    high_watermark: LogPosition
    log_start: int = 0
    leader_log_start: int = 0


class FetchedRecords(NamedTuple):
    """Records of the leader's log, as they lie there.

    Attributes:
        number: of the fetch.
        epoch: of the leader.
        position: where the records begin.
        end: where they end.
        starts: the epochs that begin among them.
        high_watermark: of the leader.
        log_start: where the leader's log begins.
        records: the bytes; neither machine looks at them.
        deleted_before: offset before which the leader has deleted the records, though it may hold them still.
    """

    number: int
    epoch: LeaderEpoch
    position: LogPosition
    end: LogPosition
    starts: tuple[TermStart, ...]
    high_watermark: LogPosition
    log_start: LogPosition
    records: object
    deleted_before: int = 0


class DivergingEpoch(NamedTuple):
    """The follower's log is not the beginning of the leader's: it must be cut to what both have.

    Attributes:
        number: of the fetch.
        epoch: of the leader.
        history: of the leader's log.
        log_start: where the leader's log begins.
        end: where the leader's log ends.
        producers: snapshot of the producers where the leader's log begins, for a follower that takes it from there; the
            machines do not look at it. b"": the log begins at its beginning, or there is none.
    """

    number: int
    epoch: LeaderEpoch
    history: History
    log_start: LogPosition
    end: LogPosition
    producers: bytes = b""


class FetchRefused(NamedTuple):
    """Nothing of the fetch counts.

    Attributes:
        number: of the fetch.
        code: why.
    """

    number: int
    code: ErrorCode


FetchResponse: TypeAlias = FetchedRecords | DivergingEpoch | FetchRefused
