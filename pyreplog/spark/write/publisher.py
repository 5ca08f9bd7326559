"""Publishes the rows of one task to topics of a cluster, each once, and says what became of them."""

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
"""A message's sequence number: its batch, and below these bits the row's number within the task."""
ROWS_MAX = 1 << ROW_BITS
WINDOW_BYTES = 16 << 20
"""Of rows that have no outcome, of all topics of a task; a call more."""


def open_topic(client: Client, name: str, options: WriteOptions) -> RemoteTopic | RemotePartitionedTopic:
    """A topic that is there, and gives the guarantee that is asked for. Errors: NoSuchTopicError, ConfigError, those
    of connections."""
    try:
        topic = client.topic(name, create=False)
    except NoSuchTopicError as error:
        raise NoSuchTopicError(name, f"make it before it is written to: {error.message}") from error
    for part in _parts(topic):
        if options.is_exactly_once and not part.config.deduplicate:
            raise ConfigError(
                f"topic {part.name}: expected one with deduplicate=True, for a task may be tried again; or else the "
                f"option deliveryGuarantee={AT_LEAST_ONCE}, and rows may be there twice"
            )
    return topic


def _parts(topic: RemoteTopic | RemotePartitionedTopic) -> list[RemoteTopic]:
    """It, or its partitions, in order."""
    if isinstance(topic, RemoteTopic):
        return [topic]
    return [topic.partition(partition) for partition in range(topic.partitions)]


class RowPublisher:
    """One task's. Threads: one at a time. Use it in a `with`.

    producer: of the task's partition; all attempts, and all batches of a query, share it. batch: its number, 0 to
    2**30 - 1. Rows get (batch, number of the row) as sequence: ascending over batches, and the same in each attempt, as
    far as rows come in the same order. Each partition of a partitioned topic is a topic of its own to this; partitions:
    of the option's topic, so many for all attempts; None: as many as it has now.
    """

    def __init__(self, options: WriteOptions, producer: str, batch: int, partitions: int | None = None) -> None:
        if not 0 <= batch < 1 << 30:
            raise InvalidArgumentError(f"batch: expected 0 to {(1 << 30) - 1}, found {batch}")
        self._options, self._producer, self._batch, self._partitions = options, producer, batch, partitions
        self._turn = key_hash(producer.encode()) + batch  # of the first row without a key: not all begin with the same
        self._routers: dict[str, Router | None] = {}  # of topics; None: it has no partitions
        self._client: Client | None = None
        self._producers: dict[str, Producer] = {}
        self._before: dict[str, int] = {}  # rows of this batch that an earlier attempt stored, up to the last one
        self._flying: deque[tuple[str, int, AppendFuture[range]]] = deque()  # topic, bytes
        self._flying_bytes = 0
        self.rows = self.stored = 0
        """Taken; stored by this attempt, and not by one before."""

    def publish(self, rows: RowBatch) -> None:
        """Publish rows that follow those before; waits while a window of them has no outcome.

        Errors: InvalidArgumentError, RecordTooLargeError; SequenceError, another attempt has begun, or later batches
        are there already; those of topics and connections. They have notes: the topic, the producer, the batch.
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
        """Of one topic, or partition."""
        size = rows.nbytes
        while self._flying and self._flying_bytes + size > WINDOW_BYTES:
            self._settle()
        with self._noting(rows.topic):
            future = self._submit(rows)
        self._flying.append((rows.topic, size, future))
        self._flying_bytes += size

    def _submit(self, rows: RowBatch) -> AppendFuture[range]:
        sequences = rows.numbers + (self._batch << ROW_BITS)
        return self._producers[rows.topic].submit_batch(**rows.arguments(), sequences=sequences)

    def _open(self, name: str) -> Router | None:
        """Producers of a topic, or of all its partitions: what an earlier attempt stored in any of them counts."""
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
                    f"topic {part.name}: expected rows for it, or for the topic of which it is a partition, found both"
                )
            self._open_one(part)
        return None if count is None else Router(name, count)

    def _open_one(self, topic: RemoteTopic) -> None:
        name, producer = topic.name, topic.producer(self._producer)
        last = producer.last_sequence
        if last >> ROW_BITS > self._batch:
            raise SequenceError(
                name,
                f"producer {self._producer} stored rows of batch {last >> ROW_BITS} before, now batch {self._batch} "
                f"comes: was its checkpoint set back? Give the query a new one",
            )
        self._before[name] = last % ROWS_MAX + 1 if last >= 0 and last >> ROW_BITS == self._batch else 0
        self._producers[name] = producer

    def _settle(self) -> None:
        """Wait for the oldest."""
        topic, size, future = self._flying.popleft()
        self._flying_bytes -= size
        with self._noting(topic):
            offsets = future.result()
        self.stored += len(offsets) if isinstance(offsets, range) else int((np.asarray(offsets) >= 0).sum())

    def finish(self) -> None:
        """All rows were given; wait for their outcomes. Errors: as publish; SequenceError, an earlier attempt stored
        more rows than there are now: they are not those it had."""
        while self._flying:
            self._settle()
        for topic, before in self._before.items():
            with self._noting(topic):
                self._check_all(topic, before)

    def _check_all(self, topic: str, before: int) -> None:
        if before > self.rows:
            raise SequenceError(
                topic,
                f"an earlier attempt stored row {before - 1} of this partition, now it has {self.rows} rows: the input "
                f"must come in the same partitions and order each time",
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
        with suppress(ReplogError) if error is not None else nullcontext():  # the error that came first is told
            self._client.close()
