"""Errors that any part may raise."""

from __future__ import annotations


class ReplogError(Exception):
    """Base of all errors of this package.

    retriable: nothing was done, or doing it twice does no harm; and the same call can succeed later without a change of
    the program or its settings. False where the call may be done: a repeated append could be stored twice.
    exit_code: with which the command line ends.
    """

    retriable = False
    exit_code = 1


class InvalidArgumentError(ReplogError, ValueError):
    """An argument's value is outside what the call accepts; nothing was done."""

    exit_code = 2


class WrongTypeError(ReplogError, TypeError):
    """An argument is of a type the call does not take; nothing was done."""

    exit_code = 2


class ConfigError(InvalidArgumentError):
    """A configuration key is unknown, or its value is outside its bounds."""


class ClosedError(ReplogError):
    """The handle was closed."""


class ForkedError(ReplogError):
    """The handle was opened by a parent process; open the log again in this one."""


class MonkeyPatchedError(ReplogError):
    """gevent, eventlet or the like have replaced threads, sockets or epoll in this process; use another one."""

    exit_code = 2


class OutOfRangeError(ReplogError, IndexError):
    """No such entry or position in the log."""


class OutcomeUnknownError(ReplogError, TimeoutError):
    """The time ran out, or a connection was lost, before the outcome was known: what was asked may be done or not."""

    retriable = False


class WindowFullError(ReplogError):
    """Too much of a ledger is on its way, and this caller cannot wait: nothing was done. Wait for its `room()`."""

    retriable = True


class MissingExtraError(ReplogError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""

    exit_code = 2


class InvalidMessageError(ReplogError):
    """A peer sent a message that makes no sense; the connection cannot go on."""
