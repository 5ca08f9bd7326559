"""ReplicaFetcher: sends the fetches of a broker's followers, and passes the answers to their partitions.

Each leading broker has a thread. It handles all answers that have arrived, and then sends all resulting fetches in one
request. The leader keeps fetches for which it has no records or news (`fetch_session`): while it has some, at least one
request is in flight, which is answered when a fetch can be. Requests with new fetches need not wait for it: a few may
be in flight at once.

Replicas that are not in the ISR may share a limit of bytes per second (KIP-73), for which their fetches wait. Replicas
in the ISR are never throttled, so that no limit makes a replica leave it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from typing import Protocol

from pyreplog.clock import Clock
from pyreplog.future import AppendFuture, set_exception
from pyreplog.handles import Handle
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.messages import Fetch, FetchedRecords, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchResponses, ReplicaFetch, ReplicaFetchRequest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.wire import PARTITIONS_MAX
from pyreplog.stream.rate_limiter import RateLimiter

logger = logging.getLogger(__name__)

_REQUESTS_MAX = 4
"""Most requests in flight to one broker; beyond it, fetches wait and are sent together."""


class BrokerTransport(Protocol):
    """Sends requests to other brokers."""

    def fetch(self, broker: str, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        """Send fetches to a broker, without blocking.

        Returns:
            A future that is always completed, with the answer or an error.
        """
        ...


class ReplicaFetcher(Handle):
    """The fetches of all followers of one broker. Any thread may use it.

    Args:
        member: the broker, with its incarnation.
        transport: transport to other brokers.
        find: returns a replica of this broker; None: it has no such replica.
        config: settings of the broker.
        clock: the time.
    """

    def __init__(
        self, member: Member, transport: BrokerTransport, find: Callable[[TopicPartition], Partition | None],
        config: BrokerConfig, clock: Clock,
    ) -> None:  # fmt: skip
        self._member = member
        self._transport, self._find, self._config, self._clock = transport, find, config, clock
        self._catch_up = _CatchUpQuota(config.catch_up_bytes_per_s, clock)
        self._lock = threading.Lock()  # guards the fields below
        self._threads: dict[str, _LeaderThread] = {}
        self._assigned: dict[TopicPartition, _LeaderThread] = {}  # thread of each partition's latest fetch
        super().__init__("replica fetcher")

    def send_fetch(self, partition: TopicPartition, leader: str, fetch: Fetch) -> None:
        """Send a fetch of a partition, together with fetches of other partitions."""
        with self._lock:
            thread = self._thread(leader)
            if thread is None:
                return
            former = self._assigned.get(partition, thread)
            self._assigned[partition] = thread
        if former is not thread:
            former.forget(partition)
        thread.send(partition, fetch)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the fetches of a partition, because its replica was removed."""
        with self._lock:
            thread = self._assigned.pop(partition, None)
        if thread is not None:
            thread.forget(partition)

    def retry_later(self, partition: TopicPartition) -> None:
        """Call `Partition.follow_again` after a back-off."""
        with self._lock:
            thread = self._thread("")
        if thread is not None:
            thread.call_later(partial(self._follow_again, partition))

    def _follow_again(self, name: TopicPartition) -> None:
        partition = self._find(name)
        if partition is not None:
            partition.follow_again()

    def _thread(self, leader: str) -> _LeaderThread | None:
        """Return the thread of a leader; None: this object was closed. The caller holds the lock."""
        if self._error is not None:
            return None
        thread = self._threads.get(leader)
        if thread is None:
            thread = _LeaderThread(
                self._member, leader, self._transport, self._find, self._config, self._clock, self._catch_up
            )  # fmt: skip
            self._threads[leader] = thread
        return thread

    def _do_close(self) -> None:
        with self._lock:
            threads, self._threads, self._assigned = list(self._threads.values()), {}, {}
        for thread in threads:
            thread.stop()


class _CatchUpQuota:
    """The quota of fetches of replicas outside of the ISR. Any thread may use it.

    A fetch reserves bytes when it is sent; reserved bytes that its answer does not contain are released.

    Args:
        rate: bytes per second; None: no limit.
        clock: the time.
    """

    def __init__(self, rate: int | None, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._limiter = RateLimiter.of(rate, clock.monotonic_us())

    @property
    def is_limited(self) -> bool:
        return self._limiter is not None

    def reserve(self, max_bytes: int) -> int:
        """Reserve up to `max_bytes` of the bytes that are allowed now; return how many were reserved."""
        assert self._limiter is not None
        with self._lock:
            reserved = min(self._limiter.allowed(self._clock.monotonic_us()), max_bytes)
            self._limiter.spend(reserved)
            return reserved

    def settle(self, reserved: int, fetched: int) -> None:
        """Count the fetched bytes in place of the reserved ones. They may be more: the first batch is sent whatever its
        size."""
        assert self._limiter is not None
        with self._lock:
            self._limiter.spend(fetched - reserved)

    def next_us(self) -> int:
        """Return the time from which on a fetch is allowed, monotonic microseconds."""
        assert self._limiter is not None
        with self._lock:
            now_us = self._clock.monotonic_us()
            self._limiter.allowed(now_us)
            return now_us + self._limiter.wait_us()


class _LeaderThread:
    """The thread that sends the fetches to one leader."""

    def __init__(
        self, member: Member, leader: str, transport: BrokerTransport,
        find: Callable[[TopicPartition], Partition | None], config: BrokerConfig, clock: Clock, catch_up: _CatchUpQuota,
    ) -> None:  # fmt: skip
        self._member, self._leader, self._transport = member, leader, transport
        self._find, self._config, self._clock, self._catch_up = find, config, clock, catch_up
        self._backoff_us = config.backoff_ms * 1000
        self._changed = threading.Condition()  # guards the fields below
        self._session, self._is_first = secrets.randbits(62), True  # unlike those of earlier processes
        self._fetches: dict[TopicPartition, Fetch] = {}  # to be sent next
        self._waiting: dict[TopicPartition, Fetch] = {}  # sent in this session, without an answer
        self._throttled: dict[TopicPartition, Fetch] = {}  # wait for the quota of replicas outside of the ISR
        self._is_release_due = False  # whether `_release_throttled` is in `_due`
        self._reserved: dict[TopicPartition, int] = {}  # bytes of the quota that fetches have reserved
        self._answers: list[tuple[ReplicaFetchRequest, AppendFuture[FetchResponses]]] = []
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._requests = 0  # in flight, of this session
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pyreplog-fetcher", daemon=True)
        self._thread.start()

    def send(self, partition: TopicPartition, fetch: Fetch) -> None:
        """Send a fetch soon. It replaces an older one of the same partition, which the state machine has abandoned."""
        with self._changed:
            self._throttled.pop(partition, None)
            self._fetches[partition] = fetch
            self._changed.notify()

    def forget(self, partition: TopicPartition) -> None:
        """Drop the fetches of a partition, because another broker leads it."""
        with self._changed:
            for fetches in (self._fetches, self._throttled, self._waiting):
                fetches.pop(partition, None)

    def call_later(self, call: Callable[[], None]) -> None:
        """Make a call after a back-off."""
        with self._changed:
            heappush(self._due, (self._clock.monotonic_us() + self._backoff_us, next(self._numbers), call))
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._has_work():  # no `wait_for`: a new call may shorten the wait
                    self._changed.wait(self._wait_s())
                if self._stopping:
                    return
                done, self._answers = self._answers, []
                now_us = self._clock.monotonic_us()
                due = []
                while self._due and self._due[0][0] <= now_us:
                    due.append(heappop(self._due)[2])
            for answered, future in done:
                self._handle_answer(answered, future)
            for call in due:
                self._guarded(call)
            with self._changed:
                if self._answers or self._stopping or not self._is_sending():
                    continue
                request = self._next_request()
            if request is not None:
                self._send(request)

    def _is_sending(self) -> bool:
        """Return whether a request is to be sent. The caller holds the lock."""
        return self._requests < _REQUESTS_MAX and (bool(self._fetches) or (bool(self._waiting) and not self._requests))

    def _next_request(self) -> ReplicaFetchRequest | None:
        """Return the next request; None: the quota allows no fetch yet. The caller holds the lock."""
        fetches: dict[TopicPartition, ReplicaFetch] = {}
        for name, fetch in list(islice(self._fetches.items(), PARTITIONS_MAX)):
            del self._fetches[name]
            max_bytes = self._reserve(name)
            if max_bytes:
                fetches[name], self._waiting[name] = ReplicaFetch(fetch, max_bytes), fetch
            else:
                self._throttled[name] = fetch
        if self._throttled and not self._is_release_due:
            self._is_release_due = True
            heappush(self._due, (self._catch_up.next_us(), next(self._numbers), self._release_throttled))
        if not fetches and not (self._waiting and not self._requests):
            return None
        config, is_first = self._config, self._is_first
        self._is_first = False
        self._requests += 1
        return ReplicaFetchRequest(
            self._member, self._session, is_first, config.fetch_wait_ms, config.fetch_bytes_max, fetches
        )  # fmt: skip

    def _reserve(self, name: TopicPartition) -> int:
        """Return the bytes that a fetch may request; 0: it has to wait for the quota."""
        max_bytes = self._config.fetch_bytes_max
        if not self._catch_up.is_limited:
            return max_bytes
        self._settle(name, 0)
        partition = self._find(name)
        if partition is None or partition.is_in_sync:
            return max_bytes
        reserved = self._catch_up.reserve(max_bytes)
        if reserved:
            self._reserved[name] = reserved
        return reserved

    def _settle(self, name: TopicPartition, fetched: int) -> None:
        """Count the fetched bytes, if the fetch has a reservation."""
        reserved = self._reserved.pop(name, None)
        if reserved is not None:
            self._catch_up.settle(reserved, fetched)

    def _release_throttled(self) -> None:
        with self._changed:
            self._is_release_due = False
            self._fetches, self._throttled = {**self._throttled, **self._fetches}, {}

    def _has_work(self) -> bool:
        return self._stopping or bool(self._answers) or self._is_sending() or self._wait_s() == 0

    def _wait_s(self) -> float | None:
        return max(self._due[0][0] - self._clock.monotonic_us(), 0) / 1e6 if self._due else None

    def _send(self, request: ReplicaFetchRequest) -> None:
        try:
            future = self._transport.fetch(self._leader, request)
        except Exception as error:  # handled as a failed request
            future = AppendFuture[FetchResponses]()
            set_exception(future, error)
        future.add_done_callback(partial(self._answered, request))

    def _answered(self, request: ReplicaFetchRequest, future: AppendFuture[FetchResponses]) -> None:
        with self._changed:
            if request.session == self._session:
                self._requests -= 1
            self._answers.append((request, future))
            self._changed.notify()

    def _handle_answer(self, request: ReplicaFetchRequest, future: AppendFuture[FetchResponses]) -> None:
        error = future.exception()
        if error is not None:
            self._begin_session(request, error)
            return
        responses = future.result()
        with self._changed:
            for name in request.fetches:
                if name in self._reserved and name not in responses:  # it waits at the leader: release its reservation
                    self._catch_up.settle(self._reserved[name], 0)
                    self._reserved[name] = 0
            for name, data in responses.items():
                self._settle(name, _size_of(data.response))
                waiting = self._waiting.get(name)
                if waiting is not None and data.response is not None and waiting.number == data.response.number:
                    del self._waiting[name]
        for name, data in responses.items():
            partition, response = self._find(name), data.response
            if partition is None or response is None:
                continue
            if isinstance(response, FetchRefused):
                self.call_later(partial(partition.fetch_timed_out, response.number))
            self._guarded(partial(partition.fetch_answered, response))

    def _begin_session(self, request: ReplicaFetchRequest, error: BaseException) -> None:
        """Begin another session after a failed request, with which answers may be lost. All waiting fetches time out
        after a back-off."""
        with self._changed:
            if request.session != self._session:
                return
            logger.info("broker %s did not answer fetches, they are retried: %s", self._leader, error)
            self._session, self._is_first, self._requests = self._session + 1, True, 0
            for name in list(self._reserved):
                self._settle(name, 0)
            waiting, self._waiting = self._waiting, {}
        for name, fetch in waiting.items():
            partition = self._find(name)
            if partition is not None:
                self.call_later(partial(partition.fetch_timed_out, fetch.number))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # the other partitions continue
            logger.exception("a follower of broker %s failed", self._leader)


def _size_of(response: FetchResponse | None) -> int:
    """Return the bytes of the log in an answer."""
    return response.end.position - response.position.position if isinstance(response, FetchedRecords) else 0
