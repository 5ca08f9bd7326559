"""Connections from replicas to masters, in order while they live and cut anywhere; requests that get lost and come twice."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pyreplog.ha.protocol.messages import Commit, decode, encode

from .messages import Data, describe

if TYPE_CHECKING:
    from .nodes import Node
    from .schedule import Schedule

CALM_LAG_S = 0.002


class Network:
    """What all connections have in common."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.world, self.plan = schedule, schedule.world, schedule.plan
        self.wires: list[Wire] = []
        self._apart: dict[frozenset[str], float] = {}

    def delay(self) -> float:
        random = self.world.random
        if self.world.is_calm:
            return random.random() * CALM_LAG_S
        delay = random.random() * self.plan.lag_s
        return delay * 20 if random.random() < 0.05 else delay

    def part(self, name: str, other: str, until: float) -> None:
        self._apart[frozenset((name, other))] = until
        self.world.note(name, "and", other, "are apart until", f"{until * 1000:.1f} ms")

    def apart_until(self, name: str, other: str) -> float:
        return 0.0 if self.world.is_calm else self._apart.get(frozenset((name, other)), 0.0)

    def post(self, sender: Node, receiver: Node, message: Any) -> None:
        """A request or an answer on a connection of its own: lost, late, or twice."""
        random = self.world.random
        if not self.world.is_calm and random.random() < self.plan.loss:
            return
        for _ in range(2 if not self.world.is_calm and random.random() < self.plan.loss else 1):
            delay = self.delay() * (3 if random.random() < self.plan.loss else 1)
            self.world.after(delay, self._deliver, sender, receiver, self.packed(message))

    def packed(self, message: Any) -> Any:
        """As it comes out of its bytes."""
        return decode(encode(message)) if self.plan.encoded and not isinstance(message, Data) else message

    def _deliver(self, sender: Node, receiver: Node, message: Any) -> None:
        until = max(self.apart_until(sender.name, receiver.name), receiver.stopped_until)
        if until > self.world.now:
            self.world.at(until, self._deliver, sender, receiver, message)
        elif receiver.is_up:
            if self.world.tracing:
                self.world.note(sender.name, "~>", receiver.name, describe(message))
            receiver.letter(sender, message)

    def connect(self, replica: Node, target: Node) -> Wire:
        wire = Wire(self, replica, target)
        self.wires = [other for other in self.wires if other.open]
        self.wires.append(wire)
        return wire


class Wire:
    """One connection. Each end learns of its end in its own time."""

    def __init__(self, network: Network, replica: Node, target: Node) -> None:
        self.network, self.world = network, network.world
        self.ends = (replica, target)
        self.lives = (replica.life, target.life)
        self.open = {replica: True, target: True}
        self.sent = -1  # records that the master has sent; -1: the stream has not begun
        self._at = {replica: 0.0, target: 0.0}  # when the last message to an end arrives
        self._count = {replica: 0, target: 0}
        self._queues: dict[Node, deque[tuple[int, Any]]] = {replica: deque(), target: deque()}
        self._last: dict[Node, int] = {}  # number of the last message to an end that gets through
        self.synced = 0  # records that the replica has said it has on disk
        self.told: Commit | None = None  # the commit point, as the replica was told it

    def __repr__(self) -> str:
        return f"{self.ends[0].name}-{self.ends[1].name}"

    def other(self, node: Node) -> Node:
        return self.ends[1] if node is self.ends[0] else self.ends[0]

    def send(self, sender: Node, message: Any) -> None:
        receiver = self.other(sender)
        if not self.open[sender]:
            return
        self._count[receiver] += 1
        self._at[receiver] = max(self._at[receiver], self.world.now + self.network.delay())
        self._queues[receiver].append((self._count[receiver], self.network.packed(message)))
        self.world.at(self._at[receiver], self._arrive, receiver)

    def _arrive(self, receiver: Node) -> None:
        sender = self.other(receiver)
        until = max(self.network.apart_until(sender.name, receiver.name), receiver.stopped_until)
        if until > self.world.now:
            self.world.at(until, self._arrive, receiver)
            return
        number, message = self._queues[receiver].popleft()
        if number > self._last.get(receiver, number) or not self._is_there(receiver):
            return
        if self.world.tracing:
            self.world.note(sender.name, "->", receiver.name, describe(message))
        receiver.receive(self, message)

    def _is_there(self, node: Node) -> bool:
        return self.open[node] and node.is_up and node.life == self.lives[self.ends.index(node)]

    def close(self, by: Node) -> None:
        """In good order: what was sent arrives first."""
        if not self.open[by]:
            return
        self.open[by] = False
        other = self.other(by)
        self._at[other] = max(self._at[other], self.world.now + self.network.delay())
        self.world.at(self._at[other], self._hang_up, other)

    def cut(self) -> None:
        """It breaks: the last messages of either direction are lost, each end notices some time."""
        random = self.world.random
        for node in self.ends:
            if node not in self._last:
                self._last[node] = max(0, self._count[node] - random.choice((0, 0, 1, 2, 4)))
                late = random.random() ** 3 * (0.01 if self.world.is_calm else 0.15)
                self.world.after(late, self._hang_up, node)

    def _hang_up(self, node: Node) -> None:
        if node.stopped_until > self.world.now:
            self.world.at(node.stopped_until, self._hang_up, node)
        elif self._is_there(node):
            self.open[node] = False
            self.world.note(node.name, "has lost", self)
            node.lost(self)
