"""A producer that moves between clusters, and sends again what was not confirmed, and some that was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyreplog.errors import ReplogError

from ..replication.network import Connection
from ..world import World
from .place import Place

if TYPE_CHECKING:
    from .invariants import Invariants

PAUSE_S = 0.05


class Mover:
    """A producer. Its numbers ascend, and what it sends together once, it sends together again.

    Attributes:
        sent: number of calls.
        repeated: number of calls with numbers that had been sent before.
    """

    def __init__(
        self, world: World, name: bytes, places: Sequence[Place], groups: Sequence[Sequence[int]], lag_s: float,
        at_once: int, invariants: Invariants,
    ) -> None:  # fmt: skip
        self._world, self.name, self._places, self.groups = world, name, places, groups
        self._lag_s, self._at_once, self._invariants = lag_s, at_once, invariants
        self._confirmed = [False] * len(groups)
        self._was_sent = [False] * len(groups)
        self._next = self._in_flight = self.sent = self.repeated = self.moves = 0
        self._place = places[0]
        self._connection = Connection(world, lag_s)
        self._is_moving = False

    @property
    def is_done(self) -> bool:
        return all(self._confirmed)

    def move(self) -> None:
        """Go on in any cluster, the same one perhaps, from the first number on that is not confirmed, or before."""
        random = self._world.random
        self.moves += 1
        former, self._connection = self._connection, Connection(self._world, self._lag_s)
        former.cut()
        self._place = random.choice(self._places)
        first = self._confirmed.index(False) if not self.is_done else len(self.groups)
        self._next, self._in_flight = max(first - random.randrange(4), 0), 0
        self._world.note("producer", self.name, "moves to", self._place, "from", self._next)
        self.send()

    def lose(self, place: Place) -> None:
        """The owner in a cluster died: what it did not answer is lost, or is stored."""
        if place is self._place:
            self._connection.cut()

    def send(self) -> None:
        while self._next < len(self.groups) and self._in_flight < self._at_once:
            group, self._next = self._next, self._next + 1
            self._in_flight += 1
            self.sent += 1
            self.repeated += self._was_sent[group]
            self._was_sent[group] = True
            self._request(self._connection, self._place, group)

    def _request(self, connection: Connection, place: Place, group: int) -> None:
        def arrive(reply: Callable[[Any], None]) -> bool:
            if place.owner is not None:
                place.owner.publish(self.name, self.groups[group], reply)
            return place.owner is not None

        def came(reply: Any) -> None:
            if not isinstance(reply, ReplogError):
                self._invariants.confirm(place, self.name, self.groups[group])
                self._confirmed[group] = True
            if connection is not self._connection:
                return
            self._in_flight -= 1
            if isinstance(reply, ReplogError):
                self._move_later()
            else:
                self.send()

        connection.request(arrive, came)

    def _move_later(self) -> None:
        if not self._is_moving:
            self._is_moving = True
            self._world.after(PAUSE_S * self._world.random.random(), self._move)

    def _move(self) -> None:
        self._is_moving = False
        self.move()
