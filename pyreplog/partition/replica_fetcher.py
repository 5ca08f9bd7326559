"""ReplicaFetcher: sends the fetches of a broker's followers, and passes the answers to their partitions.

Each broker that leads some of them has a thread here. It handles all answers that have arrived, and then sends all
fetches that result from them in one request: see `fetch_session_handler`, and `fetch_session` for the leader's side.

Replicas that are not in the ISR may share a limit of bytes per second (KIP-73): their fetches wait until the limit
allows them. Those in the ISR are never throttled, so that no limit makes a replica leave it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from pyreplog.clock import Clock
from pyreplog.future import AppendFuture, set_exception
from pyreplog.handles import Handle
from pyreplog.partition.catch_up_quota import CatchUpQuota
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.fetch_session_handler import FetchSessionHandler
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.messages import Fetch, FetchRefused
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchResponses, ReplicaFetchRequest
from pyreplog.partition.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


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
        clock: source of time.
    """

    def __init__(
        self, member: Member, transport: BrokerTransport, find: Callable[[TopicPartition], Partition | None],
        config: BrokerConfig, clock: Clock,
    ) -> None:  # fmt: skip
        self._member = member
        self._transport, self._find, self._config, self._clock = transport, find, config, clock
        self._catch_up = CatchUpQuota(config.catch_up_bytes_per_s, clock)
        self._lock = threading.Lock()  # guards the fields below
        self._threads: dict[str, _LeaderThread] = {}
        self._assigned: dict[TopicPartition, _LeaderThread] = {}  # thread of each partition's latest fetch
        super().__init__("replica fetcher")

    def send_fetch(self, partition: TopicPartition, leader: str, fetch: Fetch) -> None:
        """Send a fetch of a partition soon, in one request with fetches of other partitions.

        Args:
            partition: name of the partition.
            leader: name of the leader's broker.
            fetch: the fetch.
        """
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


class _LeaderThread:
    """The thread that fetches from one leader. Its handler decides which fetches a request names."""

    def __init__(
        self, member: Member, leader: str, transport: BrokerTransport,
        find: Callable[[TopicPartition], Partition | None], config: BrokerConfig, clock: Clock, quota: CatchUpQuota,
    ) -> None:  # fmt: skip
        self._leader, self._transport, self._find, self._clock = leader, transport, find, clock
        self._backoff_us = config.backoff_ms * 1000
        self._changed = threading.Condition()  # guards the fields below
        self._handler = FetchSessionHandler(
            member, secrets.randbits(62), max_wait_ms=config.fetch_wait_ms, max_bytes=config.fetch_bytes_max,
            quota=quota, is_in_sync=self._is_in_sync,
        )  # fmt: skip
        self._answers: list[tuple[ReplicaFetchRequest, AppendFuture[FetchResponses]]] = []
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="pyreplog-fetcher", daemon=True)
        self._thread.start()

    def send(self, partition: TopicPartition, fetch: Fetch) -> None:
        """Send a fetch soon. It replaces an older fetch of its partition, which the replica has abandoned."""
        with self._changed:
            self._handler.add(partition, fetch)
            self._changed.notify()

    def forget(self, partition: TopicPartition) -> None:
        """Neither send nor await a fetch of a partition: another broker leads it."""
        with self._changed:
            self._handler.forget(partition)

    def call_later(self, call: Callable[[], None]) -> None:
        """Make a call after a back-off."""
        with self._changed:
            heappush(self._due, (self._clock.monotonic_us() + self._backoff_us, next(self._numbers), call))
            self._changed.notify()

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                pause_s = self._pause_s()
                if pause_s != 0:  # the loop comes back here if a call was scheduled during the wait
                    self._changed.wait(pause_s)
                if self._is_stopping:
                    return
                answers, self._answers = self._answers, []
                calls, now_us = [], self._clock.monotonic_us()
                while self._due and self._due[0][0] <= now_us:
                    calls.append(heappop(self._due)[2])
            for answered, future in answers:
                self._handle_answer(answered, future)
            for call in calls:
                self._guarded(call)
            with self._changed:
                if self._answers or self._is_stopping:
                    continue
                request = self._handler.next_request(self._clock.monotonic_us())
            if request is not None:
                self._send(request)

    def _pause_s(self) -> float | None:
        """Return the seconds until the next call or request is due; None: unknown. The caller holds the lock."""
        now_us = self._clock.monotonic_us()
        if self._is_stopping or self._answers or self._handler.is_due(now_us):
            return 0
        due_us = [self._due[0][0]] if self._due else []
        throttled_until_us = self._handler.throttled_until_us
        if throttled_until_us is not None and throttled_until_us > now_us:  # or too many requests are in flight
            due_us.append(throttled_until_us)
        return max(min(due_us) - now_us, 0) / 1e6 if due_us else None

    def _is_in_sync(self, name: TopicPartition) -> bool:
        partition = self._find(name)
        return partition is None or partition.is_in_sync

    def _send(self, request: ReplicaFetchRequest) -> None:
        try:
            future = self._transport.fetch(self._leader, request)
        except Exception as error:  # counts as a failed request
            future = AppendFuture[FetchResponses]()
            set_exception(future, error)
        future.add_done_callback(partial(self._answered, request))

    def _answered(self, request: ReplicaFetchRequest, future: AppendFuture[FetchResponses]) -> None:
        with self._changed:
            self._answers.append((request, future))
            self._changed.notify()

    def _handle_answer(self, request: ReplicaFetchRequest, future: AppendFuture[FetchResponses]) -> None:
        error = future.exception()
        if error is not None:
            self._time_out(request, error)
            return
        responses = future.result()
        with self._changed:
            self._handler.answered(request, responses)
        for name, data in responses.items():
            partition, response = self._find(name), data.response
            if partition is None or response is None:
                continue
            if isinstance(response, FetchRefused):
                self.call_later(partial(partition.fetch_timed_out, response.number))
            self._guarded(partial(partition.fetch_answered, response))

    def _time_out(self, request: ReplicaFetchRequest, error: BaseException) -> None:
        """Let the fetches that a failed request leaves without an answer time out, after a back-off."""
        with self._changed:
            fetches = self._handler.failed(request)
        if fetches:
            logger.info("broker %s did not answer fetches, they are sent again: %s", self._leader, error)
        for name, fetch in fetches.items():
            partition = self._find(name)
            if partition is not None:
                self.call_later(partial(partition.fetch_timed_out, fetch.number))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # the other partitions continue
            logger.exception("a follower of broker %s failed", self._leader)
