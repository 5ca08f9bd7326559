"""Replicator: replicates one topic of this process to one target cluster.

It carries out the effects of a `Sender` (`protocol.sender`).
"""

from __future__ import annotations

import json
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    InvalidEntryError,
    ReplogError,
    TopicFencedError,
    TopicFullError,
    TrimmedError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture
from pyreplog.geo.clusters import lasting_error
from pyreplog.geo.geo_cursor import GeoCursor, cursor_name
from pyreplog.geo.mismatch import mismatch
from pyreplog.geo.policy import ReplicationPolicy
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
from pyreplog.geo.protocol.sender import RETRY_MOST_S, RETRY_S, Sender, SenderState, SendingSettings
from pyreplog.geo.replicator_status import ReplicatorState, ReplicatorStatus
from pyreplog.geo.target_link import Opening, Target, TargetSession
from pyreplog.net.backoff import Backoff
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.origin import LastEntry, Origin, OriginState
from pyreplog.origins.replicate_to import decode_names
from pyreplog.topic.model.backlog import Publishing
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.entry_reader import EntryBatch, StoredEntry
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topic_context import TopicContext

logger = logging.getLogger(__name__)

ENDS_MAX = 256
"""Most noted ends of the topic, by which the bytes of a backlog are estimated."""
HELD_SHARE = 0.9
"""Share of `backlog_bytes` at which publishers go on."""

UNKNOWN = Origin(b"", "")
"""Stands for an origin that the topic has forgotten; its messages are not forwarded."""

_STATES: dict[SenderState, ReplicatorState] = {
    SenderState.PAUSED: "paused",
    SenderState.WAITING: "connecting",
    SenderState.OPENING: "connecting",
    SenderState.CHECKING: "connecting",
    SenderState.SENDING: "running",
    SenderState.DIVERGED: "diverged",
    SenderState.CLOSED: "closed",
}


class Replicator:
    """Replicates one topic, which this process owns, to one target: each message once, and in its order.

    Entries are sent as they are stored; no message is decoded. Any thread may call its methods; none of them waits.

    Args:
        topic: the topic; close the replicator before it.
        target: name of the target cluster.
        link: the target cluster.
        policy: which messages are sent, and how fast.
        cluster_ids: returns the ids of the clusters with these names; for `replicated_from`.
        partitions: if the topic is a partition, the number of partitions of its topic; otherwise 0.
        explain: returns the text of an error, for the status.
        work: runs a job that waits in another thread; None: in those of the topics.
        cluster: id of the target cluster; empty: it is not known whether a former cluster had the name of the target.
    """

    def __init__(
        self,
        topic: Topic,
        target: str,
        link: Target,
        policy: ReplicationPolicy,
        *,
        cluster_ids: Callable[[Sequence[str]], frozenset[bytes]] | None = None,
        partitions: int = 0,
        explain: Callable[[Exception], str] = str,
        work: Callable[[Callable[[], object]], object] | None = None,
        cluster: bytes = b"",
    ) -> None:
        self.topic, self.target, self._explain, self._target_id = topic, target, explain, cluster
        self._link, self._policy, self._partitions = link, policy, partitions
        self._cluster_ids = cluster_ids
        self._context: TopicContext = topic.context
        self._clock = self._context.clock
        self._work = self._context.work if work is None else work
        self._events = EventQueue()
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self._cursor: GeoCursor | None = None
        self._adopted: list[GeoCursor] = []  # those that attempts to begin passed to `adopt`: one of them may be live
        self._sender: Sender | None = None
        self._sessions: dict[Origin, TargetSession] = {}
        self._error: ReplogError | None = None  # of the last attempt to begin
        self._ends: deque[TopicPosition] = deque()  # of the topic, from the last end that the target has reached on
        self._is_paused = self._is_over = self._is_growth_posted = self._is_holding = self._awaits_backlog = False
        self._is_ending = False  # set before `_is_over`, by any thread: no cursor is adopted any more
        self._alarm = ""
        self._mismatch = ""  # what differs between the two clusters and has to be changed in one of them

    # ---- control -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to replicate, behind the last message that the target has."""
        self._work(self._begin)

    def _begin(self) -> None:
        """Read the durable cursor; in a thread that may wait."""
        if self._is_over:
            return
        try:
            self._check_durability()
            cursor = self._cursor
            if cursor is None:
                is_latest = self._policy.start == "latest"
                cursor = GeoCursor(self._context, self.target, is_latest=is_latest, cluster=self._target_id.hex())
                self._adopted.append(cursor)
                if not self.topic.system_cursors.adopt(cursor, if_=lambda: not self._is_ending):
                    return
            self._follow_identity(cursor)
        except ReplogError as error:
            self._error = error
            if isinstance(error, ClosedError | TopicFencedError):
                self.close()
                return
            logger.warning("topic %s: replication to %s cannot begin: %s", self.topic.name, self.target, error)
            delay_s = RETRY_MOST_S if isinstance(error, ConfigError) else self._backoff.next_s()
            self._context.runtime.wake_after(delay_s, self.start)
            return
        self._error = None
        self._events.post(partial(self._begun, cursor))

    def _follow_identity(self, cursor: GeoCursor) -> None:
        """If the topic got a new identity since the target's position was noted, go on with the new one; may wait.

        It gets one if the target's position lay after the end of the topic when the topic was opened.
        """
        state = cursor.state
        stored = 0 if state.own is None or state.token != self._identity_token else state.own.stored
        self.topic.renew_lost_origin(cursor.name, self.topic.origin, stored)
        token = self._identity_token
        if state.own is not None and state.token != token:
            known = self.topic.origins.former
            former = next((origin for origin, _ in known if origin.token == state.token), known[0][0])
            cursor.renewed(token, former, self._shared_end(cursor.offset, state.own))

    @property
    def _identity_token(self) -> str:
        """The token of the topic as an origin; empty: its first one."""
        return self.topic.origin.token if self.topic.origins.former else ""

    def _shared_end(self, mark: int, position: TargetPosition | None) -> int:
        """Return the offset here below which the target has every message of this topic; may wait.

        That is the mark if the last entry that was sent then is still here. Otherwise it is the start of the topic:
        it is unknown which messages are the same.
        """
        start, end = self.topic.managed.start.offset, self.topic.managed.end.offset
        if mark > end:
            return start
        last = None if position is None else position.last
        if last is None:
            return mark
        try:
            read: EntryBatch = self.topic.managed.entries.read(last.first, bytes_max=1).result()
        except TrimmedError:
            return mark
        here = [
            LastEntry(entry.first, entry.first + entry.messages, crc32c(entry.value), entry.time_us)
            for entry in read.entries[:1]
        ]
        return mark if here == [last] else start

    def _renew_identity(self, effect: RenewOrigin) -> None:
        """Give the topic another identity; in a thread that may wait."""
        if self._is_over:
            return
        try:
            origin = self.topic.renew_origin(self._shared_end(effect.mark, effect.position))
        except ReplogError as error:
            logger.warning("topic %s: it has no new identity yet: %s", self.topic.name, error)
            if not isinstance(error, ClosedError | TopicFencedError | TopicFullError):
                self._context.runtime.wake_after(self._backoff.next_s(), self.resync)
            return
        logger.warning(
            "topic %s: it has the new identity %s in other clusters, because %s has messages of the former identity "
            "that this topic lacks",
            self.topic.name, origin.token, self.target,
        )  # fmt: skip

    def _on_origin_renewed(self) -> None:
        """Begin again, because the topic has a new identity."""

        def renewed() -> None:
            if not self._is_over and self._sender is not None:
                self._end_sender(self._sender)
                self._sender = None
                self._work(self._begin)

        self._events.post(renewed)

    def _end_sender(self, sender: Sender) -> None:
        self.topic.managed.on_grow.remove(self._on_grow)
        self.topic.managed.on_fenced.remove(self._on_fenced)
        self.topic.on_origin_renewed.remove(self._on_origin_renewed)
        self._carry_out(sender.close())

    def _check_durability(self) -> None:
        durability = self.topic.config.durability
        if durability != "synced":
            raise ConfigError(
                f"topic {self.topic.name}: durability: expected 'synced' of a topic that is replicated to other "
                f"clusters, found {durability!r}: change it with `configure`"
            )

    def _begun(self, cursor: GeoCursor) -> None:
        if self._is_over or self._sender is not None:
            return
        state = cursor.state
        self._cursor, self._awaits_backlog = cursor, state.own is None
        if not self._ends:
            self._ends.append(max(cursor.mark, self.topic.managed.start))
        former = self.topic.origins.former
        self._sender = Sender(
            self.topic.origin, self._sending_settings(), epoch=self.topic.managed.epoch, begin=state.begin,
            withheld=state.withheld, own_position=state.own, positions=state.others, mark=cursor.offset,
            former=former[-1][1] if former else 0, sent=self.topic.origins.sent, random=random.random,
        )  # fmt: skip
        self.topic.managed.on_grow.append(self._on_grow)
        self.topic.managed.on_fenced.append(self._on_fenced)
        self.topic.on_origin_renewed.append(self._on_origin_renewed)
        self._note_growth()
        if not self._is_paused and not state.is_detached:
            self._step(self._sender.resume)

    def _sending_settings(self) -> SendingSettings:
        policy = self._policy
        names = policy.replicated_from
        sources = None
        if names is not None:
            sources = frozenset() if self._cluster_ids is None else self._cluster_ids(names)
        return SendingSettings(
            policy.forward == "all", sources, None if policy.ttl_ms is None else policy.ttl_ms * 1000,
            policy.rate_bytes, policy.window_bytes, self.target,
        )  # fmt: skip

    def configure(self, policy: ReplicationPolicy) -> None:
        """Use another policy.

        Args:
            policy: the policy.
        """

        def configure() -> None:
            self._policy = policy
            if self._sender is not None:
                self._step(self._sender.configure, self._sending_settings())
                self._check_backlog()

        self._events.post(configure)

    def pause(self) -> None:
        """Stop sending until `resume`; trimming still waits for the target."""

        def pause() -> None:
            self._is_paused = True
            if self._sender is not None:
                self._carry_out(self._sender.pause())

        self._events.post(pause)

    def resume(self) -> None:
        """Send again after `pause`."""

        def resume() -> None:
            self._is_paused = False
            if self._sender is not None and not self._is_detached:
                self._step(self._sender.resume)

        self._events.post(resume)

    def resync(self) -> None:
        """Go on after `diverged` or `detached`, behind the last message that the target has.

        Messages that the target lacks and this topic no longer stores become a LOST gap. If the target has messages of
        this topic's identity that this topic lacks, the messages here that the target may lack first get another
        identity.
        """

        def resync() -> None:
            if self._sender is None or self._cursor is None:
                return
            self._alarm, self._awaits_backlog = "", True
            if self._is_detached:
                self._cursor.set_detached(False)
                if not self._is_paused:
                    self._step(self._sender.resume)
            self._step(self._sender.resync)
            if self._sender.mark < self._cursor.offset:
                self._cursor.fall_back()

        self._events.post(resync)

    def remove(self) -> None:
        """Close, and delete the durable cursor: trimming no longer waits for the target."""
        self.close()
        self._work(self._remove)

    def _remove(self) -> None:
        """Delete the cursor, which may be stored but not adopted: perhaps `_begin` failed, or runs later than this."""
        name = cursor_name(self.target)
        try:
            self.topic.system_cursors.remove(name, self._adopted)
        except ReplogError as error:
            logger.warning("topic %s: cursor %s was not deleted: %s", self.topic.name, name, error)

    def close(self) -> None:
        """End. The durable cursor stays, so that trimming waits for the target."""

        def close() -> None:
            if self._is_over:
                return
            self._is_over = True
            self._set_holding(False)
            if self._sender is not None:
                self._end_sender(self._sender)
            if self._cursor is not None:
                self._cursor.store()

        self._is_ending = True
        self._events.post(close)

    @property
    def _is_detached(self) -> bool:
        return self._cursor is not None and self._cursor.state.is_detached

    @property
    def target_position(self) -> TargetPosition | None:
        """The position in the topic that the target reported last; None: it reported none yet."""
        return None if self._sender is None else self._sender.target_position

    def forwarded(self, origin: Origin) -> int | None:
        """Return the offset at another origin below which the target has reported to store everything.

        Args:
            origin: the origin; None is returned if its messages are not forwarded to the target.
        """
        if self._sender is None:
            return 0 if self._policy.forward == "all" else None
        return self._sender.forwarded(origin)

    def sent(self, origin: Origin) -> int:
        """Return the offset at an origin below which messages were sent that the target may store.

        Args:
            origin: the origin; it may be the topic here.
        """
        return 0 if self._sender is None else self._sender.sent(origin)

    # ---- status --------------------------------------------------------------------------------------------------

    def status(self) -> ReplicatorStatus:
        """Return the present state; unsent messages are counted from the target's last report, also if it is away."""
        sender, end = self._sender, self.topic.managed.end
        if sender is None:
            error = "" if self._error is None else self._explain(self._error)
            unsent = end.offset - self.topic.managed.start.offset
            return ReplicatorStatus(
                self.topic.name, self.target, self._state(None), None, end.offset, unsent,
                end.size - self.topic.managed.start.size, error=error,
                alarm=error if self._state(None) == "failed" else "",
            )  # fmt: skip
        unsent = sender.unsent_messages if sender.end >= end.offset else end.offset - sender.stored
        state, error = self._state(sender), "" if sender.error is None else self._explain(sender.error)
        needs_change = state == "failed" or lasting_error(sender.error) is not None
        return ReplicatorStatus(
            topic=self.topic.name,
            target=self.target,
            state=state,
            stored=None if sender.target_position is None else sender.target_position.stored,
            end=end.offset,
            unsent_messages=unsent,
            unsent_bytes=self._unsent_bytes(unsent),
            oldest_unsent_us=sender.oldest_unsent_us if unsent else None,
            sent_messages=sender.sent_messages,
            sent_bytes=sender.sent_bytes,
            skipped=tuple((cause.name.lower(), count) for cause, count in sorted(sender.skipped.items())),
            reconnects=max(sender.opens - 1, 0),
            error=error,
            alarm=self._alarm or sender.alarm or (error if needs_change else "")
            or sender.rival_alarm(self._clock.monotonic_us()) or self._mismatch,
        )  # fmt: skip

    def _state(self, sender: Sender | None) -> ReplicatorState:
        if self._is_over:
            return "closed"
        if sender is None:
            return "failed" if isinstance(self._error, ConfigError) else "connecting"
        if self._is_detached:
            return "detached"
        if sender.is_failed and sender.state is SenderState.WAITING:
            return "failed"
        return _STATES[sender.state]

    def _unsent_bytes(self, unsent: int) -> int:
        """Return the bytes of the unsent messages, as if all between two ends of the topic were of one size."""
        end = self.topic.managed.end
        offset, size = end.offset - unsent, end.size
        for later, earlier in pairwise([*reversed(self._ends)]):
            if earlier.offset <= offset < later.offset:
                part = (later.size - earlier.size) * (offset - earlier.offset)
                return end.size - earlier.size - part // (later.offset - earlier.offset)
            size = earlier.size
        return end.size - size if unsent else 0

    def _note_end(self, end: TopicPosition) -> None:
        """Note the present end of the topic, and forget ends that the target has reached."""
        ends, stored = self._ends, 0 if self._sender is None else self._sender.stored
        while len(ends) > 1 and ends[1].offset <= stored:
            ends.popleft()
        if len(ends) > ENDS_MAX:
            self._ends = ends = deque([*ends][::2])
        if not ends or end.offset > ends[-1].offset:
            ends.append(end)

    # ---- events --------------------------------------------------------------------------------------------------

    def _step(self, event: Callable[..., list[Effect]], *arguments: Any) -> None:
        """Pass an event to the sender, and carry out its effects; as a step of the queue."""
        self._carry_out(event(*arguments, self._clock.monotonic_us(), self._clock.now_us()))

    def _post_step(self, event: Callable[..., list[Effect]], *arguments: Any) -> None:
        self._events.post(lambda: self._step(event, *arguments))

    def _on_grow(self) -> None:
        if not self._is_growth_posted:
            self._is_growth_posted = True
            self._events.post(self._note_growth)

    def _on_fenced(self, _: TopicFencedError) -> None:
        self.close()

    def _note_growth(self) -> None:
        self._is_growth_posted = False
        if self._sender is not None and not self._is_over:
            managed = self.topic.managed
            self._note_end(managed.end)
            self._step(self._sender.grew, managed.start.offset, managed.end.offset)
            self._check_backlog()

    def _check_backlog(self) -> None:
        """Apply the backlog policy: hold or refuse publishers, or detach, if the backlog is larger than allowed."""
        sender, cursor, policy = self._sender, self._cursor, self._policy
        if sender is None or cursor is None or self._is_detached:
            return
        most, waiting = policy.backlog_bytes, self._unsent_bytes(sender.unsent_messages)
        is_over = most is not None and waiting > (HELD_SHARE * most if self._is_holding else most)
        if self._awaits_backlog:  # a new target, or a target after `resync`, has to get the backlog first
            self._awaits_backlog = is_over
            return
        if is_over and policy.backlog_policy == "detach":
            self._set_holding(False)
            self._detach(sender, cursor, waiting)
        elif is_over is not self._is_holding:
            self._set_holding(is_over)

    def _set_holding(self, holds: bool) -> None:
        """Hold publishers of the topic, or refuse their messages, until the target has caught up."""
        if holds or self._is_holding:
            self._is_holding = holds
            publishing: Publishing = "open"
            if holds:
                publishing = "held" if self._policy.backlog_policy == "hold" else "refused"
            reason = f"more than backlog_bytes={self._policy.backlog_bytes} wait for the cluster {self.target}"
            self.topic.maintenance.hold(cursor_name(self.target), publishing, reason)

    def _detach(self, sender: Sender, cursor: GeoCursor, waiting: int) -> None:
        self._alarm = (
            f"{waiting} bytes waited for {self.target}, more than backlog_bytes={self._policy.backlog_bytes}: "
            "replication ended, and messages are trimmed without it; `resync` begins again"
        )
        self._log_alarm(self._alarm)
        self._carry_out(sender.pause())
        cursor.set_detached(True)

    def _log_alarm(self, text: str) -> None:
        logger.error("topic %s: replication to %s stopped: %s", self.topic.name, self.target, text)

    def _carry_out(self, effects: list[Effect]) -> None:
        """Carry out effects of the present sender. Their outcomes go to it, also when another one has replaced it: then
        it is closed, and has no effects any more.
        """
        sender = self._sender
        if sender is None:
            return
        for effect in effects:
            if isinstance(effect, SendEntries):
                self._send(sender, effect)
            elif isinstance(effect, ReadEntries):
                self._read(effect.offset, effect.bytes_max, partial(self._entries_read, sender, effect))
            elif isinstance(effect, CheckEntry):
                self._read(effect.first, 1, partial(self._entry_read, sender, effect))
            elif isinstance(effect, OpenOrigin):
                self._open(sender, effect)
            elif isinstance(effect, WakeAt):
                delay_s = max(effect.at_us - self._clock.monotonic_us(), 0) / 1e6
                self._context.runtime.wake_after(delay_s, partial(self._post_step, sender.woke))
            elif isinstance(effect, Progress):
                if self._cursor is not None:
                    self._cursor.progressed(effect, self._identity_token)
                    self._check_backlog()
            elif isinstance(effect, EntryRefused):
                logger.error(
                    "topic %s: messages %d to %d of origin %s/%s are skipped: %s can never store them: %s",
                    self.topic.name, effect.first, effect.end, effect.origin.cluster.hex(), effect.origin.token,
                    self.target, effect.error,
                )  # fmt: skip
            elif isinstance(effect, RaiseAlarm):
                self._log_alarm(effect.text)
            elif isinstance(effect, RenewOrigin):
                self._work(partial(self._renew_identity, effect))
            else:
                assert isinstance(effect, Disconnect)
                self._sessions.clear()
                self._link.drop(self.topic.name)

    # ---- the target ----------------------------------------------------------------------------------------------

    def _open(self, sender: Sender, effect: OpenOrigin) -> None:
        settings = json.dumps(_creation_settings(self.topic.config.encoded()))
        opening = Opening(self.topic.name, effect.origin, effect.session, self._partitions, settings)
        asked_us = self._clock.now_us()

        def on_opened(session: TargetSession | ReplogError) -> None:
            came_us = self._clock.now_us()
            if not isinstance(session, ReplogError):
                self._mismatch = mismatch(self.target, self.topic.config, session.settings, asked_us, came_us)
            self._events.post(lambda: self._opened(sender, effect, session))

        def on_lost(error: ReplogError) -> None:
            self._post_step(sender.lost, effect.attempt, effect.origin, error)

        self._link.open(opening, on_opened, on_lost)

    def _opened(self, sender: Sender, effect: OpenOrigin, session: TargetSession | ReplogError) -> None:
        if isinstance(session, ReplogError):
            self._step(sender.lost, effect.attempt, effect.origin, session)
        elif effect.attempt == sender.attempt:
            self._sessions[effect.origin] = session
            state: OriginState = session.state
            self._step(sender.opened, effect.attempt, effect.origin, session.cluster, state)

    def _send(self, sender: Sender, effect: SendEntries) -> None:
        session = self._sessions[effect.origin]

        def on_stored(stored: int | ReplogError) -> None:
            if isinstance(stored, ReplogError):
                self._post_step(sender.request_failed, effect.attempt, effect.request, stored)
            else:
                self._post_step(sender.request_stored, effect.attempt, effect.request, stored)

        self._link.replicate(session, effect.entries, effect.gaps, effect.size, on_stored)

    # ---- the topic -----------------------------------------------------------------------------------------------

    def _read(self, offset: int, bytes_max: int, on_read: Callable[[EntryBatch | Exception], object]) -> None:
        try:
            read: AppendFuture[EntryBatch] = self.topic.managed.entries.read(offset, bytes_max=bytes_max)
        except ReplogError as error:
            self._events.post(partial(on_read, error))
            return

        def done(_: object) -> None:
            error = read.exception()
            self._events.post(partial(on_read, read.result() if error is None else _as_exception(error)))

        read.add_done_callback(done)

    def _entries_read(self, sender: Sender, effect: ReadEntries, batch: EntryBatch | Exception) -> None:
        if isinstance(batch, Exception):
            self._close_if_fenced(batch)
            self._step(sender.read_failed, effect.attempt, batch, self.topic.managed.start.offset)
            return
        entries: list[SourceEntry] = []
        for entry in batch.entries:
            try:
                entries.append(self._source_entry(entry))
            except InvalidEntryError as error:
                if entries:  # these come first; the next read begins with the malformed one
                    break
                self._step(sender.read_failed, effect.attempt, error, self.topic.managed.start.offset)
                return
        self._step(sender.entries_read, effect.attempt, entries)

    def _entry_read(self, sender: Sender, effect: CheckEntry, batch: EntryBatch | Exception) -> None:
        if isinstance(batch, TrimmedError):
            self._step(sender.checked, effect.attempt, None)
        elif isinstance(batch, Exception):
            self._close_if_fenced(batch)
            self._step(sender.lost, effect.attempt, sender.own, batch)
        else:
            try:
                entry = self._source_entry(batch.entries[0])
            except InvalidEntryError as error:
                self._step(sender.lost, effect.attempt, sender.own, error)
            else:
                self._step(sender.checked, effect.attempt, entry)

    def _close_if_fenced(self, error: Exception) -> None:
        """Close if this process no longer owns the topic."""
        if isinstance(error, ClosedError | TopicFencedError):
            self.close()

    def _source_entry(self, entry: StoredEntry) -> SourceEntry:
        """Decode the attributes of an entry. Raises InvalidEntryError if one is malformed."""
        try:
            return self._decode(entry)
        except InvalidEntryError as error:
            raise InvalidEntryError(
                f"entry at offset {entry.first}: {error}. Replication stops before it, because the clusters to which "
                "it may go are not known"
            ) from error

    def _decode(self, entry: StoredEntry) -> SourceEntry:
        value, first, messages, time_us, data, names = entry
        replicate_to = None if names is None else decode_names(names)
        if data is None:
            former = self.topic.origins.former_of(first)
            if former is None:
                return SourceEntry(value, messages, first, time_us, replicate_to=replicate_to)
            return SourceEntry(value, messages, first, time_us, former, first, time_us, replicate_to=replicate_to)
        attribute = OriginAttribute.from_bytes(data)
        origin = self.topic.origins.names(attribute.key) or UNKNOWN
        return SourceEntry(
            value, messages, first, time_us, origin, attribute.first, attribute.publish_time_us, attribute.gaps,
            replicate_to,
        )  # fmt: skip


def _creation_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the topic at a target: those here, without quotas, which would hold replication up."""
    return {name: value for name, value in config.items() if not name.startswith("quota_")}


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else ReplogError(str(error))
