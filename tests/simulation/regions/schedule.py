"""One run: a topic that is replicated between three or four clusters while all of them fail, drawn from a seed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pyreplog.geo.protocol.sender import SenderState
from pyreplog.origins.origin import Origin

from ..invariants import demand
from ..replication import schedule as replication
from ..world import World
from .site import Site, Way

PATIENCE_S = 900.0

SHAPES: dict[str, tuple[tuple[tuple[int, int], bool], ...]] = {
    "mesh of 3": tuple(((one, two), False) for one in range(3) for two in range(3) if one != two),
    "mesh of 4": tuple(((one, two), False) for one in range(4) for two in range(4) if one != two),
    "ring of 3": tuple(((one, (one + 1) % 3), True) for one in range(3)),
    "ring of 4": tuple(((one, (one + 1) % 4), True) for one in range(4)),
    "star": tuple(
        pair for leaf in range(1, 4) for pair in (((0, leaf), True), ((leaf, 0), False))
    ),
    "chain": (((0, 1), True), ((1, 0), True), ((1, 2), True), ((2, 1), True)),
    "two ways": tuple(((one, two), True) for one in range(3) for two in range(3) if one != two),
}  # fmt: skip
"""Pairs of source and target, and whether messages of others are forwarded. In the last one, origins come by two ways."""


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        random = self.world.random
        self.shape = random.choice(sorted(SHAPES))
        self.busy_s = random.choice((0.5, 2.0, 5.0))
        self.store_s = random.choice((0.001, 0.02, 0.2))
        self.appends = random.choice((10, 40, 100))
        self.faults = random.choice((0, 3, 8, 16))
        self.recreates = random.random() < 0.3
        self.trims = not self.recreates and random.random() < 0.7
        self.detaches = self.trims and random.random() < 0.5
        self.world.note(
            self.shape, self.busy_s, self.store_s, self.appends, self.faults, self.recreates, self.trims, self.detaches
        )
        self.published: dict[tuple[Origin, int], tuple[bytes, int, int]] = {}
        self.numbers: set[tuple[Origin, int]] = set()
        edges = SHAPES[self.shape]
        self.sites = [Site(self, place) for place in range(1 + max(max(pair) for pair, _ in edges))]
        plan = replace(
            replication.Plan.draw(random), others=0.0, poison=0.0, ttl_us=None, trims=False, latest=False,
            rolls_back=False, restores=False, restores_target=False, lists=0.0,
        )  # fmt: skip
        self.ways = [
            Way(self.sites[one], self.sites[two], replace(plan, forward_all=forwards)) for (one, two), forwards in edges
        ]
        for way in self.ways:
            way.source.ways.append(way)
            way.other.incoming.append(way)
            way.begin()
        self.crashes = self.removals = self.resyncs = self.created_again = self.detached = 0

    def run(self) -> None:
        world, random = self.world, self.world.random
        for _ in range(self.appends):
            world.at(self.busy_s * random.random(), self._publish)
        for _ in range(self.faults):
            world.at(self.busy_s * random.random(), self._fault)
        if self.recreates:
            world.at(self.busy_s * random.random(), self._recreate)
        world.run(until=self.busy_s)
        world.is_calm = True
        for site in self.sites:
            site.recover()
        for way in self.ways:
            way.is_apart = False
            way.add()
            way.resync()
        for site in self.sites:
            site.publish(b"the last one", 1)
        self._finish()

    def _publish(self) -> None:
        random = self.world.random
        random.choice(self.sites).publish(b"%d" % random.randrange(1 << 30), random.randint(1, 4))

    def _recreate(self) -> None:
        self.created_again += 1
        self.world.random.choice(self.sites).recreate()

    # ---- faults ------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        world, random = self.world, self.world.random
        way, site = random.choice(self.ways), random.choice(self.sites)
        fault = random.randrange(10 if self.detaches else 8)
        world.note("fault", fault, way, site)
        if fault <= 1 and way.process is not None:
            way.process.cut(half=fault == 1)
        elif fault == 2:
            self.crashes += 1
            site.crash()
            world.after(0.4 * random.random(), site.recover)
        elif fault == 3:
            site.change_owner()
        elif fault == 4:
            way.is_apart = True
            if way.process is not None:
                way.process.cut(half=False)
            world.after(random.random(), self._reunite, way)
        elif fault == 5:
            self.removals += 1
            way.remove()
            world.after(random.random(), way.add)
        elif fault == 6:
            way.configure(random.choice((None, 20_000)), random.choice((1, 2_000, 8 << 20)))
        elif fault >= 8:
            self.detached += way.process is not None and not way.is_detached
            way.detach()
            world.after(random.random(), way.resync)
        elif way.process is not None:
            process = way.process
            process.do(lambda *_: process.sender.pause())
            world.after(0.2 * random.random(), partial(self._resume, way))

    def _resume(self, way: Way) -> None:
        if way.process is not None and not way.is_detached:
            way.process.do(way.process.sender.resume)

    def _reunite(self, way: Way) -> None:
        way.is_apart = False

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """All clusters get everything, once the network heals and people answered the alarms."""
        until = self.world.now + PATIENCE_S
        while lacking := self._lacking():
            demand(self.world.now < until, "Converges", lacking)
            for way in self.ways:
                sender = None if way.process is None else way.process.sender
                if way.process is not None and sender is not None and sender.state is SenderState.DIVERGED:
                    demand(self.recreates, "FalseAlarm", f"{way}: {sender.alarm}")
                    self.resyncs += 1
                    way.process.do(sender.resync)
            self.world.run(until=self.world.now + 0.5)
        self._agree()
        ends = [site.log.end for site in self.sites]
        self.world.run(until=self.world.now + 5.0)
        is_silent = ends == [site.log.end for site in self.sites]
        demand(is_silent or self.recreates, "Silence", "messages go around")  # those of a former identity may come late

    def _lacking(self) -> str:
        for site in self.sites:
            for other in self.sites:
                own, end = other.log.own, other.log.end
                last = max((first for origin, first in self.published if origin == own), default=None)
                if site is not other and last is not None and site.invariants.logged.get(own, 0) <= last:
                    states = {f"{way}": way.process and way.process.sender.state.value for way in self.ways}
                    return f"{site} has {site.invariants.logged.get(own, 0)} of {end} of {own.token}: {states}"
        return ""

    def _agree(self) -> None:
        """Each cluster has each message of the topics that there are once, those of one origin in their order; it may lack
        those that were trimmed while nobody kept them for it."""
        for site in self.sites:
            for origin in (other.log.own for other in self.sites):
                found = [
                    entry.first if entry.origin is None else entry.origin_first
                    for entry in site.log.history
                    if (entry.origin or site.log.own) == origin
                ]
                firsts = sorted(first for known, first in self.published if known == origin)
                has = set(found)
                expected = [first for first in firsts if first in has or (origin, first) not in site.excused]
                demand(found == expected, "AllAgree", f"{site} has {found} of {origin.token}, expected {expected}")
