"""Replicated subscriptions of Apache Pulsar (PIP-33), as its controller, replicator and snapshot cache work: a reference.

Positions are places in a cluster's log. A cluster asks all others where they are (REQUEST), twice if there are several;
their answers (RESPONSE) and the place in its own log at which they came are a snapshot. Once the mark of a subscription
has passed that place, the others are told to acknowledge all up to the positions of the snapshot (UPDATE). All of these
are markers in the topic, and each replicator handles those that came from the cluster it sends to when it reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["data", "request", "response", "snapshot", "update"]


@dataclass
class Entry:
    """What a log has at a position; `source` is the cluster that it was replicated from, "" for its own."""

    kind: Kind
    label: str = ""
    source: str = ""
    only_to: frozenset[str] | None = None
    snapshot: str = ""
    positions: dict[str, int] = field(default_factory=dict)
    local: int = -1
    name: str = ""


@dataclass
class Subscription:
    acked: set[int] = field(default_factory=set)
    mark: int = -1
    read: int = 0
    cache: list[Entry] = field(default_factory=list)


@dataclass
class Pending:
    missing: set[str]
    positions: dict[str, int] = field(default_factory=dict)
    is_second_round: bool = False


class Pip33Cluster:
    def __init__(self, clusters: Pip33, name: str) -> None:
        self.clusters, self.name = clusters, name
        self.log: list[Entry] = []
        self.cursors: dict[str, int] = {}  # of the replicators, by the cluster that they send to
        self.subscriptions: dict[str, Subscription] = {}
        self.pending: dict[str, Pending] = {}
        self.snapshots = 0

    def append(self, entry: Entry) -> int:
        self.log.append(entry)
        return len(self.log) - 1

    # ---- the controller --------------------------------------------------------------------------------------------

    def request(self) -> None:
        """The snapshot timer, once a second."""
        self.snapshots += 1
        snapshot = f"{self.name}{self.snapshots}"
        self.pending[snapshot] = Pending({*self.cursors})
        self.append(Entry("request", snapshot=snapshot, source=""))

    def handle(self, entry: Entry, place: int) -> None:
        """A replicator has read a marker that came from the cluster it sends to."""
        if entry.kind == "request":
            position = {self.name: len(self.log) - 1}
            self.append(
                Entry("response", snapshot=entry.snapshot, positions=position, only_to=frozenset({entry.source}))
            )
        elif entry.kind == "response":
            self._answered(entry, place)
        elif entry.kind == "update" and self.name in entry.positions:
            subscription = self.subscriptions.setdefault(entry.name, Subscription())
            subscription.acked |= {*range(entry.positions[self.name] + 1)}
            self._advance(subscription)

    def _answered(self, entry: Entry, place: int) -> None:
        pending = self.pending.get(entry.snapshot)
        if pending is None:
            return
        for cluster, position in entry.positions.items():
            pending.positions.setdefault(cluster, position)
            pending.missing.discard(cluster)
        if pending.missing:
            return
        if len(self.cursors) > 1 and not pending.is_second_round:
            pending.is_second_round, pending.missing = True, {*self.cursors}
            self.append(Entry("request", snapshot=entry.snapshot))
            return
        del self.pending[entry.snapshot]
        self.append(Entry("snapshot", positions=pending.positions, local=place, only_to=frozenset({self.name})))

    # ---- subscriptions ---------------------------------------------------------------------------------------------

    def read_on(self, name: str) -> None:
        """The dispatcher reads to the end; markers are acknowledged, snapshots remembered."""
        subscription = self.subscriptions[name]
        for place in range(subscription.read, len(self.log)):
            entry = self.log[place]
            if entry.kind != "data":
                subscription.acked.add(place)
            if entry.kind == "snapshot" and not entry.source:
                subscription.cache.append(entry)
        subscription.read = len(self.log)
        self._advance(subscription)
        passed = [entry for entry in subscription.cache if entry.local <= subscription.mark]
        if passed:
            subscription.cache = [entry for entry in subscription.cache if entry.local > subscription.mark]
            self.append(Entry("update", name=name, positions=passed[-1].positions))

    @staticmethod
    def _advance(subscription: Subscription) -> None:
        while subscription.mark + 1 in subscription.acked:
            subscription.mark += 1

    # ---- replication -----------------------------------------------------------------------------------------------

    def replicate(self, target: Pip33Cluster) -> bool:
        """Read one entry for a target, handle it, and send it on; False: there is none."""
        place = self.cursors[target.name]
        if place >= len(self.log):
            return False
        entry = self.log[place]
        self.cursors[target.name] = place + 1
        if entry.kind != "data" and entry.source == target.name:
            self.handle(entry, place)
        if entry.source or (entry.only_to is not None and target.name not in entry.only_to):
            return True
        copy = Entry(
            entry.kind, entry.label, self.name, None, entry.snapshot, dict(entry.positions), entry.local, entry.name
        )
        if entry.label in self.clusters.failing:
            self.clusters.resent.append(
                (target, copy)
            )  # the head fails alone, later ones are stored; then it is sent again
            self.clusters.failing.discard(entry.label)
        else:
            target.append(copy)
        return True


class Pip33:
    """Some clusters; a scenario's side of PIP-33."""

    def __init__(self, links: list[str]) -> None:
        names = sorted({name for link in links for name in link})
        self.clusters = {name: Pip33Cluster(self, name) for name in names}
        self.acknowledged: set[str] = set()
        self.failing: set[str] = set()
        self.resent: list[tuple[Pip33Cluster, Entry]] = []
        for one, two in (tuple(link) for link in links):
            self.clusters[one].cursors[two] = self.clusters[two].cursors[one] = 0

    def subscribe(self, name: str) -> None:
        for cluster in self.clusters.values():
            cluster.subscriptions[name] = Subscription()

    def publish(self, cluster: str, label: str, only_to: str = "") -> None:
        self.clusters[cluster].append(Entry("data", label, only_to=frozenset(only_to) if only_to else None))

    def withhold(self, source: str, target: str) -> None:
        """What the source has is never sent: replication starts at the latest, or its cursor is cleared."""
        self.clusters[source].cursors[target] = len(self.clusters[source].log)

    def reorder(self, label: str) -> None:
        """The message fails when it is sent; those that were sent behind it are stored."""
        self.failing.add(label)

    def recreate(self, cluster: str) -> None:
        """The topic of a cluster is deleted and created again."""
        former = self.clusters[cluster]
        created = self.clusters[cluster] = Pip33Cluster(self, cluster)
        created.cursors = dict.fromkeys(former.cursors, 0)
        created.subscriptions = {name: Subscription() for name in former.subscriptions}

    def acknowledge(self, cluster: str, name: str, *labels: str) -> None:
        site = self.clusters[cluster]
        places = {place: entry.label for place, entry in enumerate(site.log) if entry.label in labels}
        site.subscriptions[name].acked |= {*places}
        self.acknowledged |= {*places.values()}

    def resend(self) -> None:
        """What failed is sent again."""
        for target, copy in self.resent:
            target.append(copy)
        self.resent.clear()

    def snapshot(self, cluster: str) -> None:
        self.clusters[cluster].request()
        self.run()

    def run(self) -> None:
        """Until nothing is on its way."""
        moving = True
        while moving:
            moving = False
            for cluster in self.clusters.values():
                for target in cluster.cursors:
                    while cluster.replicate(self.clusters[target]):
                        moving = True
            before = sum(len(cluster.log) for cluster in self.clusters.values())
            for cluster in self.clusters.values():
                for name in cluster.subscriptions:
                    cluster.read_on(name)
            moving |= sum(len(cluster.log) for cluster in self.clusters.values()) > before

    def advance(self, seconds: float) -> None:
        """Nothing takes time, neither links nor disks."""
        self.run()

    def stored(self, cluster: str) -> list[str]:
        return [entry.label for entry in self.clusters[cluster].log if entry.kind == "data"]

    def deliverable(self, cluster: str, name: str) -> list[str]:
        """What consumers get that go on in a cluster now."""
        site = self.clusters[cluster]
        acked = site.subscriptions[name].acked
        return [entry.label for place, entry in enumerate(site.log) if entry.kind == "data" and place not in acked]
