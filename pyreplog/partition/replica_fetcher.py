"""ReplicaFetcher: sends the fetches of a broker's followers, and takes the answers to their partitions.

There is a thread for each broker that leads some of them. It carries out all answers that are there, and then sends
all fetches that came of them in one request. So a request has the partitions that are ready, and partitions that wait
for records hold up none: a few requests may be under way at once.

Replicas that are not in the ISR may share a limit of bytes per second (KIP-73): their fetches wait until it allows
some. Those in the ISR are never held back, so that no limit makes a replica leave it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from pyreplog.clock import Clock
from pyreplog.future import AppendFuture, set_exception
from pyreplog.handles import Handle
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.delayed_fetch import FetchResponses
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.messages import Fetch, FetchedRecords, FetchRefused, FetchResponse
from pyreplog.partition.requests import FetchIsolation, FetchParams, PartitionFetch, ReplicaFetch
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.stream.rate_limiter import RateLimiter

logger = logging.getLogger(__name__)

_REQUESTS_MAX = 4
"""Requests under way to one broker; while so many are, fetches wait and are sent together."""


class BrokerTransport(Protocol):
    """Sends requests to other brokers."""

    def fetch(
        self, broker: str, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch]
    ) -> AppendFuture[FetchResponses]:  # fmt: skip
        """Send a fetch to a broker; it does not block.

        Returns:
            A future that is always completed: by the answer, or by an error.
        """
        ...


class ReplicaFetcher(Handle):
    """The fetches of all partitions of one broker that follow. Any thread may use it.

    Args:
        transport: to other brokers.
        find: returns the replica of a partition here; None: there is none.
        config: settings of the broker.
        clock: the time.
    """

    def __init__(
        self, transport: BrokerTransport, find: Callable[[TopicPartition], Partition | None], config: BrokerConfig,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._transport, self._find, self._config, self._clock = transport, find, config, clock
        self._catch_up = _CatchUpQuota(config.catch_up_bytes_per_s, clock)
        self._lock = threading.Lock()  # guards what follows
        self._threads: dict[str, _LeaderThread] = {}
        self._assigned: dict[TopicPartition, _LeaderThread] = {}  # by which the last fetch of a partition was sent
        super().__init__("replica fetcher")

    def send_fetch(self, partition: TopicPartition, leader: str, fetch: Fetch) -> None:
        """Send a fetch of a partition, together with those of others."""
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
        """Send no fetch of a partition any more: its replica was removed."""
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
        """Return the thread that talks to a leader; None: this object was closed. The lock is held."""
        if self._error is not None:
            return None
        thread = self._threads.get(leader)
        if thread is None:
            thread = _LeaderThread(leader, self._transport, self._find, self._config, self._clock, self._catch_up)
            self._threads[leader] = thread
        return thread

    def _let_go(self) -> None:
        with self._lock:
            threads, self._threads, self._assigned = list(self._threads.values()), {}, {}
        for thread in threads:
            thread.stop()


class _CatchUpQuota:
    """What replicas outside of the ISR may fetch. Any thread may use it.

    A fetch reserves bytes when it is sent; what its answer did not bring is given back.

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
        """Take up to `max_bytes` of what is allowed now; return how many were taken."""
        assert self._limiter is not None
        with self._lock:
            reserved = min(self._limiter.allowed(self._clock.monotonic_us()), max_bytes)
            self._limiter.spend(reserved)
            return reserved

    def settle(self, reserved: int, fetched: int) -> None:
        """Count what a fetch has brought: the first batch comes even if it is larger than what was reserved."""
        assert self._limiter is not None
        with self._lock:
            self._limiter.spend(fetched - reserved)

    def next_us(self) -> int:
        """Return the monotonic microseconds from which on a fetch is allowed."""
        assert self._limiter is not None
        with self._lock:
            now_us = self._clock.monotonic_us()
            self._limiter.allowed(now_us)
            return now_us + self._limiter.wait_us()


class _Sent(NamedTuple):
    """A request. reserved: bytes of the quota, by partition, of those outside of the ISR."""

    fetches: Mapping[TopicPartition, PartitionFetch]
    reserved: Mapping[TopicPartition, int]


class _LeaderThread:
    """The thread that talks to one leader."""

    def __init__(
        self, leader: str, transport: BrokerTransport, find: Callable[[TopicPartition], Partition | None],
        config: BrokerConfig, clock: Clock, catch_up: _CatchUpQuota,
    ) -> None:  # fmt: skip
        self._leader, self._transport, self._find, self._clock = leader, transport, find, clock
        self._catch_up = catch_up
        self._backoff_us = config.backoff_ms * 1000
        self._params = FetchParams(
            FetchIsolation.LOG_END, config.fetch_wait_ms, 1, config.fetch_bytes_max, only_leader=True
        )
        self._changed = threading.Condition()  # guards all that follows
        self._fetches: dict[TopicPartition, Fetch] = {}  # to be sent
        self._held: dict[TopicPartition, Fetch] = {}  # until the quota of replicas outside of the ISR allows them
        self._is_held = False  # the end of that time is among those that are due
        self._done: list[tuple[_Sent, AppendFuture[FetchResponses]]] = []
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._requests = 0  # under way
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pyreplog-fetcher", daemon=True)
        self._thread.start()

    def send(self, partition: TopicPartition, fetch: Fetch) -> None:
        """Send a fetch soon. A newer one of the same partition takes its place: the machine has abandoned it."""
        with self._changed:
            self._held.pop(partition, None)
            self._fetches[partition] = fetch
            self._changed.notify()

    def forget(self, partition: TopicPartition) -> None:
        """Send no fetch of a partition that has not been sent: another broker leads it."""
        with self._changed:
            self._fetches.pop(partition, None)
            self._held.pop(partition, None)

    def call_later(self, call: Callable[[], None]) -> None:
        """Call something after a back-off."""
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
                if not self._has_work():  # looked at again by this loop, with another pause if a call came meanwhile
                    self._changed.wait(self._pause_s())
                if self._stopping:
                    return
                done, self._done = self._done, []
                now_us = self._clock.monotonic_us()
                due = []
                while self._due and self._due[0][0] <= now_us:
                    due.append(heappop(self._due)[2])
            for request, future in done:
                self._take_answer(request, future)
            for call in due:
                self._guarded(call)
            with self._changed:
                if not self._fetches or self._done or self._requests >= _REQUESTS_MAX or self._stopping:
                    continue
                sent, self._fetches = self._fetches, {}
                request = self._request(sent)
                if not request.fetches:
                    continue
                self._requests += 1
            self._send(request)

    def _request(self, fetches: Mapping[TopicPartition, Fetch]) -> _Sent:
        """Return what to send now, and hold the fetches that the quota does not allow yet. The lock is held."""
        max_bytes = self._params.max_bytes
        if not self._catch_up.is_limited:
            return _Sent({name: ReplicaFetch(fetch, max_bytes) for name, fetch in fetches.items()}, {})
        sent, reserved = dict[TopicPartition, PartitionFetch](), dict[TopicPartition, int]()
        for name, fetch in fetches.items():
            partition = self._find(name)
            if partition is None or partition.is_in_sync:
                sent[name] = ReplicaFetch(fetch, max_bytes)
            elif allowed := self._catch_up.reserve(max_bytes):
                sent[name], reserved[name] = ReplicaFetch(fetch, allowed), allowed
            else:
                self._held[name] = fetch
        if self._held and not self._is_held:
            self._is_held = True
            heappush(self._due, (self._catch_up.next_us(), next(self._numbers), self._release_held))
        return _Sent(sent, reserved)

    def _release_held(self) -> None:
        with self._changed:
            self._is_held = False
            self._fetches, self._held = {**self._held, **self._fetches}, {}

    def _has_work(self) -> bool:
        is_sending = bool(self._fetches) and self._requests < _REQUESTS_MAX
        return self._stopping or bool(self._done) or is_sending or self._pause_s() == 0

    def _pause_s(self) -> float | None:
        return max(self._due[0][0] - self._clock.monotonic_us(), 0) / 1e6 if self._due else None

    def _send(self, request: _Sent) -> None:
        try:
            future = self._transport.fetch(self._leader, self._params, request.fetches)
        except Exception as error:  # as an answer that says so
            future = AppendFuture[FetchResponses]()
            set_exception(future, error)
        future.add_done_callback(partial(self._answered, request))

    def _answered(self, request: _Sent, future: AppendFuture[FetchResponses]) -> None:
        with self._changed:
            self._requests -= 1
            self._done.append((request, future))
            self._changed.notify()

    def _take_answer(self, request: _Sent, future: AppendFuture[FetchResponses]) -> None:
        error = future.exception()
        if error is not None:
            logger.info("broker %s did not answer a fetch, it is sent again: %s", self._leader, error)
        responses: FetchResponses = {} if error is not None else future.result()
        for name, reserved in request.reserved.items():
            data = responses.get(name)
            self._catch_up.settle(reserved, _size_of(None if data is None else data.response))
        for name, fetch in request.fetches.items():
            assert isinstance(fetch, ReplicaFetch)
            partition, data = self._find(name), responses.get(name)
            if partition is None:
                continue
            response = None if data is None else data.response
            if response is None or isinstance(response, FetchRefused):
                self.call_later(partial(partition.fetch_timed_out, fetch.fetch.number))
            if response is not None:
                self._guarded(partial(partition.fetch_answered, response))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # the other partitions go on
            logger.exception("a follower of broker %s failed", self._leader)


def _size_of(response: FetchResponse | None) -> int:
    """Return the bytes of the log that an answer brings."""
    return response.end.position - response.position.position if isinstance(response, FetchedRecords) else 0
