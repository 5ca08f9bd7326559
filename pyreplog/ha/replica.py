"""A node as replica: joins its master, takes the stream into its own log, reports."""

from __future__ import annotations

import logging
from collections.abc import Callable

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
"""A connection that lasts so long was of use, though nothing may have come of it."""


class Replica:
    """Drives a `ReplicaMachine` and its `StreamReceiver`; any thread may call anything.

    log: a copy that is here already; None: the master's is made when it is known. on_log: called when one was made.
    on_landed: called by the driver after each read from the master. holds: whether it tells retention what to keep;
    else its caller does.
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
        """Why it does not follow, and will not by itself; None: it does, or tries."""
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
        self._receiver = StreamReceiver(
            on_opened=self._opened, on_control=self._heard, on_progress=self._progressed, on_closed=self._closed,
            on_landed=on_landed,
        )  # fmt: skip
        self._master_connection: ReconnectingConnection | None = None
        self._joins: Address | None = None  # where the present connection leads, or the last one did
        self._chain: Cascade | None = None
        self._joined: tuple[int, int] | None = None  # where the log went on, and when
        self._was_of_use = True  # the connection before
        self._heard_us = 0  # when the master spoke last
        self._held_until = 0  # with the log's end there, it is time to look again at what is held
        self._hold()
        if master is not None:
            self.follow(master)

    def follow(self, master: Address) -> None:
        """Join the master at an address; that of now is left."""
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
        """Read nothing more from the master, and go on with `resume`. Any thread; never blocks."""
        self._receiver.pause()

    def resume(self) -> None:
        self._receiver.resume()

    @property
    def master(self) -> Address | None:
        """Where it looks for its master."""
        return None if self._master_connection is None else self._master_connection.address

    @property
    def is_streaming(self) -> bool:
        return self.following.is_streaming

    @property
    def silent_us(self) -> int:
        """For how long its master has said nothing."""
        return self._context.now_us - self._heard_us

    @property
    def leader(self) -> str:
        """Name of the master whose stream it takes; "" there is none, or it is a replica's."""
        accepted = self.following.accepted
        return "" if accepted is None or not self.is_streaming or self.following.observer else accepted.term.master

    @property
    def trouble(self) -> str:
        """Why there is no stream; "" there is one."""
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
        """The commit point, as the observers of this replica are told it."""
        following, log = self.following, self.log
        return Commit(following.committed, 0 if log is None else log.start_position, following.unreplicated)

    def source(self) -> StreamedLog:
        """This log as others may copy it. Under the lock, with a log."""
        log, terms = self.log, self._context.terms
        assert log is not None, "a replica without a log accepts no observers"
        accepted = self.following.accepted
        term = terms.history.last if accepted is None else accepted.term
        return StreamedLog(log.uuid, log.segment_bytes, term, terms.history, start_of(log), ends_of_replica(log)[0])

    # ---- replicas of this replica ---------------------------------------------------------------------------

    def join(self, connection: Connection, join: Join) -> None:
        """Observers may follow this replica, for they are not counted. Nothing is removed before it is known what this
        one needs."""
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
                if self._chain is None:
                    self._chain = Cascade(self._context, log, self._commit)
                self._chain.join(connection, answer, join.synced.position)
            self._hold()

    def progress(self, connection: Connection, progress: ProgressReport) -> None:
        if self._chain is not None:
            self._chain.progress(connection, progress)

    def stored(self, connection: Connection, stored: MembersStored) -> None:
        """Observers store members, and do not count."""

    def drained(self, connection: Connection) -> None:
        if self._chain is not None:
            self._chain.drained(connection)

    def disconnected(self, connection: Connection) -> None:
        if self._chain is not None:
            self._chain.closed(connection)
            self._hold()

    def _break_chain(self, why: str) -> None:
        """Have the observers join again: what they were told may not hold any more."""
        chain, self._chain = self._chain, None
        if chain is not None:
            chain.close(DisconnectedError(why))
            self._hold()

    def _hold(self) -> None:
        """Retention keeps what others may come for, or read here."""
        log, chain = self.log, self._chain
        if log is None or not log.is_usable or not self._holds:
            return
        config, end = self._context.config, log.tail.end
        held = None if config.observer else self.following.log_start
        floor = floor_of_copy(held, () if chain is None else chain.needed, end, config.group.retention_hold_bytes)
        self._held_until = end + log.segment_bytes
        log.retention_floor = 1 << 62 if floor is None else floor

    def where(self) -> str:
        """Where the master is, as far as is known."""
        master = self.master
        return "it knows of none" if master is None else f"its master is at {master[0]}:{master[1]}"

    def promised(self, terms: Terms) -> None:
        """Before a promise is stored: nothing of a lower term is taken any more. Under the lock."""
        self._carry_out_all(self.following.promised(terms))

    # ---- what the connection brings -------------------------------------------------------------------------

    def _opened(self) -> None:
        log = self.log
        start, received, synced = ORIGIN, ORIGIN, ORIGIN
        self._joins = self.master
        if log is not None:
            start, (received, synced) = start_of(log), ends_of_replica(log)
        self._do(lambda: self.following.connected(start, received, synced))

    def _heard(self, body: bytes) -> None:
        """InvalidMessageError ends the connection."""
        message = messages.decode(body)
        self._heard_us = self._context.now_us
        if isinstance(message, Accept) and self._master_connection is not None and self._was_of_use:
            self._master_connection.succeeded()
        self._do(lambda: self.following.heard(message))
        self._hold()

    def _progressed(self, *_seen: LogPosition) -> None:
        """For each append: as `_do`, with less in between. Under the lock from the look at the log till it is said:
        reports keep their order. Marks that a caller has seen before may be older than what another thread has reported
        since, or from before the log was cut: they are no news."""
        with self._context.lock:
            log = self.log
            if log is None:
                return
            received, synced = log.progress
            report = self.following.progressed(received, synced)
            if report is not None:
                self._receiver.send(messages.encode(report))
            if received.position >= self._held_until:
                self._hold()

    def _closed(self, error: ReplogError) -> None:
        with self._context.lock:
            self.following.disconnected()
            self._note_use(error)
        logger.info("%s: the connection to the master ended: %s", self._context.path, error)

    def _note_use(self, error: ReplogError) -> None:
        """One that ends where it began, at a record that is damaged there, say, is not made again at once, over and
        over; nor is one that another process of the same name has taken over."""
        joined, self._joined = self._joined, None
        if joined is not None and self.log is not None:
            brought, lasted = self.log.received_end > joined[0], self._context.now_us - joined[1] >= _LASTS_US
            is_replaced = isinstance(error, JoinRefusedError) and error.code == RefusalCode.REPLACED
            self._was_of_use = (brought or lasted) and not is_replaced

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
            self._show(effect)
        elif isinstance(effect, StoreTerms):
            self._break_chain("the log has another master now")
            self._context.terms.follow(effect.term, effect.history)
        elif isinstance(effect, StoreMembers):
            self._context.members.store(effect.members)
        elif isinstance(effect, DisconnectFromMaster):
            self._leave(effect)
        elif isinstance(effect, CreateLog):
            self._make(effect)
        else:
            self._join(effect)

    def _show(self, effect: ShowCommitted) -> None:
        if (log := self.log) is not None:
            log.tail.unreplicated |= effect.unreplicated
            log.show(*effect.committed)
            if (polls := self._context.polls) is not None and polls.waiting:
                polls.wake()
            log.tail.unreplicated = effect.unreplicated
        if self._chain is not None:
            self._chain.tell(self._commit)

    def _join(self, effect: Effect) -> None:
        log = self.log
        if log is None:
            raise InvalidMessageError("a stream begins before there is a log for it")
        if isinstance(effect, TruncateLog):
            self._break_chain("the log is cut")
            log.cut(*effect.to)
        elif isinstance(effect, Joined):
            self.error = None
            self._receiver.stream(log, syncs=self._context.config.log.durability == "synced")
            self._joined = log.received_end, self._context.now_us
            self._carry_out_all(self.following.joined(*ends_of_replica(log)))

    def _make(self, make: CreateLog) -> None:
        """A copy that holds nothing is made anew, unless it is that of this log."""
        context, log = self._context, self.log
        is_open = log is not None and log.is_usable
        if log is not None and is_open and (log.uuid, start_of(log)) == (make.uuid, make.start):
            return
        self._break_chain("the log is made anew")
        if log is not None:
            log.close()
            replicas.remove(context.path, context.files)
        self.log = MirrorLog.create(
            context.path, context.config.log, uuid=make.uuid, segment_bytes=make.segment_bytes, start=make.start,
            clock=context.clock, files=context.files,
        )  # fmt: skip
        self.log.tail.unreplicated = self.following.unreplicated
        self._hold()
        self._on_log(self.log)

    def _leave(self, leave: DisconnectFromMaster) -> None:
        is_early = isinstance(leave.error, JoinRefusedError) and leave.error.code == RefusalCode.NOT_MASTER  # or late
        level = logging.ERROR if leave.permanent else logging.INFO if is_early else logging.WARNING
        logger.log(level, "%s: this replica does not follow: %s", self._context.path, leave.error)
        self._receiver.disconnect(leave.error if isinstance(leave.error, ReplogError) else JoinRefusedError(0, ""))
        self._receiver.stop()
        if leave.permanent and self._joins == self.master:  # else it was told to follow another meanwhile
            self.error = leave.error
            self._drop_connection()

    def _drop_connection(self) -> None:
        master_connection, self._master_connection = self._master_connection, None
        if master_connection is not None:
            master_connection.close()

    # ---- the end --------------------------------------------------------------------------------------------

    def leave(self) -> MirrorLog | None:
        """Stop following; the log stays open."""
        self._drop_connection()
        self._receiver.stop()
        with self._context.lock:
            self.following.disconnected()
            self._break_chain("the node's role changes")
        return self.log

    def close(self) -> None:
        log = self.leave()
        if log is not None:
            log.close()


def ends_of_replica(log: MirrorLog) -> tuple[LogPosition, LogPosition]:
    """(received, synced) of a copy."""
    return log.received_mark, log.synced_mark
