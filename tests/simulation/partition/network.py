"""Messages between brokers: late, lost, out of order, or twice; links that are cut one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .schedule import Schedule

CALM_LAG_S = 0.002


class Network:
    """All links. A link from one broker to another is cut until a time; the store is the end "" of links."""

    def __init__(self, schedule: Schedule) -> None:
        self._world, self._plan = schedule.world, schedule.plan
        self._cut: dict[tuple[str, str], float] = {}

    def delay(self) -> float:
        random = self._world.random
        if self._world.is_calm:
            return random.random() * CALM_LAG_S
        delay = random.random() * self._plan.lag_s
        return delay * 20 if random.random() < self._plan.late else delay

    def cut(self, sender: str, receiver: str, until: float) -> None:
        self._cut[sender, receiver] = until
        self._world.note(sender or "store", "to", receiver or "store", "is cut until", f"{until * 1000:.1f} ms")

    def is_cut(self, sender: str, receiver: str) -> bool:
        return not self._world.is_calm and self._cut.get((sender, receiver), 0.0) > self._world.now

    def send(self, sender: str, receiver: str, deliver: Callable[..., Any], *message: Any) -> None:
        world, plan = self._world, self._plan
        if self.is_cut(sender, receiver) or (not world.is_calm and world.chance(plan.loss)):
            return
        for _ in range(2 if not world.is_calm and world.chance(plan.loss / 2) else 1):
            world.after(self.delay(), deliver, *message)
