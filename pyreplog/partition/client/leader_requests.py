"""LeaderRequests: requests to the leaders of partitions, retried until a leader answers or they time out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from pyreplog.errors import NoSuchPartitionError, PartitionUnavailableError, PeerError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.partition.client.responses import RETRIED, error_of
from pyreplog.partition.client.timers import Timers
from pyreplog.partition.client_requests import ClientTransport, Descriptions
from pyreplog.partition.client_wire import (
    ConsumeRequest,
    ConsumeResponse,
    DescribePartitionsRequest,
    ListOffsetsRequest,
)
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.topic_metadata import TopicMetadata
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import ConsumerFetch, FetchParams, PartitionOffsets, PartitionQuery
from pyreplog.partition.topic_partition import TopicPartition

RETRY_S = 0.05
"""Seconds between two attempts; a change of metadata causes one at once."""
REQUEST_TIMEOUT_S = 10.0
"""Seconds after which one attempt times out."""

T = TypeVar("T", ConsumeResponse, PartitionOffsets)
R = TypeVar("R")


class LeaderRequests:
    """Requests to leaders. Any thread may use it.

    Args:
        cache: cache of the metadata store.
        transport: transport to the brokers.
        timers: makes delayed calls.
    """

    def __init__(self, cache: MetadataCache, transport: ClientTransport, timers: Timers) -> None:
        self.cache, self.transport, self.timers = cache, transport, timers
        self._changes = threading.Condition()
        self._change_count: int = 0
        self._watchers: tuple[Callable[[], object], ...] = ()  # replaced as a whole

    # ---- metadata -------------------------------------------------------------------------------------------

    def metadata_changed(self) -> None:
        """Wake requests that wait for a leader."""
        with self._changes:
            self._change_count += 1
            self._changes.notify_all()
        for watcher in self._watchers:
            self.timers.call_later(0.0, watcher)

    def watch(self, watcher: Callable[[], object]) -> None:
        """Register a callback that is called after each change of metadata, in the timers' thread."""
        with self._changes:
            self._watchers = (*self._watchers, watcher)

    def unwatch(self, watcher: Callable[[], object]) -> None:
        """Remove a callback."""
        with self._changes:
            self._watchers = tuple(each for each in self._watchers if each != watcher)

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic that is not being deleted; None: it does not exist, as far as this process knows."""
        topic = self.cache.topic(name)
        return None if topic is None or topic.is_deleted else topic

    def leader(self, name: TopicPartition, topic_id: str) -> str | None:
        """Return the leader of a partition.

        Args:
            name: name of the partition.
            topic_id: id of its topic; a later topic of the same name has another id.

        Returns:
            Name of a broker; "": the partition has no leader, as far as this process knows; None: the topic was
            deleted.
        """
        topic = self.topic(name.topic)
        if topic is None or topic.topic_id != topic_id:
            return None
        stored = self.cache.state(PartitionId(topic_id, name.partition))
        return "" if stored is None else stored[1].leader

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until metadata fulfil a condition; return whether they do.

        Args:
            condition: called after each change, with a lock held: it must be cheap also with many partitions.
            timeout_s: how long to wait, seconds.
        """
        with self._changes:
            return self._changes.wait_for(condition, timeout_s)

    # ---- requests -------------------------------------------------------------------------------------------

    def consume(
        self, name: TopicPartition, topic_id: str, params: FetchParams, fetch: ConsumerFetch, timeout_s: float
    ) -> ConsumeResponse:  # fmt: skip
        """Fetch from the leader of a partition. OFFSET_OUT_OF_RANGE is returned, other errors are raised.

        Raises:
            NoSuchPartitionError: the topic was deleted.
            PartitionUnavailableError: no leader answered in time.
            PartitionError: the leader refused the fetch.
        """
        request = ConsumeRequest(params, {name: fetch})
        wait_s = params.max_wait_ms / 1000

        def send(leader: str, left_s: float) -> ConsumeResponse:
            attempt_s = min(max(left_s, 0.1), REQUEST_TIMEOUT_S) + wait_s
            return _result(self.transport.consume(leader, request, attempt_s), attempt_s)[name]

        return self._request(name, topic_id, send, timeout_s)

    def offsets(
        self, name: TopicPartition, topic_id: str, timeout_s: float, time_us: int | None = None
    ) -> PartitionOffsets:  # fmt: skip
        """Ask the leader of a partition for its offsets. Raises the errors of `consume`."""
        request = ListOffsetsRequest({name: time_us})

        def send(leader: str, left_s: float) -> PartitionOffsets:
            attempt_s = min(max(left_s, 0.1), REQUEST_TIMEOUT_S)
            return _result(self.transport.list_offsets(leader, request, attempt_s), attempt_s)[name]

        return self._request(name, topic_id, send, timeout_s)

    def describe(
        self, queries: Mapping[str, Mapping[TopicPartition, PartitionQuery]], timeout_s: float
    ) -> tuple[Descriptions, dict[str, ReplogError]]:
        """Ask brokers about partitions, once and in parallel.

        Args:
            queries: queries by broker and partition.
            timeout_s: seconds after which the requests time out.

        Returns:
            The answers; and the errors of the brokers without an answer.
        """
        sent = {
            broker: self.transport.describe_partitions(broker, DescribePartitionsRequest(asked), timeout_s)
            for broker, asked in queries.items()
        }
        descriptions: Descriptions = {}
        errors: dict[str, ReplogError] = {}
        for broker, future in sent.items():
            try:
                answered = _result(future, timeout_s)
                descriptions.update(answered)
            except ReplogError as error:
                errors[broker] = error
        return descriptions, errors

    def _request(self, name: TopicPartition, topic_id: str, send: Callable[[str, float], T], timeout_s: float) -> T:
        """Send a request to the leader, with retries until it gets an answer that is not temporary. Raises the last
        error after the time-out."""
        deadline = time.monotonic() + timeout_s
        reason: ReplogError = PartitionUnavailableError(str(name), "", "no broker leads it")
        while True:
            with self._changes:
                seen = self._change_count
            leader = self.leader(name, topic_id)
            if leader is None:
                raise NoSuchPartitionError(str(name), "", "the topic was deleted")
            if leader:
                try:
                    answer = send(leader, deadline - time.monotonic())
                except PeerError as error:
                    reason = PartitionUnavailableError(str(name), "", f"broker {leader}: {error}")
                else:
                    if answer.code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                        return answer
                    message = answer.message if isinstance(answer, ConsumeResponse) else ""
                    reason = error_of(name, answer.code, message or f"broker {leader} refused")
                    if answer.code not in RETRIED:
                        raise reason
            left = deadline - time.monotonic()
            if left <= 0:
                raise reason
            with self._changes:
                if self._change_count == seen:
                    self._changes.wait(min(left, RETRY_S))


def _result(future: AppendFuture[R], attempt_s: float) -> R:
    """Return the result of an attempt. The transport times out; the longer time-out here is a safeguard."""
    return future.result(attempt_s + REQUEST_TIMEOUT_S)
