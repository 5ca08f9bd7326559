"""One run: producers that move between clusters while owners crash and connections are lost, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ..invariants import demand
from ..world import World
from .invariants import Invariants
from .link import Link
from .mover import Mover
from .place import Place

PATIENCE_S = 400.0


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    places: int
    producers: int
    groups: int
    group: int  # most numbers of a call
    at_once: int
    busy_s: float
    faults: int
    moves: int
    lag_s: float
    far_s: float
    store_s: float
    window: int

    @classmethod
    def draw(cls, random: Random) -> Plan:
        return cls(
            places=random.choice((2, 2, 3)),
            producers=random.choice((1, 2, 3)),
            groups=random.choice((5, 20, 40)),
            group=random.choice((1, 1, 4)),
            at_once=random.choice((1, 3, 10)),
            busy_s=random.choice((0.3, 1.0, 3.0)),
            faults=random.choice((0, 1, 4, 10)),
            moves=random.choice((1, 3, 10)),
            lag_s=random.choice((0.0005, 0.005)),
            far_s=random.choice((0.0005, 0.01, 0.05)),
            store_s=random.choice((0.001, 0.02, 0.1)),
            window=random.choice((1, 500, 8 << 20)),
        )


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.plan = plan = Plan.draw(world.random)
        world.note(plan)
        self.places = [Place(world, letter, plan.store_s) for letter in "ABC"[: plan.places]]
        self.invariants = Invariants(self.places)
        for place in self.places:
            place.invariants = self.invariants
            place.recover()
        self.links = [
            Link(world, here, there, plan.far_s, plan.window)
            for here in self.places
            for there in self.places
            if here is not there
        ]
        for link in self.links:
            link.begin()
        self.movers = [self._mover(b"p%d" % number) for number in range(plan.producers)]

    def _mover(self, name: bytes) -> Mover:
        groups: list[range] = []
        at = 0
        for _ in range(self.plan.groups):
            at += self.world.random.choice((0, 0, 0, 2))  # numbers that no message has
            groups.append(range(at, at + self.world.random.randint(1, self.plan.group)))
            at = groups[-1].stop
        plan = self.plan
        return Mover(self.world, name, self.places, groups, plan.lag_s, plan.at_once, self.invariants)

    def run(self) -> None:
        plan, world = self.plan, self.world
        for mover in self.movers:
            world.at(0.3 * plan.busy_s * world.random.random(), mover.send)
            for _ in range(plan.moves):
                world.at(plan.busy_s * world.random.random(), mover.move)
        for _ in range(plan.faults):
            world.at(plan.busy_s * world.random.random(), self._fault)
        for _ in range(5):
            world.at(plan.busy_s * world.random.random(), self._store_producers)
        world.run(until=plan.busy_s)
        world.is_calm = True
        for link in self.links:
            link.is_apart = False
        for place in self.places:
            self._recover(place)
        self._finish()

    def _fault(self) -> None:
        world, fault = self.world, self.world.random.randrange(4)
        link, place = world.random.choice(self.links), world.random.choice(self.places)
        world.note("fault", fault, place, link.here, link.there)
        if fault <= 1:
            link.cut(half=fault == 1)
        elif fault == 2:
            self._crash(place)
        else:
            link.is_apart = True
            link.cut(half=False)
            world.after(world.random.random(), self._reunite, link)

    def _crash(self, place: Place) -> None:
        place.crash()
        for link in self.links:
            if link.here is place:
                link.die()
            elif link.there is place:
                link.cut(half=self.world.chance(0.5))
        for mover in self.movers:
            mover.lose(place)
        self.world.after(0.3 * self.world.random.random(), self._recover, place)

    def _recover(self, place: Place) -> None:
        if place.owner is None:
            place.recover()
            for link in self.links:
                if link.here is place:
                    link.begin()

    def _reunite(self, link: Link) -> None:
        link.is_apart = False

    def _store_producers(self) -> None:
        for place in self.places:
            if place.owner is not None:
                place.owner.store_producers()

    def _finish(self) -> None:
        """Each number is stored once in each cluster, once the network heals."""
        until = self.world.now + PATIENCE_S
        while not self._is_done():
            demand(self.world.now < until, "Liveness", self._lacking())
            self.world.run(until=self.world.now + 0.5)
        for place in self.places:
            for mover in self.movers:
                for group in mover.groups:
                    demand(
                        self.invariants.has(place, mover.name, group), "NoneLost", f"{place}: {mover.name!r} {group}"
                    )

    def _is_done(self) -> bool:
        return all(mover.is_done for mover in self.movers) and all(link.is_done for link in self.links)

    def _lacking(self) -> str:
        movers = [mover.name for mover in self.movers if not mover.is_done]
        links = [f"{link.here} to {link.there}" for link in self.links if not link.is_done]
        return f"producers {movers}, links {links}"
