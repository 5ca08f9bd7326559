"""GroupClient: appends to a replica group, and reads it, from another process."""

from __future__ import annotations

import json
import logging
import secrets
import ssl
import threading
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict, overload

from pyreplog._native.ha.client_batch import encode_record, encode_records, parse_records
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog._native.net.frame import DEFAULT_MAX_BODY
from pyreplog.arguments import as_int
from pyreplog.config import Settings
from pyreplog.coroutines import in_thread, iterating
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidMessageError,
    OutcomeUnknownError,
    OutOfRangeError,
    PeerTimeoutError,
    ProtocolVersionError,
    RecordTooLargeError,
    ReplicationError,
    ReplogError,
    TrimmedError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, as_timeout, set_exception, set_result
from pyreplog.ha.node_context import SERVICE
from pyreplog.ha.pending_commits import check_may_wait
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.append_session import MOVES, AppendSession, Batch, Settled
from pyreplog.ha.protocol.client_messages import (
    APPEND_BYTES,
    BATCH_ENTRIES_MAX,
    CLIENT_ID_BYTES,
    CLIENT_VERSION,
    Appended,
    ClientRefusal,
    CommittedEntries,
    Read,
    Refused,
    decode_reply,
    encode_append,
    encode_read,
)
from pyreplog.ha.protocol.messages import AskStatus, StatusReply
from pyreplog.handles import Handle
from pyreplog.net.backoff import Backoff
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits, check_connecting
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Address, parse_address, weak_callback
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX = DEFAULT_MAX_BODY - APPEND_BYTES
"""Most bytes of the records of one batch."""

ALIVE = Limits(heartbeat_ms=500, silence_ms=3_000)
"""A master that is silent for 3 s is left: the group may have elected another one by then."""

_STATUS_S = 3.0
_HOPS_MAX = 3
_POLL_MS = 10_000
_TICK_S = 0.05
_ROOM_S = 1.0
"""Seconds that a caller waits for room after `timeout_ms`: earlier entries may expire only then."""
_BACKOFF_FIRST_S, _BACKOFF_MOST_S = 0.02, 0.5


@dataclass(frozen=True, kw_only=True)
class GroupClientConfig(Settings):
    """Settings of a client of a replica group.

    Attributes:
        timeout_ms: milliseconds after which an append without an outcome, or a read without an answer, fails.
        window_bytes: bytes of records without an outcome, at which callers wait.
        window_entries: entries without an outcome, at which callers wait.
        batch_bytes: about how many bytes of single entries are sent in one request.
        batch_entries: most single entries that are sent in one request.
        read_bytes: about how many bytes of records one request of a read asks for.

    See docs/ha.md.
    """

    timeout_ms: int = 30_000
    window_bytes: int = 16 << 20
    window_entries: int = 1 << 16
    batch_bytes: int = 256 << 10
    batch_entries: int = 4096
    read_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        self._check_int("timeout_ms", 1, 1 << 40)
        self._check_int("window_bytes", 1, 1 << 40)
        self._check_int("window_entries", 1, 1 << 40)
        self._check_int("batch_bytes", 1, BATCH_BYTES_MAX)
        self._check_int("batch_entries", 1, BATCH_ENTRIES_MAX)
        self._check_int("read_bytes", 1, BATCH_BYTES_MAX)


class GroupClientSettings(TypedDict, total=False):
    """The settings of a GroupClientConfig, as keywords of `connect`."""

    timeout_ms: int
    window_bytes: int
    window_entries: int
    batch_bytes: int
    batch_entries: int
    read_bytes: int


class _Request:
    """A request that may be repeated: it is sent once a master is connected, and again to each later one."""

    __slots__ = ("answer", "body", "deadline_us", "future", "wait_s")

    def __init__(
        self,
        body: bytes,
        answer: Callable[[memoryview], Any],
        future: AppendFuture[Any],
        wait_s: float,
        deadline_us: int,
    ) -> None:
        self.body, self.answer, self.future = body, answer, future
        self.wait_s, self.deadline_us = wait_s, deadline_us


class GroupClient(Handle):
    """Appends to a replica group, and reads it, from any process; made by `pyreplog.ha.connect`.

    The client finds the master, and follows it through promotions and failovers. Any thread may call any method, and
    coroutines await what `submit`, `submit_batch`, `room` and `flush_async` return, and call `get_async` and the other
    forms with `_async`. Close it, or use `with`.

    Example:
        ```python
        with ha.connect(["host-a:7001", "host-b:7001"]) as client:
            number = client.append(b"order 1", key=b"customer 7")
            print(client[number])
        ```

    See docs/ha.md.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        config: GroupClientConfig,
        *,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        if isinstance(addresses, str | bytes) or not isinstance(addresses, Iterable):
            raise WrongTypeError(f"addresses: expected a list of host:port, found {type(addresses).__name__}")
        parsed = [parse_address(address) for address in addresses]
        if not parsed:
            raise InvalidArgumentError("addresses: expected at least one host:port, found none")
        check_connecting(tls, limits)
        self.config = config
        self._addresses = parsed
        self._secret, self._tls, self._limits = Secret.of(secret), tls, limits or ALIVE
        self._lock = threading.Lock()
        self._session = AppendSession(
            lambda: secrets.token_bytes(CLIENT_ID_BYTES), batch_bytes=config.batch_bytes,
            batch_entries=config.batch_entries,
        )  # fmt: skip
        self._requests: list[_Request] = []
        self._room_waiters: list[AppendFuture[None]] = []
        self._flush_waiters: list[AppendFuture[None]] = []
        self._reactor = Reactor()
        self._channel: Channel | None = None
        self._is_ready = False
        self._attempt = 0  # number of the present connection; replies of earlier ones are ignored
        self._next_address = self._hops = 0
        self._last_error = "no node was asked yet"
        self._master: Address | None = None
        self._acknowledged = 0  # entry number behind the highest acknowledged entry
        self._backoff = Backoff(_BACKOFF_FIRST_S, _BACKOFF_MOST_S, lambda: secrets.randbelow(1 << 20) / (1 << 20))
        super().__init__(f"client of the replica group at {parsed[0][0]}:{parsed[0][1]}")
        self._reactor.start()
        self._reactor.call_soon(weak_callback(self._ask_node))
        self._reactor.call_later(_TICK_S, weak_callback(self._tick))

    # ---- appending ------------------------------------------------------------------------------------------

    def append(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        event_time: Time | None = None,
        properties: Mapping[str, str | bytes] | None = None,
    ) -> int:
        """Append one entry, and return when enough replicas have it.

        Any thread may call it; a coroutine uses `submit`. A batch that may have been appended when a connection broke
        is sent again, and appended once.

        Args:
            value: bytes-like.
            key: bytes-like, at most 65,535 bytes; None: no key.
            event_time: time of the producer, a datetime with a time zone or microseconds since 1970-01-01 UTC.
            properties: str or bytes by name, at most 65,535 bytes encoded.

        Returns:
            The number of the entry.

        Raises:
            NotConnectedError: no master took the entry within `timeout_ms`. Nothing was appended.
            NotEnoughReplicasError: fewer replicas than `min_in_sync` are caught up. Nothing was appended.
            RecordTooLargeError: the record does not fit into a segment or a frame. Nothing was appended.
            ReplicationError: the master refused the entry; the message says why. Nothing was appended.
            OutcomeUnknownError: no master answered in time. The entry may have been appended, or may be later.
            WindowFullError: no room within `timeout_ms`. Nothing was appended.
            ClosedError: the client was closed.
        """
        check_may_wait(self._reactor)
        future = self.submit(value, key, event_time=event_time, properties=properties)
        number: int = self._reactor.wait(future)
        return number

    def append_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
    ) -> Sequence[int]:
        """Append several entries in one request, and return when enough replicas have all of them.

        Args:
            values: bytes-like values.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many times, each as `event_time` of `submit` or None; None: no event times.

        Returns:
            The numbers of the entries: a range; a tuple if a master failed in the middle of the batch, because entries
                of other clients may then lie between them.

        Raises:
            ReplogError: as `append`.
        """
        check_may_wait(self._reactor)
        numbers: Sequence[int] = self._reactor.wait(self.submit_batch(values, keys, event_times))
        return numbers

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None = None,
        *,
        event_time: Time | None = None,
        properties: Mapping[str, str | bytes] | None = None,
    ) -> AppendFuture[int]:
        """Append one entry without waiting for the group. Entries that are submitted are appended in their order.

        A thread waits while the window is full. In an event loop await `room()` before: there `submit` does not wait,
        and takes entries up to twice the window.

        Args:
            value: bytes-like.
            key: bytes-like, at most 65,535 bytes; None: no key.
            event_time: time of the producer, a datetime with a time zone or microseconds since 1970-01-01 UTC.
            properties: str or bytes by name, at most 65,535 bytes encoded.

        Returns:
            An `AppendFuture`. It gives the number of the entry, or raises the errors of `append`.

        Raises:
            RecordTooLargeError: the record is larger than a frame, or the key is too long.
            WindowFullError: twice the window has no outcome, and the caller cannot wait. Nothing was submitted.
            ClosedError: the client was closed.
        """
        data = encode_record(value, key, event_time, properties)
        _check_size(len(data))
        future: AppendFuture[int] = AppendFuture()
        self._enter(lambda: self._session.add(data, future, self._deadline_us()))
        return future

    def submit_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
    ) -> AppendFuture[Sequence[int]]:
        """Append several entries in one request, without waiting for the group.

        Args:
            values: bytes-like values.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many times, each as `event_time` of `submit` or None; None: no event times.

        Returns:
            An `AppendFuture` that gives what `append_batch` returns.

        Raises:
            InvalidArgumentError: the batch has more than 65,536 entries.
            ReplogError: as `submit`.
        """
        data, count = encode_records(values, keys, event_times)
        future: AppendFuture[Sequence[int]] = AppendFuture()
        if not count:
            self._check_open()
            set_result(future, range(0))
            return future
        if count > BATCH_ENTRIES_MAX:
            raise InvalidArgumentError(f"values: expected at most {BATCH_ENTRIES_MAX} entries, found {count}")
        _check_size(len(data))
        self._enter(lambda: self._session.add_batch(data, count, future, self._deadline_us()))
        return future

    def _deadline_us(self) -> int:
        return self._now_us() + self.config.timeout_ms * 1000

    def _now_us(self) -> int:
        return self._reactor.clock.monotonic_us()

    def _enter(self, add: Callable[[], object]) -> None:
        self._make_room()
        with self._lock:
            self._check_open()
            add()
            self._send()

    # ---- the window -----------------------------------------------------------------------------------------

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as the window has room, or the client was closed."""
        future: AppendFuture[None] = AppendFuture()
        with self._lock:
            if not self._has_room(1) and self._error is None:
                self._room_waiters.append(future)
                return future
        set_result(future)
        return future

    def _has_room(self, windows: int) -> bool:
        session, config = self._session, self.config
        return session.bytes < windows * config.window_bytes and session.entries < windows * config.window_entries

    def _make_room(self) -> None:
        while not self._has_room(1):
            self._check_open()
            if _get_running_loop() is not None or self._reactor.in_driver():
                if self._has_room(2):
                    return
                raise WindowFullError("twice the client's window is on its way: await room() before")
            room = self.room()
            if not self._reactor.drive(room.done, self.config.timeout_ms / 1000 + _ROOM_S):
                raise WindowFullError(f"no room within {self.config.timeout_ms} ms: {self._last_error}")

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every entry submitted so far has an outcome; its own future has the result or error.

        Args:
            timeout: seconds; None: until the entries have an outcome, which takes about `timeout_ms`.

        Raises:
            InvalidArgumentError: called in a coroutine or a callback: use `flush_async`.
            OutcomeUnknownError: the time ran out; the message says how many entries have no outcome. The
                client goes on with them.
            ClosedError: the client was closed.
        """
        check_may_wait(self._reactor)
        seconds, future = as_timeout(timeout), self.flush_async()
        try:
            self._reactor.wait(future, seconds)
        except OutcomeUnknownError:
            with self._lock:
                if future in self._flush_waiters:
                    self._flush_waiters.remove(future)
                entries = self._session.entries
            raise OutcomeUnknownError(
                f"flush: {entries} entries have no outcome after {seconds} s: they may be appended, or not; wait for "
                "their futures"
            ) from None

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every entry submitted so far has an outcome; see `flush`.

        Raises:
            ClosedError: the client was closed.
        """
        future: AppendFuture[None] = AppendFuture()
        with self._lock:
            self._check_open()
            if not self._session.is_idle:
                self._flush_waiters.append(future)
                return future
        set_result(future)
        return future

    # ---- reading --------------------------------------------------------------------------------------------

    def end(self) -> int:
        """Return the number of the first entry that is not committed. Asks the group.

        Raises:
            NotConnectedError, PeerTimeoutError: no master answered within `timeout_ms`.
            ClosedError: the client was closed.
        """
        return self._range()[1]

    def start(self) -> int:
        """Return the number of the first entry that the log holds. Asks the group.

        Raises:
            ReplogError: as `end`.
        """
        return self._range()[0]

    def _range(self) -> tuple[int, int]:
        entries = self._wait(self._ask_read(0, 0, limit=0))
        return entries.start, max(entries.end, entries.start)

    def __len__(self) -> int:
        """Return how many entries can be read. Asks the group."""
        start, end = self._range()
        return end - start

    @overload
    def __getitem__(self, item: SupportsIndex, /) -> bytes: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[bytes]: ...
    def __getitem__(self, item: SupportsIndex | slice, /) -> bytes | list[bytes]:
        """Return the value of an entry, or the values of a slice. Negative numbers count from the end."""
        if isinstance(item, slice):
            start, stop, step = item.indices(self.end())
            if step != 1:
                return [self.get(entry).value for entry in range(start, stop, step)]
            return [value for batch in self.read(start, stop) for value in batch.values()]
        entry = as_int("entry", item)
        return self.get(entry if entry >= 0 else self.end() + entry).value

    def get(self, entry: SupportsIndex) -> Record:
        """Return the record of one entry, verified.

        Args:
            entry: number of the entry.

        Raises:
            OutOfRangeError: there is no such entry, or it is not committed.
            TrimmedError: retention or `trim` has removed the entry.
            NotConnectedError, PeerTimeoutError: no master answered within `timeout_ms`.
            ReplicationError: the node could not read it; the message says why.
            ClosedError: the client was closed.
        """
        number = as_int("entry", entry)
        if number < 0:
            raise OutOfRangeError(f"entry: expected a number of 0 or more, found {number}")
        entries = self._wait(self._ask_read(number, number + 1, limit=1, wait_ms=self._catch_up_ms(number)))
        if entries.batch is None:
            raise OutOfRangeError(f"entry {number}: the log ends before entry {entries.end}")
        record: Record = entries.batch[0]
        return record

    def _catch_up_ms(self, entry: int) -> int:
        """Return for how long the node may wait for an entry, milliseconds.

        A new master shows earlier acknowledged entries only once it has committed an entry of its own.
        """
        return min(_POLL_MS, self.config.timeout_ms) if entry < self._acknowledged else 0

    def read(self, start: int | None = None, end: int | None = None) -> Iterator[RecordBatch]:
        """Iterate over verified batches of committed entries, from one entry to before another.

        Args:
            start: number of the first entry; None: the first entry of the log.
            end: number of the entry to stop before; None: the commit point when it is reached.

        Raises:
            ReplogError: as `get`.
        """
        first = self.start() if start is None else as_int("start", start)
        stop = -1 if end is None else as_int("end", end)
        if first < 0:
            raise OutOfRangeError(f"start: expected a number of 0 or more, found {first}")
        return self._read(first, stop)

    def _read(self, first: int, stop: int) -> Iterator[RecordBatch]:
        limit = self.config.read_bytes
        request = None if 0 <= stop <= first else self._ask_read(first, stop, limit, self._catch_up_ms(first))
        while request is not None:
            entries = self._wait(request)
            if entries.batch is None:
                if first > entries.end:
                    raise OutOfRangeError(f"entry {first}: the log ends before entry {entries.end}")
                return
            first = entries.batch.end
            request = None if 0 <= stop <= first else self._ask_read(first, stop, limit, self._catch_up_ms(first))
            yield entries.batch

    def follow_batches(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Iterate over verified batches of committed entries, and wait for more at the end of the log.

        The wait goes on while the group changes its master.

        Args:
            start: number of the first entry; None: only new entries.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `get`.
        """
        seconds = as_timeout(timeout)
        first = self.end() if start is None else as_int("start", start)
        if first < 0:
            raise OutOfRangeError(f"start: expected a number of 0 or more, found {first}")
        return self._follow(first, seconds)

    def _follow(self, first: int, timeout: float | None) -> Iterator[RecordBatch]:
        until = None if timeout is None else monotonic() + timeout
        while True:
            wait_ms = _POLL_MS if until is None else max(0, min(_POLL_MS, round((until - monotonic()) * 1000)))
            entries = self._wait(self._ask_read(first, -1, self.config.read_bytes, wait_ms))
            if entries.batch is not None:
                first = entries.batch.end
                until = None if timeout is None else monotonic() + timeout
                yield entries.batch
            elif until is not None and monotonic() >= until:
                return

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> GroupFollower:
        """Iterate over committed entries, and wait for more at the end of the log.

        Iterate in a thread with `for`, in a coroutine with `async for`.

        Args:
            start: number of the first entry; None: only new entries.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.

        Returns:
            A `GroupFollower`, which yields `Record`s.

        Raises:
            ReplogError: as `get`.
        """
        first = None if start is None else as_int("start", start)
        if first is not None and first < 0:
            raise OutOfRangeError(f"start: expected a number of 0 or more, found {first}")
        return GroupFollower(self, first, as_timeout(timeout))

    async def follow_batches_async(
        self, start: int | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[RecordBatch]:
        """Yield batches as `follow_batches` does, for `async for`.

        Args:
            start: as of `follow_batches`.
            timeout: as of `follow_batches`.
        """
        seconds = as_timeout(timeout)
        first = (await self._ask_read(0, 0, limit=0)).end if start is None else as_int("start", start)
        until = None if seconds is None else monotonic() + seconds
        while True:
            wait_ms = _POLL_MS if until is None else max(0, min(_POLL_MS, round((until - monotonic()) * 1000)))
            entries = await self._ask_read(first, -1, self.config.read_bytes, wait_ms)
            if entries.batch is not None:
                first = entries.batch.end
                until = None if seconds is None else monotonic() + seconds
                yield entries.batch
            elif until is not None and monotonic() >= until:
                return

    def status(self) -> dict[str, Any]:
        """Describe the master: what `Node.stats` returns there. Asks the group.

        Raises:
            ReplogError: as `end`.
        """
        status: dict[str, Any] = self._wait(self._ask(messages.encode(AskStatus()), _as_status, 0.0))
        return status

    start_async = in_thread(start)
    end_async = in_thread(end)
    get_async = in_thread(get)
    read_async = iterating(read)
    status_async = in_thread(status)

    def _ask_read(self, first: int, end: int, limit: int, wait_ms: int = 0) -> AppendFuture[_Answer]:
        body = encode_read(Read(first, end, limit, wait_ms))
        return self._ask(body, lambda reply: _as_entries(reply, first), wait_ms / 1000)

    def _ask(self, body: bytes, answer: Callable[[memoryview], Any], wait_s: float) -> AppendFuture[Any]:
        future: AppendFuture[Any] = AppendFuture()
        deadline_us = self._deadline_us() + int(wait_s * 1e6)
        request = _Request(body, answer, future, wait_s, deadline_us)
        with self._lock:
            self._check_open()
            self._requests.append(request)
            if self._is_ready:
                self._send_request(request)
        return future

    def _wait(self, future: AppendFuture[Any]) -> Any:
        check_may_wait(self._reactor)
        return self._reactor.wait(future)

    # ---- the master -----------------------------------------------------------------------------------------

    @property
    def master(self) -> str | None:
        """Address of the master that the client is connected to; None: the client is looking for the master."""
        address = self._master if self._is_ready else None
        return None if address is None else f"{address[0]}:{address[1]}"

    def _ask_node(self, hint: Address | None = None) -> None:
        """Connect to a node and ask whether it is the master; called by the thread that drives the reactor."""
        if self._error is not None:
            return
        if hint is None or self._hops >= _HOPS_MAX:
            self._hops = 0
            hint = self._addresses[self._next_address % len(self._addresses)]
            self._next_address += 1
        else:
            self._hops += 1
        with self._lock:
            self._attempt += 1
            attempt, self._is_ready = self._attempt, False
            former, self._channel = self._channel, None
            channel = Channel(
                self._reactor, hint, expected=NodeIdentity(service=SERVICE),
                identity=NodeIdentity(service=SERVICE, version=CLIENT_VERSION), secret=self._secret, tls=self._tls,
                limits=self._limits,
            )  # fmt: skip
            self._channel = channel
        if former is not None:
            former.close()
        on_status = weak_callback(self._on_status)
        channel.request(
            messages.encode(AskStatus()),
            on_reply=lambda reply: on_status(attempt, hint, channel, reply),
            timeout=_STATUS_S,
        )

    def _on_status(self, attempt: int, address: Address, channel: Channel, reply: memoryview | ReplogError) -> None:
        if attempt != self._attempt or self._error is not None:
            return
        try:
            if isinstance(reply, ReplogError):
                raise reply
            peer = channel.peer
            if peer is None or peer.version < CLIENT_VERSION:
                raise ProtocolVersionError(
                    f"{address[0]}:{address[1]} runs a version that takes no requests of clients; upgrade it"
                )
            status = _as_status(reply)
        except ReplogError as error:
            self._last_error = str(error)
            self._ask_node_later()
            return
        if status.get("role") == "master":
            self._on_master_found(address, channel)
            return
        self._last_error = f"{address[0]}:{address[1]} is no master"
        self._follow_hint(str(status.get("master") or ""), address)

    def _follow_hint(self, master: str, source: Address) -> None:
        try:
            hint = parse_address(master) if master else None
        except ReplogError:
            hint = None
        if hint is None or hint == source or self._hops >= _HOPS_MAX:
            self._ask_node_later()
        else:
            self._ask_node(hint)

    def _ask_node_later(self) -> None:
        self._hops = 0
        self._reactor.call_later(self._backoff.next_s(), weak_callback(self._ask_node))

    def _on_master_found(self, address: Address, channel: Channel) -> None:
        with self._lock:
            self._is_ready, self._master, self._hops = True, address, 0
            self._backoff.reset()
            if address in self._addresses:
                self._next_address = self._addresses.index(address)
            for request in self._requests:
                self._send_request(request)
            self._send()

    def _look_for_master(self, attempt: int, why: str, hint: str = "") -> None:
        """Leave the connection, look for the master, and repeat requests that have no answer; called by the thread that
        drives the reactor."""
        with self._lock:
            if attempt != self._attempt or self._error is not None:
                return
            self._attempt += 1
            self._is_ready, self._last_error = False, why
            settled = self._session.lost()
        self._settle(settled)
        logger.info("%s: looks for the master: %s", self._label, why)
        address = self._master
        if hint and address is not None:
            self._follow_hint(hint, address)
        else:
            self._ask_node_later()

    # ---- requests -------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send due batches. Called under the lock: batches are sent in the order of their sequence numbers."""
        channel, attempt = self._channel, self._attempt
        while self._is_ready and channel is not None and (batch := self._session.take()) is not None:
            head = encode_append(self._session.client, batch.sequence, batch.count)
            timeout = max((batch.deadline_us - self._now_us()) / 1e6, 0.0) + 1.0
            channel.request(
                head, *batch.records, on_reply=partial(self._on_append_reply, attempt, batch), timeout=timeout
            )

    def _send_request(self, request: _Request) -> None:
        """Send a request to the master; called under the lock."""
        assert self._channel is not None, "there is a connection"
        body, attempt = request.body, self._attempt
        timeout = request.wait_s + self.config.timeout_ms / 1000
        self._channel.request(body, on_reply=partial(self._on_reply, attempt, request), timeout=timeout)

    def _on_append_reply(self, attempt: int, batch: Batch, reply: memoryview | ReplogError) -> None:
        """Handle the reply to a batch; called by the thread that drives the reactor."""
        if attempt != self._attempt:
            return
        try:
            if isinstance(reply, ReplogError):
                raise reply
            message = decode_reply(reply)
            with self._lock:
                if isinstance(message, Appended):
                    settled = self._session.appended(batch, message.runs)
                    last = message.runs[-1]
                    self._acknowledged = max(self._acknowledged, last.first + last.entries)
                elif isinstance(message, Refused) and message.code not in MOVES:
                    settled = self._session.refused(batch, message)
                elif isinstance(message, Refused):
                    self._session.moved(batch, message)
                    settled = []
                else:
                    raise InvalidMessageError(f"APPEND: expected its outcome, found {type(message).__name__}")
                if not isinstance(message, Refused) or message.code not in MOVES:
                    self._send()
        except ReplogError as error:
            self._look_for_master(attempt, str(error))
            return
        self._settle(settled)
        if isinstance(message, Refused) and message.code in MOVES:
            self._look_for_master(attempt, message.text, message.master)

    def _on_reply(self, attempt: int, request: _Request, reply: memoryview | ReplogError) -> None:
        if attempt != self._attempt or request.future.done():
            return
        if isinstance(reply, ReplogError):
            self._look_for_master(attempt, str(reply))
            return
        try:
            result = request.answer(reply)
        except _MovedError as moved:
            self._look_for_master(attempt, moved.refused.text, moved.refused.master)
            return
        except ReplogError as error:
            self._forget(request)
            set_exception(request.future, error)
            return
        self._forget(request)
        set_result(request.future, result)

    def _forget(self, request: _Request) -> None:
        with self._lock:
            if request in self._requests:
                self._requests.remove(request)

    # ---- outcomes and time ----------------------------------------------------------------------------------

    def _settle(self, settled: list[Settled]) -> None:
        """Complete futures. Called without the lock, because their callbacks may call any method."""
        for future, result, error in settled:
            if error is None:
                set_result(future, result)
            else:
                set_exception(future, error)
        if not settled:
            return
        with self._lock:
            rooms = flushes = []
            if self._room_waiters and self._has_room(1):
                rooms, self._room_waiters = self._room_waiters, []
            if self._flush_waiters and self._session.is_idle:
                flushes, self._flush_waiters = self._flush_waiters, []
        for future in (*rooms, *flushes):
            set_result(future)

    def _tick(self) -> None:
        if self._error is not None:
            return
        now_us = self._now_us()
        with self._lock:
            settled = self._session.expire(now_us, self._last_error)
            late = [request for request in self._requests if request.deadline_us <= now_us]
            self._requests = [request for request in self._requests if request not in late]
            if settled:
                self._send()
        self._settle(settled)
        for request in late:
            set_exception(
                request.future, PeerTimeoutError(f"no answer in time from the {self._label}: {self._last_error}")
            )
        self._reactor.call_later(_TICK_S, weak_callback(self._tick))

    def _do_close(self) -> None:
        error = self._error
        assert error is not None, "it is closed"
        with self._lock:
            settled = self._session.end(error)
            requests, self._requests = self._requests, []
            waiting, self._room_waiters, self._flush_waiters = [*self._room_waiters, *self._flush_waiters], [], []
            channel, self._channel = self._channel, None
            self._is_ready = False
            self._attempt += 1
        self._settle(settled)
        for request in requests:
            set_exception(request.future, error)
        for future in waiting:
            set_result(future)
        if channel is not None:
            channel.close()
        self._reactor.close()


class GroupFollower:
    """Iterator and asynchronous iterator over the records of a group; made by `GroupClient.follow`."""

    def __init__(self, client: GroupClient, start: int | None, timeout: float | None) -> None:
        self._client, self._start, self._timeout = client, start, timeout
        self._records: Iterator[Record] | None = None

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if self._records is None:
            batches = self._client.follow_batches(self._start, timeout=self._timeout)
            self._records = (record for batch in batches for record in batch)
        return next(self._records)

    async def __aiter__(self) -> AsyncIterator[Record]:
        async for batch in self._client.follow_batches_async(self._start, timeout=self._timeout):
            for record in batch:
                yield record


@dataclass(frozen=True, slots=True)
class _Answer:
    """The decoded reply to a READ. batch: None if it has no records."""

    start: int
    end: int
    batch: RecordBatch | None


class _MovedError(ReplogError):
    """A node cannot answer now; another one may be the master."""

    def __init__(self, refused: Refused) -> None:
        self.refused = refused
        super().__init__(refused.text)


def _as_entries(reply: memoryview, first: int) -> _Answer:
    message = decode_reply(reply)
    if isinstance(message, Refused):
        raise _read_error(message)
    if not isinstance(message, CommittedEntries):
        raise InvalidMessageError(f"READ: expected entries, found {type(message).__name__}")
    if not message.records.nbytes:
        return _Answer(message.start, message.end, None)
    if message.first != first:
        raise InvalidMessageError(f"READ: expected entry {first}, found {message.first}")
    return _Answer(message.start, message.end, parse_records(bytes(message.records), message.position, first))


def _read_error(refused: Refused) -> ReplogError:
    if refused.code in MOVES:
        return _MovedError(refused)
    if refused.code == ClientRefusal.TRIMMED:
        return TrimmedError(refused.text)
    if refused.code == ClientRefusal.OUT_OF_RANGE:
        return OutOfRangeError(refused.text)
    if refused.code == ClientRefusal.TOO_LARGE:
        return RecordTooLargeError(refused.text)
    return ReplicationError(f"the node could not read: {refused.text}")


def _as_status(reply: memoryview) -> dict[str, Any]:
    message = messages.decode(reply)
    try:
        status = json.loads(message.json) if isinstance(message, StatusReply) else None
    except ValueError:
        status = None
    if not isinstance(status, dict):
        raise InvalidMessageError(f"expected a status, found {type(message).__name__}")
    return status


def _check_size(size: int) -> None:
    if size > BATCH_BYTES_MAX:
        raise RecordTooLargeError(f"values: at most {BATCH_BYTES_MAX} bytes of records in one request, found {size}")
