"""What goes wrong, and what operators do, at moments that are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog.geo.acks.subscription_state import NO_CLUSTER

if TYPE_CHECKING:
    from .links import Link
    from .schedule import Schedule
    from .sites import Site


class Faults:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.world, self.plan = schedule, schedule.world, schedule.plan
        self.kinds = [
            *[self.crash] * (3 * self.plan.crashes), *[self.cut] * 4, *[self.half_cut] * 2, *[self.fail_over] * 3, *[self.seek] * 2,
            self.seek_twice, *[self.hand_over] * 4, self.take_back, self.take_over, *[self.expire] * 2, *[self.readiness] * 4,
            *[self.late] * 2, self.delete, *[self.create] * 2, self.create_everywhere,
        ]  # fmt: skip
        if self.plan.recreates:
            self.kinds += [self.recreate_topic, self.recreate_subscription]

        if self.plan.changes_policies:
            self.kinds += [*[self.withdraw] * 3, *[self.replicate_again] * 2]

    def plan_all(self) -> None:
        for _ in range(self.plan.faults):
            self.world.at(self.plan.busy_s * self.world.random.random(), self._happen)
        for _ in range(self.plan.restores):
            site, random = self.site, self.world.random
            at = self.plan.busy_s * random.random()
            self.world.at(at, site.back_up)
            self.world.at(at + (self.plan.busy_s - at) * random.random(), site.restore)

    def _happen(self) -> None:
        if not self.world.is_calm:
            self.world.random.choice(self.kinds)()

    # ---- what is drawn ---------------------------------------------------------------------------------------------

    @property
    def site(self) -> Site:
        return self.world.random.choice(self.schedule.present())

    @property
    def link(self) -> Link:
        return self.world.random.choice(self.schedule.links)

    @property
    def name(self) -> str:
        return self.world.random.choice(self.schedule.names)

    def _position(self, site: Site) -> int:
        return self.world.random.choice((0, len(site.log), self.world.random.randint(0, len(site.log))))

    # ---- what goes wrong -------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.site.crash()

    def cut(self) -> None:
        """The link is away for a while, or comes back at once."""
        link = self.link
        link.cut()
        if self.world.chance(0.3):
            link.is_barred = True
            self.world.after(self.world.random.random() * 2, self._admit, link)

    def _admit(self, link: Link) -> None:
        link.is_barred = False

    def half_cut(self) -> None:
        link = self.link
        link.half_cut(self.world.random.choice(link.ends))

    def late(self) -> None:
        self.site.acknowledge_late(self.name)

    def expire(self) -> None:
        self.site.expire(self.name)

    def recreate_topic(self) -> None:
        self.site.recreate_topic()

    # ---- operators -------------------------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """Consumers go on in another cluster, or in two at once."""
        name = self.name
        sites = self.schedule.present()
        chosen = self.world.random.sample(sites, 2 if self.world.chance(0.2) else 1)
        for site in self.schedule.active[name]:
            if site.is_up and site not in chosen:
                site.release(name)
        self.schedule.active[name] = chosen
        self.world.note("consumers of", name, "in", chosen)

    def hand_over(self) -> None:
        name = self.name
        active = self.schedule.active[name]
        links = [link for link in active[0].links if active[0] not in link.withdrawn] if len(active) == 1 else []
        if links and active[0].is_up:
            active[0].hand_over(name, self.world.random.choice(links).other(active[0]))

    def take_back(self) -> None:
        """An operator ends a handover, or forces the subscription to be open to all."""
        site = self.site
        if site.handover is not None and site.handover.cancel():
            site.handover = None
        elif site.handover is None:
            site.move(self.name, NO_CLUSTER)

    def take_over(self) -> None:
        """Consumers go on in another cluster by force, and the one that delivered so far may not know."""
        name, site = self.name, self.site
        if site.is_up and site.exchange.state(name) is not None:
            self.schedule.taken_over += 1
            site.handover = None
            site.move(name, site.id)
            for other in self.schedule.active[name]:
                if other is not site and other.is_up and self.world.chance(0.5):
                    other.release(name)
            self.schedule.active[name] = [site]

    def seek(self) -> None:
        site = self.site
        site.seek(self.name, self._position(site))

    def seek_twice(self) -> None:
        """In two clusters at once."""
        name = self.name
        for site in self.world.random.sample(self.schedule.present(), 2):
            site.seek(name, self._position(site))

    def create(self) -> None:
        site = self.site
        site.create(self.name, self._position(site))

    def create_everywhere(self) -> None:
        name = self.name
        for site in self.schedule.present():
            site.create(name, self._position(site))

    def delete(self) -> None:
        self.site.delete(self.name)

    def recreate_subscription(self) -> None:
        site, name = self.site, self.name
        site.delete(name)
        self.world.after(self.world.random.random() * 0.5, self._create_again, name)

    def _create_again(self, name: str) -> None:
        site = self.site
        site.create(name, self._position(site))

    def withdraw(self) -> None:
        """One end of a link, or both, are not in the policy of the other for a while."""
        link = self.link
        self.schedule.policies += 1
        self.schedule.truth.forget_tombstones(self.schedule.present())
        link.withdraw(self.world.random.sample(link.ends, self.world.random.randint(1, 2)))
        self.world.after(self.world.random.random() * 2, link.name_again)

    def replicate_again(self) -> None:
        self.schedule.policies += 1
        self.site.replicate_again()

    def readiness(self) -> None:
        link = self.link
        for site in link.ends:
            self.schedule.check_readiness(link, site, exactly=False)
