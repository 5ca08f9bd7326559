"""A node as master: appends, streams its log to replicas, and waits until enough of them have what was appended.

Appends are those of this process, and batches of clients of the group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyreplog._native.ha.client_batch import append_received
from pyreplog._native.log.apply_replicated import marks_of, show_up_to
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
"""Members that do not follow are asked so often whether there is a newer master."""

BEAT_US = 200_000
"""The longest time between two messages to a replica. A replica that hears nothing for longer misses its master."""

TELL_S = 0.002
"""Replicas hear of the commit point after so long, and at the end: with each piece of data would cost as much again."""


class Master:
    """Drives a `MasterMachine` over a log that was opened with a commit point (`gated`); any thread may call anything.

    ask: as `Peers.ask`. on_fenced: called once, with no lock held, when this node is no master any more.
    """

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
        self._followers: dict[Connection, ReplicaStream] = {}
        self._telling = False
        self._least, self._is_received_enough = config.min_in_sync, config.ack == "received"
        self._is_synced = self._config.log.durability == "synced"
        self._fenced: Term | None = None
        self._is_guarded = self._least > 0  # appends have to ask whether they are admitted
        self._admits = threading.Event()
        self._admits.set()
        self._beat_us = context.now_us
        self._syncer: Syncer | None = None
        self._unstored: OSError | None = None  # why members were not stored
        self._probed_us = context.now_us
        self._closed = False
        self._resigned: ReplogError | None = None  # what an append is told that comes too late
        self._offered = end.position
        self.offer()
        self._timer = context.reactor.call_later(TICK_S, weak_callback(self._tick))

    # ---- appending ------------------------------------------------------------------------------------------

    def append(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None,
        event_time: Time | None,
        properties: Mapping[str, str | bytes] | None,
    ) -> int:
        check_may_wait(self._context.reactor)
        if self._is_guarded:
            self._await_admission()
        entry, position = self._write(self.log.append_pending, value, key, event_time, properties)
        self._wait(position)
        return entry

    def append_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[Time | None] | None,
    ) -> range:
        check_may_wait(self._context.reactor)
        if self._is_guarded:
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

    # ---- appending of clients -------------------------------------------------------------------------------

    def append_received(self, append: Append) -> AppendFuture[tuple[Run, ...]]:
        """Append what the log does not hold yet of a client's batch; the caller calls `offer` after some of them.

        By the reactor's driver. The future gives the numbers of the entries when enough replicas have them.
        Errors: ClientRefusedError; those of `submit`; InvalidRecordsError: nothing was appended.
        """
        client, sequence, count, records = append
        producer = self.producers.get(client)
        expected = 0 if producer is None else producer.next
        if producer is None and sequence:
            raise ClientRefusedError(ClientRefusal.UNKNOWN_CLIENT, f"no batches of client {client.hex()} are known")
        if sequence > expected:
            text = f"entry {sequence} of client {client.hex()} came, entry {expected} comes next"
            raise ClientRefusedError(ClientRefusal.OUT_OF_ORDER, text)
        runs: tuple[Run, ...] = ()
        skip = min(expected - sequence, count)
        if producer is not None and skip:
            known = producer.numbers(sequence, skip)
            if known is None:
                text = f"entries {sequence} to {sequence + skip - 1} of client {client.hex()} are too old to be known"
                raise ClientRefusedError(ClientRefusal.UNKNOWN_CLIENT, text)
            runs, position = known, producer.position
        if skip < count:
            sequence, left = sequence + skip, count - skip
            control = batch_control(client, sequence, left)
            first, position = self._write(append_received, self.log, records, count, skip, control)
            self.producers.use(client).add(sequence, first, left, position)
            runs = (*runs, Run(first, left))
            self._look_at_snapshot(position)
        future = AppendFuture[tuple[Run, ...]](runs)
        self._pending_commits.watch(position, future)
        if self._is_synced:
            self.log.when_synced(None, position).add_done_callback(self._synced)
        return future

    def _look_at_snapshot(self, end: int) -> None:
        """A new master need not read far back to know all clients."""
        if end - self._snapshot_at >= SNAPSHOT_BYTES:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        _, position = self.log.append_batch_pending([], None, None, self.producers.snapshot())
        assert position is not None, "a control record has a position"
        self._snapshot_at = position

    # ---- appending: the log, and appends that wait ----------------------------------------------------------

    def _write(self, write: Callable[..., T], *what: Any) -> T:
        """Into the log, if it may be. One that was closed meanwhile, for another role, says what this one says."""
        if self._is_guarded:
            self._admit()
        try:
            return write(*what)
        except ClosedError as closed:
            self._admit()
            raise self._resigned or closed from None

    def _admit(self) -> None:
        with self._lock:
            self.group.admit(self._now_us())

    def _await_admission(self) -> None:
        """While this master hands over: the other one takes over in a moment, or this one goes on."""
        while not self._admits.wait(TICK_S):
            with self._lock:
                self._guard()

    def _guard(self) -> None:
        """Have appends ask before they are written, if there is a reason. Under the lock."""
        is_held = self._fenced is None and not self._closed and bool(self.group.successor(self._now_us()))
        self._is_guarded = is_held or self._least > 0 or self._fenced is not None
        if is_held:
            self._admits.clear()
        else:
            self._admits.set()

    def _wait(self, position: int) -> None:
        """Until all before `position` is committed; this thread sends it, and receives the reports, while it waits."""
        if self._is_synced:
            self.log.wait_synced(position)
        self.offer()
        self._pending_commits.wait(position, self._context.reactor.drive)

    def _acknowledge(self, result: T, position: int) -> AppendFuture[T]:
        future = AppendFuture(result)
        if self._is_synced:
            self._pending_commits.watch(position, future)
            self.log.when_synced(None, position).add_done_callback(self._synced)
        else:
            self._pending_commits.add(position, future)
        return future

    def _synced(self, future: AppendFuture[None]) -> None:
        """A group commit is over; one of its appends offers for all of them."""
        error = future.exception()
        if error is not None:
            self._pending_commits.fail(error)
        elif ends_of(self.log)[0].position > self._offered:
            self.offer()

    # ---- streaming ------------------------------------------------------------------------------------------

    def offer(self) -> None:
        """The log has grown: send it to replicas that wait for more; their reports count it. To those about to report,
        and when more threads are about to append, it is sent by that."""
        group = self.group
        # Whether what the master has makes no difference to the commit point before a replica has it, too.
        waits = self._is_received_enough and group.members.quorum.k > 0 and not group.fallback.is_alone
        if waits and self._pending_commits.lot.is_waking:
            return
        due = [each for each in list(self._followers.values()) if each.is_due and not each.sender.feed.leave()]
        if waits and not due:
            return
        with defer_sigint:
            for follower in due:
                follower.sender.pump()
            if not waits:
                if self._syncer is not None:
                    self._syncer.grew()
                self._do(self._grown)

    def _grown(self, now_us: int) -> list[Effect]:
        return self.group.appended(*self._ends(), now_us)

    def _ends(self) -> tuple[LogPosition, LogPosition]:
        """Of the log, which the group is about to be told. Under the lock: it is never told of less again."""
        end, synced, _ = marks_of(self.log)
        self._offered = end.position
        return end, synced

    def join(self, connection: Connection, join: Join) -> None:
        """A replica wants to follow."""
        self.log.lower_retention_floor(0)  # nothing is removed before it is known what this one needs
        self._do(lambda now_us: self._joined(connection, join, now_us))
        self._hold()
        if (follower := self._followers.get(connection)) is not None:
            follower.tell(self.group.commit)
            follower.sender.pump()

    def _joined(self, connection: Connection, join: Join, now_us: int) -> list[Effect]:
        """What retention has removed since the last tick cannot be streamed any more."""
        self.group.trimmed(start_of(self.log))
        return [*self._grown(now_us), *self.group.join(connection, join, now_us)]

    def progress(self, connection: Connection, progress: ProgressReport) -> None:
        """A replica reports."""
        if (follower := self._followers.get(connection)) is None:
            return
        feed, reported = follower.sender.feed, progress.received.position
        if reported > follower.reported:
            follower.reported = reported
        with self._lock:  # as `_do`, with less in between: there is one for each append
            if follower.reported > self._offered:  # it is not counted yet
                self.group.grew(*self._ends())
            self._carry_out_all(self.group.progress(connection, progress, feed.position, self._now_us()))
        self._pending_commits.drain()
        if feed.position < self.log.tail.end and not self._pending_commits.lot.is_waking:
            follower.push()

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
        """What a member says that was probed."""
        if isinstance(answer, VoteRejected):
            self._do(lambda now_us: self.group.vote_rejected(answer, now_us))

    def fence(self, term: Term) -> None:
        """This node is about to promise a higher term."""
        self._do(lambda now_us: self.group.fence(term, now_us))

    def hold(self, member: str) -> None:
        """A candidate is about to take over: appends wait, so that it catches up."""
        with self._lock:
            before = self.group.successor(self._now_us())
            self.group.hold(member, self._now_us())
            self._guard()
            heir = self.group.successor(self._now_us())
        if heir != before:
            logger.info("%s: appends wait while %s catches up to take over", self.log.path, heir)
        self.offer()

    def release(self, member: str) -> None:
        """It does not take over."""
        with self._lock:
            was_held = self.group.successor(self._now_us()) == member
            self.group.release(member)
            self._guard()
        if was_held:
            logger.info("%s: %s does not take over: appends go on", self.log.path, member)

    @property
    def stalled_us(self) -> int:
        """As of `MasterMachine`."""
        with self._lock:
            return self.group.stalled_us(self._now_us())

    def change_members(self, names: Iterable[str], sync_replicas: int, *, force: bool) -> None:
        wanted, self._unstored = list(names), None
        self._do(lambda _: self.group.change_members(wanted, sync_replicas, force=force))
        self._hold()
        if self._unstored is not None:
            raise self._unstored

    def stats(self) -> GroupStats:
        self._do(self._grown)
        with self._lock:
            return self.group.stats(self._now_us())

    # ---- steps of the machine -------------------------------------------------------------------------------

    def _do(self, event: Callable[[int], list[Effect]]) -> None:
        """One event and its effects, in their order."""
        with defer_sigint:
            with self._lock:
                deposed_by = self._carry_out_all(event(self._now_us()))
            self._pending_commits.drain()
        if deposed_by is not None:
            self._tell_deposed(deposed_by)

    def _carry_out_all(self, effects: list[Effect]) -> Term | None:
        """Under the lock. The term that deposes this master, which is to be told without it."""
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
            self._tell(effect.connection, effect.message)
        elif isinstance(effect, Disconnect):
            assert isinstance(effect.connection, Connection)
            refuse(effect.connection, effect.refusal)
            who = effect.connection.peer.identity.node or "a replica"
            logger.warning("%s: %s is refused: %s", self.log.path, who, effect.refusal.text)
        elif isinstance(effect, ModeChanged):
            how = "not waited for any more" if effect.asynchronous else "waited for again"
            logger.warning("%s: replicas are %s", self.log.path, how)
            self._sync_always(effect.asynchronous)
            self.log.tail.unreplicated |= effect.asynchronous  # readers learn of it before they see more
        elif isinstance(effect, Replicated):
            self.log.tail.unreplicated = False
            self._tell_soon()

    def _sync_always(self, is_alone: bool) -> None:
        """A master that goes on alone acknowledges what it has on disk; a log that is not synced by itself is then."""
        syncer, self._syncer = self._syncer, None
        if syncer is not None:
            syncer.stop()
        if is_alone and not self._is_synced:
            self._syncer = Syncer(self.log, lambda: self._do(self._grown), self._pending_commits.fail)

    def _store(self, members: Members) -> bool:
        """Whether the disk took them; if not, all replicas join again."""
        file = self._context.members
        try:
            file.store(members)
        except OSError as error:
            self._unstored = error
            self.group.discard_members(file.members or self.group.members)
            for connection in list(self._followers):
                connection.close(DisconnectedError(f"members could not be stored: {error}"))
        return file.members == members

    def _tell(self, connection: Connection, message: Message) -> None:
        connection.send(encode(CONTROL_OFFSET, messages.encode(message)))
        if isinstance(message, Accept):
            self._followers[connection] = ReplicaStream.begin(self._context, connection, self.log, message.resume)

    def _committed(self, mark: LogPosition) -> None:
        show_up_to(self.log, *mark)
        self._pending_commits.advance(mark.position)
        if (polls := self._context.polls) is not None and polls.waiting:
            polls.wake()
        self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._telling and self._followers and not self._closed:
            self._telling = True
            self._context.reactor.call_later(TELL_S, weak_callback(self._tell_all))

    def _tell_all(self) -> None:
        self._telling = False
        for follower in list(self._followers.values()):
            follower.tell(self.group.commit)

    def _beat(self) -> None:
        """Replicas hear that their master lives."""
        if (now_us := self._now_us()) - self._beat_us >= BEAT_US:
            self._beat_us = now_us
            for follower in list(self._followers.values()):
                follower.tell(self.group.commit, again=True)

    def _tell_deposed(self, term: Term) -> None:
        self._pending_commits.fail(DeposedError(f"term {term} took over while this append waited", term))
        self._on_fenced(term)

    # ---- time -----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        try:
            if len(self.producers) and not self._is_guarded:
                self._look_at_snapshot(self.log.tail.end)
            self._do(lambda now_us: [*self._grown(now_us), *self.group.tick(now_us)])
            self._pending_commits.tick()
            with self._lock:
                self._guard()
            self._beat()
            self._hold()
            self._probe()
            self.offer()
        finally:
            self._timer = self._context.reactor.call_later(TICK_S, weak_callback(self._tick))

    def _hold(self) -> None:
        """What replicas need is not removed."""
        with self._lock:
            floor = self.group.floor(self._now_us())
            self.log.retention_floor = 1 << 62 if floor is None else floor
            self.group.trimmed(start_of(self.log))

    def _probe(self) -> None:
        """Members that are away are asked for a newer master."""
        if self._fenced is not None or (now_us := self._now_us()) - self._probed_us < PROBE_US:
            return
        with self._lock:
            absent = self.group.absent()
        for member in absent:
            self._probed_us = now_us
            self._ask(member, self.group.probe, self.probed)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, resigned: ReplogError | None = None) -> None:
        """Tell replicas the last commit point, close their connections, fail appends that wait, and close the log.

        resigned: the error of appends that come later, when the node goes on in another role.
        """
        self._closed, self._resigned = True, resigned
        self._admits.set()
        self._timer.cancel()
        self._sync_always(False)
        closed = DeposedError("the master was closed while this append waited", self.group.term)
        self._pending_commits.fail(self._pending_commits.failure or closed)
        for connection, follower in list(self._followers.items()):
            follower.tell(self.group.commit)
            follower.sender.closed()
            connection.close()
        self.log.close()
