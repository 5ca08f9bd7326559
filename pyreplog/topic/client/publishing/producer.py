"""Producer: publishes to a topic under a name, and numbers what it publishes."""

from __future__ import annotations

import sys
from asyncio import _get_running_loop
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.handles import Closeable
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.names import check_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Time, Times


class Producer(Closeable):
    """A named producer. Where the topic deduplicates, its messages have numbers that ascend: those it gives, or else
    the next ones. They go on where they were when the topic is opened again, by whomever.

    Any thread may call anything; asyncio code awaits what `submit`, `submit_batch` and `flush_async` give. Who
    publishes from a source that has numbers of its own gives these, and begins behind `last_sequence`: what was
    published before is dropped. Producers of the same name share their numbers. It holds nothing of its own: what one
    that is forgotten has submitted is published all the same.
    """

    def __init__(self, publisher: Publisher, name: str, on_close: Callable[[], object] = lambda: None) -> None:
        """name: 1 to 200 bytes of UTF-8 without control characters. on_close: called once it is closed, and all has an
        outcome. Errors: WrongTypeError, InvalidArgumentError."""
        self.name = check_name(name)
        self._publisher, self._on_close = publisher, on_close
        self._error: ReplogError | None = None

    @property
    def last_sequence(self) -> int:
        """Its highest number that is stored; -1: none, or the topic does not deduplicate."""
        return self._publisher.last_sequence(self.name)

    def publish(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """As `Publisher.publish`."""
        return self._open.publish(
            value,
            key,
            properties=properties,
            event_time=event_time,
            deliver_at=deliver_at,
            delay=delay,
            sequence=sequence,
            producer=self.name,
            timeout=timeout,
        )

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        delay: float | None = None,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[int]:
        """As `Publisher.submit`."""
        return self._open.submit(
            value,
            key,
            properties=properties,
            event_time=event_time,
            deliver_at=deliver_at,
            delay=delay,
            sequence=sequence,
            producer=self.name,
            timeout=timeout,
        )

    def publish_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        timeout: float | None = None,
    ) -> range:
        """As `Publisher.publish_batch`."""
        return self._open.publish_batch(
            values,
            keys,
            properties=properties,
            event_times=event_times,
            deliver_at=deliver_at,
            delay=delay,
            sequences=sequences,
            producer=self.name,
            timeout=timeout,
        )

    def submit_batch(
        self,
        values: Values,
        keys: Keys | None = None,
        *,
        properties: Properties | None = None,
        event_times: Times | None = None,
        deliver_at: Times | None = None,
        delay: float | None = None,
        sequences: ArrayLike | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[range]:
        """As `Publisher.submit_batch`."""
        return self._open.submit_batch(
            values,
            keys,
            properties=properties,
            event_times=event_times,
            deliver_at=deliver_at,
            delay=delay,
            sequences=sequences,
            producer=self.name,
            timeout=timeout,
        )

    async def _awaited(self, producer: str | None) -> Publisher:
        return self._open

    publish_async = publishing(submit, _awaited)
    """As `publish`, for coroutines."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """As `publish_batch`, for coroutines."""

    def room(self) -> AppendFuture[None]:
        """As `Publisher.room`. ClosedError: it was closed."""
        return self._open.room()

    def flush(self, timeout: float | None = None) -> None:
        """As `Publisher.flush`: also of other producers of the topic in this process. ClosedError: it was closed."""
        self._open.flush(timeout)

    def flush_async(self) -> AppendFuture[None]:
        """As `Publisher.flush_async`. ClosedError: it was closed."""
        return self._open.flush_async()

    def close(self, timeout: float | None = None) -> None:
        """Take nothing any more, and wait until what was submitted has an outcome; not in a coroutine or a callback.
        Closing twice is fine. timeout: as of publish. OutcomeUnknownError: the time ran out; it goes on by itself."""
        if self._error is None and not sys.is_finalizing():  # else there is no thread that publishes
            self._error = ClosedError(f"the producer {self.name!r} was closed")
            flushed = self._publisher.flush_async()
            flushed.add_done_callback(lambda _: self._on_close())
            if not in_callback() and _get_running_loop() is None:
                self._publisher.wait(flushed, timeout)

    @property
    def _open(self) -> Publisher:
        if self._error is not None:
            raise self._error
        return self._publisher

    def __repr__(self) -> str:
        return f"<Producer {self.name!r} of topic {self._publisher.topic!r}>"
