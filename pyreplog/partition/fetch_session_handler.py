"""FetchSessionHandler: the followers' side of the fetch sessions of one broker with one leader (KIP-227).

`fetch_session` is the leader's side. The class has the name of its counterpart in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from pyreplog.partition.catch_up_quota import CatchUpQuota
from pyreplog.partition.protocol.messages import Fetch, FetchedRecords, FetchResponse
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchResponses, ReplicaFetch, ReplicaFetchRequest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.wire import PARTITIONS_MAX

REQUESTS_MAX = 4
"""Most requests in flight to one leader. While there are as many, fetches are collected for the next request."""


class FetchSessionHandler:
    """Decides which fetches the next request to a leader has. It has no thread, no clock and no lock.

    Each fetch is in one request. The leader answers it once it has records or another change for the follower, in the
    response to any request of the session that is in flight then. So a request is in flight, perhaps an empty one,
    while fetches have no answer. When a request fails, answers may be lost with it: another session begins, and all
    fetches without an answer time out.

    Args:
        member: the broker of the followers, in its incarnation.
        session: number of the first session, unique among those of all processes of this broker.
        max_wait_ms: milliseconds that the leader may keep a request without an answer.
        max_bytes: approximate size of a response, and of one partition in it; may be changed.
        quota: quota of the replicas outside of the ISR.
        is_in_sync: returns whether the replica of a partition needs no quota.
    """

    def __init__(
        self, member: Member, session: int, *, max_wait_ms: int, max_bytes: int, quota: CatchUpQuota,
        is_in_sync: Callable[[TopicPartition], bool],
    ) -> None:  # fmt: skip
        self.member, self.max_wait_ms, self.max_bytes = member, max_wait_ms, max_bytes
        self._quota, self._is_in_sync = quota, is_in_sync
        self._session, self._is_first = session, True
        self._in_flight = 0  # requests of this session
        self._unsent: dict[TopicPartition, Fetch] = {}
        self._waiting: dict[TopicPartition, Fetch] = {}  # sent in this session, and not answered
        self._throttled: dict[TopicPartition, Fetch] = {}  # fetches that wait for the quota
        self._throttled_until_us: int | None = None
        self._reserved: dict[TopicPartition, int] = {}  # bytes of the quota, by partition

    def add(self, partition: TopicPartition, fetch: Fetch) -> None:
        """Add a fetch to the next request. It replaces an older fetch of its partition.

        Args:
            partition: name of the partition.
            fetch: the fetch.
        """
        self._throttled.pop(partition, None)
        self._unsent[partition] = fetch

    def forget(self, partition: TopicPartition) -> None:
        """Forget the fetches of a partition, because its replica was removed, or has another leader.

        Args:
            partition: name of the partition.
        """
        for fetches in (self._unsent, self._throttled, self._waiting):
            fetches.pop(partition, None)

    def is_due(self, now_us: int) -> bool:
        """Return whether a request is to be sent.

        Args:
            now_us: monotonic time, microseconds.
        """
        if self._in_flight >= REQUESTS_MAX:
            return False
        is_allowed = self._throttled_until_us is not None and now_us >= self._throttled_until_us
        return bool(self._unsent) or is_allowed or (bool(self._waiting) and not self._in_flight)

    @property
    def throttled_until_us(self) -> int | None:
        """Monotonic time, microseconds, from which on the quota allows throttled fetches; None: none is throttled."""
        return self._throttled_until_us

    def next_request(self, now_us: int) -> ReplicaFetchRequest | None:
        """Return the request to send now; None: no request is due, or the quota allows no fetch of it.

        Args:
            now_us: monotonic time, microseconds.
        """
        if not self.is_due(now_us):
            return None
        if self._throttled_until_us is not None and now_us >= self._throttled_until_us:
            self._unsent, self._throttled, self._throttled_until_us = {**self._throttled, **self._unsent}, {}, None
        fetches: dict[TopicPartition, ReplicaFetch] = {}
        for name, fetch in list(islice(self._unsent.items(), PARTITIONS_MAX)):
            del self._unsent[name]
            max_bytes = self._reserve(name)
            if max_bytes:
                fetches[name], self._waiting[name] = ReplicaFetch(fetch, max_bytes), fetch
            else:
                self._throttled[name] = fetch
        if self._throttled and self._throttled_until_us is None:
            self._throttled_until_us = self._quota.next_us()
        if not fetches and not (self._waiting and not self._in_flight):
            return None
        is_first, self._is_first = self._is_first, False
        self._in_flight += 1
        return ReplicaFetchRequest(self.member, self._session, is_first, self.max_wait_ms, self.max_bytes, fetches)

    def answered(self, request: ReplicaFetchRequest, responses: FetchResponses) -> None:
        """Note the responses to a request, so that their fetches do not wait any more.

        Args:
            request: the request.
            responses: responses by partition, perhaps to fetches of earlier requests of the session.
        """
        if request.session == self._session:
            self._in_flight -= 1
        for name in request.fetches:
            if name in self._reserved and name not in responses:  # a waiting fetch reserves no bytes
                self._quota.settle(self._reserved[name], 0)
                self._reserved[name] = 0
        for name, data in responses.items():
            response = data.response
            self._settle(name, _size_of(response))
            waiting = self._waiting.get(name)
            if waiting is not None and response is not None and waiting.number == response.number:
                del self._waiting[name]

    def failed(self, request: ReplicaFetchRequest) -> dict[TopicPartition, Fetch]:
        """Begin another session, because a request of this one failed.

        Args:
            request: the request.

        Returns:
            All fetches without an answer, which time out; {}: the request belongs to an earlier session.
        """
        if request.session != self._session:
            return {}
        self._session, self._is_first, self._in_flight = self._session + 1, True, 0
        for name in list(self._reserved):
            self._settle(name, 0)
        waiting, self._waiting = self._waiting, {}
        return waiting

    def _reserve(self, name: TopicPartition) -> int:
        """Return the most bytes that a fetch may request; 0: the quota allows no fetch yet."""
        if not self._quota.is_limited:
            return self.max_bytes
        self._settle(name, 0)
        if self._is_in_sync(name):
            return self.max_bytes
        reserved = self._quota.reserve(self.max_bytes)
        if reserved:
            self._reserved[name] = reserved
        return reserved

    def _settle(self, name: TopicPartition, fetched: int) -> None:
        """Count the bytes of an answer, if its fetch needed the quota."""
        reserved = self._reserved.pop(name, None)
        if reserved is not None:
            self._quota.settle(reserved, fetched)


def _size_of(response: FetchResponse | None) -> int:
    """Return the bytes of records in a response."""
    return response.end.position - response.position.position if isinstance(response, FetchedRecords) else 0
