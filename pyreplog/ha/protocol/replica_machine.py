"""The state machine of a replica: it joins a master, truncates its log if necessary, receives the stream, and reports.

When a master accepts the replica, the order of durable steps matters: the promise, the truncation, the history.

- A deposed master that truncated its log before it promised would go on in its old term after a restart, with other
  records in that term.
- A replica that stored the history before it truncated its log could hold records of an earlier term under a later one,
  and would win elections with them.

Progress is reported only after all three, because a reported position counts as promised.
"""

from __future__ import annotations

from pyreplog._native.ha.reports import ReplicaReportsBase
from pyreplog.errors import HigherTermError, JoinRefusedError
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
from pyreplog.ha.protocol.joining import NEW_COPY
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    PERMANENT,
    Accept,
    Commit,
    Join,
    MembershipUpdate,
    MembersStored,
    Message,
    RefusalCode,
    Refuse,
)
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import Term, Terms


class ReplicaMachine(ReplicaReportsBase):
    """The state machine of the replica `name`. `progressed` gives its reports.

    Methods return effects, which the caller carries out in order. If one of them fails (the disk), the caller closes
    the connection and calls `disconnected`. Not thread-safe.

    Args:
        name: the replica.
        uuid: uuid of its log; NO_UUID: it has no log.
        segment_bytes: size of its segments, bytes.
        terms: promise and history, as in the file.
        committed: the commit point, as far as it is known.
        unreplicated: whether enough replicas may lack entries before `committed`, because a master went on alone.
        observer: whether it follows without being a member.
    """

    def __init__(
        self, name: str, uuid: bytes, segment_bytes: int, terms: Terms, *, committed: LogPosition,
        unreplicated: bool = False,
        observer: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.observer, self.terms, self.committed = name, observer, terms, committed
        self.unreplicated = unreplicated
        self.uuid, self.segment_bytes = uuid, segment_bytes
        self.emptied = NO_UUID  # uuid of its empty log, while it asks for a new copy in place of that log
        self.accepted: Accept | None = None
        """The master's acceptance on this connection; None: it has not accepted."""
        self.log_start = 0
        """Position where the master's log begins, as far as it is known."""
        self._is_connected = False
        self._start = self._end = ORIGIN

    def connected(self, start: LogPosition, received: LogPosition, synced: LogPosition) -> list[Effect]:
        """Join over a new connection to the supposed master. start, received, synced: of the replica's own log."""
        self.disconnected()
        self._is_connected, self._start, self._end = True, start, received
        if self.uuid == NO_UUID:
            received = synced = ORIGIN  # the log is created anew
        history = self.terms.history.up_to(received)
        segment_bytes = 0 if self.uuid == NO_UUID else self.segment_bytes
        promised = self.terms.promised
        return [
            SendToMaster(Join(self.uuid, segment_bytes, self.name, self.observer, received, synced, promised, history))
        ]

    def disconnected(self) -> None:
        """Report the end of the connection; the caller connects again later. Messages that still arrive on it are
        ignored."""
        self._is_connected = False
        self.accepted, self.is_streaming = None, False
        self._forget_report()

    def message_received(self, message: Message) -> list[Effect]:
        """Take a message of the master. A message that arrives after the replica left the connection is ignored."""
        if not self._is_connected:
            return []
        if isinstance(message, Commit) and self.is_streaming:
            return self._advance_commit_point(message)
        if isinstance(message, MembershipUpdate) and self.is_streaming:
            return [StoreMembers(message.members), SendToMaster(MembersStored(message.members.stamp.version))]
        if isinstance(message, Accept) and self.accepted is None:
            return self._accept(message)
        if isinstance(message, Refuse):
            return self._refused(message)
        return self._refuse_master(
            RefusalCode.ABSURD, f"expected a message that a master sends in this state, found {type(message).__name__}"
        )

    @property
    def _lowest_term(self) -> Term:
        """The lowest term whose master is followed.

        A promise of an observer binds it once it is a member again. While it is an observer, the promise is ignored: it
        may have been a candidate itself, and the members elect no new master for an observer.
        """
        return self.terms.history.last if self.observer else self.terms.promised

    # ---- joining --------------------------------------------------------------------------------------------

    def _accept(self, accept: Accept) -> list[Effect]:
        if accept.term < self._lowest_term:
            return self._refuse_stale_term(accept)
        if accept.history.last != accept.term:
            return self._refuse_master(
                RefusalCode.ABSURD, f"the master of term {accept.term} has a history up to {accept.history.last}"
            )
        effects: list[Effect] = []
        term = max(accept.term, self.terms.promised)
        if self.uuid == NO_UUID:
            if self._is_older_copy(accept):
                return self._refuse_older_copy(accept)
            effects.append(CreateLog(accept.uuid, accept.segment_bytes, accept.resume))
            self.unreplicated = accept.resume > ORIGIN  # the state of the trimmed entries is unknown
        elif wrong := self._resume_error(accept):
            return self._refuse_master(RefusalCode.ABSURD, wrong)
        elif accept.resume < self._start:
            text = f"cut back to {accept.resume.position}, its own log begins at {self._start.position}"
            return self._refuse_master(RefusalCode.BEHIND, f"{text}: {NEW_COPY}")
        elif accept.resume < self._end:
            effects += [StoreTerms(term, self.terms.history), TruncateLog(accept.resume)]
        self.accepted, self.log_start = accept, accept.start.position
        if self.committed > accept.resume:  # only after a forced promotion, or if a master went on alone
            self.committed = accept.resume
        return [*effects, StoreTerms(term, accept.history), Joined()]

    def _resume_error(self, accept: Accept) -> str:
        """Return why the position to resume at is impossible; "": it is possible.

        The end of the master's log is unknown here. Beyond the start of its last term, the master can only tell the
        replica to keep its records of that term.
        """
        if (accept.uuid, accept.segment_bytes) != (self.uuid, self.segment_bytes):
            return f"the master accepts, with log {accept.uuid.hex()} in segments of {accept.segment_bytes} bytes"
        mine = self.terms.history.up_to(self._end)
        common = mine.common_point(self._end, accept.history, max(self._end, accept.resume))
        is_empty = not mine.starts and accept.resume == accept.start == self._end
        if is_empty or common == accept.resume:
            return ""
        return f"the master orders to go on at {accept.resume}, and the two histories differ from {common} on"

    def joined(self, received: LogPosition, synced: LogPosition) -> list[Effect]:
        """Report that all effects of the acceptance are carried out: the stream begins, with a first report."""
        accept = self.accepted
        if accept is None:
            return []
        self.uuid, self.segment_bytes = accept.uuid, accept.segment_bytes
        self.terms = Terms(max(accept.term, self.terms.promised), accept.history)
        self.is_streaming = True
        report = self.progressed(received, synced)
        return [] if report is None else [SendToMaster(report)]

    # ---- streaming ------------------------------------------------------------------------------------------

    def _advance_commit_point(self, commit: Commit) -> list[Effect]:
        """Advance the commit point; it never goes back.

        A message with a lower commit point does not clear `unreplicated`: a former master may have shown the entries
        between the two without replicas.
        """
        self.log_start = commit.start
        unreplicated = commit.unreplicated or (self.unreplicated and commit.committed < self.committed)
        if commit.committed <= self.committed and unreplicated == self.unreplicated:
            return []
        self.committed, self.unreplicated = max(self.committed, commit.committed), unreplicated
        return [ShowCommitted(self.committed, unreplicated)]

    # ---- leaving --------------------------------------------------------------------------------------------

    def promised(self, terms: Terms) -> list[Effect]:
        """Refuse a master of a lower term. The caller calls this before it stores a promise to a candidate."""
        self.terms = terms
        if self.accepted is None or self.accepted.term >= self._lowest_term:
            return []
        return self._refuse_stale_term(self.accepted)

    def _refuse_stale_term(self, accept: Accept) -> list[Effect]:
        self.disconnected()
        promised = self._lowest_term
        message = f"term {accept.term} is refused: {promised} was promised; look for the newer master"
        refusal = Refuse(RefusalCode.HIGHER_TERM, message)
        return [SendToMaster(refusal), DisconnectFromMaster(HigherTermError(message, promised), permanent=False)]

    def _refused(self, refusal: Refuse) -> list[Effect]:
        self.disconnected()
        return [
            DisconnectFromMaster(
                JoinRefusedError(refusal.code, refusal.text), permanent=self._is_permanent(refusal.code)
            )
        ]

    def _refuse_master(self, code: RefusalCode, text: str) -> list[Effect]:
        self.disconnected()
        return [
            SendToMaster(Refuse(code, text)),
            DisconnectFromMaster(JoinRefusedError(code, text), permanent=self._is_permanent(code)),
        ]

    def _is_permanent(self, code: int) -> bool:
        return code in PERMANENT and not self._begins_new_copy(code)

    def _begins_new_copy(self, code: int) -> bool:
        """Return whether the replica asks for a new copy at its next attempt: if it was refused, and holds no records.

        The first attempt is not for a new copy: the replica may have held and reported records that retention has
        removed since, and must not go back to a position before them.
        """
        if self.uuid == NO_UUID or self._start != self._end:
            return False
        self.emptied, self.uuid = (self.uuid if code == RefusalCode.BEHIND else NO_UUID), NO_UUID
        return True

    def _is_older_copy(self, accept: Accept) -> bool:
        """Return whether the master is itself a copy that lags: of the same history, and ends before entries that were
        committed here. If the histories part earlier, these entries are lost; so they may be after a master went on
        alone."""
        if self.emptied != accept.uuid or accept.resume >= self._end or self.unreplicated:
            return False
        mine = self.terms.history.up_to(self._end)
        return mine.common_point(self._end, accept.history, self._end) == self._end

    def _refuse_older_copy(self, accept: Accept) -> list[Effect]:
        """Refuse a copy that begins before entries that readers saw here, and join with the old log again."""
        self.emptied, self.uuid = NO_UUID, self.emptied
        self.disconnected()
        text = f"a new copy from {accept.resume.position} on, all before {self._end.position} was committed here"
        return [
            SendToMaster(Refuse(RefusalCode.NOT_MASTER, text)),
            DisconnectFromMaster(JoinRefusedError(RefusalCode.NOT_MASTER, text), permanent=False),
        ]
