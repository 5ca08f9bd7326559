"""Publishes the rows of one task to topics, each once, and waits for their outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from pyreplog.errors import ConfigError, InvalidArgumentError, NoSuchTopicError, ReplogError, SequenceError
from pyreplog.future import AppendFuture
from pyreplog.spark.write.options import AT_LEAST_ONCE, WriteOptions
from pyreplog.spark.write.routing import by_partition
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic, RemoteTopic
from pyreplog.topic.model.routing import Router, key_hash

if TYPE_CHECKING:
    from pyreplog.spark.write.rows import RowBatch

ROW_BITS = 32
"""A sequence number consists of the batch and, in its lowest bits, the number of the row within the task."""
ROWS_MAX = 1 << ROW_BITS
WINDOW_BYTES = 16 << 20
"""Bytes of rows without an outcome, in all topics of a task; one call may exceed it."""


def open_topic(client: Client, name: str, options: WriteOptions) -> RemoteTopic | RemotePartitionedTopic:
    """Open an existing topic that gives the wanted guarantee.

    Raises NoSuchTopicError, ConfigError, and the errors of connections.
    """
    try:
        topic = client.topic(name, create=False)
    except NoSuchTopicError as error:
        raise NoSuchTopicError(name, f"create it before you write to it: {error.message}") from error
    for part in _parts(topic):
        if options.is_exactly_once and not part.config.deduplicate:
            raise ConfigError(
                f"topic {part.name}: expected a topic with deduplicate=True, because Spark may repeat a task; or the "
                f"option deliveryGuarantee={AT_LEAST_ONCE}, with which rows may be stored twice"
            )
    return topic


def _parts(topic: RemoteTopic | RemotePartitionedTopic) -> list[RemoteTopic]:
    """Return the topic, or its partitions in order."""
    if isinstance(topic, RemoteTopic):
        return [topic]
    return [topic.partition(partition) for partition in range(topic.partitions)]


class RowPublisher:
    """Publishes the rows of one task. One thread at a time may use it, in a `with`.

    producer: name of the task's producer; all attempts and all batches of a query share it. batch: number of the batch,
    0 to 2**30 - 1. partitions: partitions of the topic in the options, for all attempts; None: as many as it has now.

    The sequence number of a row is (batch, number of the row): it ascends over batches, and is the same in each attempt
    if the rows come in the same order. Each partition of a partitioned topic is treated as a topic.
    """

    def __init__(self, options: WriteOptions, producer: str, batch: int, partitions: int | None = None) -> None:
        if not 0 <= batch < 1 << 30:
            raise InvalidArgumentError(f"batch: expected 0 to {(1 << 30) - 1}, found {batch}")
        self._options, self._producer, self._batch, self._partitions = options, producer, batch, partitions
        self._turn = (
            key_hash(producer.encode()) + batch
        )  # of the first row without a key: tasks begin with different partitions
        self._routers: dict[str, Router | None] = {}  # by topic; None: it has no partitions
        self._client: Client | None = None
        self._producers: dict[str, Producer] = {}
        self._before: dict[
            str, int
        ] = {}  # by topic: rows of this batch up to the last one that an earlier attempt stored
        self._pending: deque[tuple[str, int, AppendFuture[range]]] = deque()  # topic, bytes
        self._pending_bytes = 0
        self.rows = self.stored = 0
        """Rows taken; rows stored by this attempt, not by an earlier one."""

    def publish(self, rows: RowBatch) -> None:
        """Publish the rows that follow. Waits while a window of rows has no outcome.

        Raises InvalidArgumentError; RecordTooLargeError; SequenceError if another attempt has begun, or later batches
        are stored already; and the errors of topics and connections. They have notes with the topic, the producer and
        the batch.
        """
        with self._noting(rows.topic):
            if rows.numbers[-1] >= ROWS_MAX:
                raise InvalidArgumentError(f"expected at most {ROWS_MAX} rows of a partition in a batch, found more")
            if rows.topic not in self._routers:
                self._routers[rows.topic] = self._open(rows.topic)
        router = self._routers[rows.topic]
        for part in (rows,) if router is None else by_partition(rows, router, self._turn):
            self._publish(part)
        self.rows += len(rows.numbers)

    def _publish(self, rows: RowBatch) -> None:
        """Publish rows of one topic or partition."""
        size = rows.nbytes
        while self._pending and self._pending_bytes + size > WINDOW_BYTES:
            self._settle()
        with self._noting(rows.topic):
            future = self._submit(rows)
        self._pending.append((rows.topic, size, future))
        self._pending_bytes += size

    def _submit(self, rows: RowBatch) -> AppendFuture[range]:
        sequences = rows.numbers + (self._batch << ROW_BITS)
        return self._producers[rows.topic].submit_batch(**rows.arguments(), sequences=sequences)

    def _open(self, name: str) -> Router | None:
        """Open producers for a topic or all of its partitions: each may have rows of an earlier attempt."""
        if self._client is None:
            credentials = self._options.credentials
            self._client = connect(self._options.cluster, secret=credentials.read_secret(), tls=credentials.context())
        topic = open_topic(self._client, name, self._options)
        count = None if isinstance(topic, RemoteTopic) else topic.partitions
        if count is not None and name == self._options.topic:
            count = self._partitions or count
        for part in _parts(topic)[:count]:
            if part.name in self._producers:
                raise ConfigError(
                    f"topic {part.name}: expected rows for it, or for the topic that it is a partition of, found both"
                )
            self._open_producer(part)
        return None if count is None else Router(name, count)

    def _open_producer(self, topic: RemoteTopic) -> None:
        name, producer = topic.name, topic.producer(self._producer)
        last = producer.last_sequence
        if last >> ROW_BITS > self._batch:
            raise SequenceError(
                name,
                f"producer {self._producer} has stored rows of batch {last >> ROW_BITS}, and now writes batch "
                f"{self._batch}: if the checkpoint was set back, use a new one for the query",
            )
        self._before[name] = last % ROWS_MAX + 1 if last >= 0 and last >> ROW_BITS == self._batch else 0
        self._producers[name] = producer

    def _settle(self) -> None:
        """Wait for the oldest call."""
        topic, size, future = self._pending.popleft()
        self._pending_bytes -= size
        with self._noting(topic):
            offsets = future.result()
        self.stored += len(offsets) if isinstance(offsets, range) else int((np.asarray(offsets) >= 0).sum())

    def finish(self) -> None:
        """Wait for the outcomes of all rows.

        Raises the errors of `publish`, and SequenceError if an earlier attempt stored more rows than this one has: they
        are other rows.
        """
        while self._pending:
            self._settle()
        for topic, before in self._before.items():
            with self._noting(topic):
                self._check_all(topic, before)

    def _check_all(self, topic: str, before: int) -> None:
        if before > self.rows:
            raise SequenceError(
                topic,
                f"an earlier attempt stored row {before - 1} of this partition, which now has {self.rows} rows: the "
                f"input must have the same partitions and the same order each time",
            )

    @contextmanager
    def _noting(self, topic: str) -> Iterator[None]:
        try:
            yield
        except ReplogError as error:
            error.add_note(f"while writing to topic {topic} as producer {self._producer}, batch {self._batch}")
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is None:
            return
        with suppress(ReplogError) if error is not None else nullcontext():  # the first error is raised
            self._client.close()
