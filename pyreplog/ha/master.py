"""Master: a node in the role of the master. It appends, streams its log to replicas, and waits for their reports.

Appends come from this process, and in batches from clients of the group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyreplog._native.ha.client_batch import append_received
from pyreplog._native.ha.master_base import MasterBase
from pyreplog._native.log.apply_replicated import marks_of
from pyreplog._native.net.frame import CONTROL_OFFSET, encode
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import ClosedError, DeposedError, DisconnectedError, InvalidArgumentError, ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.ha.cascade import refuse
from pyreplog.ha.client_requests import ClientRefusedError
from pyreplog.ha.node_context import NodeContext, ends_of, owed_of, start_of
from pyreplog.ha.peers import Asks
from pyreplog.ha.pending_commits import PendingCommits, check_may_wait
from pyreplog.ha.producers import SNAPSHOT_BYTES, ProducerStateManager, batch_control
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.client_messages import Append, ClientRefusal, Run
from pyreplog.ha.protocol.effects import (
    Committed,
    Disconnect,
    Effect,
    Fenced,
    ModeChanged,
    Replicated,
    SendMessage,
    StoreMembers,
)
from pyreplog.ha.protocol.joining import StreamedLog
from pyreplog.ha.protocol.master_machine import MasterMachine
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.messages import Accept, Join, MembersStored, Message, ProgressReport, VoteRejected
from pyreplog.ha.protocol.stats import GroupStats
from pyreplog.ha.replica_stream import ReplicaStream
from pyreplog.log.commit_log import CommitLog
from pyreplog.net.connection import Connection
from pyreplog.net.fast_path import FastPathConnection
from pyreplog.net.sockets import weak_callback
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.syncer import Syncer
from pyreplog.stream.terms import Term
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 0.05
PROBE_US = 2_000_000
"""Microseconds between requests to members that do not follow, which ask for a higher term."""

HEARTBEAT_US = 200_000
"""Most microseconds between two messages to a replica: a replica that hears nothing considers the master lost."""

COMMIT_DELAY_S = 0.002
"""Delay before replicas learn of a new commit point: a message with each piece of data would double the cost."""


class Master(MasterBase):
    """Drives a `MasterMachine` over a log with a commit point (`gated`). Thread-safe.

    Args:
        context: what the parts of the node share.
        log: the open log.
        committed: the commit point, as far as it is known.
        ask: as `Peers.ask`.
        on_fenced: called once, without locks, when a higher term has fenced this master.
    """

    log: CommitLog
    group: MasterMachine
    _followers: dict[Connection, ReplicaStream]
    _pending_commits: PendingCommits
    _closed_error: ReplogError | None

    def __init__(
        self,
        context: NodeContext,
        log: CommitLog,
        *,
        committed: LogPosition,
        ask: Asks,
        on_fenced: Callable[[Term], object],
    ) -> None:
        self.log = log
        self._context, self._ask, self._on_fenced = context, ask, on_fenced
        self._config, self._lock, self._now_us = context.config, context.lock, context.clock.monotonic_us
        self._polls, self._drive, self._in_driver = context.polls, context.reactor.drive, context.reactor.in_driver
        terms, members = context.terms, context.members.members
        if members is None:
            raise InvalidArgumentError("members: expected at least the master itself, found none")
        self.producers = ProducerStateManager.of(log)
        self._snapshot_at = 0
        if len(self.producers):
            self._take_snapshot()
        end, synced = ends_of(log)
        source = StreamedLog(log.uuid, log.segment_bytes, terms.promised, terms.history, start_of(log), end)
        name, config, owed = self._config.name, self._config.group, owed_of(log)
        self.group = MasterMachine(name, source, synced, members, config, committed=committed, owed=owed)
        timeout_us = self._config.ack_timeout_ms * 1000
        self._pending_commits = PendingCommits(committed.position, self.offer, timeout_us, context.clock)
        self._followers = {}
        self._min_in_sync, self._is_received_enough = config.min_in_sync, config.ack == "received"
        self._is_synced = self._config.log.durability == "synced"
        self._fenced: Term | None = None
        self.is_guarded = self._min_in_sync > 0  # whether appends must be admitted first
        self._is_admitting = threading.Event()
        self._is_admitting.set()
        self._heartbeat_us = context.now_us
        self._syncer: Syncer | None = None
        self._members_error: OSError | None = None  # the error of storing members
        self._probed_us = context.now_us
        self._offered = end.position
        self.offer()
        self._timer = context.reactor.call_later(TICK_S, weak_callback(self._tick))

    # ---- appending ------------------------------------------------------------------------------------------

    def append_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[Time | None] | None,
    ) -> range:
        check_may_wait(self._context.reactor)
        if self.is_guarded:
            self._await_admission()
        entries, position = self._write(self.log.append_batch_pending, values, keys, event_times, None)
        if position is not None:
            self._wait(position)
        return entries

    def submit(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None,
        event_time: Time | None,
        properties: Mapping[str, str | bytes] | None,
    ) -> AppendFuture[int]:
        entry, position = self._write(self.log.append_pending, value, key, event_time, properties)
        if self._is_synced:
            return self._acknowledge(entry, position)
        future = AppendFuture(entry)
        if not self._pending_commits.add_of_task(position, future):
            self._pending_commits.add(position, future)
        return future

    def submit_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[Time | None] | None,
    ) -> AppendFuture[range]:
        entries, position = self._write(self.log.append_batch_pending, values, keys, event_times, None)
        if position is not None:
            return self._acknowledge(entries, position)
        nothing = AppendFuture(entries)
        set_result(nothing)
        return nothing

    # ---- batches of clients ---------------------------------------------------------------------------------

    def append_received(self, append: Append) -> AppendFuture[tuple[Run, ...]]:
        """Append the entries of a client's batch that the log lacks.

        Called by the reactor's driver, which calls `offer` after one or more batches.

        Returns:
            A future that gives the numbers of the entries when enough replicas have them.

        Raises:
            ClientRefusedError: the sequence numbers do not continue those in the log.
            InvalidRecordsError: the records are damaged. Nothing was appended.
            ReplogError: as `submit`.
        """
        client, sequence, count, records = append
        producer = self.producers.get(client)
        expected = 0 if producer is None else producer.next
        if producer is None and sequence:
            raise ClientRefusedError(ClientRefusal.UNKNOWN_CLIENT, f"no batches of client {client.hex()} are known")
        if sequence > expected:
            text = f"client {client.hex()}: expected its entry {expected} next, found entry {sequence}"
            raise ClientRefusedError(ClientRefusal.OUT_OF_ORDER, text)
        runs: tuple[Run, ...] = ()
        skip = min(expected - sequence, count)
        if producer is not None and skip:
            known = producer.numbers(sequence, skip)
            if known is None:
                text = f"entries {sequence} to {sequence + skip - 1} of client {client.hex()} are too old: "
                text += "their numbers are not stored any more"
                raise ClientRefusedError(ClientRefusal.UNKNOWN_CLIENT, text)
            runs, position = known, producer.position
        if skip < count:
            sequence, left = sequence + skip, count - skip
            control = batch_control(client, sequence, left)
            first, position = self._write(append_received, self.log, records, count, skip, control)
            self.producers.use(client).add(sequence, first, left, position)
            runs = (*runs, Run(first, left))
            self._snapshot_if_due(position)
        future = AppendFuture[tuple[Run, ...]](runs)
        self._pending_commits.watch(position, future)
        if self._is_synced:
            self.log.when_synced(None, position).add_done_callback(self._synced)
        return future

    def _snapshot_if_due(self, end: int) -> None:
        """Append a snapshot of the producers at intervals, so that a new master need not read far back."""
        if end - self._snapshot_at >= SNAPSHOT_BYTES:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        _, position = self.log.append_batch_pending([], None, None, self.producers.snapshot())
        assert position is not None, "a control record has a position"
        self._snapshot_at = position

    # ---- writing and waiting --------------------------------------------------------------------------------

    def _write(self, write: Callable[..., T], *arguments: Any) -> T:
        """Write to the log if appends are admitted. After a change of role, raise the error for that, not that of the
        closed log."""
        if self.is_guarded:
            self._admit()
        try:
            return write(*arguments)
        except ClosedError as closed:
            self._admit()
            raise self._closed_error or closed from None

    def _refuse_to_wait(self) -> None:
        check_may_wait(self._context.reactor)

    def _admit(self) -> None:
        with self._lock:
            self.group.admit(self._now_us())

    def _await_admission(self) -> None:
        """Wait while this master hands over, until another node is master or this one admits appends again."""
        while not self._is_admitting.wait(TICK_S):
            with self._lock:
                self._guard()

    def _guard(self) -> None:
        """Decide whether appends must be admitted before they are written. Called under the lock."""
        is_held = self._fenced is None and not self._closed and bool(self.group.successor(self._now_us()))
        self.is_guarded = is_held or self._min_in_sync > 0 or self._fenced is not None
        if is_held:
            self._is_admitting.clear()
        else:
            self._is_admitting.set()

    def _wait(self, position: int) -> None:
        """Wait until all entries before `position` are committed. Meanwhile this thread sends them, and receives the
        reports."""
        if self._is_synced:
            self.log.wait_synced(position)
        self.offer()
        self._pending_commits.wait(position, self._drive)

    def _acknowledge(self, result: T, position: int) -> AppendFuture[T]:
        future = AppendFuture(result)
        if self._is_synced:
            self._pending_commits.watch(position, future)
            self.log.when_synced(None, position).add_done_callback(self._synced)
        else:
            self._pending_commits.add(position, future)
        return future

    def _synced(self, future: AppendFuture[None]) -> None:
        """Offer the entries of a group commit once, after the sync, for all of its appends."""
        error = future.exception()
        if error is not None:
            self._pending_commits.fail(error)
        elif ends_of(self.log)[0].position > self._offered:
            self.offer()

    # ---- streaming ------------------------------------------------------------------------------------------

    def _pump(self, followers: Iterable[ReplicaStream], waits: bool, /) -> None:
        with defer_sigint:
            for follower in followers:
                follower.sender.pump()
            if not waits:
                if self._syncer is not None:
                    self._syncer.grew()
                self._do(self._grown)

    def _grown(self, now_us: int) -> list[Effect]:
        return self.group.appended(*self._ends(), now_us)

    def _ends(self) -> tuple[LogPosition, LogPosition]:
        """Return the ends of the log for the state machine. Called under the lock, so that they never go back."""
        end, synced, _ = marks_of(self.log)
        self._offered = end.position
        return end, synced

    def join(self, connection: Connection, join: Join) -> None:
        """Accept or refuse a replica that wants to follow."""
        self.log.lower_retention_floor(0)  # retention waits until the position that the replica needs is known
        self._do(lambda now_us: self._joined(connection, join, now_us))
        self._set_retention_floor()
        if (follower := self._followers.get(connection)) is not None:
            follower.send_commit(self.group.commit)
            follower.sender.pump()

    def _joined(self, connection: Connection, join: Join, now_us: int) -> list[Effect]:
        """Join a replica with the present start of the log: retention may have trimmed it since the last tick."""
        self.group.trimmed(start_of(self.log))
        return [*self._grown(now_us), *self.group.join(connection, join, now_us)]

    def progress(self, connection: Connection, progress: ProgressReport) -> None:
        """Take the report of a replica; an ordinary one takes the fast path of its stream."""
        if (follower := self._followers.get(connection)) is None:
            return
        feed, reported = follower.feed, progress.received.position
        if reported > follower.reported:
            follower.reported = reported
        with self._lock:
            if follower.reported > self._offered:  # the state machine does not know these entries yet
                self.group.grew(*self._ends())
            self._carry_out_all(self.group.progress(connection, progress, feed.position, self._now_us()))
        self._reported(follower)

    def stored(self, connection: Connection, stored: MembersStored) -> None:
        self._do(lambda now_us: self.group.members_stored(connection, stored.version, now_us))

    def drained(self, connection: Connection) -> None:
        if (follower := self._followers.get(connection)) is not None:
            follower.sender.drained()

    def disconnected(self, connection: Connection) -> None:
        if (follower := self._followers.pop(connection, None)) is not None:
            follower.sender.closed()
        with self._lock:
            self.group.disconnected(connection, self._now_us())

    def probed(self, answer: Message | ReplogError) -> None:
        """Take the answer of a member to `probe`."""
        if isinstance(answer, VoteRejected):
            self._do(lambda now_us: self.group.vote_rejected(answer, now_us))

    def fence(self, term: Term) -> None:
        """Stop acknowledging, because this node is about to promise a higher term."""
        self._do(lambda now_us: self.group.fence(term, now_us))

    def hold(self, member: str) -> None:
        """Hold appends back for a candidate that is about to take over, so that it catches up."""
        with self._lock:
            before = self.group.successor(self._now_us())
            self.group.hold(member, self._now_us())
            self._guard()
            successor = self.group.successor(self._now_us())
        if successor != before:
            logger.info("%s: appends wait while %s catches up to take over", self.log.path, successor)
        self.offer()

    def release(self, member: str) -> None:
        """Admit appends again, because the candidate does not take over."""
        with self._lock:
            was_held = self.group.successor(self._now_us()) == member
            self.group.release(member)
            self._guard()
        if was_held:
            logger.info("%s: %s does not take over: appends go on", self.log.path, member)

    @property
    def stalled_us(self) -> int:
        """Microseconds for which entries have waited without a commit, as `MasterMachine.stalled_us`."""
        with self._lock:
            return self.group.stalled_us(self._now_us())

    def change_members(self, names: Iterable[str], sync_replicas: int, *, force: bool) -> None:
        wanted, self._members_error = list(names), None
        self._do(lambda _: self.group.change_members(wanted, sync_replicas, force=force))
        self._set_retention_floor()
        if self._members_error is not None:
            raise self._members_error

    def stats(self) -> GroupStats:
        self._do(self._grown)
        with self._lock:
            return self.group.stats(self._now_us())

    # ---- effects --------------------------------------------------------------------------------------------

    def _do(self, event: Callable[[int], list[Effect]]) -> None:
        """Process one event, and carry out its effects in order."""
        with defer_sigint:
            with self._lock:
                deposed_by = self._carry_out_all(event(self._now_us()))
            self._pending_commits.drain()
        if deposed_by is not None:
            self._fail_deposed(deposed_by)

    def _carry_out_all(self, effects: list[Effect]) -> Term | None:
        """Carry out effects; called under the lock. Return the term that deposes this master, which the caller reports
        without the lock."""
        deposed_by = None
        for effect in effects:
            if isinstance(effect, Committed):
                self._committed(effect.mark)
            elif isinstance(effect, Fenced):
                deposed_by = self._fenced = effect.term
                self._guard()
            elif isinstance(effect, StoreMembers):
                if not self._store(effect.members):
                    break
            else:
                self._carry_out(effect)
        return deposed_by

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, SendMessage):
            assert isinstance(effect.connection, Connection)
            self._send(effect.connection, effect.message)
        elif isinstance(effect, Disconnect):
            assert isinstance(effect.connection, Connection)
            refuse(effect.connection, effect.refusal)
            who = effect.connection.peer.identity.node or "a replica"
            logger.warning("%s: %s is refused: %s", self.log.path, who, effect.refusal.text)
        elif isinstance(effect, ModeChanged):
            how = "appends go on without replicas" if effect.asynchronous else "appends wait for replicas again"
            logger.warning("%s: %s", self.log.path, how)
            self._set_background_sync(effect.asynchronous)
            self.log.tail.unreplicated |= effect.asynchronous  # readers learn of it before they see more
        elif isinstance(effect, Replicated):
            self.log.tail.unreplicated = False
            self._send_commit_soon()

    def _set_background_sync(self, is_alone: bool) -> None:
        """Sync the log in the background while the master commits without replicas, unless each append does: such a
        master acknowledges what is on its disk."""
        syncer, self._syncer = self._syncer, None
        if syncer is not None:
            syncer.stop()
        if is_alone and not self._is_synced:
            self._syncer = Syncer(self.log, lambda: self._do(self._grown), self._pending_commits.fail)

    def _store(self, members: Members) -> bool:
        """Store the members, and return whether that succeeded; if not, all replicas have to join again."""
        file = self._context.members
        try:
            file.store(members)
        except OSError as error:
            self._members_error = error
            self.group.discard_members(file.members or self.group.members)
            for connection in list(self._followers):
                connection.close(DisconnectedError(f"members could not be stored: {error}"))
        return file.members == members

    def _send(self, connection: Connection, message: Message) -> None:
        connection.send(encode(CONTROL_OFFSET, messages.encode(message)))
        if isinstance(message, Accept):
            follower = ReplicaStream.begin(self._context, connection, self.log, message.resume)
            self._followers[connection], follower.master = follower, self
            if isinstance(connection, FastPathConnection):
                connection.use_fast_path(follower.fast_path)

    def _send_commit_soon(self) -> None:
        if not self._is_commit_due and self._followers and not self._closed:
            self._is_commit_due = True
            self._context.reactor.call_later(COMMIT_DELAY_S, weak_callback(self._send_commit_to_all))

    def _send_commit_to_all(self) -> None:
        self._is_commit_due = False
        for follower in list(self._followers.values()):
            follower.send_commit(self.group.commit)

    def _send_heartbeats(self) -> None:
        """Send heartbeats with the commit point to replicas."""
        if (now_us := self._now_us()) - self._heartbeat_us >= HEARTBEAT_US:
            self._heartbeat_us = now_us
            for follower in list(self._followers.values()):
                follower.send_commit(self.group.commit, again=True)

    def _fail_deposed(self, term: Term) -> None:
        self._pending_commits.fail(DeposedError(f"term {term} took over while this append waited", term))
        self._on_fenced(term)

    # ---- time -----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        try:
            if len(self.producers) and not self.is_guarded:
                self._snapshot_if_due(self.log.tail.end)
            self._do(lambda now_us: [*self._grown(now_us), *self.group.tick(now_us)])
            self._pending_commits.tick()
            with self._lock:
                self._guard()
            self._send_heartbeats()
            self._set_retention_floor()
            self._probe()
            self.offer()
        finally:
            self._timer = self._context.reactor.call_later(TICK_S, weak_callback(self._tick))

    def _set_retention_floor(self) -> None:
        """Set the retention floor, so that the log is kept for replicas."""
        with self._lock:
            floor = self.group.floor(self._now_us())
            self.log.retention_floor = 1 << 62 if floor is None else floor
            self.group.trimmed(start_of(self.log))

    def _probe(self) -> None:
        """Ask members that do not follow whether there is a higher term."""
        if self._fenced is not None or (now_us := self._now_us()) - self._probed_us < PROBE_US:
            return
        with self._lock:
            absent = self.group.absent()
        for member in absent:
            self._probed_us = now_us
            self._ask(member, self.group.probe, self.probed)

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self, resigned: ReplogError | None = None) -> None:
        """Send replicas the last commit point, close their connections, fail waiting appends, and close the log.

        resigned: the error of later appends, when the node changes its role.
        """
        self._closed, self._closed_error = True, resigned
        self._is_admitting.set()
        self._timer.cancel()
        self._set_background_sync(False)
        closed = DeposedError("the master was closed while this append waited", self.group.term)
        self._pending_commits.fail(self._pending_commits.failure or closed)
        for connection, follower in list(self._followers.items()):
            follower.send_commit(self.group.commit)
            follower.sender.closed()
            connection.close()
        self.log.close()
