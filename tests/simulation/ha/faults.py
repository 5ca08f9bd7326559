"""What goes wrong, and when; and what operators do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .nodes import Node

if TYPE_CHECKING:
    from .schedule import Schedule


class Faults:
    """Each is drawn, with its time, from the schedule's seed."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world, self._plan = schedule, schedule.world, schedule.plan
        self._kinds = [
            self._crash, self._crash, self._crash_master, self._stop, self._cut, self._part, self._isolate_master,
            self._promote, self._promote, self._promote_after_crash, self._change_members,
        ]  # fmt: skip
        if self._plan.storm:
            self._kinds = [
                self._promote, self._promote, self._promote, self._cut, self._cut, self._crash_master, self._isolate_master,
                self._change_members, self._change_members,
            ]  # fmt: skip
        if self._plan.forces:
            self._kinds.append(self._force)

    def plan(self) -> None:
        """They come in clusters: what breaks things is the second fault during the first."""
        random, plan = self._world.random, self._plan
        moments = [random.random() * plan.busy_s for _ in range(3)]
        for _ in range(plan.faults):
            time = random.random() * plan.busy_s
            if random.random() < 0.6:
                time = random.choice(moments) + random.random() * 0.05
            self._world.at(time, random.choice(self._kinds))

    def _moment(self) -> float:
        random = self._world.random
        return random.random() ** 2 * (0.12 if random.random() < 0.8 else 0.4)

    def _node(self) -> Node:
        return self._world.random.choice(self._schedule.nodes)

    def _master(self) -> Node:
        masters = [node for node in self._schedule.nodes if node.is_up and node.group is not None]
        return self._world.random.choice(masters or self._schedule.nodes)

    def _crash(self) -> None:
        self._crash_node(self._node())

    def _crash_master(self) -> None:
        self._crash_node(self._master())

    def _crash_node(self, node: Node) -> None:
        node.crash(power=self._plan.power_cuts and self._world.chance(0.6))
        self._world.after(self._moment(), node.start)

    def _promote_after_crash(self) -> None:
        self._crash_master()
        self._world.after(self._moment() / 2, self._promote)

    def _stop(self) -> None:
        """As SIGSTOP, and SIGCONT later."""
        node, until = self._node(), self._world.now + self._moment()
        node.stopped_until = max(node.stopped_until, until)
        self._world.note(node.name, f"is stopped until {until * 1000:.1f} ms")

    def _cut(self) -> None:
        wires = [wire for wire in self._schedule.network.wires if any(wire.open.values())]
        if wires:
            self._world.random.choice(wires).cut()

    def _part(self) -> None:
        until = self._world.now + self._moment()
        for node in self._schedule.nodes:
            for other in self._schedule.nodes:
                if node.name < other.name and self._world.chance(0.3):
                    self._schedule.network.part(node.name, other.name, until)

    def _isolate_master(self) -> None:
        master, until = self._master(), self._world.now + self._moment()
        for node in self._schedule.nodes:
            if node is not master and self._world.chance(0.8):
                self._schedule.network.part(master.name, node.name, until)
        self._world.after(self._moment() / 2, self._promote)

    def _promote(self) -> None:
        """Sometimes two at once."""
        for _ in range(self._world.random.choice((1, 1, 2))):
            self._node().promote(if_lost=self._world.chance(0.25))

    def _force(self) -> None:
        """Of a member that holds something: an empty one begins another log."""
        node = self._node()
        if node.disk.records and node.disk.members is not None and node.name in node.disk.members.all_names:
            node.promote(force=True)

    def _change_members(self) -> None:
        random, master = self._world.random, self._master()
        names = [node.name for node in self._schedule.nodes if node is master or random.random() < 0.7]
        master.change_members(names, random.randint(0, min(len(names) - 1, 2)))
