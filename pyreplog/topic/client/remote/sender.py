"""Sends entries to a topic's owner, in order, and again to its next one when that is safe."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from pyreplog.errors import (
    BacklogFullError,
    ClosedError,
    NotConnectedError,
    OutcomeUnknownError,
    PeerError,
    RecordTooLargeError,
    ReplogError,
)
from pyreplog.future import AppendFuture
from pyreplog.net.sockets import Address
from pyreplog.topic.client.publishing.forwarded import RAW_BYTES_MAX, raw_bytes
from pyreplog.topic.client.publishing.outbox import Parcel
from pyreplog.topic.client.remote.connection_pool import (
    LIMITS,
    ConnectionPool,
    Outcome,
    StaleError,
    is_passing,
    reads,
    settle,
)
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.positions import done_ack
from pyreplog.topic.model.wire.fields import ENTRIES_MAX, WireReader
from pyreplog.topic.model.wire.protocol import PUBLISHED, CloseProducer, Open, Opened, Publish

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX = LIMITS.max_body_bytes - (1 << 20)
RETRY_S, RETRY_MOST_S = 0.05, 1.0


class _Submission:
    """handle: of the lane it was sent through, 0: it has to be sent. outcome: None, not known."""

    def __init__(self, entries: Sequence[bytes], messages: int) -> None:
        self.entries, self.messages = entries, messages
        self.handle = 0
        self.was_sent = False
        self.outcome: range | list[int] | ReplogError | None = None
        self.future: AppendFuture[range] = AppendFuture()


class EntrySender:
    """A Sink. Any thread; steps take turns, and none waits.

    producer: of a topic that deduplicates, whose messages are numbered: what is lost on its way is sent again, and the
    owner drops what it has. Of others, "", it fails: its outcome is unknown. on_opened: told what the owner says, each
    time a lane was opened.
    """

    def __init__(
        self, pool: ConnectionPool, topic: str, producer: str = "", on_opened: Callable[[Opened], object] | None = None
    ) -> None:
        self._pool, self._topic, self._producer, self._on_opened = pool, topic, producer, on_opened
        self._events = EventQueue()
        self._queue: deque[_Submission] = deque()  # all that have no outcome, and some whose turn has not come
        self._unsent: deque[_Submission] = deque()  # of these
        self._handle = 0  # of the lane, 0: there is none
        self._address: Address = ("", 0)
        self._opening = self._waits = False  # it waits before it tries again
        self._opened: AppendFuture[Opened] | None = None
        self._retry_s = RETRY_S
        self._failing_since: float | None = None
        self._error: ReplogError | None = None
        self._is_leaving = False
        self.refused: BacklogFullError | None = None
        """Of what was not published, since it was to `leave`."""

    def submit_all(self, parcels: Sequence[Parcel]) -> list[AppendFuture[range]]:
        """ClosedError. Of an AppendFuture: RecordTooLargeError, they do not fit into one request."""
        if self._error is not None:
            raise self._error
        submissions = [_Submission(entries, sum(counts)) for entries, counts in parcels]
        for one in submissions:
            self._check(one)
        self._events.post(lambda: self._enter(submissions))
        return [one.future for one in submissions]

    def _check(self, one: _Submission) -> None:
        size, raw = sum(map(len, one.entries)), raw_bytes(one.entries)
        if size > BATCH_BYTES_MAX or raw > RAW_BYTES_MAX or len(one.entries) > ENTRIES_MAX:
            one.outcome = RecordTooLargeError(
                f"topic {self._topic}: a batch has at most {BATCH_BYTES_MAX} bytes ({RAW_BYTES_MAX} decompressed) and "
                f"{ENTRIES_MAX} entries over TCP, this one {size} ({raw}) and {len(one.entries)}: publish it in parts"
            )

    @property
    def has_room(self) -> bool:
        """The publisher's window is all there is."""
        return True

    def room(self) -> AppendFuture[None]:
        return done_ack()

    def open(self) -> AppendFuture[Opened]:
        """Open a lane now; its first error is the AppendFuture's."""
        opened: AppendFuture[Opened] = AppendFuture()

        def begin() -> None:
            self._opened = opened
            self._open()

        self._events.post(begin)
        return opened

    def leave(self) -> None:
        """What was submitted is all there is: the owner publishes it, or refuses at once what a quota holds."""

        def leave() -> None:
            self._is_leaving = True
            if self._queue:
                self._go_on()

        self._events.post(leave)

    def close(self, error: ReplogError) -> None:
        """What has no outcome fails."""

        def close() -> None:
            self._error = error
            self._go_on()

        self._events.post(close)

    # ---- the lane -------------------------------------------------------------------------------------------

    def _enter(self, submissions: list[_Submission]) -> None:
        self._queue += submissions
        self._unsent += submissions
        self._settle()
        self._go_on()

    def _go_on(self) -> None:
        if self._error is not None:
            self._fail_all(self._error)
            self._give_up_lane()
        elif not self._handle:
            self._open()
        else:
            while self._unsent:
                if (one := self._unsent.popleft()).outcome is None:
                    self._send(one)
            if self._is_leaving:
                self._give_up_lane()

    def _give_up_lane(self) -> None:
        if self._handle:
            self._pool.send(self._address, CloseProducer(self._handle), _forget)
            self._handle = 0

    def _open(self) -> None:
        if self._opening or self._waits or self._error is not None:
            return
        self._opening = True
        if self._queue and self._failing_since is None:
            self._failing_since = time.monotonic()
        handle = self._pool.next_handle()
        request = Open(handle, False, self._topic, self._producer, self._pool.client, "")

        def came(address: Address, outcome: Outcome) -> None:
            made: AppendFuture[Opened] = AppendFuture()
            settle(made, outcome, reads(Opened))
            self._events.post(lambda: self._was_opened(handle, address, made))

        self._pool.ask(self._topic, request, came)

    def _was_opened(self, handle: int, address: Address, made: AppendFuture[Opened]) -> None:
        self._opening = False
        error = made.exception()
        if error is None:
            self._handle, self._address = handle, address
            for submission in self._queue if self._producer else ():
                submission.handle = 0  # in order, whatever becomes of those that went through the last lane
            self._look_for_unsent()
            if self._on_opened is not None:
                self._on_opened(made.result())
        waiting, self._opened = self._opened, None
        if waiting is not None:
            waiting.fail(error) if error is not None else waiting.complete(made.result())
        if error is None:
            self._go_on()
        elif isinstance(error, ReplogError):
            self._try_later(error)

    def _try_later(self, error: ReplogError) -> None:
        if not self._queue or self._waits:
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        was_tried = isinstance(error, NotConnectedError)  # as long as there is time
        if was_tried or not is_passing(error) or now - self._failing_since > self._pool.timeout:
            self._fail_all(error)
            return
        logger.info("topic %s: publishing waits: %s", self._topic, error)
        self._waits = self._pool.wake_after(self._retry_s, lambda: self._events.post(self._try_again)) is not None
        self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _try_again(self) -> None:
        self._waits = False
        self._go_on()

    def _fail_all(self, error: ReplogError) -> None:
        if isinstance(error, StaleError):  # for people
            error = NotConnectedError(f"topic {self._topic}: no lane could be opened in time: {error}")
        for submission in self._queue:
            if submission.outcome is None:
                submission.outcome = _unknown(error) if submission.was_sent else error
        self._settle()

    # ---- submissions ----------------------------------------------------------------------------------------

    def _send(self, submission: _Submission) -> None:
        handle = submission.handle = self._handle
        submission.was_sent = True

        def came(_: Address, outcome: Outcome) -> None:
            told: AppendFuture[range | list[int]] = AppendFuture()
            settle(told, outcome, lambda reader: _offsets(reader, submission.messages))
            self._events.post(lambda: self._came(submission, handle, told))

        self._pool.send(self._address, Publish(handle, submission.entries), came)

    def _came(self, submission: _Submission, handle: int, told: AppendFuture[range | list[int]]) -> None:
        error = told.exception()
        if submission.handle != handle or submission.outcome is not None:
            return  # it was sent again since
        if error is None:
            submission.outcome = told.result()
            self._retry_s, self._failing_since = RETRY_S, None
        elif isinstance(error, ReplogError) and is_passing(error):
            self._lost(submission, handle, error)
        else:
            submission.outcome = error if isinstance(error, ReplogError) else OutcomeUnknownError(str(error))
            if self._is_leaving and isinstance(error, BacklogFullError):
                self.refused = error
        self._settle()

    def _lost(self, submission: _Submission, handle: int, error: ReplogError) -> None:
        """It is not stored through that lane any more, and maybe was."""
        if handle == self._handle:
            self._handle = 0
        if not self._producer and not isinstance(error, StaleError | NotConnectedError):
            submission.outcome = error
            return
        if not self._producer:
            submission.was_sent = False  # nothing was done with it
        submission.handle = 0
        self._look_for_unsent()
        if self._handle or isinstance(error, NotConnectedError):
            self._go_on()
        else:
            self._try_later(error)

    def _look_for_unsent(self) -> None:
        self._unsent = deque(one for one in self._queue if not one.handle and one.outcome is None)

    def _settle(self) -> None:
        """In the order of the calls."""
        while self._queue and (outcome := self._queue[0].outcome) is not None:
            future = self._queue.popleft().future
            if isinstance(outcome, ReplogError):
                future.fail(outcome)
            else:
                future.complete(outcome)  # type: ignore[arg-type]
        if not self._queue:
            self._failing_since = None


def _unknown(error: ReplogError) -> ReplogError:
    if isinstance(error, OutcomeUnknownError):
        return error
    unknown = OutcomeUnknownError(f"it was sent, and its outcome is not known: {error}")
    unknown.__cause__ = error
    return unknown


def _offsets(reader: WireReader, messages: int) -> range | list[int]:
    """Of the messages that are stored; -1 for those that had been published before. InvalidMessageError."""
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
    found: list[int] = np.where(bits, first + np.cumsum(bits) - 1, -1).tolist()
    return found


def _forget(_: Address, outcome: Outcome) -> None:
    if isinstance(outcome, ReplogError) and not isinstance(outcome, PeerError | ClosedError):
        logger.info("a lane was not given up: %s", outcome)
