"""Open handles of this process: what becomes of them at fork, and when one is forgotten."""

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
    """What has something to do in a forked child."""

    def _forked(self) -> None:
        """Refuse everything from now on; let go of nothing that the parent still needs."""
        ...


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()


def opened(handle: Forkable) -> traceback.StackSummary:
    """Note a handle that was opened; returns where."""
    _open.add(handle)
    return traceback.extract_stack(limit=8)


def warn_of_leak(what: str, handle: object, opened_at: traceback.StackSummary) -> None:
    """A handle was forgotten without being closed."""
    where = "".join(traceback.format_list(opened_at[:-3])[-2:])
    warnings.warn(f"unclosed {what}, opened at\n{where}", ResourceWarning, source=handle, stacklevel=2)


_process = os.getpid()
"""Id of this process, which every use of a handle compares; a system call would cost as much as the rest of it."""


def _after_fork_in_child() -> None:
    """Locks and threads are not inherited: the child's handles refuse everything."""
    global _process
    _process = os.getpid()
    for handle in list(_open):
        handle._forked()


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
    """What all that opens has in common, but for the log, whose hot paths look after themselves.

    Warns when it is forgotten; refuses use after close and in a forked child, pickles and copies.
    A subclass calls `Handle.__init__` as soon as there is something to close.
    """

    _parts_end: list[bool] | None = None
    """Filled when this is collected; its parts have it, too."""
    _whole_end: list[bool] | None = None

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = _process
        self._error: ReplogError | None = None
        self._closing = threading.Lock()  # taken for good by the first close
        self._opened_at = opened(self)

    def _check_open(self) -> None:
        """Errors: ClosedError; ForkedError, in a child of the process that opened it."""
        if _process != self._pid:
            raise self._of_parent()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the handle and release what it holds. Closing twice has no effect.

        In a forked child the handle of the parent process stays open. In a finalizer that runs when the interpreter
        ends, nothing more happens than if the process were killed.
        """
        if _process != self._pid or not self._closing.acquire(blocking=False):
            return
        self._error = self._ending()
        if not sys.is_finalizing():
            self._let_go()

    def _ending(self) -> ReplogError:
        """Why nothing can be done with it once it is closed."""
        return ClosedError(f"the {self._what} was closed")

    @abstractmethod
    def _let_go(self) -> None:
        """Release what is held; called once."""

    def refuse_calls(self, error: ReplogError) -> None:
        """Raise an error from every later call, unless the handle was closed before.

        Nothing is released, and nothing is warned of. For a forked child, and for tests that leave a handle as its
        process left it when it died.

        Args:
            error: what the calls raise.
        """
        if self._error is None:  # hot paths look at it alone
            self._error = error

    def _forked(self) -> None:
        self.refuse_calls(self._of_parent())

    def _of_parent(self) -> ReplogError:
        return ForkedError(f"the {self._what} was opened by process {self._pid}; open it again in this one")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What ended the block may be what `close` fails with, too: it says where in the block it came from."""
        try:
            self.close()
        except ReplogError as failure:
            if failure is not error:
                raise
        finally:
            if error is not None:
                error.__traceback__ = trace

    def _is_forgotten(self) -> bool:
        """For finalizers: nobody has closed it, or will. Of what is collected together, callbacks of weak references
        that others have come before all finalizers."""
        return getattr(self, "_error", self) is None and os.getpid() == self._pid and not self._whole_end

    def __del__(self) -> None:
        if self._is_forgotten():
            warn_of_leak(self._what, self, self._opened_at)
            if not sys.is_finalizing():  # no other thread goes on then, and what closes may wait for one
                self._close_forgotten()

    def _close_forgotten(self) -> None:
        """May run anywhere."""
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to its process and cannot be pickled; open it again")

    def __repr__(self) -> str:
        state = " closed" if self._error is not None else ""
        return f"<{type(self).__name__} {self._what!r}{state}>"


class Part(Protocol):
    """What a handle may close together with itself: a handle, or a log."""

    _whole_end: list[bool] | None


def make_part_of(part: Part, whole: Handle) -> None:
    """Let `whole` close `part`: when both are forgotten together, `whole` says so, and `part` is silent."""
    if whole._parts_end is None:
        whole._parts_end = []
        weakref.finalize(whole, whole._parts_end.append, True).atexit = False
    part._whole_end = whole._parts_end
