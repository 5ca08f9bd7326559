"""Blocking calls and event loops: coroutine forms of methods, and the refusal to block a loop.

A coroutine form (`seek_async` for `seek`) has the parameters and errors of the blocking method. It waits for disks,
servers and the metadata store in a thread of the event loop's default executor, like `asyncio.to_thread`: a task that
is cancelled does not wait any longer, and the call goes on.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import copy_context
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.errors import ClosedError, InvalidArgumentError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.handles import Closeable

S = TypeVar("S")
T = TypeVar("T")
HandleT = TypeVar("HandleT", bound=Closeable)
P = ParamSpec("P")


def check_may_block(call: str, instead: str = "") -> None:
    """Raise InvalidArgumentError if a blocking call would stop an event loop, or comes from a callback.

    call: name of the call. instead: name of the function that a coroutine awaits; "": `call` with `_async` appended.
    """
    if _get_running_loop() is not None:
        refuse_to_block(call, instead)
    check_may_wait()


def refuse_to_block(call: str, instead: str = "") -> None:
    """Raise InvalidArgumentError: a blocking call would stop the event loop that runs; see `check_may_block`.

    Does nothing in a notebook, whose event loop serves only the cell that runs.
    """
    if "ipykernel" not in sys.modules:
        form = instead or f"{call}_async"
        raise InvalidArgumentError(f"{call}() would block the running event loop: await {form}() instead")


def in_thread(blocking: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the coroutine form of a blocking method; a subclass may override the method."""
    name = blocking.__name__

    @wraps(blocking)
    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await asyncio.to_thread(getattr(self, name), *args, **kwargs)
        return result

    return named_form(awaited, name)


def opening(
    blocking: Callable[Concatenate[S, P], HandleT],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, HandleT]]:
    """Return the coroutine form of a method that opens a handle. If the task is cancelled, the handle is closed."""
    name = blocking.__name__

    @wraps(blocking)
    async def opened(self: S, /, *args: P.args, **kwargs: P.kwargs) -> HandleT:
        return await _open(lambda: getattr(self, name)(*args, **kwargs))

    return named_form(opened, name)


def opening_function(blocking: Callable[P, HandleT]) -> Callable[P, Coroutine[Any, Any, HandleT]]:
    """Return the coroutine form of a function that opens a handle; see `opening`."""

    @wraps(blocking)
    async def opened(*args: P.args, **kwargs: P.kwargs) -> HandleT:
        return await _open(lambda: blocking(*args, **kwargs))

    return named_form(opened, blocking.__name__)


async def _open(open_handle: Callable[[], HandleT]) -> HandleT:
    """Open a handle in a thread, and close it if the task is cancelled."""
    loop, done = asyncio.get_running_loop(), AppendFuture[HandleT]()

    def run() -> None:
        try:
            handle = open_handle()
        except BaseException as error:
            set_exception(done, error)
            return
        if not set_result(done, handle):
            handle.close()

    loop.run_in_executor(None, copy_context().run, run)
    try:
        return await done
    except asyncio.CancelledError:
        left = ClosedError("the task that waited for it was cancelled")
        if not set_exception(done, left) and done.exception() is None:
            loop.run_in_executor(None, done.result().close)
        raise


def iterating(
    blocking: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[S, P], AsyncIterator[T]]:
    """Return the form of a method returning an iterator for `async for`: each step runs in a thread."""
    name = blocking.__name__

    @wraps(blocking)
    async def iterated(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        items: Iterator[T] = await asyncio.to_thread(getattr(self, name), *args, **kwargs)
        while (item := await asyncio.to_thread(next, items, None)) is not None:
            yield item

    return named_form(iterated, name)


def form_of(
    blocking: Callable[Concatenate[S, P], T],
) -> Callable[[Callable[..., object]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Return a decorator for Protocols, which declares a coroutine form with the parameters and the result of
    `blocking`.
    """

    def declare(declaration: Callable[..., object]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(blocking)
        async def form(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            raise NotImplementedError

        named = named_form(form, blocking.__name__)
        named.__doc__ = declaration.__doc__
        return named

    return declare


def named_form(form: Callable[P, T], blocking: str) -> Callable[P, T]:
    """Give a form the name of the blocking method with `_async` appended, and a docstring; return it."""
    form.__name__ = f"{blocking}_async"
    form.__qualname__ = f"{form.__qualname__.rpartition('.')[0]}.{form.__name__}".lstrip(".")
    form.__doc__ = f"Do what `{blocking}` does, in a coroutine."
    return form
