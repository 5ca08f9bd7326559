"""Producer: publishes to a topic under a name, and numbers its messages."""

from __future__ import annotations

import sys
from asyncio import _get_running_loop
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.handles import Closeable
from pyreplog.topic.client.coroutines import publishing
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic_names import check_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike

    from pyreplog.times import Time
    from pyreplog.topic.client.publishing.outgoing import Keys, Properties, Values
    from pyreplog.topic.model.times import Times


class Producer(Closeable):
    """A named producer of a topic; made by `Topic.producer`.

    If the topic deduplicates, its messages have ascending numbers: those that the caller passes, or else the next ones.
    The numbers go on after the topic is opened again, by any process. An application whose source has numbers passes
    these, and begins behind `last_sequence`: messages that are stored already are dropped. Producers of the same name
    share their numbers.

    Any thread may use it; asyncio code awaits the futures of `submit`, `submit_batch` and `flush_async`. A producer
    that is forgotten loses nothing: its submitted messages are published nevertheless. See docs/topics.md.
    """

    def __init__(self, publisher: Publisher, name: str, on_close: Callable[[], object] = lambda: None) -> None:
        """Create a producer; for `Topic.producer`.

        name: 1 to 200 bytes of UTF-8 without control characters. on_close: called once it is closed, and all messages
        have an outcome. Raises WrongTypeError or InvalidArgumentError.
        """
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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Publish one message, and wait until it is confirmed.

        The arguments are those of `Publisher.publish`.

        Returns:
            The offset of the message; DUPLICATE (-1) if its number was published before.

        Raises:
            ClosedError: the producer was closed.
            ReplogError: as `Publisher.publish`.
        """
        return self._open.publish(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, producer=self.name, timeout=timeout,
        )  # fmt: skip

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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[int]:
        """Publish one message without waiting; return the future of its offset.

        The arguments are those of `Publisher.submit`.

        Raises:
            ClosedError: the producer was closed.
            ReplogError: as `Publisher.submit`.
        """
        return self._open.submit(
            value, key, properties=properties, event_time=event_time, deliver_at=deliver_at, delay=delay,
            sequence=sequence, replicate_to=replicate_to, producer=self.name, timeout=timeout,
        )  # fmt: skip

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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> range:
        """Publish several messages, and wait until all are confirmed.

        The arguments are those of `Publisher.publish_batch`.

        Returns:
            The offsets of the messages that are stored.

        Raises:
            ClosedError: the producer was closed.
            ReplogError: as `Publisher.publish_batch`.
        """
        return self._open.publish_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, replicate_to=replicate_to, producer=self.name, timeout=timeout,
        )  # fmt: skip

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
        replicate_to: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> AppendFuture[range]:
        """Publish several messages without waiting; return the future of their offsets.

        The arguments are those of `Publisher.submit_batch`.

        Raises:
            ClosedError: the producer was closed.
            ReplogError: as `Publisher.submit_batch`.
        """
        return self._open.submit_batch(
            values, keys, properties=properties, event_times=event_times, deliver_at=deliver_at, delay=delay,
            sequences=sequences, replicate_to=replicate_to, producer=self.name, timeout=timeout,
        )  # fmt: skip

    async def _awaited(self, producer: str | None) -> Publisher:
        return self._open

    publish_async = publishing(submit, _awaited)
    """Do what `publish` does, in a coroutine."""

    publish_batch_async = publishing(submit_batch, _awaited)
    """Do what `publish_batch` does, in a coroutine."""

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room for messages.

        Raises:
            ClosedError: the producer was closed.
        """
        return self._open.room()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message submitted so far has an outcome.

        It includes messages of other producers of the topic in this process.

        Args:
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Raises:
            OutcomeUnknownError: the time ran out.
            ClosedError: the producer was closed.
        """
        self._open.flush(timeout)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every message submitted so far has an outcome; see `flush`.

        Raises:
            ClosedError: the producer was closed.
        """
        return self._open.flush_async()

    def close(self, timeout: float | None = None) -> None:
        """Close the producer, and wait until every message submitted so far has an outcome.

        Closing twice has no effect.

        In a coroutine or a callback it does not wait.

        Args:
            timeout: seconds; None: the timeout of the client; without limit for a topic of this process.

        Raises:
            OutcomeUnknownError: the time ran out; the messages go on by themselves.
        """
        if self._error is None and not sys.is_finalizing():  # otherwise no thread runs that could publish
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
