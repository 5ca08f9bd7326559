"""Coroutine forms of methods that publish; `pyreplog.coroutines` has those of other blocking methods.

They have the parameters and errors of the blocking method, and wait for room and for the outcome without a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyreplog.coroutines import named_form
from pyreplog.errors import OutcomeUnknownError, WindowFullError
from pyreplog.future import AppendFuture, as_timeout

S = TypeVar("S")
T = TypeVar("T")
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

    return named_form(published, name)
