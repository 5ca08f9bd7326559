"""Nodes: each runs the shipped master, replica and election over its disk, and crashes between any two of their effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyreplog.errors import (
    HigherTermError,
    JoinRefusedError,
    NotEnoughReplicasError,
    NotMasterError,
    OutOfRangeError,
    ReplogError,
)
from pyreplog.ha.protocol import effects as do
from pyreplog.ha.protocol.effects import StoreMembers
from pyreplog.ha.protocol.election import Election, ElectionLost, ElectionWon, SendPrepare, refuse_candidate
from pyreplog.ha.protocol.joining import StreamedLog, check_join_of_copy
from pyreplog.ha.protocol.master_machine import MasterMachine
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    Accept,
    Commit,
    Join,
    MembersStored,
    Prepare,
    PreVote,
    ProgressReport,
    Promise,
    RefusalCode,
    Refuse,
    VoteRejected,
)
from pyreplog.ha.protocol.replica_machine import ReplicaMachine
from pyreplog.ha.protocol.retention_hold import floor_of_copy
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import NO_TERM, Term, Terms

from .disk import RECORD_BYTES, Disk, mark
from .messages import Data

if TYPE_CHECKING:
    from .network import Wire
    from .schedule import Schedule

UUID = b"the log of a run"
SEGMENT_BYTES = 1 << 16
TICK_S = 0.01
TRIM_S = 0.03
REDIAL_S = 0.01
LOOK_S = 0.001
OVERDUE_S = 0.01
HEARD_S = 0.02


class CrashedError(Exception):
    """The process is gone; nothing more of what it was doing happens."""


class Node:
    """One member, or observer. `machine` says what it is: Group (master), ReplicaMachine, Election."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.world, self.plan, self.name = schedule, schedule.world, schedule.plan, name
        self.disk = Disk()
        self.life = 0
        self.is_up = False
        self.stopped_until = 0.0
        self.above = NO_TERM
        self.was_cut_off = False  # its last process ended in a power cut
        self.is_out = False  # it is to be replaced, for nobody has what it lacks
        self.gone: dict[str, int] = {}  # by node: up to where it removed what this one lacks, and did not have to keep
        self.was_member = False
        self.told: Term = NO_TERM  # the highest promise that ever left this node

    def __repr__(self) -> str:
        return self.name

    # ---- its process ----------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        return int(self.world.now * 1e6)

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.disk.reboot()
        self.group: MasterMachine | None = None
        self.election: Election | None = None
        self.wire: Wire | None = None  # to its master
        self.wires: list[Wire] = []  # from its replicas
        self._syncing = self._was_refused = False
        self._overtaken: tuple[Wire, ProgressReport] | None = None  # a report that may come again, late
        self._heard_at = -1.0  # when the master spoke last
        self.following = self._follower(self.disk.shown_mark)
        self._floor: int | None = 0  # position from which on retention keeps the log
        self._hold()
        self.world.note(self.name, "starts with", len(self.disk.records), "records")
        self.schedule.invariants.started(self)
        if self.was_cut_off and not self.plan.sends_synced:
            self._store_terms(self.disk.terms.resigned())
        self._later(0.0, self._resume)
        self._sync_later()
        if self.plan.retain is not None:
            self._later(self.world.random.random() * TRIM_S, self._trim, self.plan.retain)

    def _resume(self) -> None:
        """As what it was."""
        if self.group is not None or self.election is not None:
            return
        if self.disk.terms.is_master and self.disk.members is not None:
            self._lead(ORIGIN)
        else:
            self._redial()

    def _later(self, seconds: float, call: Any, *args: Any) -> None:
        """Of this process; while it is stopped, nothing happens."""
        self.world.after(seconds, self._wake, self.life, call, args)

    def _wake(self, life: int, call: Any, args: Any) -> None:
        if life != self.life or not self.is_up:
            return
        if self.stopped_until > self.world.now:
            self.world.at(self.stopped_until, self._wake, life, call, args)
        else:
            self.run(call, *args)

    def run(self, call: Any, *args: Any) -> None:
        """One turn of its process."""
        try:
            call(*args)
        except CrashedError:
            self.world.note(self.name, "crashed in the middle")

    def crash(self, *, power: bool = False) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.life += 1
        self.was_cut_off = power
        for wire in self.schedule.network.wires:
            if self in wire.ends:
                wire.cut()
        if power:
            lost = len(self.disk.records) - self.disk.synced
            self.disk.cut_power(self.world.random.randint(0, lost))
        self.world.note(self.name, "crashes," if not power else "loses power,", len(self.disk.records), "records left")

    def _step(self) -> None:
        """Between two effects."""
        if not self.world.is_calm and self.world.chance(self.plan.crashes_between):
            self.crash(power=self.plan.power_cuts and self.world.chance(0.5))
            self._restart_later()
            raise CrashedError

    def _restart_later(self) -> None:
        self.world.after(self.world.random.random() * 0.1, self.start)

    def _tick(self, group: MasterMachine) -> None:
        if self.group is not group:
            return
        self.perform(group.appended(self.disk.end, self.disk.synced_end, self.now_us))
        self.perform(group.tick(self.now_us))
        self._hold()
        self._tell_commit()
        if self.world.chance(0.2):
            for member in group.absent():
                self.schedule.network.post(self, self.schedule.by_name[member], group.probe)
        self._later(TICK_S, self._tick, group)

    # ---- effects --------------------------------------------------------------------------------------------

    def perform(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, do.StoreTerms | do.StorePromise | do.StoreMembers | do.TruncateLog):
                self._step()
            getattr(self, f"_do_{type(effect).__name__}")(effect)

    def _do_SendMessage(self, effect: do.SendMessage) -> None:
        wire: Any = effect.connection
        wire.send(self, effect.message)
        if isinstance(effect.message, Accept):
            wire.sent = effect.message.resume.entry
            wire.synced = min(wire.synced, wire.sent)
            wire.told = None
            self._later(0.0, self._pump)

    def _do_Disconnect(self, effect: do.Disconnect) -> None:
        wire: Any = effect.connection
        wire.send(self, effect.refusal)
        wire.close(self)
        self._forget(wire)

    def _do_Committed(self, effect: do.Committed) -> None:
        assert self.group is not None
        self.schedule.invariants.committed(self, self.group, effect.mark)
        self._show()
        if self.world.chance(0.7):
            self._tell_commit()

    def _do_ModeChanged(self, effect: do.ModeChanged) -> None:
        self.world.note(self.name, "goes on alone" if effect.asynchronous else "waits for replicas again")
        self.disk.unreplicated |= effect.asynchronous

    def _do_Replicated(self, _: do.Replicated) -> None:
        assert self.group is not None
        self.schedule.invariants.committed(self, self.group, self.group.committed)
        self.disk.unreplicated = False
        self.schedule.invariants.observe(self)

    def _do_Fenced(self, effect: do.Fenced) -> None:
        assert self.group is not None
        self.world.note(self.name, f"is deposed: {effect.term}")
        self.following = self._follower(self.disk.shown_mark)
        self.group = None
        self.above = max(self.above, effect.term)
        self._later(0.0, self._redial)

    def _do_StoreMembers(self, effect: do.StoreMembers) -> None:
        self.schedule.invariants.members_change(self, effect.members)
        self.disk.members, self._was_refused = effect.members, False
        self.world.note(self.name, "stores", effect.members)

    def _do_StoreTerms(self, effect: do.StoreTerms) -> None:
        self._break_chain()
        self._store_terms(Terms(effect.term, effect.history))

    def _do_StorePromise(self, effect: do.StorePromise) -> None:
        assert self.election is not None
        self._hang_up()
        self.following.disconnected()
        if effect.term < (promised := self.disk.terms.promised):  # the file refuses: it followed another meanwhile
            self.perform(self.election.note_higher_term(promised))
            return
        self._store_terms(Terms(effect.term, self.disk.terms.history))
        self.disk.sync()
        self.perform(self.election.stored(self.disk.end, self.disk.terms.history, self.disk.members))

    def _store_terms(self, terms: Terms) -> None:
        self.schedule.invariants.terms_change(self, terms)
        self.disk.terms = terms

    def _do_TruncateLog(self, effect: do.TruncateLog) -> None:
        self._break_chain()
        if effect.to.entry < self.disk.start:  # retention went on while it joined
            raise OutOfRangeError(f"position {effect.to.position}: the log begins at {self.disk.start_mark.position}")
        self.world.note(self.name, "cuts its log to", effect.to.entry)
        self.schedule.invariants.cut(self, effect.to)
        self.disk.cut(effect.to)

    def _do_CreateLog(self, effect: do.CreateLog) -> None:
        self._break_chain()
        assert self.wire is not None
        self.schedule.invariants.made(self, effect.start)
        self.disk.make(self.wire.other(self).disk.records[: effect.start.entry])
        assert self.disk.end == effect.start
        self.disk.unreplicated = self.following.unreplicated

    def _do_Joined(self, effect: do.Joined) -> None:
        self.perform(self.following.joined(self.disk.end, self.disk.synced_end))

    def _do_ShowCommitted(self, effect: do.ShowCommitted) -> None:
        self.disk.unreplicated |= effect.unreplicated
        self._show()
        self.disk.unreplicated = effect.unreplicated
        self.schedule.invariants.observe(self)
        self._tell_commit()

    def _do_SendToMaster(self, effect: do.SendToMaster) -> None:
        if isinstance(effect.message, ProgressReport):
            self.schedule.invariants.reports(self)
            if self._overtaken is not None and self._overtaken[0] is self.wire and self.world.chance(0.5):
                self._overtaken[0].send(self, self._overtaken[1])  # of a thread that had lost the processor
                self._overtaken = None
            if self.wire is not None and self.world.chance(0.05):
                self._overtaken = self.wire, effect.message
        if self.wire is not None:
            self.wire.send(self, effect.message)

    def _do_DisconnectFromMaster(self, effect: do.DisconnectFromMaster) -> None:
        self.schedule.invariants.left(self, effect)
        self._was_refused = isinstance(effect.error, JoinRefusedError) and effect.error.code == RefusalCode.NOT_A_MEMBER
        if isinstance(effect.error, HigherTermError):
            self.above = max(self.above, Term(*effect.error.term))
        self._hang_up()
        if effect.permanent:
            self._begin_anew()
        self._redial()

    def leave_replica(self) -> None:
        """Who follows a replica looks for the master: only that one tells who the members are."""
        if self.wire is not None and self.wire.other(self).group is None:
            self.wire.cut()

    def _begin_anew(self) -> None:
        """Nobody has what it lacks: somebody replaces it, or empties its directory, if it was never counted."""
        self._break_chain()
        self.is_out = self.was_member
        if not self.was_member:
            self.world.note(self.name, "begins anew")
            promised, members = self.disk.terms.promised, self.disk.members
            self.disk = Disk()
            self.disk.terms, self.disk.members = Terms(promised), members
            self.following = self._follower(ORIGIN)

    def _do_SendPrepare(self, effect: SendPrepare) -> None:
        self.schedule.network.post(self, self.schedule.by_name[effect.member], effect.prepare)

    # ---- as a replica ---------------------------------------------------------------------------------------

    def _follower(self, committed: LogPosition) -> ReplicaMachine:
        return ReplicaMachine(
            self.name, self._uuid, SEGMENT_BYTES, self.disk.terms, committed=min(committed, self.disk.end),
            unreplicated=self.disk.unreplicated, observer=self._is_observer,
        )  # fmt: skip

    @property
    def _uuid(self) -> bytes:
        return UUID if self.disk.is_made else NO_UUID

    @property
    def _is_observer(self) -> bool:
        """Whom a master does not know as a member follows as an observer, and hears who is."""
        return self._was_refused or self.disk.members is None or self.name not in self.disk.members.all_names

    def _redial(self) -> None:
        self._later(self.world.random.random() * REDIAL_S, self._dial)

    def _dial(self) -> None:
        """Whoever calls itself master is tried, and sometimes others."""
        if self.wire is not None or self.group is not None or self.election is not None or self.is_out:
            return
        target = self.schedule.master_for(self)
        if target is None or not target.is_up:
            self._redial()
            return
        before, self.following = self.following, self._follower(self.following.committed)
        self.following.log_start = before.log_start
        if before.uuid == NO_UUID:
            self.following.uuid, self.following.emptied = NO_UUID, before.emptied
        self._hold()
        self.wire = self.schedule.network.connect(self, target)
        self.perform(self.following.connected(self.disk.start_mark, self.disk.end, self.disk.synced_end))

    def _hang_up(self) -> None:
        if self.wire is not None:
            self.wire.close(self)
        self.wire = None

    def lost(self, wire: Wire) -> None:
        """A connection ended."""
        if wire is self.wire:
            self.wire = None
            self.following.disconnected()
            self._redial()
        elif self.group is not None:
            self.group.disconnected(wire, self.now_us)
        self._forget(wire)
        self._hold()

    def _forget(self, wire: Wire) -> None:
        if wire in self.wires:
            self.wires.remove(wire)

    def receive(self, wire: Wire, message: Any) -> None:
        self.run(self._receive, wire, message)

    def _receive(self, wire: Wire, message: Any) -> None:
        if wire is self.wire:
            self._heard_at = self.world.now
        if wire is not self.wire:
            self._serve(wire, message)
        elif isinstance(message, Data):
            self._land(message)
        else:
            self._hear(message)
            self._hold()
            self._learn_role()

    def _hear(self, message: Any) -> None:
        """If the disk refuses, the connection ends."""
        try:
            self.perform(self.following.message_received(message))
        except OutOfRangeError as error:
            self.world.note(self.name, "does not follow:", error)
            self._hang_up()
            self.following.disconnected()
            self._redial()

    def _land(self, data: Data) -> None:
        if not self.following.is_streaming:
            return
        self.schedule.invariants.lands(self, data)
        self.disk.records += data.records
        self._show()
        self._report()
        self._pump()
        self._sync_later()

    def _report(self) -> None:
        report = self.following.progressed(self.disk.end, self.disk.synced_end)
        if report is not None:
            self.perform([do.SendToMaster(report)])

    def _learn_role(self) -> None:
        """Who hears that it is a member now, or none any more, joins anew as that."""
        if self.wire is None or not self.following.is_streaming or self._is_observer == self.following.observer:
            return
        self._hang_up()
        self.following.disconnected()
        self._redial()

    def _sync_later(self) -> None:
        if not self._syncing:
            self._syncing = True
            self._later(self.world.random.random() * self.plan.sync_s, self._sync, len(self.disk.records))

    def _sync(self, count: int) -> None:
        """What is appended meanwhile is not synced."""
        self._syncing = False
        self.disk.synced = max(self.disk.synced, min(count, len(self.disk.records)))
        if self.group is not None:
            self._appended()
        elif self.wire is not None:
            self._report()
        if self.disk.synced < len(self.disk.records):
            self._sync_later()

    # ---- as a master ----------------------------------------------------------------------------------------

    def _lead(self, committed: LogPosition) -> None:
        disk = self.disk
        assert disk.members is not None
        if disk.terms.history.start_of(disk.terms.promised) == disk.end:  # nothing of this term yet: a marker
            disk.records.append(self.schedule.next_record(disk.terms.promised))
        source = StreamedLog(UUID, SEGMENT_BYTES, disk.terms.promised, disk.terms.history, disk.start_mark, disk.end)
        self.group = MasterMachine(
            self.name, source, disk.synced_end, disk.members, self.plan.group_config(), committed=committed,
            owed=mark(disk.shown) if disk.unreplicated else None,
        )  # fmt: skip
        self._floor = 0
        self.world.note(self.name, "leads term", self.group.term)
        self._later(TICK_S, self._tick, self.group)
        self._appended()
        self._sync_later()

    def append(self, count: int) -> None:
        """What its clients ask for."""
        if self.group is None or not self.is_up or self.stopped_until > self.world.now:
            return
        try:
            self.group.admit(self.now_us)
        except (NotEnoughReplicasError, NotMasterError) as error:
            self.schedule.invariants.held += isinstance(error, NotMasterError)
            self.world.note(self.name, "refuses:", error)
            return
        for _ in range(count):
            self.disk.records.append(self.schedule.next_record(self.group.term))
        self.world.note(self.name, "appends", *self.disk.records[-count:])
        self.run(self._appended)
        if self.is_up:
            self._sync_later()

    def _appended(self) -> None:
        assert self.group is not None
        self.perform(self.group.appended(self.disk.end, self.disk.synced_end, self.now_us))
        self._pump()

    def _pump(self) -> None:
        limit = self.disk.synced if self.plan.sends_synced and self.group is not None else len(self.disk.records)
        for wire in list(self.wires):
            if 0 <= wire.sent < self.disk.start:  # what comes next was removed
                wire.close(self)
                self.lost(wire)
            while 0 <= wire.sent < limit:
                stop = min(limit, wire.sent + self.plan.batch)
                wire.send(self, Data(wire.sent, tuple(self.disk.records[wire.sent : stop])))
                wire.sent = stop

    def _tell_commit(self) -> None:
        """Of a replica, to its own replicas."""
        following = self.following
        commit = Commit(following.committed, self.disk.start_mark.position, following.unreplicated)
        if self.group is not None:
            commit = self.group.commit
        for wire in self.wires:
            if wire.sent >= 0 and wire.told != commit:
                wire.told = commit
                wire.send(self, commit)

    def _serve(self, wire: Wire, message: Any) -> None:
        if isinstance(message, ProgressReport):
            wire.synced = max(wire.synced, message.synced.entry)
        if self.group is None:
            self._serve_on(wire, message)
        elif isinstance(message, Join):
            self.wires.append(wire)
            wire.synced = message.synced.entry
            self.group.trimmed(self.disk.start_mark)
            self.perform(self.group.join(wire, message, self.now_us))
            self._hold()
        elif isinstance(message, ProgressReport):
            self.perform(self.group.progress(wire, message, mark(wire.sent).position, self.now_us))
        elif isinstance(message, MembersStored):
            self.perform(self.group.members_stored(wire, message.version, self.now_us))
        else:
            assert isinstance(message, Refuse)
            if message.code == RefusalCode.HIGHER_TERM:
                self.world.note(self.name, "hears:", message.text)

    def _serve_on(self, wire: Wire, message: Any) -> None:
        """As a replica: observers may follow it."""
        if not isinstance(message, Join):
            return
        accepted, terms = self.following.accepted, self.disk.terms
        term = terms.history.last if accepted is None else accepted.term
        answer: Accept | Refuse = Refuse(RefusalCode.NOT_MASTER, f"{self.name} is no master")
        if self.disk.is_made and message.observer and self.election is None and not self.world.is_calm:
            source = StreamedLog(UUID, SEGMENT_BYTES, term, terms.history, self.disk.start_mark, self.disk.end)
            answer = check_join_of_copy(message, source, self.name)
        wire.send(self, answer)
        if isinstance(answer, Refuse):
            wire.close(self)
            return
        self.wires.append(wire)
        wire.sent, wire.synced = answer.resume.entry, min(message.synced.entry, answer.resume.entry)
        self._tell_commit()
        self._pump()
        self._hold()

    def _break_chain(self) -> None:
        """Whoever follows this replica joins again."""
        if self.group is None:
            for wire in list(self.wires):
                wire.close(self)
                self._forget(wire)

    def change_members(self, names: list[str], k: int) -> None:
        if self.group is None or not self.is_up:
            return
        try:
            effects = self.group.change_members(names, k)
        except ReplogError as error:
            self.world.note(self.name, "does not change members:", error)
            return
        self.run(self.perform, effects)
        if self.is_up:
            self._hold()

    # ---- retention ------------------------------------------------------------------------------------------

    @property
    def is_heir(self) -> bool:
        """A replica that may be master."""
        return self.group is None and not self.following.observer and self.disk.is_made

    def _hold(self) -> None:
        """What others need is not removed."""
        if self.group is not None:
            self._floor = self.group.floor(self.now_us)
            self.group.trimmed(self.disk.start_mark)
            return
        held = None if self.following.observer else self.following.log_start
        needed = [mark(wire.synced).position for wire in self.wires]
        self._floor = floor_of_copy(held, needed, self.disk.end.position, self.plan.hold * RECORD_BYTES)

    def _trim(self, keep: int) -> None:
        disk = self.disk
        floor = self.visible if self._floor is None else min(self._floor // RECORD_BYTES, self.visible)
        start = disk.trim_to(floor, keep)
        if start > disk.start:
            self.world.note(self.name, "removes what is before", start)
            self.schedule.invariants.trims(self, start)
            disk.start, disk.synced = start, max(disk.synced, start)
        self._later(self.world.random.random() * TRIM_S, self._trim, keep)

    # ---- elections ------------------------------------------------------------------------------------------

    @property
    def _leader(self) -> str:
        """Name of the master that it follows."""
        following = self.following
        accepted = following.accepted
        return "" if accepted is None or following.observer or not following.is_streaming else accepted.term.master

    @property
    def _hears(self) -> str:
        if self.group is not None:
            return self.name
        return self._leader if self.world.now - self._heard_at < HEARD_S else ""

    def promote(self, *, force: bool = False, if_lost: bool = False) -> None:
        if not self.is_up or self.group is not None or self.election is not None or self.stopped_until > self.world.now:
            return
        self.run(self._promote, force, if_lost)

    def promote_after(self, lost: Term) -> None:
        """As `Node.promote_after`: the node may not know the term of the candidate that was not elected."""
        if self.is_up and self.stopped_until <= self.world.now:
            self.run(self._step_down, lost)
            self.promote()

    def _step_down(self, lost: Term) -> None:
        self.above = max(self.above, lost)
        if self.group is not None:
            self.perform(self.group.fence(lost, self.now_us))

    def _promote(self, force: bool, if_lost: bool) -> None:
        disk = self.disk
        master = self._leader
        if if_lost and not master:
            master = disk.terms.history.last.master
        self.election = Election(
            self.name, self._uuid, disk.terms, disk.members, ack=self.plan.ack,
            above=self.above, force=force, master="" if master == self.name else master, if_lost=if_lost,
        )  # fmt: skip
        self._later(LOOK_S, self._look_again, self.election)
        self._later(0.1 if self.world.is_calm else OVERDUE_S, self._overdue, self.election)
        self.world.note(self.name, "wants to lead term", self.election.term, "by force" if force else "")
        election = self.election
        self.perform(election.start(disk.end))
        self._later((0.2 if self.world.is_calm else 0.02) + self.world.random.random() * 0.03, self._deadline, election)

    def _deadline(self, election: Election) -> None:
        if self.election is election:
            self.perform(election.deadline())

    def _look_again(self, election: Election) -> None:
        if self.election is election and election.is_trial:
            self.perform(election.grew(self.disk.end))
            self._later(LOOK_S, self._look_again, election)

    def _overdue(self, election: Election) -> None:
        if self.election is election and election.is_trial:
            self.perform(election.overdue())
            self._later(0.1 if self.world.is_calm else OVERDUE_S, self._overdue, election)

    def letter(self, sender: Node, message: Any) -> None:
        if isinstance(message, Prepare):
            self.run(self._asked, sender, message)
        elif self.election is not None and isinstance(message, Promise):
            self.run(lambda: self.perform(self.election.promised(sender.name, message)))
        elif isinstance(message, VoteRejected):
            self.run(self._declined, sender, message)

    def _declined(self, sender: Node, rejection: VoteRejected) -> None:
        if self.election is not None:
            self.perform(self.election.vote_rejected(sender.name, rejection))
        elif self.group is not None:
            self.perform(self.group.vote_rejected(rejection, self.now_us))

    def _asked(self, sender: Node, prepare: Prepare) -> None:
        rejection = refuse_candidate(prepare, self._uuid, self.disk.terms, self.disk.members, self._hears)
        if rejection is not None:
            self.schedule.network.post(self, sender, rejection)
            return
        if not prepare.trial:
            self._promise(prepare)
        elif self.group is not None and prepare.trial == PreVote.HOLD:
            self.group.hold(sender.name, self.now_us)
        elif self.group is not None:
            self.group.release(sender.name)
        end = self.disk.end
        history = self.disk.terms.history.up_to(end)
        promise = Promise(prepare.term, history, end, self.disk.synced_end, self.disk.members, bool(prepare.trial))
        self.schedule.network.post(self, sender, promise)

    def _promise(self, prepare: Prepare) -> None:
        terms = Terms(prepare.term, self.disk.terms.history)
        if self.group is not None:
            self.perform(self.group.fence(prepare.term, self.now_us))
        if self.election is not None:
            self.perform(self.election.note_higher_term(prepare.term))
        self.perform(self.following.promised(terms))
        self._step()
        self._store_terms(terms)
        self._step()
        self.told = max(self.told, prepare.term)

    def _do_ElectionWon(self, won: ElectionWon) -> None:
        self.election = None
        disk = self.disk
        if disk.terms.promised != won.term:
            self._redial()
            return
        self._break_chain()
        self.schedule.invariants.elected(self, won)
        self._step()
        self._do_StoreMembers(StoreMembers(won.members))
        self._step()
        self._store_terms(disk.terms.begun(won.term, won.start))
        self._step()
        self._lead(min(self.following.committed, won.start))

    def _do_ElectionLost(self, lost: ElectionLost) -> None:
        self.world.note(self.name, "is not elected:", lost.error)
        assert self.election is not None
        term, self.election = self.election.term, None
        if lost.release is not None:
            self._do_SendPrepare(lost.release)
        if lost.next_candidate:
            self.schedule.invariants.restored += 1
            candidate = self.schedule.by_name[lost.next_candidate]
            self.world.after(self.world.random.random() * self.plan.lag_s, candidate.promote_after, term)
        if isinstance(lost.error, HigherTermError):
            self.above = max(self.above, Term(*lost.error.term))
        self._redial()

    # ---- readers --------------------------------------------------------------------------------------------

    @property
    def visible(self) -> int:
        """Records that its readers may read."""
        committed = self.following.committed if self.group is None else self.group.committed
        return max(self.disk.shown, min(committed.entry, len(self.disk.records)))

    def _show(self) -> None:
        self.disk.shown = self.visible
        self.schedule.invariants.observe(self)
