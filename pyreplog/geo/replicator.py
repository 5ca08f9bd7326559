"""Replicator: replicates one topic of this process to one target cluster."""

from __future__ import annotations

import json
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from pyreplog.errors import ClosedError, ConfigError, ReplogError, TopicFencedError, TrimmedError
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture
from pyreplog.geo.geo_cursor import GeoCursor, cursor_name
from pyreplog.geo.policy import ReplicationPolicy
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
from pyreplog.geo.protocol.sending import RETRY_MOST_S, RETRY_S, Sender, SenderState, SendingSettings
from pyreplog.geo.replicator_like import ReplicatorState, ReplicatorStatus
from pyreplog.geo.target_link import Opening, Target, TargetSession
from pyreplog.net.backoff import Backoff
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.origin import Origin, OriginState
from pyreplog.topic.model.backlog import Publishing
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.entry_reader import EntryBatch, StoredEntry
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topic_context import TopicContext

logger = logging.getLogger(__name__)

ENDS_MAX = 256
"""Ends of the topic that are noted, for the bytes of a backlog."""
HELD_SHARE = 0.9
"""Share of `backlog_bytes` at which publishers go on."""

UNKNOWN = Origin(b"", "")
"""Stands for an origin that the topic does not know any more; its messages are not forwarded."""

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

    Entries are sent as they are stored; no message is decoded. Any thread may use it; no method waits.

    Args:
        topic: the topic; close the replicator before it.
        target: name of the target cluster.
        link: the target cluster.
        policy: what is sent, and how fast.
        cluster_ids: returns the ids of the clusters with these names; for `replicated_from`.
        partitions: if the topic is a partition, the number of partitions of its topic; otherwise 0.
        explain: returns the text of an error, for the status.
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
    ) -> None:
        self.topic, self.target, self._explain = topic, target, explain
        self._link, self._policy, self._partitions = link, policy, partitions
        self._cluster_ids = cluster_ids
        self._context: TopicContext = topic.context
        self._clock = self._context.clock
        self._events = EventQueue()
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self._cursor: GeoCursor | None = None
        self._sender: Sender | None = None
        self._sessions: dict[Origin, TargetSession] = {}
        self._error: ReplogError | None = None  # why it could not begin
        self._ends: deque[TopicPosition] = deque()  # of the topic, from the last one that the target has reached on
        self._is_paused = self._is_over = self._is_told = self._holds = self._is_behind = False
        self._alarm = ""

    # ---- control -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to replicate, from what the target has."""
        self._context.work(self._begin)

    def _begin(self) -> None:
        """Read the durable cursor; in a thread that may wait."""
        if self._is_over:
            return
        try:
            self._check_durability()
            cursor = self._cursor
            if cursor is None:
                cursor = GeoCursor(self._context, self.target, is_latest=self._policy.start == "latest")
                self.topic.system_cursors.adopt(cursor)
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
        self._cursor, self._is_behind = cursor, state.own is None
        self._ends.append(max(cursor.mark, self.topic.managed.start))
        self._sender = Sender(
            self.topic.origin, self._settings(), epoch=self.topic.managed.epoch, begin=state.begin,
            withheld=state.withheld, own_note=state.own, notes=state.others, mark=cursor.offset, random=random.random,
        )  # fmt: skip
        self.topic.managed.on_grow.append(self._grew)
        self.topic.managed.on_fenced.append(self._fenced)
        self._tell_growth()
        if not self._is_paused and not state.is_detached:
            self._do(self._sender.resume)

    def _settings(self) -> SendingSettings:
        policy = self._policy
        names = policy.replicated_from
        sources = None
        if names is not None:
            sources = frozenset() if self._cluster_ids is None else self._cluster_ids(names)
        return SendingSettings(
            policy.forward == "all", sources, None if policy.ttl_ms is None else policy.ttl_ms * 1000,
            policy.rate_bytes, policy.window_bytes,
        )  # fmt: skip

    def configure(self, policy: ReplicationPolicy) -> None:
        """Go on with another policy.

        Args:
            policy: the policy.
        """

        def configure() -> None:
            self._policy = policy
            if self._sender is not None:
                self._do(self._sender.configure, self._settings())
                self._check_backlog()

        self._events.post(configure)

    def pause(self) -> None:
        """Send nothing more until `resume`; trimming still waits for the target."""

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
                self._do(self._sender.resume)

        self._events.post(resume)

    def resync(self) -> None:
        """After `diverged` or `detached`: go on from what the target has, and note as lost what is not stored here."""

        def resync() -> None:
            if self._sender is None or self._cursor is None:
                return
            self._alarm, self._is_behind = "", True
            if self._is_detached:
                self._cursor.set_detached(False)
                if not self._is_paused:
                    self._do(self._sender.resume)
            self._do(self._sender.resync)

        self._events.post(resync)

    def remove(self) -> None:
        """Close, and delete the durable cursor: trimming no longer waits for the target."""
        self.close()
        self._context.work(self._remove)

    def _remove(self) -> None:
        cursor = self._cursor
        if cursor is not None:
            try:
                self.topic.system_cursors.remove(cursor.name)
            except ReplogError as error:
                logger.warning("topic %s: cursor %s was not deleted: %s", self.topic.name, cursor.name, error)

    def close(self) -> None:
        """End. The durable cursor stays, so that trimming waits for the target."""

        def close() -> None:
            if self._is_over:
                return
            self._is_over = True
            self._hold(False)
            if self._sender is not None:
                self.topic.managed.on_grow.remove(self._grew)
                self.topic.managed.on_fenced.remove(self._fenced)
                self._carry_out(self._sender.close())
            if self._cursor is not None:
                self._cursor.store()

        self._events.post(close)

    @property
    def _is_detached(self) -> bool:
        return self._cursor is not None and self._cursor.state.is_detached

    @property
    def note(self) -> OriginNote | None:
        """What the target said last that it has of the topic; None: nothing yet."""
        return None if self._sender is None else self._sender.note

    # ---- status --------------------------------------------------------------------------------------------------

    def status(self) -> ReplicatorStatus:
        """Return the present state; what is unsent is counted from what the target said it has, also if it is away."""
        sender, end = self._sender, self.topic.managed.end
        if sender is None:
            error = "" if self._error is None else self._explain(self._error)
            unsent = end.offset - self.topic.managed.start.offset
            return ReplicatorStatus(
                self.topic.name, self.target, self._state(None), None, end.offset, unsent,
                end.size - self.topic.managed.start.size, error=error,
            )  # fmt: skip
        unsent = sender.unsent_messages if sender.end >= end.offset else end.offset - sender.stored
        return ReplicatorStatus(
            topic=self.topic.name,
            target=self.target,
            state=self._state(sender),
            stored=None if sender.note is None else sender.note.stored,
            end=end.offset,
            unsent_messages=unsent,
            unsent_bytes=self._unsent_bytes(unsent),
            oldest_unsent_us=sender.oldest_unsent_us if unsent else None,
            sent_messages=sender.sent_messages,
            sent_bytes=sender.sent_bytes,
            skipped=tuple((cause.name.lower(), count) for cause, count in sorted(sender.skipped.items())),
            reconnects=max(sender.opens - 1, 0),
            error="" if sender.error is None else self._explain(sender.error),
            alarm=self._alarm or sender.alarm,
        )

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
        """Note how many bytes the topic has now, and forget ends that the target has reached."""
        ends, stored = self._ends, 0 if self._sender is None else self._sender.stored
        while len(ends) > 1 and ends[1].offset <= stored:
            ends.popleft()
        if len(ends) > ENDS_MAX:
            self._ends = ends = deque([*ends][::2])
        if not ends or end.offset > ends[-1].offset:
            ends.append(end)

    # ---- events --------------------------------------------------------------------------------------------------

    def _do(self, event: Callable[..., list[Effect]], *arguments: Any) -> None:
        """Tell the sender, and carry out what it wants; as a step of the queue."""
        self._carry_out(event(*arguments, self._clock.monotonic_us(), self._clock.now_us()))

    def _post(self, event: Callable[..., list[Effect]], *arguments: Any) -> None:
        self._events.post(lambda: self._do(event, *arguments))

    def _grew(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._events.post(self._tell_growth)

    def _fenced(self, _: TopicFencedError) -> None:
        self.close()

    def _tell_growth(self) -> None:
        self._is_told = False
        if self._sender is not None and not self._is_over:
            managed = self.topic.managed
            self._note_end(managed.end)
            self._do(self._sender.grew, managed.start.offset, managed.end.offset)
            self._check_backlog()

    def _check_backlog(self) -> None:
        """Apply the backlog policy: hold or refuse publishers, or detach, if more waits than the policy allows."""
        sender, cursor, policy = self._sender, self._cursor, self._policy
        if sender is None or cursor is None or self._is_detached:
            return
        most, waiting = policy.backlog_bytes, self._unsent_bytes(sender.unsent_messages)
        is_over = most is not None and waiting > (HELD_SHARE * most if self._holds else most)
        if self._is_behind:  # a new target, or one after `resync`, has to get the backlog first
            self._is_behind = is_over
            return
        if is_over and policy.backlog_policy == "detach":
            self._hold(False)
            self._detach(sender, cursor, waiting)
        elif is_over is not self._holds:
            self._hold(is_over)

    def _hold(self, holds: bool) -> None:
        """Hold publishers of the topic, or refuse their messages, until the target has caught up."""
        if holds or self._holds:
            self._holds = holds
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
        self._tell_alarm(self._alarm)
        self._carry_out(sender.pause())
        cursor.set_detached(True)

    def _tell_alarm(self, text: str) -> None:
        logger.error("topic %s: replication to %s stopped: %s", self.topic.name, self.target, text)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendEntries):
                self._send(effect)
            elif isinstance(effect, ReadEntries):
                self._read(effect.offset, effect.bytes_max, partial(self._came, effect))
            elif isinstance(effect, CheckEntry):
                self._read(effect.first, 1, partial(self._checked, effect))
            elif isinstance(effect, OpenOrigin):
                self._open(effect)
            elif isinstance(effect, WakeAt):
                delay_s = max(effect.at_us - self._clock.monotonic_us(), 0) / 1e6
                self._context.runtime.wake_after(delay_s, self._woke)
            elif isinstance(effect, Progress):
                if self._cursor is not None:
                    self._cursor.progressed(effect)
                    self._check_backlog()
            elif isinstance(effect, EntryRefused):
                logger.error(
                    "topic %s: messages %d to %d of origin %s/%s are skipped: %s can never store them: %s",
                    self.topic.name, effect.first, effect.end, effect.origin.cluster.hex(), effect.origin.token,
                    self.target, effect.error,
                )  # fmt: skip
            elif isinstance(effect, RaiseAlarm):
                self._tell_alarm(effect.text)
            else:
                assert isinstance(effect, Disconnect)
                self._sessions.clear()
                self._link.drop(self.topic.name)

    def _woke(self) -> None:
        assert self._sender is not None
        self._post(self._sender.woke)

    # ---- the target ----------------------------------------------------------------------------------------------

    def _open(self, effect: OpenOrigin) -> None:
        settings = json.dumps(_creation_settings(vars(self.topic.config)))
        opening = Opening(self.topic.name, effect.origin, effect.session, self._partitions, settings)

        def on_opened(session: TargetSession | ReplogError) -> None:
            self._events.post(lambda: self._opened(effect, session))

        def on_lost(error: ReplogError) -> None:
            assert self._sender is not None
            self._post(self._sender.lost, effect.attempt, effect.origin, error)

        self._link.open(opening, on_opened, on_lost)

    def _opened(self, effect: OpenOrigin, session: TargetSession | ReplogError) -> None:
        sender = self._sender
        assert sender is not None
        if isinstance(session, ReplogError):
            self._do(sender.lost, effect.attempt, effect.origin, session)
        elif effect.attempt == sender.attempt:
            self._sessions[effect.origin] = session
            state: OriginState = session.state
            self._do(sender.opened, effect.attempt, effect.origin, session.cluster, state)

    def _send(self, effect: SendEntries) -> None:
        sender, session = self._sender, self._sessions[effect.origin]
        assert sender is not None

        def on_stored(stored: int | ReplogError) -> None:
            if isinstance(stored, ReplogError):
                self._post(sender.failed, effect.attempt, effect.request, stored)
            else:
                self._post(sender.stored_up_to, effect.attempt, effect.request, stored)

        self._link.replicate(session, effect.entries, effect.gaps, effect.size, on_stored)

    # ---- the topic -----------------------------------------------------------------------------------------------

    def _read(self, offset: int, bytes_max: int, came: Callable[[EntryBatch | Exception], object]) -> None:
        try:
            read: AppendFuture[EntryBatch] = self.topic.managed.entries.read(offset, bytes_max=bytes_max)
        except ReplogError as error:
            self._events.post(partial(came, error))
            return

        def done(_: object) -> None:
            error = read.exception()
            self._events.post(partial(came, read.result() if error is None else _as_exception(error)))

        read.add_done_callback(done)

    def _came(self, effect: ReadEntries, batch: EntryBatch | Exception) -> None:
        sender = self._sender
        assert sender is not None
        if isinstance(batch, Exception):
            self._failed(batch)
            self._do(sender.read_failed, effect.attempt, batch, self.topic.managed.start.offset)
            return
        try:
            entries = [self._source_entry(entry) for entry in batch.entries]
        except ReplogError as error:
            self._do(sender.read_failed, effect.attempt, error, self.topic.managed.start.offset)
        else:
            self._do(sender.came, effect.attempt, entries)

    def _checked(self, effect: CheckEntry, batch: EntryBatch | Exception) -> None:
        sender = self._sender
        assert sender is not None
        if isinstance(batch, TrimmedError):
            self._do(sender.checked, effect.attempt, None)
        elif isinstance(batch, Exception):
            self._failed(batch)
            self._do(sender.lost, effect.attempt, sender.own, batch)
        else:
            self._do(sender.checked, effect.attempt, self._source_entry(batch.entries[0]))

    def _failed(self, error: Exception) -> None:
        """End if this process does not own the topic any more."""
        if isinstance(error, ClosedError | TopicFencedError):
            self.close()

    def _source_entry(self, entry: StoredEntry) -> SourceEntry:
        value, first, messages, time_us, data = entry
        if data is None:
            return SourceEntry(value, messages, first, time_us)
        attribute = OriginAttribute.from_bytes(data)
        origin = self.topic.origins.names(attribute.key) or UNKNOWN
        return SourceEntry(
            value, messages, first, time_us, origin, attribute.first, attribute.publish_time_us, attribute.gaps
        )


def _creation_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with which a target creates the topic: those here, without quotas, which would hold it up."""
    return {name: value for name, value in config.items() if not name.startswith("quota_")}


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else ReplogError(str(error))
