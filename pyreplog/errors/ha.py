"""Errors of replica groups, relay logs and appliers."""

from __future__ import annotations

from pyreplog.errors.base import OutcomeUnknownError, ReplogError


class PositionError(ReplogError):
    """The stored applied position does not fit: it is of another log, somebody else moved it, or nobody stored it."""

    exit_code = 4


class ApplyError(ReplogError):
    """The applier has stopped at an entry that its callback refused; what was received stays, and receiving goes on.

    `entry` and `position` (bytes since the log began) are those of the record; the callback's exception is the cause.
    """

    def __init__(self, entry: int, position: int, what: str) -> None:
        self.entry, self.position, self.what = entry, position, what
        super().__init__(f"entry {entry} at position {position} could not be applied: {what}")

    def __reduce__(self) -> tuple[type[ApplyError], tuple[int, int, str]]:
        return type(self), (self.entry, self.position, self.what)


class ReplicationError(ReplogError):
    """Base of what can be wrong between the members of a replica group."""


class NotEnoughReplicasError(ReplicationError):
    """Fewer replicas are connected and caught up than `min_in_sync` asks for. Nothing was written."""

    retriable = True
    exit_code = 6


class NotMasterError(ReplicationError):
    """Only a group's master can do this; the message says where it may be. Nothing was done."""


class ReplicationTimeoutError(ReplicationError, OutcomeUnknownError):
    """The record is in the master's log; whether enough replicas have it, or will have it, is unknown."""

    retriable = False


class HigherTermError(ReplicationError):
    """There is, or may be, a newer master: the term of this one is refused. Nothing was done.

    `term` is the higher one: (number, name of its master).
    """

    def __init__(self, message: str, term: tuple[int, str]) -> None:
        self.message, self.term = message, term
        super().__init__(message)

    def __reduce__(self) -> tuple[type[HigherTermError], tuple[str, tuple[int, str]]]:
        return type(self), (self.message, self.term)


class DeposedError(HigherTermError, OutcomeUnknownError):
    """A newer master took over while this append waited for replicas: whether it survives is unknown."""


class JoinRefusedError(ReplicationError):
    """A master refuses this replica, or a replica this master; the message says what to do.

    `code` is a `ha.protocol.Code`.
    """

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)

    def __reduce__(self) -> tuple[type[JoinRefusedError], tuple[int, str]]:
        return type(self), (self.code, self.message)


class PromotionRefusedError(ReplicationError):
    """This node cannot become master without possible loss: too few members answered, or one of them holds more."""

    exit_code = 6


class ChangeUnderWayError(ReplicationError):
    """The members are being changed; one change at a time."""

    retriable = True


class CommandRefusedError(ReplicationError):
    """A node that was asked to do something refuses, or has failed; the message says why, `kind` which error it was."""

    def __init__(self, message: str, kind: str, exit_code: int) -> None:
        self.message, self.kind, self.exit_code = message, kind, exit_code
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CommandRefusedError], tuple[str, str, int]]:
        return type(self), (self.message, self.kind, self.exit_code)
