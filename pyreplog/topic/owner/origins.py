"""Origins: the topics of other clusters whose messages are replicated into a topic, and how far each is stored."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.arguments import as_int, check_text
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidEntryError,
    OriginHistoryError,
    OriginSessionError,
    ReplogError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, set_exception
from pyreplog.origins import snapshot
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import GateState, OriginGates
from pyreplog.origins.origin import CLUSTER_BYTES, TOKEN_BYTES_MAX, Gap, Origin, OriginEntry, OriginState
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.backlog import SYSTEM_PREFIX
from pyreplog.topic.model.chain import LedgerChain
from pyreplog.topic.owner.snapshot_cursor import SnapshotCursor, StateSnapshot
from pyreplog.topic.owner.topic_context import TopicContext

logger = logging.getLogger(__name__)

ORIGINS = f"{SYSTEM_PREFIX}origins"

T = TypeVar("T")


class Origins(SnapshotCursor):
    """The origins of one topic: `topic.origins`. Any thread; nothing waits.

    It is a system cursor, which exists from the first `open` on. Its state is the last snapshot and the entries of the
    topic behind it. The cursor does not depend on the topic's deduplication.

    Args:
        context: the topic.
        begin: called once the cursor is stored, if it was not when the topic was opened.
    """

    name = ORIGINS
    needed_by = "other clusters that replicate into the topic"

    def __init__(self, context: TopicContext, begin: Callable[[Origins], object]) -> None:
        super().__init__(context)
        self.gates = OriginGates(context.name)
        self.own: Origin | None = None
        """The topic as an origin, once it is known."""
        self.former: tuple[tuple[Origin, int], ...] = ()
        """The former identities of the topic as an origin, each with the offset where it ends; ascending."""
        self._begin = begin
        self._sent_end = 0
        self._sent_lock = threading.Lock()
        self._creating = threading.Lock()  # held while the cursor is created
        self._is_storing = self._has_more = False  # guarded by `_lock`
        self._unknown: set[int] = set()  # keys of entries whose origin is not known

    def set_own(self, cluster: bytes, chain: LedgerChain) -> Origin:
        """Set the present and the former identities of the topic as an origin; return the present one."""
        tokens = [chain.token, *(token for token, _ in chain.renewals)]
        origins = [Origin(cluster, token) for token in tokens]
        ends = [offset for _, offset in chain.renewals]
        self.own, self.former = origins[-1], tuple(zip(origins[:-1], ends, strict=True))
        return self.own

    def former_of(self, offset: int) -> Origin | None:
        """Return the former identity of a message that was published here; None: it has the present one."""
        return next((origin for origin, end in self.former if offset < end), None)

    def sent(self, end: int) -> int:
        """Note that messages published here are sent to another cluster, up to an offset.

        Args:
            end: the offset; 0: none are.

        Returns:
            The offset below which other clusters may have messages published here: what was confirmed when this process
            opened the topic, or was sent since. A cluster that has more has it of a topic that was rolled back.
        """
        with self._sent_lock:
            self._sent_end = max(self._sent_end, end)
            return self._sent_end

    # ---- replicating ----------------------------------------------------------------------------------------

    def open(self, origin: Origin, session: int) -> AppendFuture[OriginState]:
        """Begin a session of an origin. It fences sessions with lower numbers; the same one may open again.

        Args:
            origin: the origin.
            session: its number, 0 or more; that of a later session is higher.

        Returns:
            A future of the stored position of the origin. It is done once the session is stored, and all messages that
            earlier sessions sent have an outcome. It fails with OriginSessionError if a newer session was opened; with
            InvalidArgumentError if the topic has too many origins; with errors of the metadata store, and of `publish`.

        Raises:
            WrongTypeError: an argument has the wrong type.
            InvalidArgumentError: an argument is out of range, or the origin is this topic itself.
            ClosedError: the topic was closed.
        """
        self._context.check_open()
        check_origin(origin)
        if origin == self.own or any(origin == former for former, _ in self.former):
            raise InvalidArgumentError(f"origin: expected one of another topic, found {self._context.name} itself")
        if not 0 <= as_int("session", session) < 1 << 63:
            raise InvalidArgumentError(f"session: expected 0 to 2**63 - 1, found {session}")
        future: AppendFuture[OriginState] = AppendFuture()
        self._context.runtime.expect(future)
        if self._persister is not None:
            self._open(origin, session, future)
        else:
            self._context.work(lambda: self._create_and_open(origin, session, future))
        return future

    def _create_and_open(self, origin: Origin, session: int, future: AppendFuture[OriginState]) -> None:
        try:
            with self._creating:
                if self._persister is None:
                    self._context.managed.verify()  # otherwise the cursor may be that of the next owner
                    self.create(self._context.managed.end)
                    self.recover()
                    self._begin(self)
        except Exception as error:
            set_exception(future, error)
        else:
            self._open(origin, session, future)

    def _open(self, origin: Origin, session: int, future: AppendFuture[OriginState]) -> None:
        def begin(_: int) -> None:
            gate = self.gates.get(origin) or self.gates.add(GateState(origin, 0, 0, None, ()))
            gate.open(session, future)

        try:
            self._with_gates(begin, admits=True)
        except ReplogError as error:
            set_exception(future, error)

    def replicate(
        self, origin: Origin, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap] = ()
    ) -> AppendFuture[int]:
        """Store entries of an origin that are not stored yet, in the order of the calls.

        The limits of `publish` are for the caller to keep: await `room`. Quotas count the messages.

        Args:
            origin: the origin, of which the session is open.
            session: number of the session.
            entries: entries, ascending. Those below `stored` are skipped.
            gaps: gaps behind the last entry, ascending. Those below `stored` are skipped.

        Returns:
            A future of the offset at the origin below which all is stored then: all entries, and all gaps. It fails
            with OriginSessionError if a newer session was opened; with OriginGapError if the entries do not follow
            those that were sent before: open again, and go on from `stored`; with OriginHistoryError if they contradict
            stored entries; and with the errors of `publish`. After an error whose outcome is unknown, no entries are
            taken until the topic is opened again.

        Raises:
            InvalidEntryError: entries or gaps are malformed; nothing was stored.
            RecordTooLargeError: an entry is too large; nothing was stored.
            MissingExtraError: the codec of an entry is not installed.
            OriginSessionError: no session of the origin was opened.
            ClosedError: the topic was closed.
            TopicFencedError: another process owns the topic.
        """
        self._context.check_open()
        publisher, gate = self._publisher, self.gates.get(origin)
        if publisher is None or gate is None:
            raise OriginSessionError(self._context.name, f"no session of {origin} is open: open one before")
        return publisher.replicate(gate, session, entries, gaps)

    # ---- positions ------------------------------------------------------------------------------------------

    def all(self) -> dict[Origin, OriginState]:
        """Return how far each origin is stored."""
        return self._with_gates(lambda _: {gate.origin: gate.state for gate in self.gates})

    def names(self, key: int) -> Origin | None:
        """Return the origin whose key in records is `key`; None: no origin has it."""
        gate = self.gates.by_key(int(key))
        return None if gate is None else gate.origin

    def _with_gates(self, call: Callable[[int], T], *, admits: bool = False) -> T:
        publisher = self._publisher
        return call(0) if publisher is None else publisher.with_gates(call, admits=admits)

    # ---- the cursor -----------------------------------------------------------------------------------------

    def follow(self, publisher: Publisher) -> None:
        super().follow(publisher)
        publisher.on_news(self._store_news)

    def _empty(self) -> bytes:
        return snapshot.encode([])

    def _restore(self, data: bytes) -> None:
        states = snapshot.decode(data)

        def restore(_: int) -> None:
            for state in states:
                if self.gates.get(state.origin) is None:  # an earlier attempt to open the cursor failed
                    self.gates.add(state)

        self._with_gates(restore)

    def _replay(self, batch: MessageBatch) -> None:
        self._with_gates(lambda _: self._note_entries(batch))

    def _note_entries(self, batch: MessageBatch) -> None:
        replicated = np.flatnonzero(batch.entry_origin_first >= 0).tolist()
        if not replicated:
            return
        keys, counts = batch.entry_origin_key.tolist(), batch.entry_count.tolist()
        last = {keys[index]: index for index in replicated}
        for index in replicated:
            key, attribute = keys[index], batch.entry_origin(index)
            gate = self.gates.by_key(key)
            if gate is None or attribute is None:
                self._note_unknown(key, batch)
                continue
            crc = crc32c(batch.entry_value(index)) if last[key] == index else 0
            try:
                gate.replay(OriginAttribute.from_bytes(attribute), counts[index], crc)
            except InvalidEntryError as error:
                logger.error("%s", error)
                gate.stop(OriginHistoryError(self._context.name, str(error)))

    def _note_unknown(self, key: int, batch: MessageBatch) -> None:
        if key not in self._unknown:
            self._unknown.add(key)
            logger.warning(
                "topic %s: entries up to offset %d are of an origin with key %016x that is not known: its cursor was "
                "deleted, or an older one is used", self._context.name, batch.end, key,
            )  # fmt: skip

    def _has_news(self, publisher: Publisher) -> bool:
        return self._with_gates(lambda _: any(gate.is_unstored for gate in self.gates))

    def _take(self) -> StateSnapshot | None:
        if self._publisher is None:
            return None

        def take(end: int) -> StateSnapshot:
            states = [gate.snapshot() for gate in self.gates]
            return StateSnapshot(end, snapshot.encode(states), states)

        return self._with_gates(take)

    def _stored(self, snapshot: StateSnapshot) -> None:
        def note(_: int) -> None:
            for state in snapshot.content:
                gate = self.gates.get(state.origin)
                assert gate is not None
                gate.persisted(state)

        self._with_gates(note)

    def _store_news(self) -> None:
        """Store a snapshot, for which callers wait. Callers that come while one is being stored share the next one."""
        with self._lock:
            if self._persister is None:
                return
            if self._is_storing:
                self._has_more = True
                return
            self._is_storing, self._has_more = True, False
        self.store().add_done_callback(self._news_stored)

    def _news_stored(self, stored: AppendFuture[None]) -> None:
        if stored.exception() is not None:  # `store_if_due` tries again
            self._context.touch()
        with self._lock:
            self._is_storing = False
            has_more = self._has_more
        if has_more:
            self._store_news()


def check_origin(origin: Origin) -> None:
    """Raise WrongTypeError or InvalidArgumentError unless an origin is valid."""
    if not isinstance(origin, Origin) or not isinstance(origin.cluster, bytes):
        raise WrongTypeError(f"origin: expected an Origin, found {origin!r}")
    size = len(check_text("token", origin.token).encode())
    if len(origin.cluster) != CLUSTER_BYTES or not 1 <= size <= TOKEN_BYTES_MAX:
        raise InvalidArgumentError(
            f"origin: expected a cluster of {CLUSTER_BYTES} bytes and a token of 1 to {TOKEN_BYTES_MAX}, found "
            f"{len(origin.cluster)} and {size}"
        )
