"""A replica, as a state machine: joins a master, cuts what it must, takes the stream, reports.

The order of what is durable when a master accepts matters: first the promise, then the cut, then the history. A deposed
master that is cut before it has promised would go on in its old term when it starts again, with other records in it. A
replica that takes the history before it is cut could leave bytes of an earlier term under the name of a later one, and
an election would believe them. Nothing is reported before all three: what is counted is promised.
"""

from __future__ import annotations

from pyreplog._native.ha.reports import progress_from
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
    ProgressReport,
    RefusalCode,
    Refuse,
)
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import Term, Terms


class ReplicaMachine:
    """The replica `name`. Methods return effects, to be carried out in their order; if one fails (disk), the connection
    is closed and `disconnected` told.

    uuid: of its log, NO_UUID while it has none. terms: promise and history as in its file.
    committed: commit point as far as it is known; unreplicated: enough replicas may not have all before it, for a
    master went on alone. observer: follows, and is no member. Not for several threads at once.
    """

    def __init__(
        self, name: str, uuid: bytes, segment_bytes: int, terms: Terms, *, committed: LogPosition,
        unreplicated: bool = False,
        observer: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.observer, self.terms, self.committed = name, observer, terms, committed
        self.unreplicated = unreplicated
        self.uuid, self.segment_bytes = uuid, segment_bytes
        self.emptied = NO_UUID  # of the log that it has, while it asks for a copy of what follows that
        self.accepted: Accept | None = None
        """The master's last word on how to go on; None: there is none."""
        self.log_start = 0
        """Position where the master's log begins, as far as it is known."""
        self.is_streaming = False
        """Whether log bytes are taken."""
        self._is_connected = False
        self._start = self._end = ORIGIN
        self._reported: ProgressReport | None = None

    def connected(self, start: LogPosition, received: LogPosition, synced: LogPosition) -> list[Effect]:
        """There is a connection to what should be the master. start, received, synced: of its own log."""
        self.disconnected()
        self._is_connected, self._start, self._end = True, start, received
        if self.uuid == NO_UUID:
            received = synced = ORIGIN  # it is made anew
        history = self.terms.history.up_to(received)
        segment_bytes = 0 if self.uuid == NO_UUID else self.segment_bytes
        promised = self.terms.promised
        return [
            SendToMaster(Join(self.uuid, segment_bytes, self.name, self.observer, received, synced, promised, history))
        ]

    def disconnected(self) -> None:
        """Try again, after a while. What the former master still says counts for nothing."""
        self._is_connected = False
        self.accepted, self.is_streaming, self._reported = None, False, None

    def heard(self, message: Message) -> list[Effect]:
        """From the master, on the present connection. One that was left may have said more before it knew."""
        if not self._is_connected:
            return []
        if isinstance(message, Commit) and self.is_streaming:
            return self._show(message)
        if isinstance(message, MembershipUpdate) and self.is_streaming:
            return [StoreMembers(message.members), SendToMaster(MembersStored(message.members.stamp.version))]
        if isinstance(message, Accept) and self.accepted is None:
            return self._accept(message)
        if isinstance(message, Refuse):
            return self._refused(message)
        return self._leave(RefusalCode.ABSURD, f"expected what a master says now, found {type(message).__name__}")

    @property
    def _least(self) -> Term:
        """No master of a lower term is followed. What an observer promised binds it when it is a member again: it may
        have wanted to be master, and nobody elects one anew for an observer's sake."""
        return self.terms.history.last if self.observer else self.terms.promised

    # ---- joining --------------------------------------------------------------------------------------------

    def _accept(self, accept: Accept) -> list[Effect]:
        if accept.term < self._least:
            return self._stale(accept)
        if accept.history.last != accept.term:
            return self._leave(
                RefusalCode.ABSURD, f"the master of term {accept.term} has a history up to {accept.history.last}"
            )
        effects: list[Effect] = []
        term = max(accept.term, self.terms.promised)
        if self.uuid == NO_UUID:
            if self._lags(accept):
                return self._keep_what_is_seen(accept)
            effects.append(CreateLog(accept.uuid, accept.segment_bytes, accept.resume))
            self.unreplicated = accept.resume > ORIGIN  # of what retention has removed nothing is known so far
        elif wrong := self._wrong(accept):
            return self._leave(RefusalCode.ABSURD, wrong)
        elif accept.resume < self._start:
            text = f"cut back to {accept.resume.position}, its own log begins at {self._start.position}"
            return self._leave(RefusalCode.BEHIND, f"{text}: {NEW_COPY}")
        elif accept.resume < self._end:
            effects += [StoreTerms(term, self.terms.history), TruncateLog(accept.resume)]
        self.accepted, self.log_start = accept, accept.start.position
        if self.committed > accept.resume:  # only where somebody was promoted by force, or a master went on alone
            self.committed = accept.resume
        return [*effects, StoreTerms(term, accept.history), Joined()]

    def _wrong(self, accept: Accept) -> str:
        """What the master must not say about where to go on; "" nothing. Its end is not known here: beyond its last
        term's start it can only tell to keep what there is of that term."""
        if (accept.uuid, accept.segment_bytes) != (self.uuid, self.segment_bytes):
            return f"the master accepts, with log {accept.uuid.hex()} in segments of {accept.segment_bytes} bytes"
        mine = self.terms.history.up_to(self._end)
        common = mine.common_point(self._end, accept.history, max(self._end, accept.resume))
        is_empty = not mine.starts and accept.resume == accept.start == self._end
        if is_empty or common == accept.resume:
            return ""
        return f"the master says to go on at {accept.resume}, the histories part at {common}"

    def joined(self, received: LogPosition, synced: LogPosition) -> list[Effect]:
        """All that ACCEPT asked for is done. The stream begins, the first report counts from here."""
        accept = self.accepted
        if accept is None:
            return []
        self.uuid, self.segment_bytes = accept.uuid, accept.segment_bytes
        self.terms = Terms(max(accept.term, self.terms.promised), accept.history)
        self.is_streaming = True
        report = self.progressed(received, synced)
        return [] if report is None else [SendToMaster(report)]

    # ---- streaming ------------------------------------------------------------------------------------------

    def progressed(self, received: LogPosition, synced: LogPosition) -> ProgressReport | None:
        """The log has, and has synced, so much. To be told after each batch that was received, and each sync. Returns
        what to say to the master; None: nothing. It is no effect, for there is one for each append."""
        self._end = received
        if synced > received:  # a segment ended between the two looks
            synced = received
        progress = progress_from(received, synced)
        if not self.is_streaming or progress == self._reported:
            return None
        self._reported = progress
        return progress

    def _show(self, commit: Commit) -> list[Effect]:
        """The commit point never goes back, and says nothing of what is not here yet. One below it says nothing of what
        lies between, which a former master may have shown on its own."""
        self.log_start = commit.start
        unreplicated = commit.unreplicated or (self.unreplicated and commit.committed < self.committed)
        if commit.committed <= self.committed and unreplicated == self.unreplicated:
            return []
        self.committed, self.unreplicated = max(self.committed, commit.committed), unreplicated
        return [ShowCommitted(self.committed, unreplicated)]

    # ---- leaving --------------------------------------------------------------------------------------------

    def promised(self, terms: Terms) -> list[Effect]:
        """Before a promise to a candidate is stored: nothing more is taken from a master of a lower term."""
        self.terms = terms
        if self.accepted is None or self.accepted.term >= self._least:
            return []
        return self._stale(self.accepted)

    def _stale(self, accept: Accept) -> list[Effect]:
        self.disconnected()
        promised = self._least
        message = f"term {accept.term} is refused: {promised} was promised; look for the newer master"
        refusal = Refuse(RefusalCode.HIGHER_TERM, message)
        return [SendToMaster(refusal), DisconnectFromMaster(HigherTermError(message, promised), permanent=False)]

    def _refused(self, refusal: Refuse) -> list[Effect]:
        self.disconnected()
        return [
            DisconnectFromMaster(JoinRefusedError(refusal.code, refusal.text), permanent=self._is_final(refusal.code))
        ]

    def _leave(self, code: RefusalCode, text: str) -> list[Effect]:
        self.disconnected()
        return [
            SendToMaster(Refuse(code, text)),
            DisconnectFromMaster(JoinRefusedError(code, text), permanent=self._is_final(code)),
        ]

    def _is_final(self, code: int) -> bool:
        return code in PERMANENT and not self._asks_anew(code)

    def _asks_anew(self, code: int) -> bool:
        """Return whether the replica asks for a new copy next time: it does if it is refused and holds no records.

        It does not ask at once: it may have held and reported records that retention has removed since, and must not go
        back to a position before them.
        """
        if self.uuid == NO_UUID or self._start != self._end:
            return False
        self.emptied, self.uuid = (self.uuid if code == RefusalCode.BEHIND else NO_UUID), NO_UUID
        return True

    def _lags(self, accept: Accept) -> bool:
        """Whether this is a copy of one that lags: of the same history, from before what readers were shown here. Where
        the histories part before that, it is lost; so it may be where a master went on alone."""
        if self.emptied != accept.uuid or accept.resume >= self._end or self.unreplicated:
            return False
        mine = self.terms.history.up_to(self._end)
        return mine.common_point(self._end, accept.history, self._end) == self._end

    def _keep_what_is_seen(self, accept: Accept) -> list[Effect]:
        """A copy of one that lags would begin before what readers were shown here: it asks as before again."""
        self.emptied, self.uuid = NO_UUID, self.emptied
        self.disconnected()
        text = f"a new copy from {accept.resume.position} on, all before {self._end.position} was committed here"
        return [
            SendToMaster(Refuse(RefusalCode.NOT_MASTER, text)),
            DisconnectFromMaster(JoinRefusedError(RefusalCode.NOT_MASTER, text), permanent=False),
        ]
