"""Errors of replica groups, relay logs and appliers."""

from __future__ import annotations

from pyreplog.errors.base import OutcomeUnknownError, ReplogError


class PositionError(ReplogError):
    """The stored applied position belongs to another log, was moved by another applier, or was not stored."""

    exit_code = 4


class ApplyError(ReplogError):
    """The applier stopped at an entry that its callback refused. The relay continues to receive.

    The exception of the callback is the `__cause__`.

    Attributes:
        entry: number of the entry.
        position: position of its record, bytes from the beginning of the log.
        what: type and text of the callback's exception.
    """

    def __init__(self, entry: int, position: int, what: str) -> None:
        self.entry, self.position, self.what = entry, position, what
        super().__init__(f"entry {entry} at position {position} could not be applied: {what}")

    def __reduce__(self) -> tuple[type[ApplyError], tuple[int, int, str]]:
        return type(self), (self.entry, self.position, self.what)


class ReplicationError(ReplogError):
    """Base of the errors between members of a replica group."""


class NotEnoughReplicasError(ReplicationError):
    """Fewer replicas are connected and caught up than `min_in_sync` demands. Nothing was appended."""

    retriable = True
    exit_code = 6


class NotMasterError(ReplicationError):
    """The call needs the master of the group, and this node is not the master. Nothing was done.

    The message names the master, if the node knows it.
    """


class ReplicationTimeoutError(ReplicationError, OutcomeUnknownError):
    """The record is in the master's log. Whether enough replicas have it, or will have it, is unknown."""

    retriable = False


class HigherTermError(ReplicationError):
    """A newer master exists, or may exist: the term of this one is refused. Nothing was done.

    Attributes:
        term: the higher term, as (number, name of its master).
    """

    def __init__(self, message: str, term: tuple[int, str]) -> None:
        self.message, self.term = message, term
        super().__init__(message)

    def __reduce__(self) -> tuple[type[HigherTermError], tuple[str, tuple[int, str]]]:
        return type(self), (self.message, self.term)


class DeposedError(HigherTermError, OutcomeUnknownError):
    """A newer master took over while the append waited for replicas. Whether the entry survives is unknown."""


class JoinRefusedError(ReplicationError):
    """A master refuses this replica, or this replica refuses a master. The message says what to do.

    Attributes:
        code: the reason, a `RefusalCode` of `pyreplog.ha.protocol.messages`.
    """

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)

    def __reduce__(self) -> tuple[type[JoinRefusedError], tuple[int, str]]:
        return type(self), (self.code, self.message)


class PromotionRefusedError(ReplicationError):
    """The node cannot become master without possible loss.

    Too few members answered, or one of them has more of the log.
    """

    exit_code = 6


class ChangeUnderWayError(ReplicationError):
    """The group is changing its members. Wait until that change is complete, and retry."""

    retriable = True


class CommandRefusedError(ReplicationError):
    """A node refused a command, or failed to carry it out. The message says why.

    Attributes:
        kind: name of the error class at that node.
        exit_code: exit code of that error.
    """

    def __init__(self, message: str, kind: str, exit_code: int) -> None:
        self.message, self.kind, self.exit_code = message, kind, exit_code
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CommandRefusedError], tuple[str, str, int]]:
        return type(self), (self.message, self.kind, self.exit_code)
