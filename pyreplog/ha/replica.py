"""Replica: a node in the role of a replica. It joins its master, copies the stream into its log, and reports."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyreplog._native.ha.stream_receiver_base import ProgressReporter
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import DisconnectedError, InvalidMessageError, JoinRefusedError, ReplogError
from pyreplog.ha.cascade import Cascade, refuse
from pyreplog.ha.node_context import NodeContext, shown_of, start_of
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.effects import (
    CreateLog,
    DisconnectFromMaster,
    Effect,
    Joined,
    SendToMaster,
    ShowCommitted,
    StoreMembers,
    StoreTerms,
    TruncateLog,
)
from pyreplog.ha.protocol.joining import StreamedLog, check_join_of_copy
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    Accept,
    Commit,
    Join,
    MembersStored,
    ProgressReport,
    RefusalCode,
    Refuse,
)
from pyreplog.ha.protocol.replica_machine import ReplicaMachine
from pyreplog.ha.protocol.retention_hold import floor_of_copy
from pyreplog.log import replica as replicas
from pyreplog.net.connection import Connection
from pyreplog.net.dialer import ReconnectingConnection
from pyreplog.net.handshake import NodeIdentity
from pyreplog.net.sockets import Address
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.receiver import StreamReceiver
from pyreplog.stream.terms import Terms

logger = logging.getLogger(__name__)

_LASTS_US = 1_000_000
"""A connection that lasted for so many microseconds counts as useful, even if it brought no records."""


class Replica:
    """Drives a `ReplicaMachine` and its `StreamReceiver`. Thread-safe.

    Args:
        context: what the parts of the node share.
        log: the copy of the master's log; None: it is created once the replica has joined a master.
        master: address of the master; None: `follow` gives it.
        on_log: called when a log was created.
        on_landed: called by the reactor's driver after each read from the master.
        holds: whether it sets the retention floor of the log; otherwise the caller does.
    """

    def __init__(
        self,
        context: NodeContext,
        log: MirrorLog | None,
        master: Address | None,
        on_log: Callable[[MirrorLog], object],
        on_landed: Callable[[], object] | None = None,
        *,
        holds: bool = True,
    ) -> None:
        self.log = log
        self.error: ReplogError | None = None
        """Why it does not follow, and will not without an operator; None: it follows, or tries to."""
        self._context, self._on_log, self._holds = context, on_log, holds
        committed = ORIGIN if log is None else shown_of(log)
        self.following = ReplicaMachine(
            context.config.name,
            NO_UUID if log is None else log.uuid,
            0 if log is None else log.segment_bytes,
            context.terms.terms,
            committed=committed,
            unreplicated=log is not None and log.unreplicated,
            observer=context.config.observer,
        )
        self._reporter = ProgressReporter(self.following, context.lock)
        if not holds:
            self._reporter.floor_due_at = 1 << 62
        self._receiver = StreamReceiver(
            on_opened=self._on_opened, on_control=self._on_control, on_progress=self._on_progress,
            on_closed=self._on_closed, on_landed=on_landed, reporter=self._reporter,
        )  # fmt: skip
        self._master_connection: ReconnectingConnection | None = None
        self._joining_address: Address | None = None  # address of the present connection, or of the last one
        self._cascade: Cascade | None = None
        self._joined: tuple[int, int] | None = None  # end of the log when the stream began, and the time of that
        self._was_useful = True  # whether the last connection was useful
        self._last_message_us = 0  # time of the master's last message
        self._set_retention_floor()
        if master is not None:
            self.follow(master)

    def follow(self, master: Address) -> None:
        """Join the master at an address, and leave the present one."""
        with self._context.lock:
            self.error = None
            if self._master_connection is not None:
                self._master_connection.redirect(master)
            else:
                self._dial(master)

    def _dial(self, master: Address) -> None:
        context = self._context
        self._master_connection = ReconnectingConnection(
            context.reactor, master, self._receiver, identity=context.identity,
            expected=NodeIdentity(service=context.identity.service), secret=context.secret, tls=context.tls[1],
            limits=context.limits,
        )  # fmt: skip

    def pause(self) -> None:
        """Stop reading from the master until `resume`. Never blocks."""
        self._receiver.pause()

    def resume(self) -> None:
        self._receiver.resume()

    @property
    def master(self) -> Address | None:
        """Address at which the replica looks for its master; None: unknown."""
        return None if self._master_connection is None else self._master_connection.address

    @property
    def is_streaming(self) -> bool:
        return self.following.is_streaming

    @property
    def silent_us(self) -> int:
        """Microseconds since the master's last message."""
        return self._context.now_us - self._last_message_us

    @property
    def leader(self) -> str:
        """Name of the master that streams to this replica; "": no stream, or that of another replica."""
        accepted = self.following.accepted
        return "" if accepted is None or not self.is_streaming or self.following.observer else accepted.term.master

    @property
    def trouble(self) -> str:
        """Why there is no stream; "": there is one."""
        if self.is_streaming:
            return ""
        error = self.error or (self._master_connection.error if self._master_connection is not None else None)
        return (
            str(error)
            if error is not None
            else "joining"
            if self._master_connection is not None
            else "no master is known"
        )

    @property
    def _commit(self) -> Commit:
        """The message with the commit point for the observers that follow this replica."""
        following, log = self.following, self.log
        return Commit(following.committed, 0 if log is None else log.start_position, following.unreplicated)

    def source(self) -> StreamedLog:
        """Return the state of the log, for observers that copy it. Called under the lock, and only with a log."""
        log, terms = self.log, self._context.terms
        assert log is not None, "a replica without a log accepts no observers"
        accepted = self.following.accepted
        term = terms.history.last if accepted is None else accepted.term
        return StreamedLog(log.uuid, log.segment_bytes, term, terms.history, start_of(log), ends_of_replica(log)[0])

    # ---- observers of this replica --------------------------------------------------------------------------

    def join(self, connection: Connection, join: Join) -> None:
        """Accept an observer, or refuse a member. Retention stops until the position that the observer needs is
        known."""
        if (log := self.log) is not None and self._holds:
            log.lower_retention_floor(0)
        with self._context.lock:
            log = self.log
            if log is None or not join.observer:
                answer: Accept | Refuse = Refuse(
                    RefusalCode.NOT_MASTER, f"{self._context.config.name} is no master: {self.where()}"
                )
            else:
                answer = check_join_of_copy(join, self.source(), self._context.config.name)
            if isinstance(answer, Refuse):
                refuse(connection, answer)
            elif log is not None:
                if self._cascade is None:
                    self._cascade = Cascade(self._context, log, self._commit)
                self._cascade.join(connection, answer, join.synced.position)
            self._set_retention_floor()

    def progress(self, connection: Connection, progress: ProgressReport) -> None:
        if self._cascade is not None:
            self._cascade.progress(connection, progress)

    def stored(self, connection: Connection, stored: MembersStored) -> None:
        """Ignore that an observer has stored the members: observers do not count."""

    def drained(self, connection: Connection) -> None:
        if self._cascade is not None:
            self._cascade.drained(connection)

    def disconnected(self, connection: Connection) -> None:
        if self._cascade is not None:
            self._cascade.closed(connection)
            self._set_retention_floor()

    def _close_cascade(self, why: str) -> None:
        """Disconnect the observers: what they received may not be valid any more, so they have to join again."""
        cascade, self._cascade = self._cascade, None
        if cascade is not None:
            cascade.close(DisconnectedError(why))
            self._set_retention_floor()

    def _set_retention_floor(self) -> None:
        """Set the retention floor: keep the log for observers, and for members that may follow this node."""
        log, cascade = self.log, self._cascade
        if log is None or not log.is_usable or not self._holds:
            return
        config, end = self._context.config, log.tail.end
        held = None if config.observer else self.following.log_start
        floor = floor_of_copy(held, () if cascade is None else cascade.needed, end, config.group.retention_hold_bytes)
        self._reporter.floor_due_at = end + log.segment_bytes
        log.retention_floor = 1 << 62 if floor is None else floor

    def where(self) -> str:
        """Return where the master is, as a clause for errors."""
        master = self.master
        return "it knows of none" if master is None else f"its master is at {master[0]}:{master[1]}"

    def promised(self, terms: Terms) -> None:
        """Stop receiving from masters of lower terms, before a promise is stored. Called under the lock."""
        self._carry_out_all(self.following.promised(terms))

    # ---- events of the connection ---------------------------------------------------------------------------

    def _on_opened(self) -> None:
        log = self.log
        start, received, synced = ORIGIN, ORIGIN, ORIGIN
        self._joining_address = self.master
        if log is not None:
            start, (received, synced) = start_of(log), ends_of_replica(log)
        self._do(lambda: self.following.connected(start, received, synced))

    def _on_control(self, body: bytes) -> None:
        """Take a message of the master. InvalidMessageError ends the connection."""
        message = messages.decode(body)
        self._last_message_us = self._context.now_us
        if isinstance(message, Accept) and self._master_connection is not None and self._was_useful:
            self._master_connection.succeeded()
        self._do(lambda: self.following.message_received(message))
        self._set_retention_floor()

    def _on_progress(self, *_seen: LogPosition) -> None:
        """Report progress, where the reporter did not; called often, so it does less than `_do`.

        The lock is held from the read of the ends until the report is sent, so that reports keep their order. The given
        positions are ignored: another thread may have reported later ones since, or have truncated the log.
        """
        with self._context.lock:
            log = self.log
            if log is None:
                return
            received, synced = log.progress
            report = self.following.progressed(received, synced)
            if report is not None:
                self._receiver.send(messages.encode(report))
            if received.position >= self._reporter.floor_due_at:
                self._set_retention_floor()

    def _on_closed(self, error: ReplogError) -> None:
        with self._context.lock:
            self.following.disconnected()
            self._note_usefulness(error)
        logger.info("%s: the connection to the master ended: %s", self._context.path, error)

    def _note_usefulness(self, error: ReplogError) -> None:
        """Note whether the connection was useful.

        After a useless one the replica pauses before it connects again: one that ended where it began, for example at a
        damaged record, or one that another process with the same name has taken over.
        """
        joined, self._joined = self._joined, None
        if joined is not None and self.log is not None:
            brought, lasted = self.log.received_end > joined[0], self._context.now_us - joined[1] >= _LASTS_US
            is_replaced = isinstance(error, JoinRefusedError) and error.code == RefusalCode.REPLACED
            self._was_useful = (brought or lasted) and not is_replaced

    # ---- effects --------------------------------------------------------------------------------------------

    def _do(self, event: Callable[[], list[Effect]]) -> None:
        with defer_sigint, self._context.lock:
            self._carry_out_all(event())

    def _carry_out_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, SendToMaster):
            self._receiver.send(messages.encode(effect.message))
        elif isinstance(effect, ShowCommitted):
            self._show_committed(effect)
        elif isinstance(effect, StoreTerms):
            self._close_cascade("the log has another master now")
            self._context.terms.follow(effect.term, effect.history)
        elif isinstance(effect, StoreMembers):
            self._context.members.store(effect.members)
        elif isinstance(effect, DisconnectFromMaster):
            self._leave_master(effect)
        elif isinstance(effect, CreateLog):
            self._create_log(effect)
        else:
            self._begin_stream(effect)

    def _show_committed(self, effect: ShowCommitted) -> None:
        if (log := self.log) is not None:
            log.tail.unreplicated |= effect.unreplicated
            log.show(*effect.committed)
            if (polls := self._context.polls) is not None and polls.waiting:
                polls.wake()
            log.tail.unreplicated = effect.unreplicated
        if self._cascade is not None:
            self._cascade.send_commit(self._commit)

    def _begin_stream(self, effect: Effect) -> None:
        log = self.log
        if log is None:
            raise InvalidMessageError("a stream begins before there is a log for it")
        if isinstance(effect, TruncateLog):
            self._close_cascade("the log is cut")
            log.cut(*effect.to)
        elif isinstance(effect, Joined):
            self.error = None
            self._receiver.stream(log, syncs=self._context.config.log.durability == "synced")
            self._joined = log.received_end, self._context.now_us
            self._carry_out_all(self.following.joined(*ends_of_replica(log)))

    def _create_log(self, make: CreateLog) -> None:
        """Create the log, in place of an empty one. An empty log of the same uuid and start is kept."""
        context, log = self._context, self.log
        is_open = log is not None and log.is_usable
        if log is not None and is_open and (log.uuid, start_of(log)) == (make.uuid, make.start):
            return
        self._close_cascade("the log is made anew")
        if log is not None:
            log.close()
            replicas.remove(context.path, context.files)
        self.log = MirrorLog.create(
            context.path, context.config.log, uuid=make.uuid, segment_bytes=make.segment_bytes, start=make.start,
            clock=context.clock, files=context.files,
        )  # fmt: skip
        self.log.tail.unreplicated = self.following.unreplicated
        self._set_retention_floor()
        self._on_log(self.log)

    def _leave_master(self, leave: DisconnectFromMaster) -> None:
        is_early = isinstance(leave.error, JoinRefusedError) and leave.error.code == RefusalCode.NOT_MASTER
        level = logging.ERROR if leave.permanent else logging.INFO if is_early else logging.WARNING
        logger.log(level, "%s: this replica does not follow: %s", self._context.path, leave.error)
        self._receiver.disconnect(leave.error if isinstance(leave.error, ReplogError) else JoinRefusedError(0, ""))
        self._receiver.stop()
        if leave.permanent and self._joining_address == self.master:  # otherwise the node follows another master by now
            self.error = leave.error
            self._drop_connection()

    def _drop_connection(self) -> None:
        master_connection, self._master_connection = self._master_connection, None
        if master_connection is not None:
            master_connection.close()

    # ---- closing --------------------------------------------------------------------------------------------

    def leave(self) -> MirrorLog | None:
        """Stop following; the log stays open."""
        self._drop_connection()
        self._receiver.stop()
        with self._context.lock:
            self.following.disconnected()
            self._close_cascade("the node's role changes")
        return self.log

    def close(self) -> None:
        log = self.leave()
        if log is not None:
            log.close()


def ends_of_replica(log: MirrorLog) -> tuple[LogPosition, LogPosition]:
    """Return the ends (received, synced) of the log of a replica."""
    return log.received_mark, log.synced_mark
