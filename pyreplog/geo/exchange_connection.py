"""ExchangeConnection: the ordered connection between this cluster and another one about one topic's subscriptions."""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import ClosedError, InvalidMessageError, OutOfRangeError, ReplogError, TrimmedError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.geo.protocol.effects import OriginNote
from pyreplog.geo.target_link import ExchangeLink
from pyreplog.net.backoff import Backoff
from pyreplog.net.sockets import Address
from pyreplog.origins.origin import LastEntry, Origin, OriginState
from pyreplog.topic.model.wire.origins import MESSAGES_MAX
from pyreplog.topic.model.wire.protocol import Exchange, Exchanged
from pyreplog.topic.owner.managed.entry_reader import EntryBatch
from pyreplog.topic.owner.topic import Topic

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

    def connected(self, peer: bytes, session: int, origin: Origin) -> None:
        """Note that a session began; `origin` is the topic of the other cluster."""
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
        note: returns the other cluster's last confirmed position in this topic, as the replicator noted it; None: this
            topic was never sent there.
    """

    def __init__(
        self,
        topic: Topic,
        owner: ConnectionOwner,
        peer: bytes,
        link: ExchangeLink,
        note: Callable[[], OriginNote | None],
    ) -> None:
        self._topic, self._owner, self.peer, self.link, self._note = topic, owner, peer, link, note
        self._asks = topic.origin.cluster < peer
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self.session: int | None = None
        self.error: ReplogError | None = None
        """The error that ended the last session; None: a session is open, or none was tried."""
        self._opening = 0  # session that is being opened, by the side that sends requests
        self._address: Address | None = None
        self._origin: Origin | None = None
        self._outbox: deque[bytes] = deque()
        self._number = 0  # of the next request
        self._waiting = 0  # requests without an answer
        self._held: deque[AppendFuture[Exchanged]] = deque()  # answers that are due
        self._is_proved = self._is_heard = self._has_told_stored = self._has_checked = False
        self._told_proved = False
        self._is_over = False

    @property
    def is_connected(self) -> bool:
        """Whether a session is open."""
        return self.session is not None

    @property
    def origin(self) -> Origin | None:
        """The topic of the other cluster, as it was reported last; None: it was never connected."""
        return self._origin

    # ---- the side that sends requests -----------------------------------------------------------------------

    def start(self) -> None:
        """Connect if this side sends the requests; otherwise the other side connects."""
        if self._is_over or not self._asks or self.session is not None or self._opening:
            return
        self._opening = session = 1 + secrets.randbits(61)
        self._begin()
        request = Exchange(session, 0, False, -1, *NOTHING, *self._sender(), ())
        self.link.exchange(request, None, partial(self._answer, session))

    def _sender(self) -> tuple[bytes, str, str]:
        origin = self._topic.origin
        return origin.cluster, self._topic.name, origin.token

    def _answer(self, session: int, address: Address, answer: Exchanged | ReplogError) -> None:
        self._owner.post(lambda: self._answered(session, address, answer))

    def _answered(self, session: int, address: Address, answer: Exchanged | ReplogError) -> None:
        if self._is_over or session not in (self.session, self._opening):
            return
        if isinstance(answer, ReplogError):
            self._lost(answer)
            return
        if answer.cluster != self.peer:
            self._lost(InvalidMessageError(f"expected the cluster {self.peer.hex()}, found {answer.cluster.hex()}"))
            return
        if self._opening:
            self._opening, self._address, self._number = 0, address, 1
            self._connected(session, Origin(answer.cluster, answer.token))
        else:
            self._waiting -= 1
        self._take(answer)
        self.go_on()

    def _lost(self, error: ReplogError) -> None:
        self.error = error
        self.end()
        if not self._is_over:
            delay_s = self._backoff.next_s()
            self._topic.context.runtime.wake_after(delay_s, lambda: self._owner.post(self.start))

    # ---- the side that answers ------------------------------------------------------------------------------

    def asked(self, request: Exchange, answer: AppendFuture[Exchanged]) -> None:
        """Take a request; `answer` is done once this cluster has new messages, or another request comes."""
        if request.number == 0:
            self.end()
            self._begin()
            self._number = 1
            self._connected(request.session, Origin(request.cluster, request.token))
        elif request.session != self.session or request.number != self._number:
            set_exception(answer, ClosedError(f"expected request {self._number} of {self.session}"))
            return
        else:
            self._number += 1
        self._held.append(answer)
        self._take(request)
        if request.number == 0 and self._held:
            self._reply()
        self.go_on()

    def hung_up(self, session: int) -> None:
        """Note that the connection of a session was lost."""
        if session == self.session and not self._asks:
            self.error = ClosedError("the connection was lost")
            self.end()

    # ---- both -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._outbox.clear()
        self._waiting = 0
        self._is_proved = self._is_heard = self._has_told_stored = self._has_checked = self._told_proved = False

    def _connected(self, session: int, origin: Origin) -> None:
        self.session, self.error, self._origin = session, None, origin
        self._owner.connected(self.peer, session, origin)

    def end(self) -> None:
        """End the session."""
        session, self.session, self._opening = self.session, None, 0
        held, self._held = self._held, deque()
        for answer in held:
            set_exception(answer, ClosedError("the session ended"))
        if session is not None:
            self._owner.disconnected(self.peer)

    def close(self) -> None:
        """End for good."""
        self._is_over = True
        self.end()

    def send(self, session: int, data: bytes) -> None:
        """Send a message of a session behind the others; `go_on` has to follow."""
        if session == self.session:
            self._outbox.append(data)

    def go_on(self) -> None:
        """Send the messages and positions that are due."""
        if self.session is None:
            return
        if self._asks:
            while self._waiting < REQUESTS_MAX and (self._has_news or not self._waiting):
                self._ask()
        else:
            while self._held and (self._has_news or len(self._held) > 1):
                self._reply()

    @property
    def _has_news(self) -> bool:
        return bool(self._outbox) or not self._has_told_stored or (self._is_proved and not self._told_proved)

    def _ask(self) -> None:
        assert self.session is not None
        request = Exchange(self.session, self._number, *self._said(), *self._sender(), self._messages())
        self._number += 1
        self._waiting += 1
        self.link.exchange(request, self._address, partial(self._answer, self.session))

    def _reply(self) -> None:
        origin = self._topic.origin
        answer = self._held.popleft()
        set_result(answer, Exchanged(*self._said(), origin.cluster, origin.token, self._messages()))

    def _said(self) -> tuple[bool, int, int, int, int, int]:
        """Return the fields by which the histories are compared."""
        self._told_proved = self._is_proved
        if self._has_told_stored or self._origin is None:
            return (self._is_proved, -1, *NOTHING)
        self._has_told_stored = True
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

    def _take(self, said: Exchange | Exchanged) -> None:
        """Take a request or an answer of the other cluster."""
        session = self.session
        if said.is_proved and not self._is_heard and self._origin is not None:
            self._is_heard = True
            self._owner.proved(self.peer, self._origin)
        try:
            for data in said.messages:
                if self.session == session:
                    self._owner.received(self.peer, data)
        except ReplogError as error:
            if self._asks:
                self._lost(error)
            else:
                self.error = error
                self.end()
            return
        self._backoff.reset()
        if said.stored >= 0 and not self._has_checked and self.session is not None:
            self._has_checked = True
            self._check(self.session, said)

    # ---- histories ------------------------------------------------------------------------------------------

    def _check(self, session: int, said: Exchange | Exchanged) -> None:
        """Compare the last entry of this topic that the other cluster has with the entry here."""
        last = LastEntry(said.first, said.end, said.value_crc, said.publish_time_us)
        end = self._topic.managed.end.offset
        if said.stored > end or last.first >= end or last.end > end:
            self._owner.diverged(
                self.peer, f"it has messages of this topic up to {said.stored}, which ends at {end} here: one of the "
                "two clusters was rolled back",
            )  # fmt: skip
            return
        if last.first < 0:
            self._prove(session)
            return
        if last.first < self._topic.managed.start.offset:
            self._check_note(session, said.stored, last)
            return
        try:
            read: AppendFuture[EntryBatch] = self._topic.managed.entries.read(last.first, bytes_max=1)
        except ReplogError as error:
            self.error = error
            return
        read.add_done_callback(lambda _: self._owner.post(lambda: self._came(session, said.stored, last, read)))

    def _came(self, session: int, stored: int, last: LastEntry, read: AppendFuture[EntryBatch]) -> None:
        error = read.exception()
        if isinstance(error, TrimmedError | OutOfRangeError):
            self._check_note(session, stored, last)
        elif error is not None:
            self.error = error if isinstance(error, ReplogError) else ReplogError(str(error))
        else:
            entry = read.result().entries[0]
            here = LastEntry(entry.first, entry.first + entry.messages, crc32c(entry.value), entry.time_us)
            if here != last or entry.origin is not None:
                self._owner.diverged(self.peer, f"its entry at {last.first} is another one: the histories differ")
            else:
                self._prove(session)

    def _check_note(self, session: int, stored: int, last: LastEntry) -> None:
        """Compare the position with the replicator's note, because the entry was trimmed here."""
        if self._note() == OriginNote(stored, last):
            self._prove(session)

    def _prove(self, session: int) -> None:
        if session == self.session and not self._is_proved:
            self._is_proved = True
            self._owner.proved(self.peer, self._topic.origin)
            self.go_on()
