"""Sender: sends one topic to one target cluster; after any failure it goes on behind the target's last message."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    ConfigError,
    HandshakeError,
    InvalidArgumentError,
    InvalidEntryError,
    InvalidMessageError,
    MissingExtraError,
    NoSuchTopicError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
    OutOfRangeError,
    RecordTooLargeError,
    TopicExistsError,
    UnsupportedRequestError,
)
from pyreplog.geo.protocol.effects import (
    CheckEntry,
    Disconnect,
    Effect,
    EntryRefused,
    OpenOrigin,
    Progress,
    RaiseAlarm,
    ReadEntries,
    RenewOrigin,
    SendEntries,
    SourceEntry,
    TargetPosition,
    WakeAt,
)
from pyreplog.geo.protocol.origin_stream import OriginStream
from pyreplog.net.backoff import Backoff
from pyreplog.origins.origin import Gap, GapCause, LastEntry, Origin, OriginEntry, OriginState
from pyreplog.origins.replicate_to import encode_attribute

RETRY_S, RETRY_MOST_S = 0.1, 30.0
FENCED_S, FENCED_MOST_S = 1.0, 60.0
READ_BYTES = REQUEST_BYTES = 1 << 20
REQUEST_ENTRIES = 1024
TRAILING_MESSAGES, TRAILING_US = 10_000, 1_000_000
"""Gaps without an entry behind them are sent after so many messages, or microseconds."""
RIVAL_FENCES, RIVAL_US = 3, 600_000_000
"""If a source is fenced so often within so many microseconds, another cluster sends the same messages to its target."""
SESSION_MAX = (1 << 62) - 1

POISON = (InvalidEntryError, RecordTooLargeError)
"""Errors of an entry that the target can never store."""
LASTING = (
    UnsupportedRequestError, ConfigError, NoSuchTopicError, InvalidArgumentError, MissingExtraError, InvalidEntryError,
    TopicExistsError,
)  # fmt: skip
"""Errors that a retry does not mend: a person has to change a setting, or an entry here is malformed."""


class SenderState(Enum):
    """State of a sender."""

    PAUSED = "paused"
    WAITING = "waiting"
    OPENING = "opening"
    CHECKING = "checking"
    SENDING = "sending"
    DIVERGED = "diverged"
    CLOSED = "closed"


class SendingSettings(NamedTuple):
    """Which messages are sent, and how fast.

    Attributes:
        forward_all: whether messages of other origins are sent, too.
        forward_from: clusters whose messages are forwarded; None: all clusters.
        ttl_us: greatest age of a message that is sent, microseconds; None: no limit.
        rate_bytes: bytes per second; None: no limit.
        window_bytes: most bytes without an outcome; one request more may be in flight.
        target_name: the name of the target, with which the `replicate_to` of an entry is compared.
    """

    forward_all: bool = False
    forward_from: frozenset[bytes] | None = None
    ttl_us: int | None = None
    rate_bytes: int | None = None
    window_bytes: int = 8 << 20
    target_name: str = ""


class _Request(NamedTuple):
    """A request without an outcome. start: offset here of its first entry; last: its last entry."""

    stream: OriginStream
    start: int
    time_us: int
    size: int
    entries: int
    messages: int
    end: int
    last: OriginEntry | None


class Sender:
    """Sends the entries of a topic to one target, each once and in its order.

    No step waits. Events return effects. The caller's clocks give the times: `now_us` is of the monotonic clock,
    `time_us` of the wall clock.

    The target's `stored` decides which messages are sent next: after any failure the sender asks for it in a new
    session, and goes on from there. The durable cursor, see `Progress`, only keeps unsent messages from being trimmed,
    and shows whether the target was rolled back.

    Args:
        own: the topic here, as an origin.
        settings: which messages are sent, and how fast.
        epoch: epoch of the topic's owner; a later owner has a higher one.
        begin: offset here where a new target begins.
        withheld: cause of the gap that covers the messages before `begin`.
        own_position: position of the target that was noted before; None: it was never reached.
        positions: its reported positions in other origins.
        mark: offset here below which the target has every message.
        sent: notes that messages published here are sent, up to an offset, and returns the offset below which another
            cluster may have messages: those that were confirmed when the owner opened the topic, or were sent since.
        former: messages published here below this offset have a former identity, that of another topic of this cluster.
        random: returns a number from 0 to 1.
    """

    def __init__(
        self,
        own: Origin,
        settings: SendingSettings,
        *,
        epoch: int,
        begin: int = 0,
        withheld: GapCause = GapCause.EXPIRED,
        own_position: TargetPosition | None = None,
        positions: Mapping[Origin, TargetPosition] | None = None,
        mark: int = 0,
        former: int = 0,
        sent: Callable[[int], int] = lambda _: SESSION_MAX,
        random: Callable[[], float],
    ) -> None:
        self.own, self.settings = own, settings
        self.target: bytes | None = None
        """Id of the target cluster; None: it was never reached."""
        self.state = SenderState.PAUSED
        self.error: Exception | None = None
        """The last error since the target was reached."""
        self.alarm = ""
        """The problem that a person has to solve; empty: none."""
        self.mark = mark
        """The target has every message below this offset here."""
        self.target_position = own_position
        self.start = self.end = 0
        """Offsets of the confirmed messages here."""
        self.skipped: Counter[GapCause] = Counter()
        self._skipped_ends: dict[Origin, int] = {}  # all skipped messages below were counted
        self.sent_messages = self.sent_bytes = self.opens = 0
        self._begin, self._withheld_cause, self._former = begin, withheld, former
        self._note_sent = sent
        self._is_rolled_back = False  # the target has messages of this topic's identity that this topic lacks
        self._positions = dict(positions or {})
        self._sent_ends: dict[Origin, int] = {}  # of what was sent since the target reported its position
        self._epoch, self._attempt = epoch, 0
        self._conflicts = 0  # sessions that another source of the origin replaced
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random)
        self._fence_backoff = Backoff(FENCED_S, FENCED_MOST_S, random)
        self._fenced_origins: deque[tuple[int, Origin]] = deque(maxlen=RIVAL_FENCES)  # with the times
        self._streams: dict[Origin, OriginStream] = {}
        self._buffer: deque[SourceEntry] = deque()
        self._is_reading = False
        self._read_at = 0
        self._requests: dict[int, _Request] = {}
        self._last_number = 0
        self.inflight_bytes = 0
        """Bytes of requests without an outcome."""
        self._left_from: dict[Origin, int] = {}  # fenced origins, with the offset here from which on they were not sent
        self._fence_ends_us: int | None = None  # when fenced origins are opened again
        self._compared_state = OriginState(0, None)  # position of the target, while its last entry is compared
        self._last_progress: tuple[int, TargetPosition] | None = None  # the last Progress
        self._trusts_target = False  # the next position that the target reports is not compared
        self._accepted_attempt = -1  # the attempt after `resync`: the target's positions in other origins are accepted
        self._tokens, self._tokens_us = float(settings.rate_bytes or 0), 0
        self._refused: set[tuple[Origin, int]] = set()  # first offsets of entries that the target can never store
        self._single_until: dict[Origin, int] = {}  # offsets below which entries are sent one at a time
        self._gap_errors = 0  # since the last progress
        self._wake_us: int | None = None
        self._sends_from_us = 0  # when the session began
        self._first_unsent_us: int | None = None  # publish time of the first unsent message, or a time before it
        self._effects: list[Effect] = []

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """Number of the present attempt."""
        return self._attempt

    @property
    def stored(self) -> int:
        """The target has every message published here below this offset, according to its last report."""
        return 0 if self.target_position is None else self.target_position.stored

    @property
    def is_failed(self) -> bool:
        """Whether the last error is one that a retry does not mend."""
        error = self.error
        return isinstance(error, LASTING) or (isinstance(error, HandshakeError) and not error.retriable)

    @property
    def unsent_messages(self) -> int:
        """Number of messages from the first one that the target is not known to have; never too few."""
        is_idle = self.state is SenderState.SENDING and not self._requests and not self._buffer and not self._left_from
        if is_idle and self._read_at >= self.end:
            return 0  # only gaps may be unsent
        return max(self.end - self.stored, 0)

    @property
    def oldest_unsent_us(self) -> int | None:
        """Publish time of the first message that the target lacks, or an earlier time; None: it lacks none."""
        if not self.unsent_messages:
            return None
        requests = list(self._requests.values())  # at once: another thread may ask while this one sends
        times = [request.time_us for request in requests if request.entries]
        return min(times, default=self._first_unsent_us)

    def rival_alarm(self, now_us: int) -> str:
        """Return the text about another cluster that sends the same messages to the target; empty: none does."""
        fenced = self._fenced_origins
        if len(fenced) < RIVAL_FENCES or now_us - fenced[0][0] > RIVAL_US:
            return ""
        origin, target = fenced[-1][1], self.settings.target_name or "the target"
        whose = "this topic" if origin == self.own else f"the cluster {origin.cluster.hex()}"
        return (
            f"another cluster, too, sends messages of {whose} to {target}, and each ends the other's session: nothing "
            "is stored twice, but both wait for seconds, and what one of them skips is missing there. Give them one "
            f"path to {target}: forward=own if all clusters replicate to each other; otherwise name the forwarded "
            "clusters in replicated_from (`geo set`)"
        )

    # ---- events of the topic and commands ------------------------------------------------------------------------

    def resume(self, now_us: int, time_us: int) -> list[Effect]:
        """Begin to send, or go on after a pause."""
        if self.state is SenderState.PAUSED:
            self._begin_attempt()
        return self._send_due(now_us, time_us)

    def pause(self) -> list[Effect]:
        """Stop sending until `resume`."""
        if self.state not in (SenderState.CLOSED, SenderState.DIVERGED):
            self._end_session(SenderState.PAUSED)
        return self._take_effects()

    def resync(self, now_us: int, time_us: int) -> list[Effect]:
        """Go on after the histories differed, from the target's next reported position; its older ones are forgotten.

        If the target has messages of this topic's identity that this topic lacks, the messages here get a new identity:
        `RenewOrigin`.
        """
        if self.state is SenderState.DIVERGED and self._is_rolled_back:
            self._effects.append(RenewOrigin(self.mark, self.target_position))
        elif self.state is SenderState.DIVERGED:
            self.target_position, self.alarm, self._trusts_target = None, "", True
            self._positions.clear()
            self.mark = 0  # the target may lack messages of other clusters, too: they are read again
            self._begin_attempt()
            self._accepted_attempt = self._attempt
        return self._send_due(now_us, time_us)

    def configure(self, settings: SendingSettings, now_us: int, time_us: int) -> list[Effect]:
        """Use other settings; unless only the rate or the window changes, a new session begins."""
        before, self.settings = self.settings, settings
        self._fenced_origins.clear()
        if before.rate_bytes is None and settings.rate_bytes is not None:
            self._tokens, self._tokens_us = float(settings.rate_bytes), now_us
        is_same = before._replace(rate_bytes=None, window_bytes=0) == settings._replace(rate_bytes=None, window_bytes=0)
        if not is_same and self.state not in (SenderState.PAUSED, SenderState.CLOSED, SenderState.DIVERGED):
            self._end_session(SenderState.WAITING)
            self._begin_attempt()
        return self._send_due(now_us, time_us)

    def close(self) -> list[Effect]:
        """End."""
        self._end_session(SenderState.CLOSED)
        return self._take_effects()

    def grew(self, start: int, end: int, now_us: int, time_us: int) -> list[Effect]:
        """Note the offsets of the confirmed messages here."""
        if end > self.end and not self.unsent_messages:
            self._first_unsent_us = time_us
        self.start, self.end = start, end
        return self._send_due(now_us, time_us)

    def woke(self, now_us: int, time_us: int) -> list[Effect]:
        """Go on at the time of the last `WakeAt`."""
        due_us, self._wake_us = self._wake_us, None
        if due_us is not None and now_us < due_us:
            self._wake(due_us)
        elif self.state is SenderState.WAITING and due_us is not None:
            self._begin_attempt()
        elif self._fence_ends_us is not None and now_us >= self._fence_ends_us:
            self._end_session(SenderState.WAITING)
            self._begin_attempt()
        return self._send_due(now_us, time_us)

    # ---- sessions ------------------------------------------------------------------------------------------------

    def _begin_attempt(self) -> None:
        self._attempt += 1
        self.state = SenderState.OPENING
        self._streams = {self.own: OriginStream(self.own)}
        self._open(self._streams[self.own])

    def _open(self, stream: OriginStream) -> None:
        if not stream.is_opening:
            stream.is_opening = True
            base = (self._epoch << 24) + self._attempt + ((1 << 32 + self._conflicts) if self._conflicts else 0)
            self._effects.append(OpenOrigin(self._attempt, stream.origin, min(base, SESSION_MAX)))

    def opened(
        self, attempt: int, origin: Origin, target: bytes, state: OriginState, now_us: int, time_us: int
    ) -> list[Effect]:
        """Begin to send an origin, because the target has reported its position in it."""
        stream = self._streams.get(origin)
        if attempt != self._attempt or stream is None or not stream.is_opening:
            return []
        self.target = target
        self._sent_ends.pop(origin, None)  # all that was sent before has an outcome there
        if target == self.own.cluster:
            self._fail(origin, ConfigError("the target is this cluster itself: remove it from the targets"), now_us)
            return self._send_due(now_us, time_us)
        position, last = self.target_position if origin == self.own else self._positions.get(origin), state.last
        if last is not None and not last.first < last.end <= state.stored:
            text = (
                f"position of the target in {_label(origin)}: expected its last entry below {state.stored}, found "
                f"{last.first} to {last.end}: the answer contradicts itself; check the version and the topic there"
            )
            self._fail(origin, InvalidMessageError(text), now_us)
        elif position is not None and state.stored < position.stored:
            self._diverge(
                f"the target reports all messages of {_label(origin)} below {state.stored}, and reported all messages "
                f"below {position.stored} before: the topic was deleted there, or one of the two clusters was rolled "
                "back. Unless it is this one, order `resync`: it sends the messages that are stored here"
            )
        elif origin != self.own:
            self._check_forwarded(stream, state, None if position is None else position.last)
        else:
            self._check_own(stream, state, now_us)
        return self._send_due(now_us, time_us)

    def _check_own(self, stream: OriginStream, state: OriginState, now_us: int) -> None:
        self.opens += 1
        end = min(self.end, self._note_sent(0))
        if state.stored > end:
            self._diverge_rolled_back(
                f"the target has messages of this topic below {state.stored}, and none were sent from {end} on"
            )
            return
        stream.begin(state.stored)
        self._compared_state = state
        last, position = state.last, self.target_position
        is_trusted, self._trusts_target = self._trusts_target, False
        if last is None or is_trusted:
            self._start_sending(now_us)
        elif last.first >= self.start:
            self.state = SenderState.CHECKING
            self._effects.append(CheckEntry(self._attempt, last.first))
        elif (
            position is not None
            and position.last is not None
            and position.last.first == last.first
            and position.last != last
        ):
            self._diverge_rolled_back(_difference(last, position.last))
        else:
            self._start_sending(now_us)

    def _check_forwarded(self, stream: OriginStream, state: OriginState, noted: LastEntry | None) -> None:
        """Begin to forward an origin. The target's last entry is compared with the last entry that was sent, if that is
        noted, and otherwise with the same entry when it is read; no entry that the target lacks is read before it.
        """
        origin, last = stream.origin, state.last
        if last is not None and self._accepted_attempt == self._attempt:
            noted = last
        if last is not None and noted is not None and noted.first == last.first and noted != last:
            self._diverge_forwarded(origin, last, noted)
            return
        stream.begin(state.stored)
        stream.unproved = None if noted == last else last
        self._positions[origin] = TargetPosition(state.stored, noted)

    def _compare_forwarded(self, stream: OriginStream, entry: SourceEntry) -> bool:
        """Compare an entry of another origin with the target's last one; return False if they differ."""
        last, first = stream.unproved, entry.origin_first
        if last is None or first + entry.messages <= last.first:
            return True
        stream.unproved = None
        if first >= last.end:  # the target's last entry lies before those that are read, or this topic lacks it
            return True
        here = LastEntry(first, first + entry.messages, crc32c(entry.value), entry.origin_time_us)
        if here != last:
            self._diverge_forwarded(stream.origin, last, here)
            return False
        self._positions[stream.origin] = TargetPosition(stream.stored, last)
        return True

    def _diverge_forwarded(self, origin: Origin, last: LastEntry, here: LastEntry) -> None:
        self._diverge(
            f"{_label(origin)}, of which messages are forwarded: {_difference(last, here)}: one of the two clusters "
            "was rolled back, or the cluster that published the messages. Compare the topic in all three. `resync` in "
            "the publishing cluster sends its messages under a new identity; `resync` here goes on behind the target's "
            "last message"
        )

    def checked(self, attempt: int, entry: SourceEntry | None, now_us: int, time_us: int) -> list[Effect]:
        """Compare the entry here with the target's last one; None: the entry here was trimmed meanwhile."""
        if attempt == self._attempt and self.state is SenderState.CHECKING:
            last = self._compared_state.last
            assert last is not None
            here = None if entry is None else LastEntry(entry.first, entry.end, crc32c(entry.value), entry.time_us)
            if here is not None and (here != last or (entry is not None and entry.origin is not None)):
                self._diverge_rolled_back(_difference(last, here))
            else:
                self._start_sending(now_us)
        return self._send_due(now_us, time_us)

    def _start_sending(self, now_us: int) -> None:
        stream, position = self._streams[self.own], self.target_position
        self.target_position = TargetPosition(stream.stored, None if position is None else position.last)
        if position is None or position.stored < stream.stored:
            self.target_position = TargetPosition(stream.stored, self._compared_state.last)
        self.state, self.error, self._sends_from_us = SenderState.SENDING, None, now_us
        self._read_at = stream.stored
        if self._sends_other_identities:
            self._read_at = min(stream.stored, self.mark)  # entries that the target has are skipped

    @property
    def _sends_other_identities(self) -> bool:
        """Whether messages of other identities than the topic's present one are sent."""
        return self.settings.forward_all or self.mark < self._former

    def _diverge_rolled_back(self, text: str) -> None:
        """Stop, because the target has messages of this topic's identity that this topic lacks."""
        self._is_rolled_back = True
        self._diverge(
            f"{text}: the topic here was rolled back. `resync` goes on, with a new identity for the messages that the "
            "target may lack. If messages that only the target has are needed here, read them there and publish them "
            "again"
        )

    def _diverge(self, text: str) -> None:
        self._end_session(SenderState.DIVERGED)
        self.alarm = text
        self._effects.append(RaiseAlarm(text))

    def _end_session(self, state: SenderState) -> None:
        """End the session; the next one learns which of the requests without an outcome are stored."""
        self._first_unsent_us = self.oldest_unsent_us
        self._effects.append(Disconnect(self._attempt))
        self._attempt += 1
        self.state = state
        self._streams, self._left_from, self._wake_us, self._fence_ends_us = {}, {}, None, None
        self._buffer.clear()
        self._requests.clear()
        self.inflight_bytes, self._is_reading = 0, False

    def lost(self, attempt: int, origin: Origin, error: Exception, now_us: int, time_us: int) -> list[Effect]:
        """Note that a session could not be opened, or was lost."""
        if attempt == self._attempt:
            if self.state is SenderState.SENDING and now_us - self._sends_from_us >= RETRY_MOST_S * 1e6:
                self._backoff.reset()  # the connection was good, also if no entry was sent
            self._fail(origin, error, now_us)
        return self._send_due(now_us, time_us)

    def _fail(self, origin: Origin, error: Exception, now_us: int, *, at_once: bool = False) -> None:
        self.error = error
        if isinstance(error, OriginHistoryError):
            (self._diverge_rolled_back if origin == self.own else self._diverge)(str(error))
            return
        if isinstance(error, OriginSessionError):
            self._conflicts = min(self._conflicts + 1, 24)
            self._fenced_origins.append((now_us, origin))
            if origin != self.own and self.state is SenderState.SENDING:
                self._fence(self._streams[origin], now_us)
                return
        delay_s = 0.0
        if isinstance(error, OriginGapError) and not self._gap_errors:
            self._gap_errors += 1
        elif isinstance(error, OriginSessionError):
            delay_s = self._fence_backoff.next_s()
        elif not at_once:
            is_brief = isinstance(error, TopicExistsError)  # perhaps: another server there creates its partitions
            delay_s = RETRY_MOST_S if self.is_failed and not is_brief else self._backoff.next_s()
        self._end_session(SenderState.WAITING)
        if delay_s:
            self._wake(now_us + int(delay_s * 1e6))
        else:
            self._begin_attempt()

    def _fence(self, stream: OriginStream, now_us: int) -> None:
        """Leave a forwarded origin to the source with the newer session, and try again after a while."""
        stream.is_fenced, stream.is_open, stream.is_opening, stream.waiting = True, False, False, 0
        stream.take_gaps()
        lost = [number for number, request in self._requests.items() if request.stream is stream]
        for number in lost:
            request = self._requests.pop(number)
            self.inflight_bytes -= request.size
            self._note_left(stream.origin, request.start)
        if self._fence_ends_us is None:
            self._fence_ends_us = now_us + int(self._fence_backoff.next_s() * 1e6)
        self._wake(self._fence_ends_us)

    def _note_left(self, origin: Origin, offset: int) -> None:
        self._left_from[origin] = min(offset, self._left_from.get(origin, offset))

    # ---- reading -------------------------------------------------------------------------------------------------

    def entries_read(self, attempt: int, entries: Sequence[SourceEntry], now_us: int, time_us: int) -> list[Effect]:
        """Take the entries that were read."""
        if attempt == self._attempt and self._is_reading:
            self._is_reading = False
            at = self._read_at
            for entry in entries:
                if not entry.first <= at < entry.end:  # a missing entry would be sent as a LOST gap
                    text = f"entries here: expected one that holds offset {at}, found {entry.first} to {entry.end}"
                    self._fail(self.own, OutOfRangeError(text), now_us)
                    return self._send_due(now_us, time_us)
                at = entry.end
            self._buffer += entries
            self._read_at = at
        return self._send_due(now_us, time_us)

    def read_failed(self, attempt: int, error: Exception, start: int, now_us: int, time_us: int) -> list[Effect]:
        """Try again after a while. start: offset of the first message that is kept here now."""
        if attempt == self._attempt and self._is_reading:
            self._is_reading, self.start = False, max(start, self.start)
            if self._read_at >= self.start:
                self._fail(self.own, error, now_us)
        return self._send_due(now_us, time_us)

    def _read_next(self, now_us: int) -> None:
        own = self._streams[self.own]
        if self._read_at < self._begin:
            own.cover(own.covered, self._begin, self._withheld_cause, now_us, own.covered)
            self._read_at = self._begin
        if self._read_at < self.start:
            self._count_skipped(self.own, own.covered, self.start, GapCause.LOST)
            own.cover(own.covered, self.start, GapCause.LOST, now_us, own.covered)
            self._read_at = self.start
        if not self._is_reading and not self._buffer and self._read_at < self.end:
            self._is_reading = True
            self._effects.append(ReadEntries(self._attempt, self._read_at, READ_BYTES))

    # ---- sending -------------------------------------------------------------------------------------------------

    def _send_due(self, now_us: int, time_us: int) -> list[Effect]:
        """Send the entries and gaps that may be sent now, and return the effects."""
        if self.state is SenderState.SENDING:
            while self.state is SenderState.SENDING and self._may_send(now_us) and self._send_next(now_us, time_us):
                pass
        if self.state is SenderState.SENDING:
            self._read_next(now_us)
            self._send_trailing_gaps(now_us)
            self._report_progress()
        if self._fence_ends_us is not None:
            self._wake(self._fence_ends_us)
        return self._take_effects()

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _wake(self, at_us: int) -> None:
        if self._wake_us is None or at_us < self._wake_us:
            self._wake_us = at_us
            self._effects.append(WakeAt(at_us))

    def _may_send(self, now_us: int) -> bool:
        if not self._buffer or self.inflight_bytes >= self.settings.window_bytes:
            return False
        rate = self.settings.rate_bytes
        if rate is None:
            return True
        self._tokens = min(self._tokens + (now_us - self._tokens_us) * rate / 1e6, float(rate))
        self._tokens_us = now_us
        if self._tokens <= 0:
            self._wake(now_us + int(-self._tokens / rate * 1e6) + 1000)
            return False
        return True

    def _stream_of(self, entry: SourceEntry) -> OriginStream | None:
        """Return the stream in which an entry is sent; None: it is not sent."""
        if entry.origin is None:
            return self._streams[self.own]
        # an entry that was published here has a former identity
        if entry.origin.cluster != self.own.cluster and not self._forwards(entry.origin):
            return None
        stream = self._streams.get(entry.origin)
        if stream is None:
            stream = self._streams[entry.origin] = OriginStream(entry.origin)
        return stream

    def _forwards(self, origin: Origin) -> bool:
        """Return whether messages of another cluster are forwarded."""
        settings, cluster = self.settings, origin.cluster
        if not settings.forward_all or cluster == self.target:
            return False
        return settings.forward_from is None or cluster in settings.forward_from

    def forwarded(self, origin: Origin) -> int | None:
        """Return the offset at an origin of another cluster below which the target has reported to store everything.

        Args:
            origin: the origin; None is returned if its messages are not forwarded.
        """
        position = self._positions.get(origin)
        return None if not self._forwards(origin) else 0 if position is None else position.stored

    def sent(self, origin: Origin) -> int:
        """Return the offset at an origin below which messages were sent that the target may store.

        Args:
            origin: the origin; it may be the topic here.
        """
        return self._sent_ends.get(origin, 0)

    def _send_next(self, now_us: int, time_us: int) -> bool:
        """Send one request; return whether another one may follow."""
        stream: OriginStream | None = None
        crowded: OriginStream | None = None
        entries: list[OriginEntry] = []
        begin = 0, 0  # offset and time of the first entry
        size, own = 0, self._streams[self.own]
        while self._buffer and size < REQUEST_BYTES and len(entries) < REQUEST_ENTRIES:
            entry = self._buffer[0]
            target = self._stream_of(entry)
            if target is not None and not target.is_fenced:
                if not target.is_open:
                    self._open(target)
                    break
                if stream is not None and target is not stream:
                    break
                if target.covered < self._single_until.get(target.origin, 0) and (entries or target.waiting):
                    break
                if target.is_crowded(entry.gaps):
                    crowded = target
                    break
            elif own.is_crowded(()):
                crowded = own
                break
            self._buffer.popleft()
            if entry.origin is not None:
                own.cover(entry.first, entry.end, GapCause.FOREIGN, now_us, entry.first)
            if target is None:
                continue
            if target.is_fenced:
                self._note_left(target.origin, entry.first)
                continue
            if entry.origin is not None and not self._compare_forwarded(target, entry):
                return False
            sent = self._accept(target, entry, now_us, time_us)
            if sent is not None:
                if stream is None:
                    stream = target
                    begin = min(entry.first, target.gaps_from) if sent.gaps else entry.first, entry.time_us
                entries.append(sent)
                size += len(sent.value) + len(sent.replicate_to or b"")
        if stream is not None:
            self._send(stream, tuple(entries), (), size, *begin)
        if crowded is not None and crowded is not stream:
            if not crowded.gaps:
                self._cover_gaps(crowded, self._buffer[0].gaps, now_us, self._buffer[0].first)
            self._send(crowded, (), crowded.take_gaps(), 0, crowded.gaps_from)
        return bool(self._buffer) and (stream is not None or crowded is not None)

    def _cover_gaps(self, stream: OriginStream, gaps: Sequence[Gap], now_us: int, here: int) -> None:
        """Note the gaps of an entry of another cluster, and the messages before them, which this topic or the policy
        left out.
        """
        for gap in gaps:
            stream.cover(stream.covered, gap.start, GapCause.FILTERED, now_us, here)
            stream.cover(gap.start, gap.end, gap.cause, now_us, here)

    def _count_skipped(self, origin: Origin, start: int, end: int, cause: GapCause) -> None:
        """Count skipped messages once: a later session reads them again if their gap was not stored."""
        counted = self._skipped_ends.get(origin, 0)
        self.skipped[cause] += max(end - max(start, counted), 0)
        self._skipped_ends[origin] = max(end, counted)

    def _accept(self, stream: OriginStream, entry: SourceEntry, now_us: int, time_us: int) -> OriginEntry | None:
        """Return the entry to send; None: the target has the entry, or it became a gap."""
        is_own = entry.origin is None
        first, published_us = (entry.first, entry.time_us) if is_own else (entry.origin_first, entry.origin_time_us)
        end = first + entry.messages
        if end <= stream.covered:
            return None
        self._cover_gaps(stream, entry.gaps, now_us, entry.first)
        if not is_own and stream.origin.cluster == self.own.cluster:
            stream.cover(stream.covered, min(first, self.start), GapCause.LOST, now_us, entry.first)
            stream.cover(stream.covered, first, GapCause.FOREIGN, now_us, entry.first)
        elif not is_own:
            stream.cover(stream.covered, first, GapCause.FILTERED, now_us, entry.first)
        ttl_us, cause = self.settings.ttl_us, None
        if (stream.origin, first) in self._refused:
            cause = GapCause.REFUSED
        elif entry.replicate_to is not None and self.settings.target_name not in entry.replicate_to:
            cause = GapCause.FILTERED
        elif ttl_us is not None and published_us + ttl_us < time_us:
            cause = GapCause.EXPIRED
        if cause is not None:
            self._count_skipped(stream.origin, first, end, cause)
            stream.cover(first, end, cause, now_us, entry.first)
            return None
        stream.covered = end
        names = None if entry.replicate_to is None else encode_attribute(entry.replicate_to)
        return OriginEntry(entry.value, entry.messages, first, published_us, stream.take_gaps(), names)

    def _send(
        self, stream: OriginStream, entries: tuple[OriginEntry, ...], gaps: tuple[Gap, ...], size: int,
        start: int, time_us: int = 0,
    ) -> None:  # fmt: skip
        self._last_number += 1
        end = gaps[-1].end if gaps else entries[-1].end
        if stream.origin == self.own:
            self._note_sent(end)
        self._sent_ends[stream.origin] = end
        stream.waiting += 1
        self._requests[self._last_number] = _Request(
            stream, start, time_us, size, len(entries), sum(entry.messages for entry in entries), end,
            entries[-1] if entries else None,
        )  # fmt: skip
        self.inflight_bytes += size
        self._tokens -= size
        self._effects.append(SendEntries(self._attempt, self._last_number, stream.origin, entries, gaps, size))

    def _send_trailing_gaps(self, now_us: int) -> None:
        """Send gaps without an entry behind them, so that the target's `stored` moves."""
        if self.state is not SenderState.SENDING:
            return
        for stream in self._streams.values():
            if not stream.gaps or stream.gaps_since_us is None or not stream.is_open:
                continue
            messages = sum(gap.end - gap.start for gap in stream.gaps)
            due_us = stream.gaps_since_us + TRAILING_US
            if messages >= TRAILING_MESSAGES or now_us >= due_us:
                self._send(stream, (), stream.take_gaps(), 0, stream.gaps_from)
            else:
                self._wake(due_us)

    # ---- outcomes ------------------------------------------------------------------------------------------------

    def request_stored(self, attempt: int, number: int, stored: int, now_us: int, time_us: int) -> list[Effect]:
        """Note that the target has stored a request, and every message below `stored`."""
        request = self._requests.pop(number, None) if attempt == self._attempt else None
        if request is None:
            return self._send_due(now_us, time_us)
        stream = request.stream
        self.inflight_bytes -= request.size
        stream.waiting -= 1
        if stored < request.end:
            error = OriginGapError("", f"stored at the target: expected {request.end}, found {stored}")
            self._fail(stream.origin, error, now_us)
            return self._send_due(now_us, time_us)
        stream.stored = max(stream.stored, stored)
        self.sent_messages += request.messages
        self.sent_bytes += request.size
        self._backoff.reset()
        self._gap_errors = 0
        self.error = None
        self._note_position(stream, request.last)
        return self._send_due(now_us, time_us)

    def _note_position(self, stream: OriginStream, entry: OriginEntry | None) -> None:
        position = self.target_position if stream.origin == self.own else self._positions.get(stream.origin)
        last = None if position is None else position.last
        if entry is not None:
            last = LastEntry(entry.first, entry.end, crc32c(entry.value), entry.publish_time_us)
            self._first_unsent_us = entry.publish_time_us
        position = TargetPosition(stream.stored, last)
        if stream.origin == self.own:
            self.target_position = position
        else:
            self._positions[stream.origin] = position

    def _report_progress(self) -> None:
        """Tell how far the durable cursor may move, if its bound changed."""
        if self.state is not SenderState.SENDING:
            return
        mark = self.stored
        if self._sends_other_identities:
            waiting = [request.start for request in self._requests.values() if request.stream.origin != self.own]
            unsent_gaps = [stream.gaps_from for stream in self._streams.values() if stream.gaps]
            unread = self._buffer[0].first if self._buffer else self._read_at
            mark = min([mark, unread, *waiting, *unsent_gaps, *self._left_from.values()])
        self.mark = max(self.mark, mark)
        assert self.target_position is not None
        if (self.mark, self.target_position) != self._last_progress:
            self._last_progress = self.mark, self.target_position
            self._effects.append(Progress(self.mark, self.target_position, dict(self._positions)))

    def request_failed(self, attempt: int, number: int, error: Exception, now_us: int, time_us: int) -> list[Effect]:
        """Go on after a request failed, or its outcome is unknown."""
        request = self._requests.get(number) if attempt == self._attempt else None
        if request is not None:
            is_poison = isinstance(error, POISON) and request.last is not None
            if is_poison and request.last is not None and request.entries == 1:
                self._refused.add((request.stream.origin, request.last.first))
                last = request.last
                self._effects.append(EntryRefused(request.stream.origin, last.first, last.end, error))
            elif is_poison:
                self._single_until[request.stream.origin] = request.end
            self._fail(request.stream.origin, error, now_us, at_once=is_poison)
        return self._send_due(now_us, time_us)


def _label(origin: Origin) -> str:
    return f"origin {origin.cluster.hex()}/{origin.token}"


def _difference(last: LastEntry, here: LastEntry) -> str:
    return (
        f"the target's last entry is {last.first} to {last.end}, CRC {last.value_crc:#010x}, published at "
        f"{last.publish_time_us} us; the entry here is {here.first} to {here.end}, CRC {here.value_crc:#010x}, "
        f"published at {here.publish_time_us} us"
    )
