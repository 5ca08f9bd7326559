"""Sends entries to a topic's owner, in order, and again to its next owner when that is safe."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.errors import (
    BacklogFullError,
    ClosedError,
    NotConnectedError,
    OutcomeUnknownError,
    PeerError,
    RecordTooLargeError,
    ReplogError,
    UnsupportedRequestError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.net.sockets import Address
from pyreplog.topic.client.publishing.forwarded import RAW_BYTES_MAX, raw_bytes
from pyreplog.topic.client.publishing.publish_batch import PublishBatch
from pyreplog.topic.client.remote.connection_pool import (
    LIMITS,
    ConnectionPool,
    Outcome,
    StaleError,
    is_transient,
    reads,
    settle,
)
from pyreplog.topic.model.dedup import DedupVerdict, Producers, Sequences
from pyreplog.topic.model.wire.fields import ENTRIES_MAX
from pyreplog.topic.model.wire.origins import LISTS
from pyreplog.topic.model.wire.protocol import PUBLISHED, CloseProducer, Open, Opened, Publish, PublishTo

logger = logging.getLogger(__name__)


class SequenceAllocator(Producers):
    """The sequence numbers of one producer.

    No number is assigned twice, whatever the outcome of its message: the owner may have it although no outcome is known
    here.
    """

    is_authoritative = False

    def __init__(self) -> None:
        super().__init__()
        self._highest = -1  # that was assigned, or is known to the owner

    def seed(self, last: int) -> None:
        """Note that the owner knows numbers up to this one."""
        self._highest = max(self._highest, last)

    def last_sequence(self, name: bytes) -> int:
        return max(super().last_sequence(name), self._highest)

    def next_sequence(self, name: bytes) -> int:
        return self._highest + 1

    def push(self, name: bytes, sequences: Sequences) -> None:
        self._highest = max(self._highest, int(sequences[-1]))
        super().push(name, sequences)

    def check_sequence(self, name: bytes, sequence: int) -> DedupVerdict:
        """Return what to do with a message; only messages in flight from here can be in doubt."""
        verdict = super().check_sequence(name, sequence)
        return DedupVerdict.NEW if verdict is DedupVerdict.DUPLICATE else verdict

    def find_new(self, name: bytes, sequences: Sequences) -> NDArray[np.bool_] | None:
        new = super().find_new(name, sequences)
        return None if new is None else np.ones(len(sequences), np.bool_)

    def failed(self, name: bytes, sequences: Sequences) -> list[Any]:
        waiting = super().failed(name, sequences)
        self.has_new_failures = False  # the owner remembers them
        return waiting


BATCH_BYTES_MAX = LIMITS.max_body_bytes - (1 << 20)
RETRY_S, RETRY_MOST_S = 0.05, 1.0


class EntrySender:
    """A Sink that sends to the owner. Any thread; steps run one at a time, and none waits.

    Args:
        pool: the connections.
        topic: name of the topic.
        producer: name of a producer of a topic that deduplicates, whose messages are numbered: entries that are lost
            are sent again, and the owner drops those that it has. "": entries that are lost fail, with an unknown
            outcome.
        on_opened: called with the owner's reply, each time a session was opened.
    """

    def __init__(
        self, pool: ConnectionPool, topic: str, producer: str = "", on_opened: Callable[[Opened], object] | None = None
    ) -> None:
        self._pool, self._topic, self._producer, self._on_opened = pool, topic, producer, on_opened
        self._events = EventQueue()
        self._queue: deque[PublishBatch] = deque()  # all batches without an outcome, and some with one
        self._unsent: deque[PublishBatch] = deque()  # those that are not sent
        self._handle = 0  # of the producer session; 0: there is none
        self._address: Address = ("", 0)
        self._opening = self._is_delayed = False  # a session is being opened; the next attempt is delayed
        self._opened: AppendFuture[Opened] | None = None
        self._retry_s = RETRY_S
        self._failing_since: float | None = None
        self._error: ReplogError | None = None
        self._is_leaving = False
        self.refused: BacklogFullError | None = None
        """Error of messages that were not published after `leave`."""
        self.on_room: Callable[[], object] = lambda: None
        self.pending = None  # only the publisher's window counts

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        """Send batches.

        A batch is settled with RecordTooLargeError if it does not fit into one request. Raises ClosedError.
        """
        if self._error is not None:
            raise self._error
        accepted: list[PublishBatch] = []
        for batch in batches:
            refusal = self._refusal(batch)
            if refusal is None:
                accepted.append(batch)
            else:
                batch.settle(refusal)
        self._events.post(lambda: self._add_batches(accepted))

    def _refusal(self, batch: PublishBatch) -> RecordTooLargeError | None:
        """Return why a batch cannot be sent."""
        size, raw = batch.entry_bytes, raw_bytes(batch.entries)
        if batch.attributes is not None:
            size += len(LISTS.encode(batch.attributes))
        if size <= BATCH_BYTES_MAX and raw <= RAW_BYTES_MAX and len(batch.entries) <= ENTRIES_MAX:
            return None
        return RecordTooLargeError(
            f"topic {self._topic}: a batch has at most {BATCH_BYTES_MAX} bytes ({RAW_BYTES_MAX} decompressed) and "
            f"{ENTRIES_MAX} entries over TCP, this one {size} ({raw}) and {len(batch.entries)}: publish it in parts"
        )

    def check_open(self) -> None:
        """Do nothing: batches that are submitted after the end fail."""

    def open(self) -> AppendFuture[Opened]:
        """Open a session now; the future fails with the first error."""
        opened: AppendFuture[Opened] = AppendFuture()

        def begin() -> None:
            self._opened = opened
            self._open()

        self._events.post(begin)
        return opened

    def leave(self) -> None:
        """Close the session after all submitted batches: the owner publishes them, or refuses those a quota holds."""

        def leave() -> None:
            self._is_leaving = True
            if self._queue:
                self._advance()

        self._events.post(leave)

    def close(self, error: ReplogError) -> None:
        """Fail all batches without an outcome."""

        def close() -> None:
            self._error = error
            self._advance()

        self._events.post(close)

    # ---- the producer session ----------------------------------------------------------------------------------------

    def _add_batches(self, batches: list[PublishBatch]) -> None:
        self._queue += batches
        self._unsent += batches
        self._advance()

    def _advance(self) -> None:
        if self._error is not None:
            self._fail_all(self._error)
            self._abandon_session()
        elif not self._handle:
            self._open()
        else:
            while self._unsent:
                if not (batch := self._unsent.popleft()).is_settled:
                    self._send(batch)
            if self._is_leaving:
                self._abandon_session()

    def _abandon_session(self) -> None:
        if self._handle:
            self._pool.send(self._address, CloseProducer(self._handle), _forget)
            self._handle = 0

    def _open(self) -> None:
        if self._opening or self._is_delayed or self._error is not None:
            return
        self._opening = True
        if self._queue and self._failing_since is None:
            self._failing_since = time.monotonic()
        handle = self._pool.next_handle()
        request = Open(handle, False, self._topic, self._producer, self._pool.client, "")

        def on_outcome(address: Address, outcome: Outcome) -> None:
            opened: AppendFuture[Opened] = AppendFuture()
            settle(opened, outcome, reads(Opened))
            self._events.post(lambda: self._was_opened(handle, address, opened))

        self._pool.ask(self._topic, request, on_outcome)

    def _was_opened(self, handle: int, address: Address, opened: AppendFuture[Opened]) -> None:
        self._opening = False
        error = opened.exception()
        if error is None:
            self._handle, self._address = handle, address
            for batch in self._queue if self._producer else ():
                batch.session = 0  # in order, including those that were sent in the last session
            self._collect_unsent()
            if self._on_opened is not None:
                self._on_opened(opened.result())
        waiting, self._opened = self._opened, None
        if waiting is not None:
            set_exception(waiting, error) if error is not None else set_result(waiting, opened.result())
        if error is None:
            self._advance()
        elif isinstance(error, ReplogError):
            self._retry_later(error)

    def _retry_later(self, error: ReplogError) -> None:
        if not self._queue or self._is_delayed:
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        was_tried = isinstance(error, NotConnectedError)  # the pool has tried until the timeout
        if was_tried or not is_transient(error) or now - self._failing_since > self._pool.timeout:
            self._fail_all(error)
            return
        logger.info("topic %s: publishing waits: %s", self._topic, error)
        self._is_delayed = self._pool.wake_after(self._retry_s, lambda: self._events.post(self._retry)) is not None
        self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _retry(self) -> None:
        self._is_delayed = False
        self._advance()

    def _fail_all(self, error: ReplogError) -> None:
        if isinstance(error, StaleError):  # a message for people
            error = NotConnectedError(f"topic {self._topic}: no producer session could be opened in time: {error}")
        for batch in list(self._queue):
            if not batch.is_settled:
                batch.settle(_unknown(error) if batch.was_sent else error)
        self._forget_settled()

    # ---- batches --------------------------------------------------------------------------------------------

    def _send(self, batch: PublishBatch) -> None:
        handle = batch.session = self._handle
        was_sent, batch.was_sent = batch.was_sent, True

        def on_outcome(_: Address, outcome: Outcome) -> None:
            offsets: AppendFuture[range | list[int]] = AppendFuture()
            settle(offsets, outcome, lambda reader: _offsets(reader, batch.messages))
            self._events.post(lambda: self._published(batch, handle, offsets, was_sent))

        request: Publish | PublishTo = Publish(handle, batch.entries)
        if batch.attributes is not None:
            request = PublishTo(handle, batch.attributes, batch.entries)
        self._pool.send(self._address, request, on_outcome)

    def _published(
        self, batch: PublishBatch, handle: int, offsets: AppendFuture[range | list[int]], was_sent: bool
    ) -> None:
        """Note the outcome of a batch. was_sent: it was sent before, too, and that had no outcome."""
        error = offsets.exception()
        if batch.session != handle or batch.is_settled:
            return  # it was sent again meanwhile
        if error is None:
            batch.offsets = offsets.result()
            self._retry_s, self._failing_since = RETRY_S, None
            batch.settle()
        elif isinstance(error, UnsupportedRequestError):  # an older server would replicate it everywhere
            batch.settle(_unknown(error) if was_sent else error)
        elif isinstance(error, ReplogError) and is_transient(error):
            self._send_again_or_fail(batch, handle, error)
        else:
            if self._is_leaving and isinstance(error, BacklogFullError):
                self.refused = error
            batch.settle(error if isinstance(error, ReplogError) else OutcomeUnknownError(str(error)))
        self._forget_settled()

    def _send_again_or_fail(self, batch: PublishBatch, handle: int, error: ReplogError) -> None:
        """Send a batch again, or fail it, because its session is lost; it may be stored."""
        if handle == self._handle:
            self._handle = 0
        if not self._producer and not isinstance(error, StaleError | NotConnectedError):
            batch.settle(error)
            return
        if not self._producer:
            batch.was_sent = False  # the server did nothing with it
        batch.session = 0
        self._collect_unsent()
        if self._handle or isinstance(error, NotConnectedError):
            self._advance()
        else:
            self._retry_later(error)

    def _collect_unsent(self) -> None:
        self._unsent = deque(batch for batch in self._queue if not batch.session and not batch.is_settled)

    def _forget_settled(self) -> None:
        """Remove settled batches from the head of the queue."""
        while self._queue and self._queue[0].is_settled:
            self._queue.popleft()
        if not self._queue:
            self._failing_since = None


def _unknown(error: ReplogError) -> ReplogError:
    if isinstance(error, OutcomeUnknownError):
        return error
    unknown = OutcomeUnknownError(f"the messages were sent, and their outcome is not known: {error}")
    unknown.__cause__ = error
    return unknown


def _offsets(reader: WireReader, messages: int) -> range | list[int]:
    """Return the offsets of the messages; -1 for those that were published before. Raises InvalidMessageError."""
    first, total, stored = PUBLISHED.decode(reader)
    if total != messages or stored > total or (first < 0) != (stored == 0):
        raise reader.refusal(f"offsets of {messages} messages", f"{stored} of {total} from {first} on")
    if stored == total:
        reader.end()
        return range(first, first + total)
    if not stored:
        reader.end()
        return [-1] * total
    bits = np.unpackbits(np.frombuffer(reader.take((total + 7) // 8), np.uint8), count=total).astype(np.bool_)
    reader.end()
    if int(bits.sum()) != stored:
        raise reader.refusal(f"{stored} bits", str(int(bits.sum())))
    offsets: list[int] = np.where(bits, first + np.cumsum(bits) - 1, -1).tolist()
    return offsets


def _forget(_: Address, outcome: Outcome) -> None:
    if isinstance(outcome, ReplogError) and not isinstance(outcome, PeerError | ClosedError):
        logger.info("a producer session was not closed at the server: %s", outcome)
