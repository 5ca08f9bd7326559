"""Decides which entries of an origin may be stored next. No I/O.

For each origin a gate keeps two offsets: every message below `stored` is stored or in a noted gap; every message below
`pushed` is stored or in flight. An entry below the first is a duplicate, an entry below the second waits for the
outcome, an entry at the second is pushed, and an entry behind it is refused: the order of an origin holds, and no
message of it is left out without a cause.

`pushed` falls back only once it is known that the pushed entries are not stored. If that stays unknown, the gate takes
no more entries: the next owner of the topic reads the log, and knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidEntryError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
)
from pyreplog.future import AppendFuture, Outcome, set_expected
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, LastEntry, Origin, OriginEntry, OriginState

OFFSET_MAX = 1 << 62
"""Offsets at an origin are lower than this."""
ORIGINS_MAX = 1024
"""Most origins of a topic."""


class EntryRun:
    """Entries of one origin that are stored in their order; once one of them fails, no later one is stored.

    Attributes:
        error: the error of the entry that failed; None: none failed.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


class Admission(NamedTuple):
    """The new entries and gaps of a call, and the position of the gate once they are pushed.

    Attributes:
        entries: the new entries.
        attributes: one for each.
        end: every message below this offset is stored, in flight, or in a gap.
        gaps: gaps behind the last entry, up to `end`.
        duplicates: entries that are stored already.
        run: the run of the entries.
    """

    entries: Sequence[OriginEntry]
    attributes: Sequence[OriginAttribute]
    end: int
    gaps: list[Gap]
    duplicates: int
    run: EntryRun


class GateState(NamedTuple):
    """The state of a gate as it is stored.

    Attributes:
        origin: the origin.
        session: the newest session.
        stored: every message below this offset is stored, or in a gap.
        last: the last entry; None: no entry is stored.
        gaps: gaps behind the last entry, up to `stored`.
        opens: number of calls of `open` before the snapshot; it is not encoded.
    """

    origin: Origin
    session: int
    stored: int
    last: LastEntry | None
    gaps: tuple[Gap, ...]
    opens: int = 0


class OriginGate:
    """The gate of one origin. The caller has to hold its lock.

    After each call, `take_outcomes` returns futures to settle, and `take_waiting` waiters to try again.

    Args:
        topic: name of the topic, for errors.
        state: the initial state.
    """

    def __init__(self, topic: str, state: GateState) -> None:
        self._topic, self.origin, self.session = topic, state.origin, state.session
        self.key = state.origin.key
        self.stored = self.pushed = self._noted = state.stored
        self.last = state.last
        self.in_flight = 0
        """Batches without an outcome."""
        self._stored_session = state.session
        self._opens = self._taken_opens = self._stored_opens = 0  # in all; in the last snapshot; in a stored snapshot
        self._noted_gaps: list[Gap] = list(state.gaps)  # behind the last stored entry, up to `_noted`
        self._gaps = list(state.gaps)  # behind the last entry that was pushed, up to `pushed`
        self._run = EntryRun()
        self._error: BaseException | None = None
        self._waiting: list[Any] = []
        self._held: Any = None  # a call of this session that is in doubt
        self._calls: list[tuple[int, AppendFuture[int]]] = []  # wait until every message below an offset is stored
        self._opened: list[AppendFuture[OriginState]] = []  # of this session, until no batch is in flight
        self._outcomes: list[Outcome] = []
        self._ready: list[Any] = []

    @property
    def state(self) -> OriginState:
        """The stored position in the origin."""
        return OriginState(self.stored, self.last)

    @property
    def has_news(self) -> bool:
        """Whether a snapshot has to be taken and stored before a caller gets its result."""
        return self._error is None and (
            self._taken_opens < self._opens or (not self.in_flight and self._noted < self.pushed)
        )

    @property
    def is_unstored(self) -> bool:
        """Whether a caller waits for a snapshot to be taken or stored."""
        return self._error is None and (self._stored_opens < self._opens or self.stored < self._noted)

    # ---- sessions -------------------------------------------------------------------------------------------

    def open(self, session: int, future: AppendFuture[OriginState]) -> None:
        """Begin a session, which fences older ones. The future is done once it is stored, and no batch is in flight.

        A session that is open already is stored again, so that a former owner of the topic cannot answer.

        Raises OriginSessionError, and the error that left outcomes unknown.
        """
        if self._error is not None:
            raise self._error
        if session < self.session:
            raise self._fenced(session, self.session)
        if session > self.session:
            self._outcomes += [(opened, self._fenced(self.session, session)) for opened in self._opened]
            self.session, self._opened, self._held = session, [], None
        self._opens += 1
        self._opened.append(future)
        self._settle()

    def _fenced(self, session: int, newer: int) -> OriginSessionError:
        return OriginSessionError(
            self._topic,
            f"origin {self.origin.cluster.hex()}/{self.origin.token}: session {session} is fenced by session {newer}",
        )

    def _check_session(self, session: int) -> None:
        if session < self.session:
            raise self._fenced(session, self.session)
        if session > self._stored_session:
            raise OriginSessionError(
                self._topic,
                f"origin {self.origin.cluster.hex()}/{self.origin.token}: session {session} is not open yet: wait for "
                "`open`",
            )

    # ---- admission ------------------------------------------------------------------------------------------

    def admit(self, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap]) -> Admission | None:
        """Return the entries and gaps of a call to push; None: the call has to wait for the batches in flight.

        Raises OriginSessionError, OriginGapError, OriginHistoryError, and the error that left outcomes unknown.
        """
        if self._error is not None:
            raise self._error
        self._check_session(session)
        count = 0
        for entry in entries:
            if entry.end > self.stored:
                break
            self._check_duplicate(entry)
            count += 1
        new = entries[count:] if count else entries
        if new:
            if new[0].first < self.stored:
                raise self._contradiction(new[0], "stored", self.stored)
            if new[0].end <= self.pushed or self._run.error is not None:
                return None
            if new[0].first < self.pushed:
                raise self._contradiction(new[0], "pushed", self.pushed)
        elif self._run.error is not None and gaps and gaps[-1].end > self.stored:
            return None
        at, pending, attributes = self.pushed, self._gaps, list[OriginAttribute]()
        for entry in new:
            at, pending = self._cover(at, pending, entry.gaps)
            if entry.first > at:
                raise self._hole(at, entry.first)
            attributes.append(OriginAttribute(self.key, entry.first, entry.publish_time_us, tuple(pending)))
            at, pending = entry.end, []
        at, pending = self._cover(at, pending, gaps)
        return Admission(new, attributes, at, pending, count, self._run)

    def _cover(self, at: int, pending: list[Gap], gaps: Iterable[Gap]) -> tuple[int, list[Gap]]:
        """Clip gaps to `at`; return the offset behind them, and all gaps since the last entry."""
        for gap in gaps:
            if gap.end <= at:
                continue
            if gap.start > at:
                raise self._hole(at, gap.start)
            pending = joined(pending, Gap(at, gap.end, gap.cause))
            at = gap.end
        return at, pending

    def _hole(self, expected: int, offset: int) -> OriginGapError:
        return OriginGapError(
            self._topic,
            f"origin {self.origin.cluster.hex()}/{self.origin.token}: expected {expected}, found {offset}: open the "
            "origin again, and go on from its stored offset",
        )

    def _check_duplicate(self, entry: OriginEntry) -> None:
        last = self.last
        if last is None or entry.end <= last.first or entry.first >= last.end:
            return
        same = LastEntry(entry.first, entry.end, crc32c(entry.value), entry.publish_time_us)
        if same != last:
            raise OriginHistoryError(
                self._topic,
                f"origin {self.origin.cluster.hex()}/{self.origin.token}: its last entry is {last} here, and {same} at "
                "the source: one of the two clusters was rolled back; find out which one before you replicate more",
            )

    def _contradiction(self, entry: OriginEntry, place: str, end: int) -> OriginHistoryError:
        return OriginHistoryError(
            self._topic,
            f"origin {self.origin.cluster.hex()}/{self.origin.token}: expected an entry that ends or begins at {end}, "
            f"the end of the {place} entries, found one from {entry.first} to {entry.end}: one of the two clusters was "
            "rolled back; find out which one before you replicate more",
        )

    def push(self, admission: Admission) -> None:
        """Note that the entries and gaps of a call are in flight; `settled`, `failed` or `lost` tells the outcome."""
        self.pushed, self._gaps = admission.end, admission.gaps
        self.in_flight += bool(admission.entries)

    def wait(self, waiter: Any) -> None:
        """Register a call that has to wait. `take_waiting` returns it, to be tried again."""
        self._waiting.append(waiter)

    def waits_for_doubt(self, waiter: Any) -> bool:
        """Return whether a call has to `wait`, because an earlier one of its session is in doubt."""
        return self._held is not None and self._held is not waiter

    def set_in_doubt(self, waiter: Any) -> None:
        """Note that a call is in doubt, and tried again later. Later calls of its session wait until `settle_doubt`."""
        self._held = waiter

    def settle_doubt(self, waiter: Any) -> None:
        """Note that a call is not in doubt. `take_waiting` returns those that waited for it."""
        if self._held is waiter:
            self._held = None
            self._ready, self._waiting = self._ready + self._waiting, []

    def notify(self, end: int, future: AppendFuture[int]) -> None:
        """Settle a future with `stored` once every message below `end` is stored, or with the error."""
        if end <= self.stored:
            set_expected(future, self.stored)
            self._outcomes.append((future, None))
        elif self._error is not None:
            self._outcomes.append((future, self._error))
        else:
            self._calls.append((end, future))

    # ---- outcomes -------------------------------------------------------------------------------------------

    def settled(self, entries: Sequence[OriginEntry]) -> None:
        """Note that the entries of a batch are stored. Batches have their outcomes in the order of `push`."""
        self.in_flight -= 1
        self._store(entries)
        self._end_run()
        self._settle()

    def _store(self, entries: Sequence[OriginEntry]) -> None:
        if entries:
            entry = entries[-1]
            self.last = LastEntry(entry.first, entry.end, crc32c(entry.value), entry.publish_time_us)
            self.stored = self._noted = entry.end
            self._noted_gaps = []

    def failed(self, entries: Sequence[OriginEntry], error: BaseException) -> None:
        """Note that only these first entries of a batch are stored, and its other entries never will be."""
        self.in_flight -= 1
        self._store(entries)
        self._run.error = self._run.error or error
        self._end_run()
        self._settle()

    def lost(self, error: BaseException) -> None:
        """Note that it stays unknown which entries of a batch are stored: the gate takes no more calls."""
        self.in_flight -= 1
        self.stop(error)

    def _end_run(self) -> None:
        """Fall back to the last stored entry, once no batch of a run that failed is in flight."""
        error = self._run.error
        if error is None or self.in_flight:
            return
        self.pushed, self._gaps, self._run = self._noted, self._noted_gaps, EntryRun()
        self._outcomes += [(future, error) for end, future in self._calls if end > self._noted]
        self._calls = [(end, future) for end, future in self._calls if end <= self._noted]

    def _settle(self) -> None:
        self._ready, self._waiting = self._ready + self._waiting, []
        waiting = []
        for end, future in self._calls:
            if end <= self.stored:
                set_expected(future, self.stored)
                self._outcomes.append((future, None))
            else:
                waiting.append((end, future))
        self._calls = waiting
        is_over = not self.in_flight and self.pushed == self.stored and self._opens == self._stored_opens
        if self._opened and is_over:
            for opened in self._opened:
                set_expected(opened, self.state)
                self._outcomes.append((opened, None))
            self._opened = []

    def stop(self, error: BaseException) -> None:
        """Take no more calls; all waiting futures fail."""
        self._error, self._held = self._error or error, None
        self._ready, self._waiting = self._ready + self._waiting, []
        self._outcomes += [(future, error) for _, future in self._calls]
        self._outcomes += [(future, error) for future in self._opened]
        self._calls, self._opened = [], []

    def take_outcomes(self) -> list[Outcome]:
        """Return the futures that have got a result or an error."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def take_waiting(self) -> list[Any]:
        """Return the waiters to try again."""
        ready, self._ready = self._ready, []
        return ready

    # ---- the stored state -----------------------------------------------------------------------------------

    def snapshot(self) -> GateState:
        """Return the state as of the last outcome, for the caller to store and to report with `persisted`."""
        if not self.in_flight and self._error is None:
            self._noted, self._noted_gaps = self.pushed, self._gaps
        self._taken_opens = self._opens
        return GateState(self.origin, self.session, self._noted, self.last, tuple(self._noted_gaps), self._opens)

    def persisted(self, state: GateState) -> None:
        """Note that a snapshot is stored."""
        self.stored = max(self.stored, state.stored)
        self._stored_session = max(self._stored_session, state.session)
        self._stored_opens = max(self._stored_opens, state.opens)
        self._settle()

    def replay(self, attribute: OriginAttribute, messages: int, value_crc: int) -> None:
        """Note an entry of the log, in order, from the mark of the snapshot on or from before.

        Raises InvalidEntryError if it contradicts the entries before it. No batch may be in flight.
        """
        first, end = attribute.first, attribute.first + messages
        if end <= self.stored:
            return
        start = attribute.gaps[0].start if attribute.gaps else first
        if first < self.stored or start > self.stored:
            raise InvalidEntryError(
                f"topic {self._topic}: an entry of origin {self.origin.cluster.hex()}/{self.origin.token}: expected "
                f"offset {self.stored}, found {first} behind gaps {attribute.gaps}"
            )
        self.last = LastEntry(first, end, value_crc, attribute.publish_time_us)
        self.stored = self.pushed = self._noted = end
        self._noted_gaps, self._gaps = [], []


def joined(gaps: list[Gap], gap: Gap) -> list[Gap]:
    """Return adjacent gaps with another one behind them, at most GAPS_MAX.

    If there are more, the first two become one, with the cause of the longer one.
    """
    if gaps and gaps[-1].end == gap.start and gaps[-1].cause is gap.cause:
        return [*gaps[:-1], Gap(gaps[-1].start, gap.end, gap.cause)]
    gaps = [*gaps, gap]
    if len(gaps) <= GAPS_MAX:
        return gaps
    first, second = gaps[:2]
    longer = max(first, second, key=lambda item: item.end - item.start)
    return [Gap(first.start, second.end, longer.cause), *gaps[2:]]


def check_entries(entries: Sequence[OriginEntry], gaps: Sequence[Gap]) -> None:
    """Raise InvalidEntryError unless entries and trailing gaps of a call ascend, and every range is valid."""
    at = 0
    for entry in entries:
        if entry.messages < 1 or not at <= entry.first <= OFFSET_MAX - entry.messages:
            raise InvalidEntryError(
                f"replicated entry: expected 1 or more messages from offset {at} on, found {entry.messages} from "
                f"{entry.first} on"
            )
        if entry.gaps:
            _check_gaps(entry.gaps, 0, entry.first)
        at = entry.end
    if gaps:
        _check_gaps(gaps, at, OFFSET_MAX)


def _check_gaps(gaps: Sequence[Gap], at: int, end: int) -> None:
    if len(gaps) > GAPS_MAX:
        raise InvalidEntryError(f"gaps: expected at most {GAPS_MAX}, found {len(gaps)}: send some without an entry")
    for gap in gaps:
        if not at <= gap.start < gap.end <= end or not isinstance(gap.cause, GapCause):
            raise InvalidEntryError(f"gaps: expected one within {at} to {end} that has a cause, found {gap}")
        at = gap.end


class OriginGates:
    """The gates of a topic. The caller has to hold its lock.

    topic: name of the topic, for errors.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._gates: dict[Origin, OriginGate] = {}
        self._keys: dict[int, OriginGate] = {}

    def __iter__(self) -> Iterator[OriginGate]:
        return iter(self._gates.values())

    def __len__(self) -> int:
        return len(self._gates)

    def get(self, origin: Origin) -> OriginGate | None:
        """Return the gate of an origin."""
        return self._gates.get(origin)

    def by_key(self, key: int) -> OriginGate | None:
        """Return the gate of the origin with a key."""
        return self._keys.get(key)

    def keys_of(self, cluster: bytes) -> frozenset[int]:
        """Return the keys of the origins in one cluster."""
        return frozenset([gate.key for gate in self._gates.values() if gate.origin.cluster == cluster])

    def add(self, state: GateState) -> OriginGate:
        """Add the gate of another origin.

        Raises InvalidArgumentError if another origin has its key, or the topic has ORIGINS_MAX origins.
        """
        gate = OriginGate(self._topic, state)
        if (other := self._keys.get(gate.key)) is not None:
            raise InvalidArgumentError(
                f"topic {self._topic}: origins {gate.origin} and {other.origin} have the same key: create the topic of "
                "one of them again"
            )
        if len(self._gates) >= ORIGINS_MAX:
            raise InvalidArgumentError(f"topic {self._topic}: expected at most {ORIGINS_MAX} origins")
        self._gates[gate.origin] = self._keys[gate.key] = gate
        return gate
