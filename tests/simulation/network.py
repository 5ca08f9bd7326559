"""Connections between clients and bookies: requests and replies in order while one lives, cut anywhere when it breaks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pyreplog._native.machines.effects import Send
from pyreplog._native.net.add_replies import Answer
from pyreplog._native.quorum.ack_tracker import Part
from pyreplog.bookie.protocol import Reply, Request
from pyreplog.errors import DisconnectedError, NotConnectedError, PeerTimeoutError

from .bookies import Node
from .world import World

if TYPE_CHECKING:
    from .clients import Client

TIMEOUT_S = 0.03
CALM_LAG_S = 0.002
REPEATED = 0.005


class _Teller:
    """What a driver is to an Answer."""

    def __init__(self, client: Client, machine: Any) -> None:
        self._client, self._machine = client, machine

    def acked(self) -> None:
        self._client.deliver(self._machine, "acked")

    def answered(self, send: Send, reply: Reply) -> None:
        self._client.deliver(self._machine, "replied", send, reply)


class Link:
    """From one client to one node. After a break the next connection carries on; the old one's last requests may come
    later than its first."""

    def __init__(self, world: World, client: Client, node: Node, lag_s: float, cuts: float) -> None:
        self.world, self.client, self.node, self._lag_s, self._cuts = world, client, node, lag_s, cuts
        self.blocked_until = 0.0
        self._connection = 0
        self._cut: dict[int, int] = {}  # connection -> number of the last request that got through
        self._sent = 0
        self._out_at = self._in_at = 0.0
        self._pending: dict[int, tuple[Any, Send]] = {}
        self._deadlines: deque[tuple[float, int]] = deque()

    def _delay(self) -> float:
        random = self.world.random
        if self.world.is_calm:
            return random.random() * CALM_LAG_S
        delay = random.random() * self._lag_s
        return delay * 20 if random.random() < 0.03 else delay

    def send(self, machine: Any, send: Send) -> None:
        self._sent += 1
        number = self._sent
        self._pending[number] = machine, send
        if self.node.is_gone:
            self.world.after(self._delay(), self._fail, number, NotConnectedError("another incarnation answers there"))
            return
        self._out_at = max(self._out_at, self.world.now + self._delay())
        self.world.at(self._out_at, self._arrive, self._connection, number, send.request)
        if not self._deadlines:
            self.world.after(TIMEOUT_S, self._time_out)
        self._deadlines.append((self.world.now + TIMEOUT_S, number))

    def _arrive(self, connection: int, number: int, request: Request) -> None:
        world, node = self.world, self.node
        held_until = max(self.blocked_until, node.stopped_until)
        if held_until > world.now:
            world.at(held_until, self._arrive, connection, number, request)
        elif connection != self._connection and number > self._cut[connection]:
            self._note("->", "lost:", request)
        elif not node.is_up:
            self.cut()
        elif world.random.random() < self._cuts and not world.is_calm and connection == self._connection:
            self.cut(number - 1)
        else:
            self._note("->", request)
            life = node.life
            node.handle(request, lambda reply: self._reply(connection, number, life, reply))
            if world.random.random() < REPEATED and not world.is_calm:
                world.after(world.random.random() * 0.1, self._repeat, request)

    def _repeat(self, request: Request) -> None:
        if self.node.is_up and self.node.stopped_until <= self.world.now:
            self._note("->", "repeated:", request)
            self.node.handle(request, lambda reply: None)

    def _reply(self, connection: int, number: int, life: int, reply: Reply) -> None:
        if life == self.node.life and connection == self._connection:
            self._in_at = max(self._in_at, self.world.now + self._delay())
            self.world.at(self._in_at, self._deliver, connection, number, reply)

    def _deliver(self, connection: int, number: int, reply: Reply) -> None:
        if connection != self._connection:
            return
        held_until = max(self.blocked_until, self.client.stopped_until)
        if held_until > self.world.now:
            self.world.at(held_until, self._deliver, connection, number, reply)
            return
        waiting = self._pending.pop(number, None)
        if waiting is not None:
            self._note("<-", reply, "to", waiting[1].request)
            self.client.on_reply(reply)
            machine, send = waiting
            teller = _Teller(self.client, machine)
            if isinstance(send.about, Part):
                Answer(teller, send, send.request.ledger, send.about)(reply)
            else:
                teller.answered(send, reply)

    def _note(self, arrow: str, *words: str | Request | Reply) -> None:
        if self.world.tracing:
            described = [word if isinstance(word, str) else describe(word) for word in words]
            self.world.note(self.client.name, arrow, self.node.name, *described)

    # ---- what goes wrong ------------------------------------------------------------------------------------

    def cut(self, last: int | None = None) -> None:
        """The connection breaks: what was sent up to request `last` (any) gets through, no reply does."""
        if not self._pending:
            return
        world = self.world
        world.note(self.client.name, "is cut off from", self.node.name)
        self._cut[self._connection] = world.random.randint(min(self._pending) - 1, self._sent) if last is None else last
        self._connection += 1
        self._out_at = self._in_at = world.now
        for number in list(self._pending):
            world.after(self._delay(), self._fail, number, DisconnectedError("connection reset"))

    def _time_out(self) -> None:
        while self._deadlines and (
            self._deadlines[0][0] <= self.world.now or self._deadlines[0][1] not in self._pending
        ):
            _, number = self._deadlines.popleft()
            if number in self._pending:
                if self.world.chance(0.3):
                    self.cut()
                self._fail(number, PeerTimeoutError("no answer"))
        if self._deadlines:
            self.world.at(max(self._deadlines[0][0], self.world.now), self._time_out)

    def _fail(self, number: int, error: Exception) -> None:
        if self.client.stopped_until > self.world.now:
            self.world.at(self.client.stopped_until, self._fail, number, error)
            return
        waiting = self._pending.pop(number, None)
        if waiting is not None:
            machine, send = waiting
            self._note("<-", f"{error}, to", send.request)
            self.client.deliver(machine, "failed", send, error)


def describe(message: Request | Reply) -> str:
    """For people."""
    if isinstance(message, Reply):
        return f"{_STATUS[message.status]} {message.first}..{message.last} lac {message.lac} {len(message.body)} bytes"
    flags = ("recovery " if message.flags & 1 else "") + ("fencing " if message.flags & 2 else "")
    return f"{flags}{_KIND[message.kind]} {message.first}..{message.last}"


_STATUS = [
    "OK",
    "FENCED",
    "UNAUTHORIZED",
    "READ_ONLY",
    "UNKNOWN",
    "REFUSED",
    "OVERLOADED",
    "LIMBO",
    "INVALID",
    "UNSUPPORTED",
]
_KIND = ["", "ADD", "READ", "LAST", "SET_LAC", "WAIT_LAC", "STATUS", "HOLDINGS"]
