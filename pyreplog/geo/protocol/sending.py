"""Sender: sends one topic to one target cluster, and goes on from what the target has after any failure."""

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
    MissingExtraError,
    NoSuchTopicError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
    OutOfRangeError,
    RecordTooLargeError,
    UnsupportedRequestError,
)
from pyreplog.geo.protocol.effects import (
    CheckEntry,
    Disconnect,
    Effect,
    EntryRefused,
    OpenOrigin,
    OriginNote,
    Progress,
    RaiseAlarm,
    ReadEntries,
    SendEntries,
    SourceEntry,
    WakeAt,
)
from pyreplog.geo.protocol.stream import Stream
from pyreplog.net.backoff import Backoff
from pyreplog.origins.origin import Gap, GapCause, LastEntry, Origin, OriginEntry, OriginState

RETRY_S, RETRY_MOST_S = 0.1, 30.0
FENCED_S, FENCED_MOST_S = 1.0, 60.0
READ_BYTES = REQUEST_BYTES = 1 << 20
REQUEST_ENTRIES = 1024
TRAILING_MESSAGES, TRAILING_US = 10_000, 1_000_000
"""Gaps behind which nothing is sent are told after so many messages, or microseconds."""
SESSION_MAX = (1 << 62) - 1

POISON = (InvalidEntryError, RecordTooLargeError)
"""Errors of an entry that the target can never store."""
LASTING = (UnsupportedRequestError, ConfigError, NoSuchTopicError, InvalidArgumentError, MissingExtraError)
"""Errors that repetition does not help; somebody has to change something."""


class SenderState(Enum):
    """What a sender does now."""

    PAUSED = "paused"
    WAITING = "waiting"
    OPENING = "opening"
    CHECKING = "checking"
    SENDING = "sending"
    DIVERGED = "diverged"
    CLOSED = "closed"


class SendingSettings(NamedTuple):
    """What is sent, and how fast.

    Attributes:
        forward_all: send messages of other origins, too.
        forward_from: clusters whose messages are forwarded; None: all.
        ttl_us: messages that are older are not sent; None: all are.
        rate_bytes: bytes per second; None: no limit.
        window_bytes: most bytes without an outcome; one request more may be on its way.
    """

    forward_all: bool = False
    forward_from: frozenset[bytes] | None = None
    ttl_us: int | None = None
    rate_bytes: int | None = None
    window_bytes: int = 8 << 20


class _Request(NamedTuple):
    """A request without an outcome. start: offset here of its first entry; last_value: of its last entry."""

    stream: Stream
    start: int
    time_us: int
    size: int
    entries: int
    messages: int
    end: int
    last: OriginEntry | None


class Sender:
    """Sends the entries of a topic to one target, each once and in its order.

    No step waits. Events return effects; times are those of the caller's clocks: `now_us` of the monotonic one,
    `time_us` of the wall clock.

    The truth about what was sent is the target's `stored`: after any failure the sender asks for it in a new session,
    and goes on from there. The durable cursor, see `Progress`, only keeps what is not sent from being trimmed, and
    shows whether the target was rolled back.

    Args:
        own: the topic here, as an origin.
        settings: what is sent, and how fast.
        epoch: of the owner of the topic; a later owner has a higher one.
        begin: offset here where a new target begins.
        withheld: why what lies before `begin` is not sent.
        own_note: what the target said before that it has; None: it was never reached.
        notes: what it said of other origins.
        mark: offset here below which the target has everything.
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
        own_note: OriginNote | None = None,
        notes: Mapping[Origin, OriginNote] | None = None,
        mark: int = 0,
        random: Callable[[], float],
    ) -> None:
        self.own, self.settings = own, settings
        self.target: bytes | None = None
        """Id of the target cluster; None: it was never reached."""
        self.state = SenderState.PAUSED
        self.error: Exception | None = None
        """The last error since the target was reached."""
        self.alarm = ""
        """What people have to decide."""
        self.mark = mark
        """The target has everything below this offset here."""
        self.note = own_note
        self.start = self.end = 0
        """Offsets of the confirmed messages here."""
        self.skipped: Counter[GapCause] = Counter()
        self.sent_messages = self.sent_bytes = self.opens = 0
        self._begin, self._withheld = begin, withheld
        self._notes = dict(notes or {})
        self._epoch, self._attempt, self._fences = epoch, 0, 0
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random)
        self._fenced = Backoff(FENCED_S, FENCED_MOST_S, random)
        self._streams: dict[Origin, Stream] = {}
        self._buffer: deque[SourceEntry] = deque()
        self._is_reading = False
        self._read_at = 0
        self._requests: dict[int, _Request] = {}
        self._numbers = 0
        self.inflight_bytes = 0
        """Bytes of requests without an outcome."""
        self._pins: dict[Origin, int] = {}  # offsets here from which on a fenced origin was not sent
        self._fence_ends_us: int | None = None  # when fenced origins are opened again
        self._checked = OriginState(0, None)  # what the target has, while it is compared
        self._told: tuple[int, OriginNote] | None = None  # the last Progress
        self._trusts_target = False  # the next answer of the target is not compared
        self._tokens, self._tokens_us = float(settings.rate_bytes or 0), 0
        self._refused: set[tuple[Origin, int]] = set()  # first offsets of entries that the target can never store
        self._careful: dict[Origin, int] = {}  # up to there entries are sent one at a time
        self._gap_errors = 0  # since the last progress
        self._wake_us: int | None = None
        self._sends_from_us = 0  # when the session began
        self._since_us: int | None = None  # publish time of the first unsent message, or a time before it
        self._effects: list[Effect] = []

    # ---- what others ask ----------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """Number of the present attempt."""
        return self._attempt

    @property
    def stored(self) -> int:
        """The target has everything published here below this offset, as far as it ever said."""
        return 0 if self.note is None else self.note.stored

    @property
    def is_failed(self) -> bool:
        """Whether the last error is one that repetition does not help."""
        error = self.error
        return isinstance(error, LASTING) or (isinstance(error, HandshakeError) and not error.retriable)

    @property
    def unsent_messages(self) -> int:
        """Number of messages from the first one that the target is not known to have; never too few."""
        is_idle = self.state is SenderState.SENDING and not self._requests and not self._buffer and not self._pins
        if is_idle and self._read_at >= self.end:
            return 0  # at most gaps are to be told
        return max(self.end - self.stored, 0)

    @property
    def oldest_unsent_us(self) -> int | None:
        """When the first message was published that the target lacks, or a time before it; None: it lacks none."""
        if not self.unsent_messages:
            return None
        times = [request.time_us for request in self._requests.values() if request.entries]
        return min(times, default=self._since_us)

    # ---- events of the topic and of people -----------------------------------------------------------------------

    def resume(self, now_us: int, time_us: int) -> list[Effect]:
        """Begin, or go on after a pause."""
        if self.state is SenderState.PAUSED:
            self._open_own()
        return self._end(now_us, time_us)

    def pause(self) -> list[Effect]:
        """Send nothing until `resume`."""
        if self.state not in (SenderState.CLOSED, SenderState.DIVERGED):
            self._give_up(SenderState.PAUSED)
        return self._take()

    def resync(self, now_us: int, time_us: int) -> list[Effect]:
        """After the histories differed: go on from what the target says it has, whatever it said before."""
        if self.state is SenderState.DIVERGED:
            self.note, self.alarm, self._trusts_target = None, "", True
            self._notes.clear()
            self._open_own()
        return self._end(now_us, time_us)

    def configure(self, settings: SendingSettings, now_us: int, time_us: int) -> list[Effect]:
        """Use other settings; a change of what is sent begins a new session."""
        before, self.settings = self.settings, settings
        if before.rate_bytes is None and settings.rate_bytes is not None:
            self._tokens, self._tokens_us = float(settings.rate_bytes), now_us
        is_same = before._replace(rate_bytes=None, window_bytes=0) == settings._replace(rate_bytes=None, window_bytes=0)
        if not is_same and self.state not in (SenderState.PAUSED, SenderState.CLOSED, SenderState.DIVERGED):
            self._give_up(SenderState.WAITING)
            self._open_own()
        return self._end(now_us, time_us)

    def close(self) -> list[Effect]:
        """End."""
        self._give_up(SenderState.CLOSED)
        return self._take()

    def grew(self, start: int, end: int, now_us: int, time_us: int) -> list[Effect]:
        """Note the offsets of the confirmed messages here."""
        if end > self.end and not self.unsent_messages:
            self._since_us = time_us
        self.start, self.end = start, end
        return self._end(now_us, time_us)

    def woke(self, now_us: int, time_us: int) -> list[Effect]:
        """Go on at the time of the last `WakeAt`."""
        due_us, self._wake_us = self._wake_us, None
        if due_us is not None and now_us < due_us:
            self._wake(due_us)
        elif self.state is SenderState.WAITING and due_us is not None:
            self._open_own()
        elif self._fence_ends_us is not None and now_us >= self._fence_ends_us:
            self._give_up(SenderState.WAITING)
            self._open_own()
        return self._end(now_us, time_us)

    # ---- sessions ------------------------------------------------------------------------------------------------

    def _open_own(self) -> None:
        self._attempt += 1
        self.state = SenderState.OPENING
        self._streams = {self.own: Stream(self.own)}
        self._open(self._streams[self.own])

    def _open(self, stream: Stream) -> None:
        if not stream.is_opening:
            stream.is_opening = True
            base = (self._epoch << 24) + self._attempt + ((1 << 32 + self._fences) if self._fences else 0)
            self._effects.append(OpenOrigin(self._attempt, stream.origin, min(base, SESSION_MAX)))

    def opened(
        self, attempt: int, origin: Origin, target: bytes, state: OriginState, now_us: int, time_us: int
    ) -> list[Effect]:
        """Begin to send, because the target has told what it has of an origin."""
        stream = self._streams.get(origin)
        if attempt != self._attempt or stream is None or not stream.is_opening:
            return []
        self.target = target
        if target == self.own.cluster:
            self._fail(origin, ConfigError("the target is this cluster itself: remove it from the targets"), now_us)
            return self._end(now_us, time_us)
        note = self.note if origin == self.own else self._notes.get(origin)
        if note is not None and state.stored < note.stored:
            self._diverge(
                f"the target has everything of {_name(origin)} below {state.stored}, and said before that it has "
                f"everything below {note.stored}: one of the two clusters was rolled back"
            )
        elif origin != self.own:
            stream.begin(state.stored)
            self._notes[origin] = OriginNote(state.stored, note.last if note is not None else None)
        else:
            self._check(stream, state, now_us)
        return self._end(now_us, time_us)

    def _check(self, stream: Stream, state: OriginState, now_us: int) -> None:
        self.opens += 1
        if state.stored > self.end:
            self._diverge(
                f"the target has messages of this topic below {state.stored}, and the topic ends at {self.end}: one of "
                "the two clusters was rolled back"
            )
            return
        stream.begin(state.stored)
        self._checked = state
        last, note = state.last, self.note
        is_trusted, self._trusts_target = self._trusts_target, False
        if last is None or is_trusted:
            self._begin_to_send(now_us)
        elif last.first >= self.start:
            self.state = SenderState.CHECKING
            self._effects.append(CheckEntry(self._attempt, last.first))
        elif note is not None and note.last is not None and note.last.first == last.first and note.last != last:
            self._diverge(_differ(last, note.last))
        else:
            self._begin_to_send(now_us)

    def checked(self, attempt: int, entry: SourceEntry | None, now_us: int, time_us: int) -> list[Effect]:
        """Compare the entry here with the last one that the target has; None: it was trimmed meanwhile."""
        if attempt == self._attempt and self.state is SenderState.CHECKING:
            last = self._checked.last
            assert last is not None
            here = None if entry is None else LastEntry(entry.first, entry.end, crc32c(entry.value), entry.time_us)
            if here is not None and (here != last or (entry is not None and entry.origin is not None)):
                self._diverge(_differ(last, here))
            else:
                self._begin_to_send(now_us)
        return self._end(now_us, time_us)

    def _begin_to_send(self, now_us: int) -> None:
        stream, note = self._streams[self.own], self.note
        self.note = OriginNote(stream.stored, None if note is None else note.last)
        if note is None or note.stored < stream.stored:
            self.note = OriginNote(stream.stored, self._checked.last)
        self.state, self.error, self._sends_from_us = SenderState.SENDING, None, now_us
        self._read_at = stream.stored
        if self.settings.forward_all:
            self._read_at = min(stream.stored, self.mark)  # what it has of others is passed over

    def _diverge(self, text: str) -> None:
        self._give_up(SenderState.DIVERGED)
        self.alarm = text
        self._effects.append(RaiseAlarm(text))

    def _give_up(self, state: SenderState) -> None:
        """End the session; what it sent without an outcome is asked for in the next one."""
        self._since_us = self.oldest_unsent_us
        self._effects.append(Disconnect(self._attempt))
        self._attempt += 1
        self.state = state
        self._streams, self._pins, self._wake_us, self._fence_ends_us = {}, {}, None, None
        self._buffer.clear()
        self._requests.clear()
        self.inflight_bytes, self._is_reading = 0, False

    def lost(self, attempt: int, origin: Origin, error: Exception, now_us: int, time_us: int) -> list[Effect]:
        """Note that a session could not be opened, or was lost."""
        if attempt == self._attempt:
            if self.state is SenderState.SENDING and now_us - self._sends_from_us >= RETRY_MOST_S * 1e6:
                self._backoff.reset()  # it was a good connection, though nothing may have been sent
            self._fail(origin, error, now_us)
        return self._end(now_us, time_us)

    def _fail(self, origin: Origin, error: Exception, now_us: int, *, at_once: bool = False) -> None:
        self.error = error
        if isinstance(error, OriginHistoryError):
            self._diverge(str(error))
            return
        if isinstance(error, OriginSessionError):
            self._fences = min(self._fences + 1, 24)
            if origin != self.own and self.state is SenderState.SENDING:
                self._fence(self._streams[origin], now_us)
                return
        delay_s = 0.0
        if isinstance(error, OriginGapError) and not self._gap_errors:
            self._gap_errors += 1
        elif isinstance(error, OriginSessionError):
            delay_s = self._fenced.next_s()
        elif not at_once:
            delay_s = RETRY_MOST_S if self.is_failed else self._backoff.next_s()
        self._give_up(SenderState.WAITING)
        if delay_s:
            self._wake(now_us + int(delay_s * 1e6))
        else:
            self._open_own()

    def _fence(self, stream: Stream, now_us: int) -> None:
        """Leave a forwarded origin to the source that has the newer session, and look again after a while."""
        stream.is_fenced, stream.is_open, stream.is_opening, stream.waiting = True, False, False, 0
        stream.take_gaps()
        lost = [number for number, request in self._requests.items() if request.stream is stream]
        for number in lost:
            request = self._requests.pop(number)
            self.inflight_bytes -= request.size
            self._pin(stream.origin, request.start)
        if self._fence_ends_us is None:
            self._fence_ends_us = now_us + int(self._fenced.next_s() * 1e6)
        self._wake(self._fence_ends_us)

    def _pin(self, origin: Origin, offset: int) -> None:
        self._pins[origin] = min(offset, self._pins.get(origin, offset))

    # ---- reading -------------------------------------------------------------------------------------------------

    def came(self, attempt: int, entries: Sequence[SourceEntry], now_us: int, time_us: int) -> list[Effect]:
        """Take the entries that were read."""
        if attempt == self._attempt and self._is_reading:
            self._is_reading = False
            at = self._read_at
            for entry in entries:
                if not entry.first <= at < entry.end:  # a hole would be told as lost
                    text = f"entries here: expected one that holds offset {at}, found {entry.first} to {entry.end}"
                    self._fail(self.own, OutOfRangeError(text), now_us)
                    return self._end(now_us, time_us)
                at = entry.end
            self._buffer += entries
            self._read_at = at
        return self._end(now_us, time_us)

    def read_failed(self, attempt: int, error: Exception, start: int, now_us: int, time_us: int) -> list[Effect]:
        """Try again after a while. start: of the messages that are kept here now."""
        if attempt == self._attempt and self._is_reading:
            self._is_reading, self.start = False, max(start, self.start)
            if self._read_at >= self.start:
                self._fail(self.own, error, now_us)
        return self._end(now_us, time_us)

    def _read_on(self, now_us: int) -> None:
        own = self._streams[self.own]
        if self._read_at < self._begin:
            own.cover(own.covered, self._begin, self._withheld, now_us, own.covered)
            self._read_at = self._begin
        if self._read_at < self.start:
            own.cover(own.covered, self.start, GapCause.LOST, now_us, own.covered)
            self._read_at = self.start
        if not self._is_reading and not self._buffer and self._read_at < self.end:
            self._is_reading = True
            self._effects.append(ReadEntries(self._attempt, self._read_at, READ_BYTES))

    # ---- sending -------------------------------------------------------------------------------------------------

    def _end(self, now_us: int, time_us: int) -> list[Effect]:
        """Send what can be sent now, and return the effects."""
        if self.state is SenderState.SENDING:
            while self.state is SenderState.SENDING and self._may_send(now_us) and self._send_next(now_us, time_us):
                pass
            self._read_on(now_us)
            self._tell_gaps(now_us)
            self._settle_progress()
        if self._fence_ends_us is not None:
            self._wake(self._fence_ends_us)
        return self._take()

    def _take(self) -> list[Effect]:
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

    def _stream_of(self, entry: SourceEntry) -> Stream | None:
        """Return the stream in which an entry is sent; None: it is not sent."""
        if entry.origin is None:
            return self._streams[self.own]
        settings, cluster = self.settings, entry.origin.cluster
        if not settings.forward_all or cluster == self.target:
            return None
        if settings.forward_from is not None and cluster not in settings.forward_from:
            return None
        stream = self._streams.get(entry.origin)
        if stream is None:
            stream = self._streams[entry.origin] = Stream(entry.origin)
        return stream

    def _send_next(self, now_us: int, time_us: int) -> bool:
        """Send one request; return whether another one may follow."""
        stream: Stream | None = None
        crowded: Stream | None = None
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
                if target.covered < self._careful.get(target.origin, 0) and (entries or target.waiting):
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
                self._pin(target.origin, entry.first)
                continue
            sent = self._accept(target, entry, now_us, time_us)
            if sent is not None:
                if stream is None:
                    stream = target
                    begin = min(entry.first, target.gaps_from) if sent.gaps else entry.first, entry.time_us
                entries.append(sent)
                size += len(sent.value)
        if stream is not None:
            self._send(stream, tuple(entries), (), size, *begin)
        if crowded is not None and crowded is not stream:
            if not crowded.gaps:
                self._cover(crowded, self._buffer[0].gaps, now_us, self._buffer[0].first)
            self._send(crowded, (), crowded.take_gaps(), 0, crowded.gaps_from)
        return bool(self._buffer) and (stream is not None or crowded is not None)

    def _cover(self, stream: Stream, gaps: Sequence[Gap], now_us: int, here: int) -> None:
        """Note the gaps of an entry of another cluster. What lies before them was not sent here, or not sent on."""
        for gap in gaps:
            stream.cover(stream.covered, gap.start, GapCause.FILTERED, now_us, here)
            stream.cover(gap.start, gap.end, gap.cause, now_us, here)

    def _accept(self, stream: Stream, entry: SourceEntry, now_us: int, time_us: int) -> OriginEntry | None:
        """Return the entry to send; None: the target has it, or it became a gap."""
        is_own = entry.origin is None
        first, published_us = (entry.first, entry.time_us) if is_own else (entry.origin_first, entry.origin_time_us)
        end = first + entry.messages
        if end <= stream.covered:
            return None
        self._cover(stream, entry.gaps, now_us, entry.first)
        if not is_own:
            stream.cover(stream.covered, first, GapCause.FILTERED, now_us, entry.first)
        ttl_us, cause = self.settings.ttl_us, None
        if (stream.origin, first) in self._refused:
            cause = GapCause.REFUSED
        elif ttl_us is not None and published_us + ttl_us < time_us:
            cause = GapCause.EXPIRED
        if cause is not None:
            self.skipped[cause] += entry.messages
            stream.cover(first, end, cause, now_us, entry.first)
            return None
        stream.covered = end
        return OriginEntry(entry.value, entry.messages, first, published_us, stream.take_gaps())

    def _send(
        self, stream: Stream, entries: tuple[OriginEntry, ...], gaps: tuple[Gap, ...], size: int,
        start: int, time_us: int = 0,
    ) -> None:  # fmt: skip
        self._numbers += 1
        end = gaps[-1].end if gaps else entries[-1].end
        stream.waiting += 1
        self._requests[self._numbers] = _Request(
            stream, start, time_us, size, len(entries), sum(entry.messages for entry in entries), end,
            entries[-1] if entries else None,
        )  # fmt: skip
        self.inflight_bytes += size
        self._tokens -= size
        self._effects.append(SendEntries(self._attempt, self._numbers, stream.origin, entries, gaps, size))

    def _tell_gaps(self, now_us: int) -> None:
        """Tell gaps behind which nothing is sent, so that the target's `stored` moves."""
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

    def stored_up_to(self, attempt: int, number: int, stored: int, now_us: int, time_us: int) -> list[Effect]:
        """Note that the target has stored a request, and everything below `stored`."""
        request = self._requests.pop(number, None) if attempt == self._attempt else None
        if request is None:
            return self._end(now_us, time_us)
        stream = request.stream
        self.inflight_bytes -= request.size
        stream.waiting -= 1
        if stored < request.end:
            self._fail(
                stream.origin, OriginGapError("", f"the target says it stored {stored}, expected {request.end}"), now_us
            )
            return self._end(now_us, time_us)
        stream.stored = max(stream.stored, stored)
        self.sent_messages += request.messages
        self.sent_bytes += request.size
        self._backoff.reset()
        self._gap_errors = 0
        self.error = None
        self._note(stream, request.last)
        return self._end(now_us, time_us)

    def _note(self, stream: Stream, entry: OriginEntry | None) -> None:
        note = self.note if stream.origin == self.own else self._notes.get(stream.origin)
        last = None if note is None else note.last
        if entry is not None:
            last = LastEntry(entry.first, entry.end, crc32c(entry.value), entry.publish_time_us)
            self._since_us = entry.publish_time_us
        note = OriginNote(stream.stored, last)
        if stream.origin == self.own:
            self.note = note
        else:
            self._notes[stream.origin] = note

    def _settle_progress(self) -> None:
        """Tell how far the durable cursor may move, if that changed."""
        if self.state is not SenderState.SENDING:
            return
        mark = self.stored
        if self.settings.forward_all:
            waiting = [request.start for request in self._requests.values() if request.stream.origin != self.own]
            untold = [stream.gaps_from for stream in self._streams.values() if stream.gaps]
            unread = self._buffer[0].first if self._buffer else self._read_at
            mark = min([mark, unread, *waiting, *untold, *self._pins.values()])
        self.mark = max(self.mark, mark)
        assert self.note is not None
        if (self.mark, self.note) != self._told:
            self._told = self.mark, self.note
            self._effects.append(Progress(self.mark, self.note, dict(self._notes)))

    def failed(self, attempt: int, number: int, error: Exception, now_us: int, time_us: int) -> list[Effect]:
        """Go on after a request failed, or its outcome is not known."""
        request = self._requests.get(number) if attempt == self._attempt else None
        if request is not None:
            is_poison = isinstance(error, POISON) and request.last is not None
            if is_poison and request.last is not None and request.entries == 1:
                self._refused.add((request.stream.origin, request.last.first))
                last = request.last
                self._effects.append(EntryRefused(request.stream.origin, last.first, last.end, error))
            elif is_poison:
                self._careful[request.stream.origin] = request.end
            self._fail(request.stream.origin, error, now_us, at_once=is_poison)
        return self._end(now_us, time_us)


def _name(origin: Origin) -> str:
    return f"origin {origin.cluster.hex()}/{origin.token}"


def _differ(last: LastEntry, here: LastEntry) -> str:
    return (
        f"the last entry that the target has is {last.first} to {last.end}, CRC {last.value_crc:#010x}, of "
        f"{last.publish_time_us} us; here it is {here.first} to {here.end}, CRC {here.value_crc:#010x}, of "
        f"{here.publish_time_us} us: one of the two clusters was rolled back"
    )
