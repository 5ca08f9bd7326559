"""One run: the subscriptions of a topic that is replicated between clusters, drawn from a seed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random

from pyreplog.geo.acks.subscription_state import NO_CLUSTER, SubscriptionState
from pyreplog.origins.origin import Origin

from ..invariants import demand
from ..world import World
from .faults import Faults
from .links import Link
from .sites import Site
from .truth import Truth

FAIL_OVER_WITHIN_S = 10.0

EDGES = {
    (2, "mesh"): ((0, 1),),
    (3, "mesh"): ((0, 1), (0, 2), (1, 2)),
    (3, "chain"): ((0, 1), (1, 2)),
    (4, "chain"): ((0, 1), (1, 2), (2, 3)),
    (4, "mesh"): ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),
    (4, "ring"): ((0, 1), (1, 2), (2, 3), (3, 0)),
    (4, "star"): ((0, 1), (0, 2), (0, 3)),
}


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    sites: int
    shape: str
    names: int
    messages: int
    publishers: int  # clusters that publish, one or all
    filters: bool  # messages for some clusters only
    busy_s: float
    delay_s: float
    disk_s: float
    down_s: float
    faults: int
    crash_at_write: float
    recreates: bool
    removes: bool  # a cluster is gone for good in the end
    changes_policies: bool = False  # policies name fewer clusters for a while, or replicate no subscriptions
    trimmed: float = 0.0  # share of entries that cannot be compared any more
    restores: int = 0  # how often a cluster is restored from a backup
    is_still: bool = False
    crashes: bool = True  # at moments that are drawn

    @property
    def forwards(self) -> bool:
        """Whether clusters forward what they got from others: where not all have links to all."""
        return self.shape != "mesh" and not self.is_still

    @classmethod
    def draw(cls, random: Random) -> Plan:
        sites, shape = random.choice([key for key in EDGES if key[0] > 2])
        return cls(
            sites=sites,
            shape=shape,
            names=random.choice((1, 1, 2)),
            messages=random.randint(10, 50),
            publishers=random.choice((1, sites, sites)),
            filters=shape == "mesh" and random.random() < 0.3,
            busy_s=random.choice((2.0, 4.0)),
            delay_s=random.choice((0.002, 0.05, 0.15)),
            disk_s=random.choice((0.001, 0.02, 0.1)),
            down_s=random.choice((0.1, 0.5)),
            faults=random.choice((0, 4, 8, 16, 30)),
            crash_at_write=random.choice((0.0, 0.0, 0.01, 0.05)),
            recreates=random.random() < 0.4,
            removes=random.random() < 0.15 and shape in ("mesh", "star", "ring"),
            trimmed=random.choice((0.0, 0.0, 0.0, 0.5)),
            changes_policies=random.random() < 0.3,
            restores=random.choice((0, 0, 0, 1, 2)),
        )

    @classmethod
    def still(cls, sites: int, shape: str) -> Plan:
        """Nothing goes wrong, and nothing happens by itself; nothing is forwarded."""
        return cls(
            sites=sites, shape=shape, names=0, messages=0, publishers=1, filters=False, busy_s=0.0, delay_s=0.01,
            disk_s=0.001, down_s=0.1, faults=0, crash_at_write=0.0, recreates=False, removes=False, is_still=True,
        )  # fmt: skip


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(
        self, seed: int, *, tracing: bool = False, plan: Plan | None = None, crash_at: tuple[str, int] | None = None,
        fails_over: bool = False,
    ) -> None:  # fmt: skip
        """crash_at: a cluster, and the moment before or behind one of its writes at which it crashes. fails_over: whether
        consumers go on in it then, before it is connected again."""
        self.world = World(seed, tracing=tracing)
        self.plan = plan = plan or Plan.draw(self.world.random)
        self.world.note(plan)
        self.crash_at, self.fails_over = crash_at, fails_over
        self.crashed: Site | None = None  # the cluster that crashed at that moment, until consumers go on in it
        self.truth = Truth()
        self.names = [f"s{number}" for number in range(plan.names)]
        self.handovers = self.cancelled = self.taken_over = self.comparisons = self.policies = 0
        self.restored = self.renewed = 0
        self._tokens = itertools.count(1)
        self.sites: list[Site] = []
        self.sites += [Site(self, place) for place in range(plan.sites)]
        self.active = {name: [self.world.random.choice(self.sites)] for name in self.names}
        self.links = [Link(self, self.sites[one], self.sites[two]) for one, two in EDGES[plan.sites, plan.shape]]

    def present(self) -> list[Site]:
        return [site for site in self.sites if not site.is_removed]

    def next_token(self) -> str:
        return f"t{next(self._tokens):03d}"

    # ---- a run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        world, plan = self.world, self.plan
        for site in self.sites:
            site.boot()
        for name in self.names:
            creators = self.sites if world.chance(0.3) else [world.random.choice(self.sites)]
            for site in creators:
                world.after(0.3 * world.random.random(), self._create, site, name)
        for _ in range(plan.messages):
            world.at(plan.busy_s * world.random.random(), self._publish)
        self._connect()
        self._consume()
        Faults(self).plan_all()
        while world.now < plan.busy_s:
            world.run(until=min(world.now + 0.001, plan.busy_s) if self.fails_over else plan.busy_s)
            if self.crashed is not None:
                self._fail_over_to_crashed(self.crashed)
        self._settle()

    def _create(self, site: Site, name: str) -> None:
        site.create(name, self.world.random.randint(0, len(site.log)))

    def _publish(self) -> None:
        random = self.world.random
        site = self.sites[0] if self.plan.publishers == 1 else random.choice(self.present())
        if site.is_up:
            only_to = None
            if self.plan.filters and random.random() < 0.3:
                only_to = frozenset({site.id, random.choice(self.sites).id})
            for _ in range(random.choice((1, 1, 3))):
                if site.is_up:
                    site.publish(only_to)

    def _consume(self) -> None:
        random = self.world.random
        for name in self.names:
            for site in self.active[name]:
                if not site.is_removed:
                    site.consume(name, random.randint(0, 4))
        self.world.after(0.05 + 0.1 * random.random(), self._consume)

    def _connect(self) -> None:
        for link in self.links:
            link.connect()
        self.world.after(0.3 * self.world.random.random() + 0.05, self._connect)

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Faults stop; everything converges; a fail-over does what was told; then all falls silent."""
        world = self.world
        world.note("faults end")
        world.is_calm = True
        object.__setattr__(self.plan, "crash_at_write", 0.0)
        for link in self.links:
            link.is_barred = False
            link.name_again()
            if link.stalled:
                link.cut()
        self._fail_over()
        world.run(until=world.now + 4.0)
        for site in self.present():
            site.end_handover()  # an acknowledgement that came later might still be on its way when clusters are compared
        world.run(until=world.now + 2.0)  # all hear of the last home; it would win over a move at the same time
        if self.plan.removes:
            self._remove(self.sites[-1])
        for name in self.names:
            self.present()[0].move(name, NO_CLUSTER)
            self.active[name] = []
        world.run(until=world.now + 6.0)
        self._converged()
        for link in self.links:
            for site in link.ends:
                is_exact = not (self.plan.trimmed or self.plan.filters or self.renewed)
                self.check_readiness(link, site, exactly=is_exact)
        self._idle()
        self._drain()
        self._converged()
        self._idle()

    def _fail_over(self) -> None:
        """In the middle of all that is on its way, one cluster is cut off, and its consumers go on.

        The first choice of cluster, neighbour and subscription whose readiness is known is compared. If there is none,
        clusters that are down come back, links are connected, a subscription is created where all were deleted, and all
        choices are tried again. None is ever known where what neighbours hold of an origin cannot be compared any more.
        """
        until = self.world.now + FAIL_OVER_WITHIN_S
        while not self._try_fail_over() and self.world.now < until:
            if all(site.exchange.state(name) is None for site in self.present() for name in self.names):
                self._create(self.world.random.choice(self.present()), self.world.random.choice(self.names))
            self.world.run(until=self.world.now + 0.1)

    def _try_fail_over(self) -> bool:
        """Compare the readiness of one subscription with what comes of its fail-over; False: of none."""
        choices = [(link, site, name) for link in self.links for site in link.ends for name in self.names]
        self.world.random.shuffle(choices)
        return any(self._compare_fail_over(*choice) for choice in choices)

    def _fail_over_to_crashed(self, crashed: Site) -> None:
        """Consumers go on in a cluster that crashed a moment ago: what it has is what it stored, and what others say of
        it is from before."""
        self.crashed, crashed.is_alone = None, True
        crashed.boot()
        self.world.is_calm = True  # nothing else goes wrong meanwhile
        choices = [(link, link.other(crashed), name) for link in crashed.links for name in self.names]
        any(self._compare_fail_over(*choice) for choice in choices)
        self.world.is_calm = crashed.is_alone = False

    def _compare_fail_over(self, link: Link, site: Site, name: str) -> bool:
        other, world = link.other(site), self.world
        if not (site.is_up and other.is_up):
            return False
        if site.exchange.state(name) is None or name not in site.cursors or not other.delivers(name):
            return False
        if other in link.forgetful | link.diverged | link.refusing or self._holds_lost(site, other):
            return False  # the site does not know it yet

        def go_on() -> None:
            world.note("consumers of", name, "go on in", other, "alone")
            other.is_alone = True
            for each in other.links:
                each.cut()
            for at in self.present():
                at.release(name)
            until = world.now + 20.0
            while world.now < until and not self._is_drained(other, name):
                self.active[name] = [other]  # a handover may have ended elsewhere
                world.run(until=world.now + 0.5)
            demand(self._is_drained(other, name), "Liveness", f"{other} {name} does not come to its end")
            other.is_alone = False

        return self.truth.check_fail_over(site, other, name, go_on)

    def _remove(self, gone: Site) -> None:
        """A cluster is away for good: `geo cluster remove` in all others."""
        self.world.note(gone, "is removed")
        gone.crash()
        gone.is_removed = True
        self.links = [link for link in self.links if gone not in link.ends]
        for site in self.present():
            site.links = [link for link in site.links if gone not in link.ends]
            neighbours = site.neighbours()
            site.do(site.exchange.configure([site.id, *neighbours], neighbours))

    def _drain(self) -> None:
        """Consumers in one cluster take all that is to be delivered; nothing stays behind anywhere."""
        world = self.world
        for name in self.names:
            site = world.random.choice(self.present())
            self.active[name] = [site]
        until = world.now + 60.0
        while world.now < until and not all(self._is_drained(self.active[name][0], name) for name in self.names):
            world.run(until=world.now + 0.5)
        for name in self.names:
            site = self.active[name][0]
            demand(self._is_drained(site, name), "Liveness", f"{site} {name} does not come to its end")
            self.active[name] = []
        world.run(until=world.now + 8.0)

    def _is_drained(self, site: Site, name: str) -> bool:
        cursor = site.cursors.get(name)
        return cursor is None or cursor.acked.covers(0, len(site.log))

    def _converged(self) -> None:
        for name in self.names:
            states = [(site, site.exchange.state(name)) for site in self.present()]
            alive = [(site, state) for site, state in states if state is not None]
            demand(len(alive) in (0, len(states)), "Converges", f"{name} lives in {[site for site, _ in alive]}")
            for site in self.present():
                demand(
                    not site.exchange.tombstones(name),
                    "TombstonesEnd",
                    f"{site} keeps {site.exchange.tombstones(name)}",
                )
            if not alive:
                continue
            first = alive[0][1]
            for site, state in alive:
                same = (state.tokens, state.generation, state.home) == (first.tokens, first.generation, first.home)
                demand(same, "Converges", f"{name} at {site}: {state}, elsewhere {first}")
                demand(state.bases == first.bases, "Converges", f"{name} at {site}: bases {state.bases}, {first.bases}")
                self.truth.check_cursor(site, name)
                self.truth.check_state(site, name)
                dead = {token for token in state.tokens - self.truth.lost_tombstones if self.truth.dead.get(token)}
                demand(not dead, "TombstonesAreFinal", f"{name} at {site}: {dead}")
            for link in self.links:
                self._agree(link, name)
            self._merges(name, [state for _, state in alive])

    def _agree(self, link: Link, name: str) -> None:
        """Two neighbours have the same acknowledgements of each origin that both hold."""
        one, two = (site.exchange.state(name) for site in link.ends)
        assert one is not None and two is not None
        for origin in self._shared(link):
            proved = [origin in site.exchange.peer(link.other(site).id).proved for site in link.ends]
            if (self.plan.trimmed or self.plan.filters) and not all(proved):
                continue
            if self._is_former(link, origin):
                continue
            if not all(proved) and self._may_differ(link, origin):
                continue
            demand(all(proved), "SameHistoriesAreProved", f"{origin.token} at {link}")
            mine, theirs = one.acks.of(origin).dump(), two.acks.of(origin).dump()
            demand(mine == theirs, "Converges", f"{name} of {origin.token} differs at {link}")

    def _is_former(self, link: Link, origin: Origin) -> bool:
        """Whether it is a topic of one of two neighbours, which was created again, or has another identity."""
        return any(origin.cluster == site.id and origin != site.origin for site in link.ends)

    def _may_differ(self, link: Link, origin: Origin) -> bool:
        """Whether two messages have one identity, or the cluster of the origin lacks some that another one knows of, or
        its history has two branches, and neither of the two has the last message that the other one has.
        """
        if self.truth.has_two_histories(origin):
            return True
        if origin not in self.truth.rolled_back:
            return False
        one, two = ([entry.number for entry in site.log if entry.origin == origin] for site in link.ends)
        is_own = any(origin.cluster == site.id for site in link.ends)
        return is_own or not (one and two) or (one[-1] not in two and two[-1] not in one)

    def _shared(self, link: Link) -> list[Origin]:
        one, two = link.ends
        return [origin for origin in one.translation.ends() if origin in two.translation.ends()]

    def _merges(self, name: str, states: list[SubscriptionState]) -> None:
        """Merging commutes: all states of all clusters, in two orders, twice."""
        merged = []
        for _ in range(2):
            self.world.random.shuffle(states)
            result = states[0].copy()
            for state in (*states[1:], *states):
                result.merge(state)
            merged.append(result)
        demand(merged[0] == merged[1], "MergingCommutes", f"{name}: {merged}")

    def _idle(self) -> None:
        """Without changes nothing is stored, and nothing sent."""
        for site in self.present():
            site.idle_writes = 0
        self.world.run(until=self.world.now + 2.0)
        for site in self.present():
            demand(site.idle_writes == 0, "IdleWritesNothing", f"{site} did so {site.idle_writes} times")
            demand(site.exchange.is_idle, "IdleWritesNothing", f"{site} is not idle")

    def _holds_lost(self, site: Site, other: Site) -> bool:
        """Whether a cluster has messages that were published in another one, and that this one lost when it was restored:
        a third cluster may send them after the two were connected, and neither of the two has noticed that yet."""
        if other.origin not in self.truth.rolled_back:
            return False
        return not all(other.has(entry) for entry in site.log if entry.origin == other.origin)

    def check_readiness(self, link: Link, site: Site, *, exactly: bool) -> None:
        other = link.other(site)
        if not (link.is_connected and site.is_up and other.is_up) or link.stalled:
            return
        if other in link.diverged | link.refusing:
            return
        if self._holds_lost(site, other):
            return
        for name in self.names:
            if site.exchange.state(name) is not None and name in site.cursors:
                self.truth.check_readiness(site, other, name, exactly=exactly)
