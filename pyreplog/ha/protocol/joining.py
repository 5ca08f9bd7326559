"""Checks whether a replica may follow a log, and finds the position where its copy resumes."""

from __future__ import annotations

from dataclasses import dataclass

from pyreplog.errors import InvalidArgumentError
from pyreplog.ha.protocol.messages import NO_UUID, VERSION, Accept, Join, RefusalCode, Refuse
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, Term


@dataclass(frozen=True)
class StreamedLog:
    """The present state of the log that is streamed. start, end: of its records."""

    uuid: bytes
    segment_bytes: int
    term: Term
    history: History
    start: LogPosition
    end: LogPosition

    @property
    def term_start(self) -> LogPosition:
        """Position where its term begins. Raises InvalidArgumentError: the history does not end with the term."""
        start = self.history.start_of(self.term)
        if start is None or self.history.last != self.term:
            raise InvalidArgumentError(f"expected a history that ends with term {self.term}, found {self.history.last}")
        return start

    def accept(self, resume: LogPosition) -> Accept:
        return Accept(self.uuid, self.segment_bytes, self.term, self.history, self.start, resume)


NEW_COPY = "remove this member, empty its directory, add it under another name: it takes a new copy"
"""Under its old name the member would break promises that it no longer knows: a deposed master still counts it."""


def check_join(join: Join, source: StreamedLog) -> Accept | Refuse:
    """Return where the replica resumes, or a refusal with the remedy. Promised terms are not checked here."""
    refusal = _misfit(join, source)
    if refusal is not None:
        return refusal
    if join.uuid == NO_UUID or (not join.history.starts and join.received == source.start):
        return source.accept(source.start)
    if join.received.position < source.start.position:
        return _behind(join.received, source)
    if join.history.last == source.history.last and join.received.position > source.end.position:
        return Refuse(
            RefusalCode.AHEAD,
            f"the replica ends at {join.received.position}, its master, of the same term {source.history.last}, "
            f"at {source.end.position}: the master lost records; promote the replica",
        )
    common = join.history.common_point(join.received, source.history, source.end)
    if common is None:
        return Refuse(RefusalCode.DIVERGED, f"the two logs have no term in common: {NEW_COPY}")
    if common.position < source.start.position:
        return _behind(common, source)
    return source.accept(common)


def check_join_of_copy(join: Join, source: StreamedLog, name: str) -> Accept | Refuse:
    """Answer a replica that wants to follow `name`, which is a replica itself; otherwise as `check_join`.

    A replica with more of the same history is refused for now, not for good: `name` lags, or is about to fetch again
    what it lost. `name` may not hold the records of the later terms in its history yet.
    """
    if source.start == source.end:
        return Refuse(RefusalCode.NOT_MASTER, f"{name} is a replica that has received nothing so far")
    common = join.history.common_point(join.received, source.history, max(join.received, source.end))
    if join.uuid == source.uuid and common is not None and common.position > source.end.position:
        lags = f"{name} is a replica that ends at {source.end.position} so far, yours ends at {join.received.position}"
        return Refuse(RefusalCode.NOT_MASTER, lags)
    return check_join(join, source)


def foreign(uuid: bytes, expected: bytes) -> Refuse:
    return Refuse(
        RefusalCode.FOREIGN, f"the replica's log is {uuid.hex()}, the master's {expected.hex()}: use another directory"
    )


def _misfit(join: Join, source: StreamedLog) -> Refuse | None:
    if join.version != VERSION:
        return Refuse(
            RefusalCode.VERSION, f"the replica speaks version {join.version}, its master {VERSION}: upgrade the older"
        )
    if join.synced > join.received or join.history != join.history.up_to(join.received):
        return Refuse(
            RefusalCode.ABSURD, f"a log that ends at {join.received} is synced to {join.synced}, of {join.history}"
        )
    if join.uuid == NO_UUID:
        is_empty = join.received == ORIGIN and not join.history.starts
        return (
            None
            if is_empty
            else Refuse(RefusalCode.ABSURD, f"without a log, the replica claims to end at {join.received}")
        )
    if join.uuid != source.uuid:
        return foreign(join.uuid, source.uuid)
    if join.segment_bytes != source.segment_bytes:
        return Refuse(
            RefusalCode.FOREIGN,
            f"the replica's segments have {join.segment_bytes} bytes, the master's {source.segment_bytes}: {NEW_COPY}",
        )
    return None


def _behind(end: LogPosition, source: StreamedLog) -> Refuse:
    text = f"entries after {end.position} were removed, the master's log begins at {source.start.position}: {NEW_COPY}"
    return Refuse(RefusalCode.BEHIND, text)
