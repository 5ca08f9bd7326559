"""Fetch sessions: the fetches of a broker's followers that their leader has not answered yet (KIP-227).

A fetch waits in its session until the leader has records for it, a new high watermark, a new start of the log, or an
error. So the requests of the followers' broker contain new fetches only, and the leader checks only partitions that
have changed: idle partitions cost neither broker anything. Kafka iterates over all partitions of a session with each
request.

The followers' broker keeps one request in flight while fetches wait. After a failed request an answer may be lost: the
broker begins another session, and fetches again for all partitions without an answer.
"""

from __future__ import annotations

import logging
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pyreplog.clock import Clock
from pyreplog.errors import ClosedError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.partition.partition import NotedFetch, Partition, answered
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.messages import FetchRefused
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchPartitionData, FetchResponses, ReplicaFetch, ReplicaFetchRequest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory, PurgatoryEntry

logger = logging.getLogger(__name__)


class _WaitingFetch:
    """A fetch of one partition that waits for a change of the leader's log.

    entry: its entry in the purgatory; None: it is not watched yet, or it is ready.
    """

    __slots__ = ("changes", "entry", "fetch", "max_bytes", "name", "partition", "role")

    def __init__(self, name: TopicPartition, partition: Partition, noted: NotedFetch, fetch: ReplicaFetch) -> None:
        self.name, self.partition = name, partition
        self.role, self.changes = noted.role, noted.changes
        self.fetch, self.max_bytes = fetch
        self.entry: PurgatoryEntry | None = None


class _WaitingRequest:
    """A request that waits until a fetch of its session is ready. deadline: its time-out in the purgatory."""

    __slots__ = ("deadline", "future", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.future = max_bytes, AppendFuture[FetchResponses]()
        self.deadline: PurgatoryEntry | None = None


class FetchSession:
    """The fetches of the followers of one broker, from its first request until one fails. Any thread may use it.

    Args:
        member: the broker of the followers, with its incarnation.
        number: number of the session.
        find: returns a partition of this broker; None: it has no such replica.
        purgatory: purgatory of the partitions.
        clock: source of time.
    """

    def __init__(
        self, member: Member, number: int, find: Callable[[TopicPartition], Partition | None], purgatory: Purgatory,
        clock: Clock,
    ) -> None:  # fmt: skip
        self.member, self.number = member, number
        self._find, self._purgatory, self._clock = find, purgatory, clock
        self._lock = allocate_lock()  # guards the fields below
        self._waiting: dict[TopicPartition, _WaitingFetch] = {}
        self._ready: dict[TopicPartition, _WaitingFetch] = {}  # waiting fetches that can be answered
        self._requests: deque[_WaitingRequest] = deque()  # the oldest one first
        self._request_us = clock.monotonic_us()  # time of the newest request
        self._is_closed = False

    def fetch(self, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        """Note the fetches of a request, and answer it when any fetch of the session can be answered.

        The followers' progress in the fetches counts at once, before records are read.

        Args:
            request: a request of this session.

        Returns:
            A future of the responses: for partitions of the request, and for others that waited. It is empty after the
            time-out. It fails with ClosedError when the session is closed.
        """
        refused: FetchResponses = {}
        noted: list[_WaitingFetch] = []
        for name, fetch in request.fetches.items():
            outcome = self._note_fetch(name, fetch)
            if isinstance(outcome, FetchPartitionData):
                refused[name] = outcome
            else:
                noted.append(outcome)
        waiting_request = _WaitingRequest(request.max_bytes)
        if not self._add_request(request.fetches, noted, waiting_request):
            self._fail(waiting_request)
            return waiting_request.future
        for waiting in noted:
            self._watch(waiting)
        if refused or request.max_wait_ms == 0:
            self._answer(waiting_request, refused)
        else:
            wait = AppendFuture[None](None)
            wait.add_done_callback(lambda _: self._answer(waiting_request, {}))
            deadline_us = self._clock.monotonic_us() + request.max_wait_ms * 1000
            waiting_request.deadline = self._purgatory.complete_at(deadline_us, wait)
        self._answer_while_ready()
        return waiting_request.future

    def note_caught_up(self) -> None:
        """Note that the followers with waiting fetches had all of the log at the newest request.

        Waiting fetches are not sent again, so no request reports it.
        """
        with self._lock:
            request_us = self._request_us
            idle = [each for name, each in self._waiting.items() if name not in self._ready]
        for each in idle:
            each.partition.fetch_waited(each.role, self.member, request_us)

    def close(self) -> None:
        """Fail waiting and later requests: a newer session has begun, or the broker is closing."""
        with self._lock:
            self._is_closed = True
            requests, waiting = [*self._requests], [*self._waiting.values()]
            self._requests.clear()
            self._waiting, self._ready = {}, {}
        self._cancel(each.entry for each in waiting)
        for request in requests:
            self._fail(request)

    def _note_fetch(self, name: TopicPartition, fetch: ReplicaFetch) -> FetchPartitionData | _WaitingFetch:
        partition = self._find(name)
        if partition is None:
            return answered(FetchRefused(fetch.fetch.number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        try:
            noted = partition.fetched(fetch.fetch)
        except Exception:  # the other partitions continue
            logger.exception("%s: a fetch failed", name)
            return answered(FetchRefused(fetch.fetch.number, ErrorCode.UNKNOWN_SERVER_ERROR))
        return _WaitingFetch(name, partition, noted, fetch) if noted.answer is None else answered(noted.answer)

    def _add_request(
        self, fetches: Mapping[TopicPartition, ReplicaFetch], noted: list[_WaitingFetch], request: _WaitingRequest
    ) -> bool:  # fmt: skip
        """Add a request and its fetches, which replace older fetches; return False if the session is closed."""
        replaced = []
        with self._lock:
            if self._is_closed:
                return False
            self._request_us = max(self._request_us, self._clock.monotonic_us())
            for name, fetch in fetches.items():
                before = self._waiting.get(name)
                if before is not None and before.fetch.number <= fetch.fetch.number:
                    del self._waiting[name]
                    self._ready.pop(name, None)
                    replaced.append(before)
            for each in noted:
                self._waiting.setdefault(each.name, each)
            self._requests.append(request)
        self._cancel(before.entry for before in replaced)
        return True

    def _watch(self, waiting: _WaitingFetch) -> None:
        """Wait for a change of the partition. Check-watch-check: a change before the watch has woken no request."""
        if waiting.changes is not None:
            wait = AppendFuture[None](None)
            wait.add_done_callback(partial(self._changed, waiting))
            role = waiting.role
            waiting.entry = self._purgatory.watch(role.changes_key, waiting.changes + 1, wait)
            is_changed = role.changes > waiting.changes or role.is_over
            if not is_changed and self._waiting.get(waiting.name) is waiting:
                return
            self._cancel([waiting.entry])
        self._make_ready(waiting)

    def _changed(self, waiting: _WaitingFetch, _: AppendFuture[None]) -> None:
        with self._lock:
            if self._waiting.get(waiting.name) is not waiting:
                return
            request_us = self._request_us
        waiting.partition.fetch_waited(waiting.role, self.member, request_us)
        self._make_ready(waiting)
        self._answer_while_ready()

    def _make_ready(self, waiting: _WaitingFetch) -> None:
        with self._lock:
            if self._waiting.get(waiting.name) is waiting:
                self._ready[waiting.name] = waiting

    def _answer_while_ready(self) -> None:
        """Answer waiting requests, the oldest one first, while fetches are ready."""
        while True:
            with self._lock:
                if not self._ready or not self._requests:
                    return
                request = self._requests[0]
            self._answer(request, {})

    def _answer(self, request: _WaitingRequest, responses: FetchResponses) -> None:
        """Answer a request, unless it was answered: with these responses, and those of the ready fetches.

        The answer is empty after the time-out.
        """
        with self._lock:
            if request not in self._requests:
                return
            self._requests.remove(request)
            ready, self._ready = self._ready, {}
        left, min_one_batch = request.max_bytes, True
        for name, waiting in ready.items():
            if left <= 0 and not min_one_batch:  # stays ready for the next request
                self._make_ready(waiting)
                continue
            data = self._read(waiting, min(waiting.max_bytes, left), min_one_batch=min_one_batch)
            if size := data.size:
                left, min_one_batch = left - size, False
            with self._lock:
                if self._waiting.get(name) is not waiting:
                    continue  # replaced by a newer fetch
                del self._waiting[name]
            responses[name] = data
        self._cancel([request.deadline])
        set_result(request.future, responses)

    def _read(self, waiting: _WaitingFetch, max_bytes: int, *, min_one_batch: bool) -> FetchPartitionData:
        try:
            return waiting.partition.read_for_replica(
                waiting.role, waiting.fetch, max_bytes, min_one_batch=min_one_batch
            )
        except Exception:  # the other partitions continue
            logger.exception("%s: a fetch failed", waiting.name)
            return answered(FetchRefused(waiting.fetch.number, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _cancel(self, entries: Iterable[PurgatoryEntry | None]) -> None:
        for entry in entries:
            if entry is not None:
                self._purgatory.cancel(entry)

    def _fail(self, request: _WaitingRequest) -> None:
        self._cancel([request.deadline])
        set_exception(request.future, ClosedError(f"fetch session {self.number} has ended"))


class FetchSessionCache:
    """The fetch sessions of a leader: at most one for each broker of followers. Any thread may use it.

    Args:
        find: returns a partition of this broker; None: it has no such replica.
        purgatory: purgatory of the partitions.
        clock: source of time.
        slots: most open sessions; beyond it the oldest one is closed, and its broker begins another
            (`max.incremental.fetch.session.cache.slots`).
    """

    def __init__(
        self, find: Callable[[TopicPartition], Partition | None], purgatory: Purgatory, clock: Clock,
        slots: int = 1000,
    ) -> None:  # fmt: skip
        self._find, self._purgatory, self._clock, self._slots = find, purgatory, clock, slots
        self._lock = allocate_lock()  # guards the fields below
        self._sessions: dict[str, FetchSession] = {}  # by broker of the followers, the oldest one first
        self._is_closed = False

    def fetch(self, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        """Answer a request in its session, which its first request opens.

        Args:
            request: a request of a broker with followers.

        Returns:
            A future of the responses, as that of `FetchSession.fetch`. It fails with ClosedError if the session is not
            open, and the request has no effect; or when it is closed.
        """
        session = self._open_session(request) if request.is_first else self._session_of(request)
        if session is None:
            future = AppendFuture[FetchResponses]()
            error = ClosedError(f"fetch session {request.session} of {request.member.broker} is not open")
            set_exception(future, error)
            return future
        return session.fetch(request)

    def note_caught_up(self) -> None:
        """Note that the followers with waiting fetches are caught up, in all sessions."""
        with self._lock:
            sessions = [*self._sessions.values()]
        for session in sessions:
            session.note_caught_up()

    def close(self) -> None:
        """Close all sessions, and refuse new ones."""
        with self._lock:
            self._is_closed = True
            sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.close()

    def _session_of(self, request: ReplicaFetchRequest) -> FetchSession | None:
        """Return the open session of a request; None: it is not open."""
        with self._lock:
            session = self._sessions.get(request.member.broker)
        if session is None or (session.member, session.number) != (request.member, request.session):
            return None
        return session

    def _open_session(self, request: ReplicaFetchRequest) -> FetchSession | None:
        """Open a session, which replaces the former one of its broker; return None if the request is older than
        that."""
        member = request.member
        with self._lock:
            replaced = self._sessions.get(member.broker)
            is_late = replaced is not None and member.incarnation < replaced.member.incarnation
            if is_late or self._is_closed:
                return None
            if replaced is None and len(self._sessions) >= self._slots:
                replaced = next(iter(self._sessions.values()))
            if replaced is not None:
                del self._sessions[replaced.member.broker]
            session = FetchSession(member, request.session, self._find, self._purgatory, self._clock)
            self._sessions[member.broker] = session
        if replaced is not None:
            replaced.close()
        return session
