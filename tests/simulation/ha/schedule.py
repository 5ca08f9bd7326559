"""One run: a replica group's life, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pyreplog.ha.protocol.master_machine import AckMode, GroupConfig
from pyreplog.ha.protocol.members import Members
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import Term, Terms

from ..world import World
from .disk import RECORD_BYTES
from .faults import Faults
from .invariants import Invariants, demand
from .network import Network
from .nodes import Node

NAMES = "abcdefg"

PROGRESS_S = 0.3
"""When nothing fails, what is appended is acknowledged by then, and a change-over is done."""


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    members: int
    spares: int  # nodes that are observers until somebody makes them members
    k: int
    ack: AckMode
    sends_synced: bool  # of a synced log nothing else is streamed
    fallback_after_ms: int | None
    min_in_sync: int
    batch: int
    pause_s: float
    lag_s: float
    sync_s: float
    busy_s: float
    faults: int
    storm: bool  # elections and changes of members, one upon the other
    loss: float  # of requests and answers of elections
    crashes_between: float  # any two effects
    power_cuts: bool
    forces: bool
    encoded: bool  # messages go through their bytes
    retain: int | None  # records; retention removes what is older
    hold: int  # records that are kept for who is behind
    retention_hold_ms: int  # so long for those that are away

    @classmethod
    def draw(cls, random: Random) -> Plan:
        members = random.choice((1, 2, 2, 3, 3, 3, 4, 5))
        storm = random.random() < 0.4
        ack: AckMode = "synced" if random.random() < 0.75 else "received"
        return cls(
            members=members,
            spares=random.choice((0, 0, 1, 2)),
            k=min(random.choice((0, 1, 1, 1, 2, 2, 3)), members - 1),
            ack=ack,
            sends_synced=ack == "synced" and random.random() < 0.5,
            fallback_after_ms=random.choice((None, None, None, 20, 50)),
            min_in_sync=random.choice((0, 0, 0, 0, 1)),
            batch=1 if storm else random.choice((1, 2, 5)),
            pause_s=random.choice((0.02, 0.05) if storm else (0.005, 0.01, 0.03)),
            lag_s=random.choice((0.0005, 0.003, 0.01)),
            sync_s=random.choice((0.002, 0.01, 0.05)),
            busy_s=0.3,
            faults=random.choice((15, 25, 40) if storm else (0, 2, 4, 6, 8, 12)),
            storm=storm,
            loss=random.choice((0.0, 0.1, 0.3)),
            crashes_between=random.choice((0.0, 0.0, 0.02, 0.1)),
            power_cuts=ack == "synced" and random.random() < 0.8,
            forces=random.random() < 0.1,
            encoded=random.random() < 0.1,
            retain=random.choice((None, 0, 4, 12)),
            hold=10 if random.random() < 0.15 else 1 << 40,
            retention_hold_ms=30 if random.random() < 0.15 else 600_000,
        )

    def group_config(self) -> GroupConfig:
        return GroupConfig(
            ack=self.ack,
            min_in_sync=self.min_in_sync,
            fallback_after_ms=self.fallback_after_ms,
            in_sync_ms=100,
            retention_hold_bytes=self.hold * RECORD_BYTES,
            retention_hold_ms=self.retention_hold_ms,
        )


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        self.plan = plan = Plan.draw(self.world.random)
        self.world.note(plan)
        self.network = Network(self)
        self.invariants = Invariants(self)
        self._records = 0
        self.nodes = [Node(self, NAMES[place]) for place in range(plan.members + plan.spares)]
        self.by_name = {node.name: node for node in self.nodes}
        self._found()

    def _found(self) -> None:
        """The first of them leads term 1 from the beginning of its log on; the others are empty."""
        first = Term(1, self.nodes[0].name)
        self.nodes[0].disk.terms = Terms().begun(first, ORIGIN)
        self.nodes[0].disk.make([])
        self.nodes[0].disk.records.append(self.next_record(first))
        self.nodes[0].disk.sync()
        members = Members.first([node.name for node in self.nodes[: self.plan.members]], self.plan.k)
        for node in self.nodes[: self.plan.members]:
            node.disk.members, node.was_member = members, True

    def next_record(self, term: Term) -> str:
        self._records += 1
        return f"{term.number}{term.master}{self._records}"

    def master_for(self, node: Node) -> Node | None:
        """Whom a replica takes for its master; it may be wrong. Observers follow replicas, too."""
        if node.following.observer and not self.world.is_calm and self.world.chance(0.3):
            replicas = [other for other in self.nodes if other is not node and other.is_up and other.is_heir]
            return self.world.random.choice(replicas) if replicas else None
        masters = [other for other in self.nodes if other is not node and other.is_up and other.group is not None]
        if not masters:
            return None
        if self.world.is_calm:
            return max(masters, key=lambda other: other.group.term if other.group else ())
        if self.world.chance(0.05):
            return self.world.random.choice([other for other in self.nodes if other is not node])
        return self.world.random.choice(masters)

    def run(self) -> None:
        world, plan = self.world, self.plan
        for node in self.nodes:
            node.start()
        Faults(self).plan()
        self._append()
        world.run(until=plan.busy_s)
        self._settle()

    def _append(self) -> None:
        for node in self.nodes:
            if node.is_up and node.group is not None:
                node.append(self.world.random.choice((1, 1, 2, 5)))
        if not self.world.is_calm:
            self.world.after(self.world.random.expovariate(1 / self.plan.pause_s), self._append)

    def _settle(self) -> None:
        """Faults stop; somebody gets elected, everybody follows, all that is appended is acknowledged."""
        world = self.world
        world.note("faults end")
        world.is_calm = True
        for node in self.nodes:
            node.stopped_until = 0.0
            node.start()
            node.leave_replica()
        world.run(until=world.now + 0.6)  # what is still on its way arrives
        for _ in range(60):
            self._demote()
            if self._is_led() or any(node.is_out for node in self.nodes):
                break
            self._elect()
            world.run(until=world.now + 0.1)
        masters = [node for node in self.nodes if node.group is not None]
        if len(masters) == 1:
            for _ in range(3):
                masters[0].append(3)
                end = masters[0].disk.end
                world.run(until=world.now + PROGRESS_S)
                self._made_progress(masters[0], end)
        if any(node.is_out for node in self.nodes):
            return  # somebody has to replace it: what is to be safe was, and the group may lack replicas
        demand(len(masters) == 1, "Liveness", f"masters are {masters}")
        self._check(masters[0])
        master, hands_over = masters[0], world.random.random() < 0.3
        if hands_over and not self.invariants.may_have_lost:
            master = self._hand_over(master)
        self._change_members_in_a_row(master)

    def _hand_over(self, master: Node) -> Node:
        """A planned change-over, while appends come all the time, is not refused, and ends in a moment; the new master."""
        world, group = self.world, master.group
        assert group is not None
        names = group.members.quorum.names
        heirs = [node for node in self.nodes if node is not master and node.name in names]
        if not heirs:
            return master
        heir = world.random.choice(heirs)
        self._write_until(world.now + 0.15)
        world.after(0.05 * world.random.random(), heir.promote)
        world.run(until=world.now + PROGRESS_S)
        demand(heir.group is not None, "ChangeOverUnderWrites", f"{heir.name} is not elected")
        world.run(until=world.now + PROGRESS_S)
        if not any(node.is_out for node in self.nodes):  # retention keeps nothing for observers
            self._check(heir)
        return heir

    def _write_until(self, end: float) -> None:
        """Whoever is master appends."""
        for node in self.nodes:
            node.append(1)
        if self.world.now < end:
            self.world.after(0.004 * self.world.random.random(), self._write_until, end)

    def _made_progress(self, master: Node, end: LogPosition) -> None:
        """What was appended is acknowledged within a bound."""
        if any(node.is_out for node in self.nodes) or self.invariants.may_have_lost:
            return
        group = master.group
        committed = None if group is None else group.committed
        demand(committed is not None and committed >= end, "Progress", f"{master.name} commits {committed} of {end}")

    def _change_members_in_a_row(self, master: Node) -> None:
        """Each change as soon as the one before is complete, while replicas still report that one; each comes to its end."""
        world = self.world
        for _ in range(3):
            chosen = [node.name for node in self.nodes if node is master or (world.chance(0.7) and not node.is_out)]
            master.change_members(chosen, world.random.randint(0, min(len(chosen) - 1, 2)))
            until = world.now + 3.0
            while master.group is not None and master.group.members.former is not None and world.now < until:
                world.run(until=world.now + self.plan.lag_s / 4)
            if master.group is None:  # one that comes back as a member has promised a higher term
                return
            demand(master.group.members.former is None, "Liveness", f"a change goes on: {master.group.members}")

    def _is_led(self) -> bool:
        masters = [node for node in self.nodes if node.group is not None]
        return len(masters) == 1 and not masters[0].group.absent() and masters[0].group.members.former is None

    def _elect(self) -> None:
        """An operator tries one after the other."""
        if any(node.group is not None or node.election is not None for node in self.nodes):
            return
        self.world.random.choice(self.nodes).promote()

    def _demote(self) -> None:
        """After a promotion by force there may be masters that do not know each other, and terms that nobody leads: an
        operator ends what is below the highest."""
        highest = max(node.disk.terms.promised for node in self.nodes)
        for node in self.nodes:
            if self.invariants.may_have_lost and node.group is not None:
                node.perform(node.group.fence(highest, node.now_us))

    def _check(self, master: Node) -> None:
        group = master.group
        assert group is not None
        demand(
            group.committed == master.disk.end,
            "Liveness",
            f"{master.name} commits {group.committed} of {master.disk.end}",
        )
        demand(not group.asynchronous, "FallbackIsLeft", f"{master.name} still goes on alone")
        demand(group.members.former is None, "Liveness", f"a change is under way: {group.members}")
        self.invariants.converged(self.nodes, master)
        for node in self.nodes:
            demand(node.visible == len(master.disk.records), "Liveness", f"{node.name} shows {node.visible}")
            demand(not node.disk.unreplicated, "FallbackIsLeft", f"{node.name} does not know that it is over")
