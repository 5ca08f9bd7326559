"""ExchangeConnection: the ordered connection between this cluster and another one about one topic's subscriptions."""

from __future__ import annotations

import logging
import random
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.range_set import OFFSET_END
from pyreplog.errors import (
    ClosedError,
    InvalidMessageError,
    OutOfRangeError,
    ReplogError,
    TopicFencedError,
    TrimmedError,
)
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.geo.protocol.effects import TargetPosition
from pyreplog.geo.target_link import ExchangeLink
from pyreplog.net.backoff import Backoff
from pyreplog.net.sockets import Address
from pyreplog.origins.origin import LastEntry, Origin, OriginState
from pyreplog.topic.model.wire.origins import MESSAGES_MAX
from pyreplog.topic.model.wire.protocol import Exchange, Exchanged
from pyreplog.topic.owner.managed.entry_reader import EntryBatch
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

RETRY_S, RETRY_MOST_S = 0.1, 10.0
"""Seconds between attempts to connect: at first, and at most."""
REQUESTS_MAX = 4
"""Most requests in flight: one waits for the other cluster's next messages, the others carry messages there."""
BODY_BYTES = 1 << 20
"""About so many bytes of messages in one request or answer."""
NOTHING = LastEntry(-1, 0, 0, 0)


class ConnectionOwner(Protocol):
    """Gets the events of a connection, as steps of its queue."""

    def post(self, event: Callable[[], object]) -> None:
        """Run an event as a step of the queue."""
        ...

    def connected(self, peer: bytes, session: int) -> None:
        """Note that a session began."""
        ...

    def disconnected(self, peer: bytes) -> None:
        """Note that the session ended."""
        ...

    def received(self, peer: bytes, data: bytes) -> None:
        """Take a message. If it raises InvalidRecordsError or MetadataVersionError, the connection ends."""
        ...

    def proved(self, peer: bytes, origin: Origin) -> None:
        """Note that both clusters have the same messages of an origin."""
        ...

    def diverged(self, peer: bytes, text: str) -> None:
        """Note that the histories of the two clusters differ."""
        ...


class ExchangeConnection:
    """The connection to one neighbour. All methods are called as steps of the owner's queue.

    Of two clusters the one with the lower id sends requests with its new messages, and the other one answers as soon as
    it has new messages. Each side checks the last entry of its own topic that the other side has, as a replicator does,
    and confirms the check: acknowledgements count only then.

    Args:
        topic: the topic.
        owner: gets the events.
        peer: id of the other cluster.
        link: the link to it.
        target_position: returns the other cluster's last confirmed position in this topic, as the replicator noted it;
            None: this topic was never sent there.
    """

    def __init__(
        self,
        topic: Topic,
        owner: ConnectionOwner,
        peer: bytes,
        link: ExchangeLink,
        target_position: Callable[[], TargetPosition | None],
    ) -> None:
        self._topic, self._owner, self.peer, self.link = topic, owner, peer, link
        self._target_position = target_position
        self._is_requester = topic.origin.cluster < peer
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self._compare_backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self.session: int | None = None
        self.error: ReplogError | None = None
        """The error that ended the last session; None: a session is open, or none was tried."""
        self._opening = 0  # session that is being opened, by the side that sends requests
        self._address: Address | None = None
        self._origin: Origin | None = None
        self._outbox: deque[bytes] = deque()
        self._next_number = 0
        self._inflight_requests = 0  # at the side that sends them
        self._unanswered: deque[AppendFuture[Exchanged]] = deque()  # at the side that answers
        self._noted: TargetPosition | None = None  # the replicator's position when the session began
        self._reported = OFFSET_END  # by the other cluster in this session, of this topic
        self._sent_stored = False  # the other cluster was told how much of its topic is stored here
        self._is_compared = False  # its last entry was compared with the entry here, or is being compared
        self._is_proved = self._sent_proved = False  # the comparison succeeded; the other cluster was told so
        self._peer_proved = False  # its own comparison succeeded
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether a session is open."""
        return self.session is not None

    @property
    def origin(self) -> Origin | None:
        """The topic of the other cluster, as it was reported last; None: it was never connected."""
        return self._origin

    @property
    def stored(self) -> int | None:
        """Offset in this topic below which the other cluster stores everything; None: unknown.

        It is the replicator's position, unless the other cluster has reported less since: its topic was created again.
        """
        position = self._target_position()
        if position is None:
            return None
        return min(position.stored, self._reported) if position is self._noted else position.stored

    # ---- the side that sends requests -----------------------------------------------------------------------

    def start(self) -> None:
        """Connect if this side sends the requests; otherwise the other side connects."""
        if self._is_closed or not self._is_requester or self.session is not None or self._opening:
            return
        self._opening = session = 1 + secrets.randbits(61)
        self._reset()
        request = Exchange(session, 0, False, -1, *NOTHING, *self._sender(), ())
        self.link.exchange(request, None, partial(self._on_answer, session))

    def _sender(self) -> tuple[bytes, str, str]:
        origin = self._topic.origin
        return origin.cluster, self._topic.name, origin.token

    def _on_answer(self, session: int, address: Address, answer: Exchanged | ReplogError) -> None:
        self._owner.post(lambda: self._answered(session, address, answer))

    def _answered(self, session: int, address: Address, answer: Exchanged | ReplogError) -> None:
        if self._is_closed or session not in (self.session, self._opening):
            return
        if isinstance(answer, ReplogError):
            self._lost(answer)
            return
        if answer.cluster != self.peer:
            self._lost(InvalidMessageError(f"expected the cluster {self.peer.hex()}, found {answer.cluster.hex()}"))
            return
        if self._opening:
            self._opening, self._address, self._next_number = 0, address, 1
            self._connected(session, Origin(answer.cluster, answer.token))
        else:
            self._inflight_requests -= 1
        self._take_message(answer)
        self.send_due()

    def _lost(self, error: ReplogError) -> None:
        self.error = error
        self.end()
        if not self._is_closed:
            delay_s = self._backoff.next_s()
            self._topic.context.runtime.wake_after(delay_s, lambda: self._owner.post(self.start))

    # ---- the side that answers ------------------------------------------------------------------------------

    def take_request(self, request: Exchange, answer: AppendFuture[Exchanged]) -> None:
        """Take a request; `answer` is done once this cluster has new messages, or another request comes."""
        if request.number == 0:
            self.end()
            self._reset()
            self._next_number = 1
            self._connected(request.session, Origin(request.cluster, request.token))
        elif request.session != self.session or request.number != self._next_number:
            set_exception(answer, ClosedError(f"expected request {self._next_number} of {self.session}"))
            return
        else:
            self._next_number += 1
        self._unanswered.append(answer)
        self._take_message(request)
        if request.number == 0 and self._unanswered:
            self._send_reply()
        self.send_due()

    def connection_lost(self, session: int) -> None:
        """Note that the connection of a session was lost."""
        if session == self.session and not self._is_requester:
            self.error = ClosedError("the connection was lost")
            self.end()

    # ---- both -----------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._outbox.clear()
        self._compare_backoff.reset()
        self._noted, self._reported = self._target_position(), OFFSET_END
        self._inflight_requests = 0
        self._sent_stored = self._is_compared = self._is_proved = self._sent_proved = self._peer_proved = False

    def _connected(self, session: int, origin: Origin) -> None:
        self.session, self.error, self._origin = session, None, origin
        self._owner.connected(self.peer, session)

    def end(self) -> None:
        """End the session."""
        session, self.session, self._opening = self.session, None, 0
        unanswered, self._unanswered = self._unanswered, deque()
        for answer in unanswered:
            set_exception(answer, ClosedError("the session ended"))
        if session is not None:
            self._owner.disconnected(self.peer)

    def close(self) -> None:
        """End for good."""
        self._is_closed = True
        self.end()

    def send(self, session: int, data: bytes) -> None:
        """Send a message of a session behind the others; `send_due` has to follow."""
        if session == self.session:
            self._outbox.append(data)

    def send_due(self) -> None:
        """Send the messages and positions that are due."""
        if self.session is None:
            return
        if self._is_requester:
            while self._inflight_requests < REQUESTS_MAX and (self._has_output or not self._inflight_requests):
                self._send_request()
        else:
            while self._unanswered and (self._has_output or len(self._unanswered) > 1):
                self._send_reply()

    @property
    def _has_output(self) -> bool:
        return bool(self._outbox) or not self._sent_stored or (self._is_proved and not self._sent_proved)

    def _send_request(self) -> None:
        assert self.session is not None
        request = Exchange(self.session, self._next_number, *self._history_fields(), *self._sender(), self._messages())
        self._next_number += 1
        self._inflight_requests += 1
        self.link.exchange(request, self._address, partial(self._on_answer, self.session))

    def _send_reply(self) -> None:
        origin = self._topic.origin
        answer = self._unanswered.popleft()
        set_result(answer, Exchanged(*self._history_fields(), origin.cluster, origin.token, self._messages()))

    def _history_fields(self) -> tuple[bool, int, int, int, int, int]:
        """Return the fields by which the histories are compared."""
        self._sent_proved = self._is_proved
        if self._sent_stored or self._origin is None:
            return (self._is_proved, -1, *NOTHING)
        self._sent_stored = True
        state = self._topic.origins.all().get(self._origin, OriginState(0, None))
        return (self._is_proved, state.stored, *(state.last or NOTHING))

    def _messages(self) -> list[bytes]:
        messages: list[bytes] = []
        size = 0
        while (
            self._outbox and len(messages) < MESSAGES_MAX and (not messages or size + len(self._outbox[0]) < BODY_BYTES)
        ):
            messages.append(self._outbox.popleft())
            size += len(messages[-1])
        return messages

    def _take_message(self, report: Exchange | Exchanged) -> None:
        """Take a request or an answer of the other cluster."""
        session = self.session
        if report.is_proved and not self._peer_proved and self._origin is not None:
            self._peer_proved = True
            self._owner.proved(self.peer, self._origin)
        try:
            for data in report.messages:
                if self.session == session:
                    self._owner.received(self.peer, data)
        except ReplogError as error:
            if self._is_requester:
                self._lost(error)
            else:
                self.error = error
                self.end()
            return
        self._backoff.reset()
        if report.stored >= 0 and not self._is_compared and self.session is not None:
            self._is_compared, self._reported = True, report.stored
            self._compare_histories(self.session, report)

    # ---- histories ------------------------------------------------------------------------------------------

    def _compare_histories(self, session: int, report: Exchange | Exchanged) -> None:
        """Compare the last entry of this topic that the other cluster has with the entry here."""
        if session != self.session:
            return
        last = LastEntry(report.first, report.end, report.value_crc, report.publish_time_us)
        end = self._topic.managed.end.offset
        if report.stored > end or last.first >= end or last.end > end:
            self._owner.diverged(
                self.peer, f"it has messages of this topic up to {report.stored}, which ends at {end} here: one of the "
                "two clusters was rolled back",
            )  # fmt: skip
            return
        if last.first < 0:
            self._prove(session)
            return
        if last.first < self._topic.managed.start.offset:
            self._compare_with_position(session, report.stored, last)
            return
        try:
            read: AppendFuture[EntryBatch] = self._topic.managed.entries.read(last.first, bytes_max=1)
        except ReplogError as error:
            self._compare_later(session, report, error)
            return
        read.add_done_callback(lambda _: self._owner.post(lambda: self._entry_read(session, report, last, read)))

    def _entry_read(
        self, session: int, report: Exchange | Exchanged, last: LastEntry, read: AppendFuture[EntryBatch]
    ) -> None:
        error = read.exception()
        if isinstance(error, TrimmedError | OutOfRangeError):
            self._compare_with_position(session, report.stored, last)
        elif error is not None:
            self._compare_later(session, report, error)
        else:
            entry = read.result().entries[0]
            here = LastEntry(entry.first, entry.first + entry.messages, crc32c(entry.value), entry.time_us)
            if here != last or entry.origin is not None:
                self._owner.diverged(self.peer, f"its entry at {last.first} is another one: the histories differ")
            else:
                self._prove(session)

    def _compare_later(self, session: int, report: Exchange | Exchanged, error: BaseException) -> None:
        """Try again after an error: without the comparison no acknowledgement counts in this session."""
        if isinstance(error, ClosedError | TopicFencedError):
            return
        logger.info("topic %s: the entry at %d is read again: %s", self._topic.name, report.first, error)
        again = partial(self._compare_histories, session, report)
        self._topic.context.runtime.wake_after(self._compare_backoff.next_s(), lambda: self._owner.post(again))

    def _compare_with_position(self, session: int, stored: int, last: LastEntry) -> None:
        """Compare the position with the one that the replicator noted, because the entry was trimmed here."""
        if self._target_position() == TargetPosition(stored, last):
            self._prove(session)

    def _prove(self, session: int) -> None:
        if session == self.session and not self._is_proved:
            self._is_proved = True
            self._owner.proved(self.peer, self._topic.origin)
            self.send_due()
