"""ProducerSnapshotFetcher: copies producer snapshots from other replicas, for replicas that have lost their own."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pyreplog.errors import ReplogError, StreamError
from pyreplog.future import AppendFuture
from pyreplog.handles import Handle
from pyreplog.partition.broker_answers import wait_for_answer
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import ProducerSnapshotPiece, ProducerSnapshotRequest
from pyreplog.partition.store.producer_snapshot import FILE_MAX, decode_snapshot

if TYPE_CHECKING:
    from pyreplog.partition.partition import Partition, SnapshotSearch

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
"""Bytes of a snapshot in one request."""
_ANSWER_S = 5.0
_RETRY_S, _RETRY_MAX_S = 0.2, 30.0  # first and longest pause after a search without a result


@runtime_checkable
class ProducerSnapshotTransport(Protocol):
    """Sends the requests for producer snapshots to other brokers. Any thread may use it; it does not block.

    A future fails with a PeerError if there is no answer.
    """

    def producer_snapshot(self, broker: str, request: ProducerSnapshotRequest) -> AppendFuture[ProducerSnapshotPiece]:
        """Read bytes of a producer snapshot of a broker; see `Partition.producer_snapshot`."""
        ...


class ProducerSnapshotFetcher(Handle):
    """Copies producer snapshots from other replicas, on request of a partition, one partition at a time.

    Its thread starts with the first request, and ends when no partition lacks a snapshot. Any thread may use it.

    Args:
        transport: transport to other brokers.
    """

    def __init__(self, transport: ProducerSnapshotTransport) -> None:
        self._transport = transport
        self._changed = threading.Condition()  # guards the fields below
        self._due: dict[Partition, tuple[float, float]] = {}  # when it is searched for next, and the pause after that
        self._thread: threading.Thread | None = None
        super().__init__("fetcher of producer snapshots")

    def request(self, partition: Partition) -> None:
        """Search for a snapshot of a partition soon, and again until it lacks none. Does not block, and calls no method
        of the partition, so that the partition may hold its lock; has no effect after `close`."""
        with self._changed:
            if self._error is not None:
                return
            self._due[partition] = time.monotonic(), _RETRY_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pyreplog-producers", daemon=True)
                self._thread.start()
            self._changed.notify()

    def fetch(self, partition: Partition) -> bool:
        """Ask the other replicas of a partition that are on live brokers, the leader first, for a producer snapshot.

        A snapshot with a loss, of a replica that has lost its own, counts only if no replica has one without.

        Args:
            partition: the replica. The call has no effect if it lacks no snapshot.

        Returns:
            Whether the replica lacks no snapshot any more.
        """
        search = partition.begin_snapshot_search()
        if search is None:
            return True
        answered, incomplete, before = list[str](), b"", 0
        for broker in search.brokers:
            try:
                data = self._read(partition, broker, search)
                loss = decode_snapshot(Path(broker), data).loss if data else None
            except (ReplogError, OSError) as error:
                logger.info("%s: broker %s did not send its producer snapshot: %s", partition.name, broker, error)
                continue
            answered.append(broker)
            if data and loss is None and partition.adopt_snapshot(data, broker):
                return True
            if loss is not None and (not incomplete or loss.before < before):
                incomplete, before = data, loss.before
        return partition.end_snapshot_search(incomplete, answered)

    def _read(self, partition: Partition, broker: str, search: SnapshotSearch) -> bytes:
        """Return the snapshot of a replica; b"": it has none. Raises PeerError and StreamError."""
        data, first, last, size = bytearray(), search.first, search.last, 1
        while len(data) < size:
            request = ProducerSnapshotRequest(partition.name, first, last, len(data), PIECE_BYTES)
            piece = self._wait(self._transport.producer_snapshot(broker, request), partition, broker)
            if piece.code is ErrorCode.OFFSET_NOT_AVAILABLE and not data:
                return b""
            is_same = not data or (piece.base, piece.size) == (first, size)
            if piece.code is not ErrorCode.NONE or not is_same or not piece.data or piece.size > FILE_MAX:
                found = f"{piece.code.name}, position {piece.base}, {piece.size} bytes"
                raise StreamError(len(data), f"a producer snapshot at {first} to {last}", found)
            first = last = piece.base
            size = piece.size
            data += memoryview(piece.data)
        return bytes(data)

    def _wait(
        self, future: AppendFuture[ProducerSnapshotPiece], partition: Partition, broker: str
    ) -> ProducerSnapshotPiece:  # fmt: skip
        """Wait for an answer, as long as the broker counts as alive. Raises PeerError."""
        text = "the broker did not answer a request for a producer snapshot"
        return wait_for_answer(
            future, _ANSWER_S, lambda: self._error is not None or not partition.is_alive(broker), text
        )  # fmt: skip

    # ---- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (partition := self._next()) is not None:
            try:
                is_done = self.fetch(partition)
            except Exception:  # the other partitions are searched for
                logger.exception("%s: the search for a producer snapshot failed", partition.name)
                is_done = False
            with self._changed:
                due_s, pause_s = self._due.pop(partition, (0.0, _RETRY_S))
                if due_s > 0:  # it was requested again meanwhile
                    self._due[partition] = due_s, pause_s
                elif not is_done and self._error is None:
                    pause_s = _RETRY_S if partition.awaits_producers else pause_s
                    self._due[partition] = time.monotonic() + pause_s, min(2 * pause_s, _RETRY_MAX_S)

    def _next(self) -> Partition | None:
        """Return the next partition, which counts as searched for; None: the thread ends."""
        with self._changed:
            while self._error is None and self._due:
                partition = min(self._due, key=lambda each: self._due[each][0])
                due_s, pause_s = self._due[partition]
                wait_s = due_s - time.monotonic()
                if wait_s <= 0:
                    self._due[partition] = 0.0, pause_s
                    return partition
                self._changed.wait(wait_s)
            self._thread = None
            return None

    def _do_close(self) -> None:
        with self._changed:
            self._due.clear()
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()
