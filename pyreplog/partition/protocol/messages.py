"""The messages between followers and leaders. A response has the number of its fetch, because networks may reorder
them."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart


class Fetch(NamedTuple):
    """A follower's request for the records from its log's end on.

    Attributes:
        number: number of this fetch, among those of the follower.
        member: the follower, with its incarnation.
        epoch: epoch of the leader that it follows.
        position: the end of its log, where the requested records begin.
        last_epoch: the epoch in which its log ends.
        synced: up to where its log is synced to disk.
        high_watermark: the highest one that it knows; a leader with a higher one answers at once.
        log_start: offset before which it has deleted the records.
        leader_log_start: offset before which the leader has deleted them, as far as the follower knows; a leader with a
            higher one answers at once.
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
    """Records of the leader's log, as stored there.

    Attributes:
        number: number of the fetch.
        epoch: epoch of the leader.
        position: where the records begin.
        end: where they end.
        starts: the epochs that begin among them.
        high_watermark: high watermark of the leader.
        log_start: where the leader's log begins.
        records: the bytes, opaque to the state machines.
        deleted_before: offset before which the leader has deleted the records, though its segments may still hold them.
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
    """The follower's log is not a prefix of the leader's: it must be truncated to their common prefix.

    Attributes:
        number: number of the fetch.
        epoch: epoch of the leader.
        history: history of the leader's log.
        log_start: where the leader's log begins.
        end: where the leader's log ends.
        producers: snapshot of the producers at the start of the leader's log, for a follower that copies the log from
            there; opaque to the state machines. b"": the log begins at offset 0, or has no such snapshot.
    """

    number: int
    epoch: LeaderEpoch
    history: History
    log_start: LogPosition
    end: LogPosition
    producers: bytes = b""


class FetchRefused(NamedTuple):
    """The fetch is refused and changes nothing at the leader.

    Attributes:
        number: number of the fetch.
        code: the reason.
    """

    number: int
    code: ErrorCode


FetchResponse: TypeAlias = FetchedRecords | DivergingEpoch | FetchRefused
