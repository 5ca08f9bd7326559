"""Connections from a source to a target: in order, late, and cut at any moment; what is lost, nobody is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyreplog.errors import DisconnectedError

from ..world import World

SILENCE_S = 0.4
"""A side that hears nothing for so long gives the connection up."""


class Connection:
    """Requests and replies, each direction in its order. Each request has one outcome: a reply, or DisconnectedError."""

    def __init__(self, world: World, lag_s: float) -> None:
        self._world, self._lag_s = world, lag_s
        self._requests_at = self._replies_at = 0.0
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._numbers = 0
        self.is_cut = self.loses_replies = self.loses_requests = False

    def _later(self, last: float) -> float:
        lag = self._lag_s * (1.0 if self._world.is_calm else self._world.random.choice((0.5, 1.0, 1.0, 4.0, 20.0)))
        return max(last, self._world.now + lag)

    def request(self, carry_out: Callable[[Callable[[Any], None]], bool], outcome: Callable[[Any], None]) -> None:
        """Send a request. carry_out: called at the target, with the function to reply with; False: nobody is there."""
        self._numbers += 1
        number = self._numbers
        self._waiting[number] = outcome
        if self.is_cut:
            self._world.after(self._lag_s, self._lost, number)
            return
        self._requests_at = self._later(self._requests_at)

        def arrive() -> None:
            if not self.loses_requests and not carry_out(lambda reply: self._reply(number, reply)):
                self._notice()

        self._world.at(self._requests_at, arrive)

    def _reply(self, number: int, reply: Any) -> None:
        self._replies_at = self._later(self._replies_at)

        def arrive() -> None:
            if not self.is_cut and not self.loses_replies and number in self._waiting:
                self._waiting.pop(number)(reply)

        self._world.at(self._replies_at, arrive)

    def _lost(self, number: int) -> None:
        outcome = self._waiting.pop(number, None)
        if outcome is not None:
            outcome(DisconnectedError("the connection was lost"))

    def cut(self) -> None:
        """Nothing arrives any more; what was sent may have arrived, or is lost. The source notices at once."""
        self.loses_requests = self._world.chance(0.7)  # otherwise they arrive late, behind a newer connection
        self._notice()

    def half_cut(self) -> None:
        """What the target says is lost; the source notices after a while, and its requests arrive meanwhile."""
        self.loses_replies = True
        self._world.after(SILENCE_S, self._notice)

    def _notice(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            for number in list(self._waiting):
                self._lost(number)

    def forget(self) -> None:
        """The source's process died."""
        self._waiting.clear()
        self.loses_requests = self._world.chance(0.5)
        self.is_cut = True
