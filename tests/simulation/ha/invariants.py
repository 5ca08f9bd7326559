"""What must hold, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog.errors import JoinRefusedError
from pyreplog.ha.protocol.effects import DisconnectFromMaster
from pyreplog.ha.protocol.election import ElectionWon
from pyreplog.ha.protocol.master_machine import MasterMachine
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.messages import RefusalCode
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import Term, Terms

from ..invariants import BrokenInvariantError
from .messages import Data

if TYPE_CHECKING:
    from .nodes import Node
    from .schedule import Schedule


def demand(holds: bool, name: str, subject: str, *values: object) -> None:
    if not holds:
        raise BrokenInvariantError(name, subject.format(*values) if values else subject)


def _in_common(node: Node, other: Node) -> int:
    """How many records their logs begin with alike; what the other one has not synced it may lose, and need again."""
    pairs = zip(node.disk.records, other.disk.records[: other.disk.synced], strict=False)
    return next(
        (i for i, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(node.disk.records), other.disk.synced)
    )


def _parting(node: Node, other: Node) -> int | None:
    """Return the number of the first record in which two logs differ; None if one is the beginning of the other."""
    pairs = zip(node.disk.records, other.disk.records)  # noqa: B905
    return next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)


class Invariants:
    """Looks at all nodes at once, which nobody else can.

    agreed: records that some master acknowledged, as being on the disks (ack "synced") or in the logs of k replicas.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.agreed: list[str] = []
        self.may_have_lost = False
        """Somebody was promoted by force, or records that were acknowledged as received went with a power cut."""
        self.went_alone = False
        self.elections = self.acknowledged = self.cuts = self.changes = self.lost_by_force = 0
        self._agreed_in: dict[Term, int] = {}  # how many of them each master has acknowledged
        self._terms: dict[Term, str] = {}
        self._commits: dict[tuple[str, int], int] = {}  # of each process
        self.held = self.restored = 0
        self._removed_by_masters = self.trimmed = self.left_behind = self.owed = 0

    # ---- acknowledging --------------------------------------------------------------------------------------

    def committed(self, node: Node, group: MasterMachine, at: LogPosition) -> None:
        records = node.disk.records
        before = self._commits.get((node.name, node.life), 0)
        demand(before <= at.entry, "CommitPointMonotone", f"{node.name}'s went from {before} to {at.entry}")
        self._commits[node.name, node.life] = at.entry
        demand(
            at.entry <= len(records), "CommitPointMonotone", f"{node.name} ends at {len(records)}, commits {at.entry}"
        )
        self.went_alone = self.went_alone or group.asynchronous
        self.owed += node.disk.unreplicated and not group.asynchronous
        if group.asynchronous or self.may_have_lost:
            return
        upto = records[: at.entry]
        for names, k in group.members.quorums:
            have = [name for name in names if self._has(name, upto)]
            demand(len(have) > k, "AcknowledgedIsReplicated", f"{at.entry} records are on {have} of {names}, k is {k}")
        demand(
            self._has(node.name, upto), "AcknowledgedIsReplicated", f"{at.entry} records are not synced on {node.name}"
        )
        same = min(len(upto), len(self.agreed))
        demand(
            upto[:same] == self.agreed[:same], "TwoMastersNeverBothCollectK", f"{node.name} acknowledges other records"
        )
        if len(upto) > same:
            self.agreed = upto
        self._agreed_in[group.term] = max(len(upto), self._agreed_in.get(group.term, 0))
        self.acknowledged += 1

    def _has(self, name: str, records: list[str]) -> bool:
        disk = self._schedule.by_name[name].disk
        count = disk.synced if self._schedule.plan.ack == "synced" else len(disk.records)
        return count >= len(records) and disk.records[: len(records)] == records

    def _acknowledged(self, node: Node) -> int:
        """How many of its records."""
        same = min(len(self.agreed), len(node.disk.records))
        return next((i for i in range(same) if node.disk.records[i] != self.agreed[i]), same)

    # ---- terms ----------------------------------------------------------------------------------------------

    def elected(self, node: Node, won: ElectionWon) -> None:
        self.elections += 1
        demand(won.term not in self._terms, "OneMasterPerTerm", f"term {won.term} has begun before")
        self._terms[won.term] = node.name
        self._removed_by_masters = max(self._removed_by_masters, node.disk.start)  # much, if it was an observer before
        self._schedule.world.note(node.name, "is elected,", won.possible_loss or "nothing lost")
        if won.possible_loss:
            self.may_have_lost = True
            self.lost_by_force += 1
        elif not self.may_have_lost:
            # Not what a later master acknowledged: this one was elected by promises that came late, and collects nothing.
            agreed = self.agreed[: max((n for term, n in self._agreed_in.items() if term < won.term), default=0)]
            records = node.disk.records[: len(agreed)]
            lost = agreed[len(records) :] or [r for r, s in zip(agreed, records, strict=True) if r != s]
            demand(not lost, "NoAcknowledgedRecordLost", f"{node.name} is elected without {lost}")
            demand(
                node.disk.synced == len(node.disk.records), "NoAcknowledgedRecordLost", "the winner's log is not synced"
            )

    def terms_change(self, node: Node, terms: Terms) -> None:
        before = node.disk.terms.promised
        demand(
            before <= terms.promised, "PromiseNeverBroken", f"{node.name} goes from term {before} to {terms.promised}"
        )

    def members_change(self, node: Node, members: Members) -> None:
        before = node.disk.members
        kept = self.may_have_lost or before is None or before.stamp <= members.stamp
        demand(kept, "MembersNeverGoBack", f"{node.name} goes from {before} to {members}")
        self.changes += members.former is not None and members != before
        if node.group is not None and before is not None and before.former is not None and members.former is None:
            self._change_completed(node, before)
        for name in members.all_names:
            self._schedule.by_name[name].was_member = True

    def _change_completed(self, master: Node, joint: Members) -> None:
        """Every election of the former members hears of the change."""
        assert joint.former is not None
        names, k = joint.former
        known = {
            name
            for name in names
            if (members := self._schedule.by_name[name].disk.members) and members.stamp >= joint.stamp
        }
        is_heard = len(names) - len(known) < len(names) - k
        demand(
            self.may_have_lost or is_heard,
            "ChangesAreHeardOf",
            f"{master.name} completes {joint}, known to {sorted(known)}",
        )

    def started(self, node: Node) -> None:
        kept = node.disk.terms.promised
        demand(node.told <= kept, "PromiseNeverBroken", f"{node.name} promised {node.told}, and remembers {kept}")

    def lands(self, node: Node, data: Data) -> None:
        accepted, promised = node.following.accepted, node.disk.terms.promised
        assert accepted is not None
        kept = accepted.term == promised or node.following.observer
        demand(kept, "PromiseNeverBroken", "{} takes records of {}, it promised {}", node.name, accepted.term, promised)
        count = len(node.disk.records)
        demand(data.first == count, "StreamIsContiguous", "{} has {} records, is sent {}", node.name, count, data.first)

    def reports(self, node: Node) -> None:
        accepted, terms = node.following.accepted, node.disk.terms
        assert accepted is not None
        kept = accepted.term == terms.promised or node.following.observer
        demand(kept, "PromiseNeverBroken", "{} reports to {}, it promised {}", node.name, accepted.term, terms.promised)
        demand(terms.history.last == accepted.term, "HistoryBeforeRecords", "{} has {}", node.name, terms.history)

    # ---- replicas -------------------------------------------------------------------------------------------

    def cut(self, node: Node, to: LogPosition) -> None:
        self.cuts += 1
        process = node.name, node.life
        told = self.may_have_lost or node.disk.unreplicated
        demand(told or to.entry >= node.disk.shown, "NoUncommittedReadAtDefault", f"{node.name} is cut to {to.entry}")
        allowed = told or to.entry >= self._commits.get(process, 0)
        demand(
            allowed, "CommitPointMonotone", f"{node.name} is cut to {to.entry}, it commits {self._commits.get(process)}"
        )
        self._commits[process] = min(self._commits.get(process, 0), to.entry)
        if self.may_have_lost or node.following.observer:
            return
        held = self._acknowledged(node)
        demand(
            to.entry >= held, "NoAcknowledgedRecordLost", f"{node.name} is cut to {to.entry}, {held} are acknowledged"
        )

    def made(self, node: Node, start: LogPosition) -> None:
        """Its log holds nothing, and is made anew, to begin there."""
        told, process = self.may_have_lost or node.disk.unreplicated, (node.name, node.life)
        # A power cut makes forget that the rest was shown alone. Who has no history yet has followed nobody.
        shown = min(node.disk.shown, self._acknowledged(node)) if node.disk.terms.history.starts else 0
        assert node.wire is not None
        source = node.wire.other(node)
        # Where the logs part before its end, the end was appended alone, which a power cut makes forget, too. The log goes
        # back to where they part in any case; the copy may begin before that if it holds what was shown.
        parting = _parting(node, source)
        is_refilled = self.went_alone and parting is not None and parting >= shown
        allowed = told or is_refilled or start.entry >= shown
        demand(allowed, "CommitPointMonotone", f"{node.name} begins anew at {start}")
        self._commits[process] = min(self._commits.get(process, 0), start.entry)
        for other in self._schedule.nodes:
            other.gone[node.name] = other.gone.get(source.name, 0)
        node.gone = {other.name: other.disk.start for other in self._schedule.nodes}

    def left(self, node: Node, leave: DisconnectFromMaster) -> None:
        """Who holds nothing is told that it is behind, asks for a new copy, and is refused as if it had lost its log: whoever
        lost it has forgotten what it promised, too, and may have promised anew since."""
        error, wire = leave.error, node.wire
        assert wire is not None
        master = wire.other(node)
        lacks = _in_common(master, node) < node.gone.get(master.name, 0)
        codes = (
            (RefusalCode.BEHIND,)
            if node.disk.start < len(node.disk.records)
            else (RefusalCode.BEHIND, RefusalCode.LOST)
        )
        is_behind = isinstance(error, JoinRefusedError) and error.code in codes
        excused = is_behind and (lacks or self.may_have_lost or self.went_alone)
        demand(not leave.permanent or excused, "EveryReplicaFits", f"{node.name} is turned away for good: {error}")
        self.left_behind += leave.permanent

    def trims(self, node: Node, start: int) -> None:
        """Retention is about to remove what is before record `start`."""
        plan, records, group = self._schedule.plan, node.disk.records, node.group
        self.trimmed += 1
        demand(start <= node.visible, "OnlyCommittedIsRemoved", f"{node.name} shows {node.visible}")
        for wire in node.wires:
            kept = wire.sent < 0 or start <= wire.synced or len(records) - wire.synced > plan.hold
            demand(kept, "WhatReplicasNeedIsKept", "{} removes up to {}, {} has {}", node, start, wire, wire.synced)
        members = node.disk.members if group is None else group.members
        for other in self._schedule.nodes:
            common = _in_common(node, other)
            if other is node or start <= common:
                continue
            free = group is None and (node.following.observer or start <= self._removed_by_masters)
            bounded = len(records) - common > plan.hold or plan.retention_hold_ms < 600_000
            counts = members is not None and other.name in members.all_names
            excused = free or bounded or not counts or self.may_have_lost or self.went_alone
            demand(excused, "HeirsKeepWhatOthersLack", "{} removes up to {}, {} has {}", node, start, other, common)
            other.gone[node.name] = start
        if group is not None:
            self._removed_by_masters = max(self._removed_by_masters, start)

    def observe(self, node: Node) -> None:
        """What its readers see, at the default; a master that goes on alone shows what nobody else has, and says so."""
        start, visible = node.disk.start, node.visible
        if self.may_have_lost or node.disk.unreplicated:
            return
        demand(
            node.disk.records[start:visible] == self.agreed[start:visible], "NoUncommittedReadAtDefault",
            "{} shows {} records, acknowledged are {}", node.name, visible, self.agreed[-1:],
        )  # fmt: skip

    # ---- in the end -----------------------------------------------------------------------------------------

    def converged(self, nodes: list[Node], master: Node) -> None:
        demand(
            self.may_have_lost or self.agreed == master.disk.records[: len(self.agreed)],
            "NoAcknowledgedRecordLost", "the last master lacks some",
        )  # fmt: skip
        for node in nodes:
            start = max(node.disk.start, master.disk.start)
            demand(len(node.disk.records) >= start, "ByteIdentityAfterQuiet", f"{node.name} ends before {start}")
            own, wanted = node.disk.records[start:], master.disk.records[start:]
            parting = next((i for i, pair in enumerate(zip(own, wanted)) if pair[0] != pair[1]), len(own))  # noqa: B905
            ends = f"{node.name} has {len(own)} records, {master.name} {len(wanted)}; {parting} are the same"
            demand(own == wanted, "ByteIdentityAfterQuiet", ends)
            mine, theirs = (n.disk.terms.history.up_to(n.disk.end) for n in (node, master))
            demand(mine == theirs, "HistoriesConverge", f"{node.name} has {mine}, {master.name} {theirs}")
            demand(
                node.disk.members == master.disk.members, "HistoriesConverge",
                f"{node.name} knows {node.disk.members}, {master.name} {master.disk.members}",
            )  # fmt: skip
