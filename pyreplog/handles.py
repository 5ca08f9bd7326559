"""Handle: the base class of objects that are opened and closed, with rules for forks and for handles left unclosed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
import warnings
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import NoReturn, Protocol, Self

from pyreplog.errors import ClosedError, ForkedError, ReplogError


class Forkable(Protocol):
    """An object that is informed of a fork, in the child."""

    def _after_fork(self) -> None:
        """Refuse all calls from now on, and release nothing that the parent process needs."""
        ...


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()


def opened(handle: Forkable) -> traceback.StackSummary:
    """Register a handle for forks; return the lines of code that opened it."""
    _open.add(handle)
    return traceback.extract_stack(limit=8)


def warn_of_leak(label: str, handle: object, opened_at: traceback.StackSummary) -> None:
    """Warn that a handle was collected without being closed."""
    where = "".join(traceback.format_list(opened_at[:-3])[-2:])
    warnings.warn(f"unclosed {label}, opened at\n{where}", ResourceWarning, source=handle, stacklevel=2)


_process = os.getpid()
"""Id of this process. Every call of a handle compares it; `os.getpid` would double the cost of a short call."""


def _after_fork_in_child() -> None:
    """Inform all handles: a child does not inherit threads, and the state of locks is unknown, so they refuse calls."""
    global _process
    _process = os.getpid()
    for handle in list(_open):
        handle._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Closeable:
    """A handle that `with` and `async with` close. It is true also when it is empty or closed.

    Compare `len(handle)` with 0 to learn whether it is empty. `async with` closes the handle in a thread, since
    closing may wait for disks and peers: the event loop goes on, and the thread closes it also if the task is
    cancelled.
    """

    def close(self) -> None:
        """Release the files, connections and threads of the handle."""
        raise NotImplementedError

    async def close_async(self) -> None:
        """Close the handle in a thread, for coroutines; `async with` does it, too."""
        await asyncio.to_thread(self.close)

    def __bool__(self) -> bool:
        """Always True: a handle is not a container, and its length may be a request to a server. Compare `len()` with
        0 to learn whether it is empty."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it in a thread: closing may wait for disks and peers, and the event loop goes on meanwhile. If the task
        is cancelled, the thread closes it all the same."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)


class Handle(Closeable, ABC):
    """The base class of handles: objects with files, connections or threads, which are closed once.

    A handle warns when it is collected unclosed. It refuses calls after `close` and in a forked child, and it cannot be
    pickled or copied. `CommitLog` has the same rules without this base class, because its calls are shorter than a
    check in Python.

    Args:
        label: names the handle in errors and warnings: "topic orders".
    """

    _collected: list[bool] | None = None
    """Not empty once this handle was collected; shared with its parts, see `make_part_of`."""
    _whole_collected: list[bool] | None = None
    """The same list of the handle that this one is a part of; None: it is no part."""

    def __init__(self, label: str) -> None:
        # A subclass calls it as soon as there is something to close.
        self._label = label
        self._pid = _process
        self._error: ReplogError | None = None
        self._closing = threading.Lock()  # taken for good by the first close
        self._opened_at = opened(self)

    def _check_open(self) -> None:
        """Raise ClosedError if the handle was closed, ForkedError in a child of the process that opened it."""
        if _process != self._pid:
            raise self._forked_error()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the handle and release what it holds. Closing twice has no effect.

        In a forked child the handle of the parent process stays open. While the interpreter ends, nothing is released:
        other threads have stopped, and waiting for them would hang.
        """
        if _process != self._pid or not self._closing.acquire(blocking=False):
            return
        self._error = self._closed_error()
        if not sys.is_finalizing():
            self._do_close()

    def _closed_error(self) -> ReplogError:
        """Return the error of calls after `close`."""
        return ClosedError(f"the {self._label} was closed")

    @abstractmethod
    def _do_close(self) -> None:
        """Release files, connections and threads; called once."""

    def refuse_calls(self, error: ReplogError) -> None:
        """Raise an error from every later call, unless the handle was closed before.

        Releases nothing, and suppresses the warning about an unclosed handle. For a forked child, and for tests that
        leave a handle in the state of a killed process.

        Args:
            error: the error that calls raise.
        """
        if self._error is None:  # hot paths check only this attribute
            self._error = error

    def _after_fork(self) -> None:
        self.refuse_calls(self._forked_error())

    def _forked_error(self) -> ReplogError:
        return ForkedError(f"the {self._label} was opened by process {self._pid}; open it again in this one")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the handle. If that raises the error which ended the block, its traceback still begins in the block."""
        try:
            self.close()
        except ReplogError as failure:
            if failure is not error:
                raise
        finally:
            if error is not None:
                error.__traceback__ = trace

    def _is_forgotten(self) -> bool:
        """Return whether the handle is collected unclosed, by itself: a part is closed by its whole.

        Only for finalizers. When both are collected together, the callback that fills `_collected` runs first: weak
        references are cleared before finalizers run.
        """
        return getattr(self, "_error", self) is None and os.getpid() == self._pid and not self._whole_collected

    def __del__(self) -> None:
        if self._is_forgotten():
            warn_of_leak(self._label, self, self._opened_at)
            if not sys.is_finalizing():  # other threads have stopped then, and closing may wait for one of them
                self._close_forgotten()

    def _close_forgotten(self) -> None:
        """Close the handle in its finalizer, which may run in any thread, also in one that holds locks."""
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to its process and cannot be pickled; open it again")

    def __repr__(self) -> str:
        state = " closed" if self._error is not None else ""
        return f"<{type(self).__name__} {self._label!r}{state}>"


class Part(Protocol):
    """A handle or a log that another handle closes."""

    _whole_collected: list[bool] | None


def make_part_of(part: Part, whole: Handle) -> None:
    """Note that `whole` closes `part`: when both are collected unclosed, only `whole` warns."""
    if whole._collected is None:
        whole._collected = []
        weakref.finalize(whole, whole._collected.append, True).atexit = False
    part._whole_collected = whole._collected
