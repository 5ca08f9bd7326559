"""PartitionedProducer: publishes to a partitioned topic under a name."""

from __future__ import annotations

from asyncio import _get_running_loop
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from pyreplog._native.turns import in_callback
from pyreplog.ack import Ack
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.topic.names import check_name
from pyreplog.topic.partitions.partitionedpublisher import Columns, Fields, PartitionedPublisher
from pyreplog.topic.partitions.partitionoffset import PartitionOffset, PartitionRange

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from pyreplog.topic.publishing.outgoing import Keys, Values


class PartitionedProducer:
    """A named producer. Where the topic deduplicates, each partition goes on with its numbers; threads and asyncio as
    of `Producer`.

    Who publishes from a source that has numbers of its own gives these, and after a crash begins again behind the
    lowest of `last_sequences`: what is there already is dropped.
    """

    def __init__(self, publisher: PartitionedPublisher, name: str) -> None:
        """name: 1 to 200 bytes of UTF-8 without control characters. Errors: WrongTypeError, InvalidArgumentError."""
        self.name = check_name(name)
        self._error: ReplogError | None = None
        self._publisher = publisher

    @property
    def last_sequences(self) -> list[int]:
        """Of each partition: its highest number that is stored; -1: none, or the topic does not deduplicate."""
        return self._publisher.last_sequences(self.name)

    def publish(
        self, value: ReadableBuffer, key: ReadableBuffer | None = None, **fields: Unpack[Fields]
    ) -> PartitionOffset:
        """As `PartitionedPublisher.publish`."""
        return self._open.publish(value, key, producer=self.name, **fields)

    def submit(
        self, value: ReadableBuffer, key: ReadableBuffer | None = None, **fields: Unpack[Fields]
    ) -> Ack[PartitionOffset]:
        """As `PartitionedPublisher.submit`."""
        return self._open.submit(value, key, producer=self.name, **fields)

    def publish_batch(
        self, values: Values, keys: Keys | None = None, **columns: Unpack[Columns]
    ) -> list[PartitionRange]:
        """As `PartitionedPublisher.publish_batch`."""
        return self._open.publish_batch(values, keys, producer=self.name, **columns)

    def submit_batch(
        self, values: Values, keys: Keys | None = None, **columns: Unpack[Columns]
    ) -> Ack[list[PartitionRange]]:
        """As `PartitionedPublisher.submit_batch`."""
        return self._open.submit_batch(values, keys, producer=self.name, **columns)

    def flush(self) -> Ack[list[None]]:
        """As `Producer.flush`, of all partitions."""
        return self._publisher.flush(self.name)

    def close(self) -> None:
        """As `Producer.close`."""
        if self._error is None:
            self._error = ClosedError(f"the producer {self.name!r} was closed")
            flushed = self.flush()
            if not in_callback() and _get_running_loop() is None:
                self._publisher.wait(flushed)

    @property
    def _open(self) -> PartitionedPublisher:
        if self._error is not None:
            raise self._error
        return self._publisher

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PartitionedProducer {self.name!r} of topic {self._publisher.router.topic!r}>"
