"""Coroutine forms of blocking methods: `publish_async` for `publish`, `seek_async` for `seek`, and so on.

They have the parameters and errors of the blocking method. Those that publish wait for room and for the outcome without
a thread. The others wait for disks, servers and the metadata store in a thread of the event loop's default executor,
like `asyncio.to_thread`: a task that is cancelled does not wait any longer, and the call goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextvars import copy_context
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyreplog.errors import ClosedError, OutcomeUnknownError, WindowFullError
from pyreplog.future import AppendFuture, as_timeout, set_exception, set_result
from pyreplog.handles import Closeable

S = TypeVar("S")
T = TypeVar("T")
HandleT = TypeVar("HandleT", bound=Closeable)
P = ParamSpec("P")


class HasRoom(Protocol):
    """A publisher of a topic, with or without partitions."""

    @property
    def timeout(self) -> float | None:
        """Seconds that calls wait by default."""
        ...

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room."""
        ...


def in_thread(blocking: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the coroutine form of a blocking method; a subclass may override the method."""
    name = blocking.__name__

    @wraps(blocking)
    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await asyncio.to_thread(getattr(self, name), *args, **kwargs)
        return result

    return _named(awaited, name)


def opening(
    blocking: Callable[Concatenate[S, P], HandleT],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, HandleT]]:
    """Return the coroutine form of a method that opens a handle. If the task is cancelled, the handle is closed."""
    name = blocking.__name__

    @wraps(blocking)
    async def opened(self: S, /, *args: P.args, **kwargs: P.kwargs) -> HandleT:
        loop, done = asyncio.get_running_loop(), AppendFuture[HandleT]()

        def open_handle() -> None:
            try:
                handle = getattr(self, name)(*args, **kwargs)
            except BaseException as error:
                set_exception(done, error)
                return
            if not set_result(done, handle):
                handle.close()

        loop.run_in_executor(None, copy_context().run, open_handle)
        try:
            return await done
        except asyncio.CancelledError:
            if (
                not set_exception(done, ClosedError("the task that waited for it was cancelled"))
                and done.exception() is None
            ):
                loop.run_in_executor(None, done.result().close)
            raise

    return _named(opened, name)


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

    return _named(iterated, name)


def publishing(
    submit: Callable[Concatenate[S, P], AppendFuture[T]], publisher_of: Callable[[S, str | None], Awaitable[HasRoom]]
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the coroutine form of `publish`, built on `submit`: it waits for room, and for the outcome.

    publisher_of: returns the publisher of an object, for the name of a producer. The coroutine raises the errors of
    `publish`.
    """
    name = submit.__name__.replace("submit", "publish")

    @wraps(submit)
    async def published(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        timeout: Any = kwargs.pop("timeout", None)
        seconds = as_timeout(timeout)
        future: AppendFuture[T] | None = None
        publisher = await publisher_of(self, kwargs.get("producer"))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(publisher.timeout if seconds is None else seconds):
                while not (room := publisher.room()).done():
                    await room
                future = submit(self, *args, **kwargs)
                return await future
        except TimeoutError:
            if future is None:
                raise WindowFullError("no room in time (timeout): nothing was published, try again later") from None
            raise OutcomeUnknownError(
                "no outcome in time (timeout): the message was published, or may be later, or not; a named producer of "
                "a topic that deduplicates may publish it again"
            ) from None

    return _named(published, name)


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

        named = _named(form, blocking.__name__)
        named.__doc__ = declaration.__doc__
        return named

    return declare


def _named(form: Callable[P, T], blocking: str) -> Callable[P, T]:
    """Give a form its own name; signature and parameters are those of the method."""
    form.__name__ = f"{blocking}_async"
    form.__qualname__ = f"{form.__qualname__.rpartition('.')[0]}.{form.__name__}".lstrip(".")
    form.__doc__ = f"Do what `{blocking}` does, in a coroutine."
    return form
