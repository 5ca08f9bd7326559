"""Errors that any part may raise."""

from __future__ import annotations


class ReplogError(Exception):
    """Base of all errors of this package.

    Attributes:
        retriable: whether the same call may be made again, without a change of the program or its settings: nothing was
            done, or doing it twice does no harm. False where the call may have been carried out: a repeated append
            could be stored twice.
        exit_code: exit code of the command line when a command fails with this error.
    """

    retriable = False
    exit_code = 1


class InvalidArgumentError(ReplogError, ValueError):
    """An argument has a value that the call does not accept. Nothing was done."""

    exit_code = 2


class WrongTypeError(ReplogError, TypeError):
    """An argument has a type that the call does not accept. Nothing was done."""

    exit_code = 2


class ConfigError(InvalidArgumentError):
    """A setting or option is unknown, or its value is outside its bounds. Nothing was done."""


class ClosedError(ReplogError):
    """The handle was closed."""


class ForkedError(ReplogError):
    """A parent process opened the handle. Open the log, store or cluster again in this process."""


class MonkeyPatchedError(ReplogError):
    """gevent, eventlet or a similar library has replaced threads, sockets or epoll. Use another process."""

    exit_code = 2


class OutOfRangeError(ReplogError, IndexError):
    """The log, ledger or topic has no entry of that number, or no record at that position."""


class OutcomeUnknownError(ReplogError, TimeoutError):
    """The outcome of the call is unknown: its time ran out, or a connection was lost, before the outcome arrived.

    The call may have had its effect, may have it later, or may never have it.
    """

    retriable = False


class WindowFullError(ReplogError):
    """Too many bytes or entries are unconfirmed, and the caller cannot wait. Nothing was done.

    Await `room()`, and submit again.
    """

    retriable = True


class MissingExtraError(ReplogError, ImportError):
    """An optional library is not installed. The message names the extra to install."""

    exit_code = 2


class InvalidMessageError(ReplogError):
    """A peer sent a message that does not follow the protocol. The connection is closed."""
