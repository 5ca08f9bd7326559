"""MixedFetch: a fetch of partitions of brokers and of topics on ledgers, which waits for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from pyreplog.clock import Clock
from pyreplog.future import AppendFuture, transform
from pyreplog.kafka.ledgers.requests import LedgerFetchData
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import ConsumerFetch, FetchParams, FetchResponses
from pyreplog.partition.topic_partition import TopicPartition

if TYPE_CHECKING:
    from pyreplog.kafka.ledgers.topics import GrowthWatch, LedgerTopics

T = TypeVar("T")

LedgerResponses: TypeAlias = "Mapping[TopicPartition, LedgerFetchData]"
RunInThread: TypeAlias = Callable[[Callable[[], Any]], AppendFuture[Any]]
"""See `ApiContext.run`."""


class MixedFetchData(NamedTuple):
    """The outcome of a mixed fetch.

    Attributes:
        on_ledgers: outcomes of topics on ledgers.
        responses: outcomes of partitions of brokers, with views of their segments.
    """

    on_ledgers: LedgerResponses
    responses: FetchResponses


class MixedFetch:
    """A fetch that reads topics on ledgers first, and partitions of brokers last, because their views pin segments.

    It is answered when a topic on ledgers has a message or an error, or when the partitions of brokers have `min_bytes`
    or an error, or after `max_wait_ms`. Both wake it: nothing is polled. The event loop of the topics on ledgers never
    reads partitions of brokers, because all connections wait for that loop.

    Args:
        replicas: the partitions of the broker.
        topics: the topics on ledgers.
        clock: the clock of the broker.
        run: runs a call that may block on another thread, and returns a future of its result.
        params: settings of the fetch.
        fetches: fetches of partitions of brokers.
        on_ledgers: fetches of topics on ledgers.
    """

    def __init__(
        self, replicas: ReplicaManager, topics: LedgerTopics, clock: Clock, run: RunInThread, params: FetchParams,
        fetches: Mapping[TopicPartition, ConsumerFetch], on_ledgers: Mapping[TopicPartition, ConsumerFetch],
    ) -> None:  # fmt: skip
        self._replicas, self._topics, self._clock, self._run, self._params = replicas, topics, clock, run, params
        self._fetches, self._on_ledgers = fetches, on_ledgers
        self._deadline_us = clock.monotonic_us() + params.max_wait_ms * 1000

    def read(self) -> AppendFuture[MixedFetchData]:
        """Return a future of the outcome. It fails only when the listener is closed, with a ClosedError."""
        read = self._topics.fetch(self._params._replace(max_wait_ms=0), self._on_ledgers)
        return transform(read, lambda on_ledgers: self._in_thread(partial(self._read_replicas, on_ledgers)))

    def _in_thread(self, call: Callable[[], AppendFuture[T]]) -> AppendFuture[T]:
        """Make a call on another thread; return a future of the result of the future that it returns."""
        return transform(self._run(call), lambda future: future)

    def _read_replicas(self, on_ledgers: LedgerResponses) -> AppendFuture[MixedFetchData]:
        size = sum(len(data.records) for data in on_ledgers.values())
        has_error = any(data.code is not ErrorCode.NONE for data in on_ledgers.values())
        left_ms = max(self._deadline_us - self._clock.monotonic_us(), 0) // 1000
        if size:
            max_bytes = max(self._params.max_bytes - size, 0)
            params = self._params._replace(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, has_hard_limit=True)
        else:
            params = self._params._replace(max_wait_ms=0 if has_error else left_ms)
        if not params.max_wait_ms:
            fetched = self._replicas.fetch_messages(params, self._fetches)
            return transform(fetched, partial(MixedFetchData, on_ledgers))
        watch = self._topics.watch({name: data.high_watermark for name, data in on_ledgers.items()}, left_ms)
        fetched = self._replicas.fetch_messages(params, self._fetches, until=self._after_growth(watch))
        return transform(fetched, partial(self._end_wait, on_ledgers, watch))

    def _after_growth(self, watch: GrowthWatch) -> AppendFuture[None]:
        """Return a future that is done, on another thread than the event loop, after a topic on ledgers has grown."""
        return transform(watch.grown, lambda _: self._run(lambda: None))

    def _end_wait(
        self, on_ledgers: LedgerResponses, watch: GrowthWatch, responses: FetchResponses
    ) -> MixedFetchData | AppendFuture[MixedFetchData]:  # fmt: skip
        watch.end()
        is_answer = any(data.size or data.code is not ErrorCode.NONE for data in responses.values())
        if is_answer or not watch.grown.done():
            return MixedFetchData(on_ledgers, responses)
        return self.read()
