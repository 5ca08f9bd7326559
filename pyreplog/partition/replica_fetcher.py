"""ReplicaFetcher: sends the fetches of a broker's followers, and takes the answers to their partitions.

There is a thread for each broker that leads some of them. It carries out all answers that are there, and then sends
all fetches that came of them in one request. The leader keeps fetches to which there is nothing to answer
(`fetch_session`): one request at least is under way while some are there, which is answered when there is. Others
with new fetches need not wait for it: a few may be under way at once.

Replicas that are not in the ISR may share a limit of bytes per second (KIP-73): their fetches wait until it allows
some. Those in the ISR are never held back, so that no limit makes a replica leave it.
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
"""Requests under way to one broker; while so many are, fetches wait and are sent together."""


class BrokerTransport(Protocol):
    """Sends requests to other brokers."""

    def fetch(self, broker: str, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        """Send fetches to a broker; it does not block.

        Returns:
            A future that is always completed: by the answer, or by an error.
        """
        ...


class ReplicaFetcher(Handle):
    """The fetches of all partitions of one broker that follow. Any thread may use it.

    Args:
        member: the broker, in its incarnation.
        transport: to other brokers.
        find: returns the replica of a partition here; None: there is none.
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


class _LeaderThread:
    """The thread that talks to one leader."""

    def __init__(
        self, member: Member, leader: str, transport: BrokerTransport,
        find: Callable[[TopicPartition], Partition | None], config: BrokerConfig, clock: Clock, catch_up: _CatchUpQuota,
    ) -> None:  # fmt: skip
        self._member, self._leader, self._transport = member, leader, transport
        self._find, self._config, self._clock, self._catch_up = find, config, clock, catch_up
        self._backoff_us = config.backoff_ms * 1000
        self._changed = threading.Condition()  # guards all that follows
        self._session, self._is_first = secrets.randbits(62), True  # no number of a process before
        self._fetches: dict[TopicPartition, Fetch] = {}  # to be sent
        self._waiting: dict[TopicPartition, Fetch] = {}  # that were sent in this session and have no answer
        self._held: dict[TopicPartition, Fetch] = {}  # until the quota of replicas outside of the ISR allows them
        self._is_held = False  # the end of that time is among those that are due
        self._reserved: dict[TopicPartition, int] = {}  # bytes of the quota, of those outside of the ISR
        self._done: list[tuple[ReplicaFetchRequest, AppendFuture[FetchResponses]]] = []
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._requests = 0  # under way, of this session
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
        """Wait for no answer to a fetch of a partition any more: another broker leads it."""
        with self._changed:
            for fetches in (self._fetches, self._held, self._waiting):
                fetches.pop(partition, None)

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
            for answered, future in done:
                self._take_answer(answered, future)
            for call in due:
                self._guarded(call)
            with self._changed:
                if self._done or self._stopping or not self._is_sending():
                    continue
                request = self._next_request()
            if request is not None:
                self._send(request)

    def _is_sending(self) -> bool:
        """Return whether a request is to be sent. The lock is held."""
        return self._requests < _REQUESTS_MAX and (bool(self._fetches) or (bool(self._waiting) and not self._requests))

    def _next_request(self) -> ReplicaFetchRequest | None:
        """Return what to send now; None: the quota allows none of it yet. The lock is held."""
        fetches: dict[TopicPartition, ReplicaFetch] = {}
        for name, fetch in list(islice(self._fetches.items(), PARTITIONS_MAX)):
            del self._fetches[name]
            max_bytes = self._reserve(name)
            if max_bytes:
                fetches[name], self._waiting[name] = ReplicaFetch(fetch, max_bytes), fetch
            else:
                self._held[name] = fetch
        if self._held and not self._is_held:
            self._is_held = True
            heappush(self._due, (self._catch_up.next_us(), next(self._numbers), self._release_held))
        if not fetches and not (self._waiting and not self._requests):
            return None
        config, is_first = self._config, self._is_first
        self._is_first = False
        self._requests += 1
        return ReplicaFetchRequest(
            self._member, self._session, is_first, config.fetch_wait_ms, config.fetch_bytes_max, fetches
        )  # fmt: skip

    def _reserve(self, name: TopicPartition) -> int:
        """Return the bytes that a fetch may ask for; 0: it is to be held, for the quota allows none yet."""
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
        """Count what a fetch has brought, if it is one of those that the quota is for."""
        reserved = self._reserved.pop(name, None)
        if reserved is not None:
            self._catch_up.settle(reserved, fetched)

    def _release_held(self) -> None:
        with self._changed:
            self._is_held = False
            self._fetches, self._held = {**self._held, **self._fetches}, {}

    def _has_work(self) -> bool:
        return self._stopping or bool(self._done) or self._is_sending() or self._pause_s() == 0

    def _pause_s(self) -> float | None:
        return max(self._due[0][0] - self._clock.monotonic_us(), 0) / 1e6 if self._due else None

    def _send(self, request: ReplicaFetchRequest) -> None:
        try:
            future = self._transport.fetch(self._leader, request)
        except Exception as error:  # as an answer that says so
            future = AppendFuture[FetchResponses]()
            set_exception(future, error)
        future.add_done_callback(partial(self._answered, request))

    def _answered(self, request: ReplicaFetchRequest, future: AppendFuture[FetchResponses]) -> None:
        with self._changed:
            if request.session == self._session:
                self._requests -= 1
            self._done.append((request, future))
            self._changed.notify()

    def _take_answer(self, request: ReplicaFetchRequest, future: AppendFuture[FetchResponses]) -> None:
        error = future.exception()
        if error is not None:
            self._begin_session(request, error)
            return
        responses = future.result()
        with self._changed:
            for name in request.fetches:
                if name in self._reserved and name not in responses:  # it waits, and holds up no others
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
        """A request has failed: answers may be lost with it. All that wait for one time out, after a back-off."""
        with self._changed:
            if request.session != self._session:
                return
            logger.info("broker %s did not answer fetches, they are sent again: %s", self._leader, error)
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
        except Exception:  # the other partitions go on
            logger.exception("a follower of broker %s failed", self._leader)


def _size_of(response: FetchResponse | None) -> int:
    """Return the bytes of the log that an answer brings."""
    return response.end.position - response.position.position if isinstance(response, FetchedRecords) else 0
