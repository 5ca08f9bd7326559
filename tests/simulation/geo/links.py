"""The connections between two clusters: one for messages of the topic, one for subscriptions. Each keeps its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyreplog.origins.origin import Origin

if TYPE_CHECKING:
    from .schedule import Schedule
    from .sites import Entry, Site


class Link:
    def __init__(self, schedule: Schedule, one: Site, another: Site) -> None:
        self.schedule, self.world = schedule, schedule.world
        self.ends = one, another
        self.session = 0
        self.is_connected = False
        self.is_barred = False
        self.withdrawn: set[Site] = set()  # ends whose policy does not name the other one for a while
        self.stalled: set[tuple[Site, str]] = set()  # directions in which nothing arrives any more
        self.withheld: dict[Site, int] = {}  # what a cluster published before is never sent
        # ends that were restored, or forgot their subscriptions, since the link was connected last
        self.forgetful: set[Site] = set()
        self.diverged: set[Site] = set()  # ends that send nothing: the other one has messages that they lack
        self.refusing: set[Site] = set()  # ends that got acknowledgements of messages that they lost, and take none
        self._unproved: set[Site] = set()  # ends of whose own messages the other one has others
        self._arrivals: dict[tuple[Site, str], float] = {}
        self._next: dict[tuple[Site, Origin], int] = {}
        for site in self.ends:
            site.links.append(self)
        self.world.after(0.1 * self.world.random.random(), self._pump)

    def __repr__(self) -> str:
        return f"{self.ends[0]}-{self.ends[1]}"

    def other(self, site: Site) -> Site:
        return self.ends[1] if site is self.ends[0] else self.ends[0]

    # ---- up and down -----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        away = any(not site.is_up or site.is_removed or site.is_alone for site in self.ends)
        if self.is_connected or self.is_barred or self.withdrawn or away:
            return
        self.session += 1
        self.is_connected = True
        self.stalled.clear()
        self._arrivals.clear()
        self._next.clear()
        self.forgetful.clear()
        self.refusing.clear()
        self.world.note(self, "connected, session", self.session)
        self._compare()
        for site in self.ends:
            site.do(site.exchange.connect(self.other(site).id, self.session))
        for site in self.ends:
            self.prove_later(site)

    def _compare(self) -> None:
        """Compare the position of each end in the topic of the other one, as its replicator and the exchange do."""
        self.diverged.clear()
        self._unproved.clear()
        for source in self.ends:
            target = self.other(source)
            stored, last = target.vector.get(source.origin, 0), target.last_of(source.origin)
            is_same = last is None or source.has(last)
            if not is_same or stored > len(source.log):
                self._unproved.add(source)
            if not is_same or stored > source.sent_end:
                self.world.note(source, "has other messages than", target)
                self.diverged.add(source)
                self.world.after(0.5 * self.world.random.random(), self._resync, self.session, source)
            else:
                source.marks[target.id] = stored

    def _resync(self, session: int, source: Site) -> None:
        """An operator orders it."""
        if session == self.session and self.is_connected and source.is_up and source in self.diverged:
            source.renew(source.marks.get(self.other(source).id, 0))

    def cut(self) -> None:
        """Both ends learn it, maybe not at once; what is on its way is lost."""
        if not self.is_connected:
            return
        self.world.note(self, "cut")
        self.is_connected = False
        for site in self.ends:
            if site.is_up:
                site.do(site.exchange.disconnect(self.other(site).id))

    def withdraw(self, ends: list[Site]) -> None:
        """The policies of these ends do not name the other one from now on."""
        self.world.note(ends, "withdraw", self)
        self.cut()
        self.withdrawn |= {*ends}
        for site in ends:
            site.configure()

    def name_again(self) -> None:
        """Both policies name the other end."""
        ends, self.withdrawn = sorted(self.withdrawn, key=repr), set()
        for site in ends:
            self.world.note(site, "names the other end of", self, "again")
            site.configure()

    def half_cut(self, site: Site) -> None:
        """Nothing of what `site` sends arrives any more, and nobody notices for a while."""
        if self.is_connected:
            self.world.note(self, "nothing arrives from", site)
            self.stalled |= {(site, "data"), (site, "control")}
            self.world.after(self.world.random.random(), self._cut_session, self.session)

    def _cut_session(self, session: int) -> None:
        if session == self.session:
            self.cut()

    # ---- what travels ----------------------------------------------------------------------------------------------

    def _carry(self, site: Site, kind: str, call: Callable[..., Any], *arguments: Any) -> None:
        """In the order of the connection, after a delay that is drawn."""
        if not self.is_connected or (site, kind) in self.stalled:
            return
        delay = self.schedule.plan.delay_s * (0.5 + self.world.random.random())
        arrival = max(self.world.now + delay, self._arrivals.get((site, kind), 0.0))
        self._arrivals[site, kind] = arrival
        self.world.at(arrival, self._arrive, self.session, site, kind, call, *arguments)

    def _arrive(self, session: int, site: Site, kind: str, call: Callable[..., Any], *arguments: Any) -> None:
        if (
            session == self.session
            and self.is_connected
            and (site, kind) not in self.stalled
            and self.other(site).is_up
        ):
            call(*arguments)

    def send(self, site: Site, session: int, data: bytes) -> None:
        if session == self.session:
            self._carry(site, "control", self._receive, self.other(site), site, data)

    def _receive(self, receiver: Site, sender: Site, data: bytes) -> None:
        receiver.do(receiver.exchange.receive(sender.id, data))

    def prove_later(self, site: Site) -> None:
        """What both hold of the two topics is compared when the connection begins; some time later."""
        if self.is_connected:
            delay = self.schedule.plan.delay_s * 3 * self.world.random.random()
            self.world.after(delay, self._prove, self.session, site)

    def _prove(self, session: int, site: Site) -> None:
        if session == self.session and self.is_connected and site.is_up:
            for end in (site, self.other(site)):
                if end not in self._unproved:
                    site.do(site.exchange.prove(self.other(site).id, end.origin))

    # ---- messages of the topic -------------------------------------------------------------------------------------

    def _pump(self) -> None:
        for site in self.ends:
            if self.is_connected and (site, "data") not in self.stalled and site not in self.diverged:
                self._replicate(site, self.other(site))
        self.world.after(0.05 + 0.1 * self.world.random.random(), self._pump)

    def _replicate(self, source: Site, target: Site) -> None:
        for origin in list(source.vector):
            is_own = origin.cluster == source.id  # former identities of its topic, too
            if origin.cluster == target.id or not (is_own or self.schedule.plan.forwards):
                continue
            at = self._next.setdefault((source, origin), target.vector.get(origin, 0))
            end = source.vector[origin]
            if not self.schedule.plan.is_still:
                end = min(end, at + self.world.random.randint(1, 8))
            if end > at:
                entries = self._entries(source, origin, at, end, target)
                self._next[source, origin] = end
                if origin == source.origin:
                    source.sent_end = max(source.sent_end, end)
                self._carry(source, "data", self._store, target, target.topics, origin, at, end, entries)

    def _entries(self, source: Site, origin: Origin, at: int, end: int, target: Site) -> list[Entry]:
        if origin == source.origin:
            candidates = source.log[at:end]
        else:
            candidates = [entry for entry in source.log if entry.origin == origin and at <= entry.number < end]
        chosen = [entry for entry in candidates if entry.origin == origin]
        least = self.withheld.get(source, 0) if origin == source.origin else 0
        return [
            entry for entry in chosen if entry.number >= least and (entry.only_to is None or target.id in entry.only_to)
        ]

    def _store(self, target: Site, topics: int, origin: Origin, at: int, end: int, entries: list[Entry]) -> None:
        if topics == target.topics:
            target.store(origin, at, end, entries)
            source = self.other(target)
            if origin == source.origin:
                source.marks[target.id] = max(source.marks.get(target.id, 0), target.vector.get(origin, 0))
