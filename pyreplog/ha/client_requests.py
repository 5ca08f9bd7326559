"""ClientRequests: serves clients of a group. A master appends their batches, any node reads committed entries."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    DeposedError,
    HigherTermError,
    InvalidMessageError,
    InvalidRecordsError,
    NotEnoughReplicasError,
    NotMasterError,
    OutOfRangeError,
    RecordTooLargeError,
    ReplicationTimeoutError,
    ReplogError,
    TrimmedError,
)
from pyreplog.future import AppendFuture
from pyreplog.ha.long_polls import CommitLongPolls
from pyreplog.ha.protocol.client_messages import (
    CLIENT_VERSION,
    ENTRIES_BYTES,
    Append,
    Appended,
    ClientRefusal,
    CommittedEntries,
    Read,
    Refused,
    Run,
    decode_request,
    encode_appended,
    encode_entries,
    encode_refused,
)
from pyreplog.log.commit_log import CommitLog
from pyreplog.net.connection import Connection
from pyreplog.net.fair_executor import FairExecutor
from pyreplog.net.reactor import Reactor
from pyreplog.net.server_connection import ServerConnection

logger = logging.getLogger(__name__)

_CODES: tuple[tuple[type[ReplogError], ClientRefusal], ...] = (
    (ReplicationTimeoutError, ClientRefusal.TIMED_OUT),
    (DeposedError, ClientRefusal.DEPOSED),
    (NotMasterError, ClientRefusal.NOT_MASTER),
    (HigherTermError, ClientRefusal.CHANGING),
    (ClosedError, ClientRefusal.CHANGING),
    (NotEnoughReplicasError, ClientRefusal.NOT_ENOUGH_REPLICAS),
    (InvalidRecordsError, ClientRefusal.INVALID),
    (RecordTooLargeError, ClientRefusal.TOO_LARGE),
    (TrimmedError, ClientRefusal.TRIMMED),
    (OutOfRangeError, ClientRefusal.OUT_OF_RANGE),
    (CorruptionError, ClientRefusal.CORRUPT),
)
"""Refusal codes by class of error; the first class that fits decides. Any other error is FAILED."""

_READERS, _READERS_MAX, _READS_MAX = 2, 8, 2


class ClientRefusedError(ReplogError):
    """A master refuses a batch with a code that no other class of error has."""

    def __init__(self, code: ClientRefusal, message: str) -> None:
        self.code = code
        super().__init__(message)


class Appends(Protocol):
    """The part of a master that clients use. Called by the reactor's driver."""

    def append_received(self, append: Append) -> AppendFuture[tuple[Run, ...]]: ...
    def offer(self) -> None: ...


class Serving(Protocol):
    """The part of a node that clients use."""

    @property
    def name(self) -> str: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def appends(self) -> Appends | None: ...
    def master_address(self) -> str: ...


@dataclass
class ClientStats:
    """Counters of requests of clients.

    Attributes:
        appends: acknowledged batches.
        entries: entries of these batches.
        bytes: bytes of their records.
        refused: batches with any other outcome.
        reads: answers to reads that contain entries.
        read_bytes: bytes of records in these answers.
    """

    appends: int = 0
    entries: int = 0
    bytes: int = 0
    refused: int = 0
    reads: int = 0
    read_bytes: int = 0


class ClientRequests:
    """Requests of clients of one node. The reactor's driver calls all methods; reads run in other threads."""

    def __init__(self, node: Serving, reactor: Reactor, polls: CommitLongPolls) -> None:
        self.stats = ClientStats()
        self._node, self._reactor, self._polls = node, reactor, polls
        self._appended_to: Appends | None = None  # the master that got batches since the last `end_turn`
        self._jobs = FairExecutor(
            "pyreplog-read", threads=_READERS, threads_max=_READERS_MAX, running_max=_READS_MAX
        )  # fmt: skip
        self._held_reads: dict[
            ServerConnection, deque[Callable[[], object]]
        ] = {}  # reads that wait for room in the output
        polls.serve(lambda: node.log.end)

    def take(self, connection: ServerConnection, number: int, body: memoryview) -> None:
        """Take a request. InvalidMessageError ends the connection."""
        if connection.peer.version < CLIENT_VERSION:
            raise InvalidMessageError(
                f"expected requests of version {connection.peer.version}, as the hello said, found one of a client"
            )
        request = decode_request(body)
        if isinstance(request, Append):
            self._append(connection, number, request)
        else:
            self._begin_read(connection, number, request)

    def end_turn(self) -> None:
        """Send the batches of one read of a connection to replicas, all together."""
        master, self._appended_to = self._appended_to, None
        if master is not None:
            master.offer()

    # ---- appending ------------------------------------------------------------------------------------------

    def _append(self, connection: ServerConnection, number: int, append: Append) -> None:
        master = self._node.appends
        try:
            if master is None:
                raise NotMasterError(f"{self._node.name} is no master")
            future = master.append_received(append)
        except (ReplogError, OSError) as error:
            self._refuse(connection, number, error)
            return
        self._appended_to = master
        size = append.records.nbytes
        future.add_done_callback(partial(self._appended, connection, number, append.entries, size))

    def _appended(
        self, connection: ServerConnection, number: int, count: int, size: int, future: AppendFuture[tuple[Run, ...]]
    ) -> None:
        """Answer an append; called by any thread."""
        error = future.exception()
        if error is not None:
            self._refuse(connection, number, error)
            return
        stats = self.stats
        stats.appends += 1
        stats.entries += count
        stats.bytes += size
        connection.reply(number, encode_appended(Appended(future.result())))

    def _refuse(self, connection: ServerConnection, number: int, error: BaseException) -> None:
        self.stats.refused += 1
        connection.reply(number, encode_refused(self._refusal(error)))

    def _refusal(self, error: BaseException) -> Refused:
        if isinstance(error, ClientRefusedError):
            return Refused(error.code, str(error), "")
        for kind, code in _CODES:
            if isinstance(error, kind):
                is_moved = code in (ClientRefusal.NOT_MASTER, ClientRefusal.DEPOSED, ClientRefusal.CHANGING)
                return Refused(code, str(error), self._node.master_address() if is_moved else "")
        return Refused(ClientRefusal.FAILED, f"{type(error).__name__}: {error}", "")

    # ---- reading --------------------------------------------------------------------------------------------

    def _begin_read(self, connection: ServerConnection, number: int, read: Read) -> None:
        if read.wait_ms and not self._is_committed(read.first):
            answer = partial(self._submit, connection, number, read._replace(wait_ms=0))
            self._polls.add(connection, read.first, read.wait_ms / 1000, answer)
        else:
            self._submit(connection, number, read)

    def _is_committed(self, entry: int) -> bool:
        try:
            return entry < self._node.log.end
        except ReplogError:
            return True  # the read then raises the error

    def _submit(self, connection: ServerConnection, number: int, read: Read) -> None:
        self._jobs.submit(connection, partial(self._read, connection, number, read))

    def _read(self, connection: ServerConnection, number: int, read: Read) -> None:
        """Read and answer; called in a thread. Postponed while the client does not take earlier replies: they hold
        memory and segments."""
        if connection.queued_bytes > connection.limits.queued_bytes:
            retry = partial(self._submit, connection, number, read)
            self._reactor.call_soon(partial(self._hold_or_run, connection, retry))
            return
        try:
            entries = self._entries(read, connection.peer.max_body_bytes - ENTRIES_BYTES)
        except Exception as error:
            if not isinstance(error, ReplogError | OSError):
                logger.exception("%s: a read failed", self._node.name)
            connection.reply(number, encode_refused(self._refusal(error)))
            return
        size = entries.records.nbytes
        if size:
            self.stats.reads += 1
            self.stats.read_bytes += size
            connection.reply(number, encode_entries(entries), entries.records)
        else:
            connection.reply(number, encode_entries(entries))

    def _hold_or_run(self, connection: ServerConnection, retry: Callable[[], object]) -> None:
        if connection.queued_bytes > connection.limits.queued_bytes:
            self._held_reads.setdefault(connection, deque()).append(retry)
        else:
            retry()

    def _entries(self, read: Read, bytes_max: int) -> CommittedEntries:
        """Return the entries for a read.

        Raises:
            TrimmedError: retention has removed the first entry.
            CorruptionError: a record is damaged.
            RecordTooLargeError: the client takes no frame of that size.
        """
        log = self._node.log
        end = log.end
        unreplicated = log.unreplicated
        start = log.start
        nothing = CommittedEntries(min(start, end), end, -1, 0, unreplicated, memoryview(b""))
        stop = end if read.end < 0 else min(read.end, end)
        if not read.limit or read.first >= stop:
            return nothing
        if read.first < start:
            raise TrimmedError(f"entry {read.first}: the log begins with entry {start}")
        limit = min(read.limit, bytes_max)
        batch = next(log.read(read.first, stop, batch_bytes=limit), None)
        if batch is None:
            return nothing
        records = _fitting(batch, bytes_max)
        return CommittedEntries(min(start, end), end, batch.first, batch[0].position, unreplicated, records)

    # ---- connections ----------------------------------------------------------------------------------------

    def drained(self, connection: Connection) -> None:
        """Begin the reads of a connection that waited for room in its output."""
        if self._held_reads:
            for retry in self._held_reads.pop(connection, ()):  # type: ignore[call-overload]
                retry()

    def leave(self, connection: Connection) -> None:
        """Drop the reads of a closed connection."""
        self._held_reads.pop(connection, None)  # type: ignore[call-overload]
        self._jobs.leave(connection)
        self._polls.leave(connection)

    def close(self) -> None:
        self._jobs.stop()


def _fitting(batch: RecordBatch, bytes_max: int) -> memoryview:
    """Return the stored bytes of the first records of a batch, as many as fit."""
    records = batch.buffer
    if records.nbytes <= bytes_max:
        return records
    offsets = batch.position - batch.position[0]
    count = int(offsets.searchsorted(bytes_max, side="right")) - 1  # records that end within `bytes_max`
    if count < 1:
        size = batch[0].raw.nbytes
        raise RecordTooLargeError(f"entry {batch.first} has {size} bytes encoded, the client takes {bytes_max}")
    return records[: int(offsets[count])]
