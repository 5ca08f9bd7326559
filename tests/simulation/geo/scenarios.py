"""Stories of consumers that go on in another cluster, told to PIP-33 and to the shipped machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyreplog.origins.origin import Origin

from .pip33 import Pip33
from .schedule import Plan, Schedule
from .sites import Site


class Clusters(Protocol):
    """What a story needs of some clusters, called a, b, c, that are linked as given."""

    acknowledged: set[str]

    def subscribe(self, name: str) -> None: ...
    def publish(self, cluster: str, label: str, only_to: str = "") -> None: ...
    def withhold(self, source: str, target: str) -> None: ...
    def reorder(self, label: str) -> None: ...
    def resend(self) -> None: ...
    def recreate(self, cluster: str) -> None: ...
    def acknowledge(self, cluster: str, name: str, *labels: str) -> None: ...
    def snapshot(self, cluster: str) -> None: ...
    def run(self) -> None: ...
    def advance(self, seconds: float) -> None: ...
    def stored(self, cluster: str) -> list[str]: ...
    def deliverable(self, cluster: str, name: str) -> list[str]: ...


class FailOver(NamedTuple):
    """What consumers get that go on in b, by the labels of messages.

    Attributes:
        acknowledged: how many messages were acknowledged, in any cluster.
        delivered: the messages that they get.
        lost: messages of b that nobody has acknowledged, and that they do not get.
        repeated: messages that were acknowledged, and that they get all the same.
    """

    acknowledged: int
    delivered: list[str]
    lost: list[str]
    repeated: list[str]


Story = Callable[[Callable[[list[str]], Clusters]], FailOver]


def fail_over(clusters: Clusters) -> FailOver:
    """Consumers of the subscription s go on in b now."""
    acknowledged, delivered = clusters.acknowledged, clusters.deliverable("b", "s")
    passed = acknowledged | {*delivered}
    lost = [label for label in clusters.stored("b") if label not in passed]
    return FailOver(len(acknowledged), delivered, lost, [label for label in delivered if label in acknowledged])


class Shipped:
    """The shipped machines, without faults; clusters send what was published to them, and forward nothing."""

    def __init__(self, links: list[str]) -> None:
        letters = sorted({letter for link in links for letter in link})
        shape = "mesh" if len(links) == 3 or len(letters) == 2 else "chain"
        self.schedule = Schedule(0, plan=Plan.still(len(letters), shape))
        self.sites = {site.letter: site for site in self.schedule.sites}
        self.acknowledged: set[str] = set()
        self._labels: dict[tuple[Origin, int], str] = {}
        for site in self.schedule.sites:
            site.boot()
        self.run()

    def _site(self, letter: str) -> Site:
        return self.sites[letter]

    def subscribe(self, name: str) -> None:
        self.schedule.names.append(name)
        self.schedule.active[name] = []
        self.schedule.sites[0].create(name, 0)
        self.run()

    def publish(self, cluster: str, label: str, only_to: str = "") -> None:
        site = self._site(cluster)
        self._labels[site.origin, len(site.log)] = label
        site.publish(frozenset(self._site(letter).id for letter in only_to) if only_to else None)

    def withhold(self, source: str, target: str) -> None:
        site = self._site(source)
        for link in site.links:
            if link.other(site) is self._site(target):
                link.withheld[site] = len(site.log)

    def reorder(self, label: str) -> None:
        """What was sent behind a lost message is refused: the gate of the target expects that one first."""
        source, number = next(
            (site, number)
            for (origin, number), known in self._labels.items()
            for site in self.schedule.sites
            if known == label and site.origin == origin
        )
        for link in source.links:
            target = link.other(source)
            target.store(source.origin, number + 1, len(source.log), source.log[number + 1 :])

    def resend(self) -> None:
        """It was, before anything behind it."""

    def recreate(self, cluster: str) -> None:
        self._site(cluster).recreate_topic()

    def acknowledge(self, cluster: str, name: str, *labels: str) -> None:
        site = self._site(cluster)
        state = site.exchange.state(name)
        assert state is not None
        for local, entry in enumerate(site.log):
            if (label := self._labels[entry.origin, entry.number]) in labels:
                self.acknowledged.add(label)
                site.acknowledge(name, local, min(state.tokens), state.generation)

    def snapshot(self, cluster: str) -> None:
        """There are none."""

    def run(self) -> None:
        for link in self.schedule.links:
            link.connect()
        self.advance(3.0)

    def advance(self, seconds: float) -> None:
        self.schedule.world.run(until=self.schedule.world.now + seconds)

    def stored(self, cluster: str) -> list[str]:
        return [self._labels[entry.origin, entry.number] for entry in self._site(cluster).log]

    def deliverable(self, cluster: str, name: str) -> list[str]:
        site = self._site(cluster)
        acked = site.cursors[name].acked
        return [self._labels[entry.origin, entry.number] for local, entry in enumerate(site.log) if local not in acked]


# ---- what PIP-33 loses -----------------------------------------------------------------------------------------------


def selective_replication(make: Callable[[list[str]], Clusters]) -> FailOver:
    """b has a message for its own consumers alone; what a acknowledged includes its position."""
    clusters = make(["ab"])
    clusters.subscribe("s")
    clusters.publish("b", "lost", only_to="b")
    clusters.publish("a", "one")
    return _acknowledged_in_a(clusters)


def old_backlog(make: Callable[[list[str]], Clusters]) -> FailOver:
    """b had messages before it began to replicate to a, from the latest on."""
    clusters = make(["ab"])
    clusters.subscribe("s")
    clusters.publish("b", "lost")
    clusters.withhold("b", "a")
    clusters.publish("a", "one")
    return _acknowledged_in_a(clusters)


def cleared_backlog(make: Callable[[list[str]], Clusters]) -> FailOver:
    """The backlog of the replicator from b to a was cleared, or expired, or could not be sent."""
    clusters = make(["ab"])
    clusters.subscribe("s")
    clusters.publish("a", "one")
    clusters.publish("b", "two")
    clusters.run()
    clusters.publish("b", "lost")
    clusters.withhold("b", "a")
    return _acknowledged_in_a(clusters)


def reordered(make: Callable[[list[str]], Clusters]) -> FailOver:
    """A message failed on its way to a, and came again behind what was sent after it."""
    clusters = make(["ab"])
    clusters.subscribe("s")
    clusters.publish("a", "one")
    clusters.run()
    clusters.publish("b", "lost")
    clusters.publish("b", "two")
    clusters.reorder("lost")
    return _acknowledged_in_a(clusters)


def no_full_mesh(make: Callable[[list[str]], Clusters]) -> FailOver:
    """c replicates to b, not to a."""
    clusters = make(["ab", "bc"])
    clusters.subscribe("s")
    clusters.publish("c", "lost")
    clusters.run()
    clusters.publish("a", "one")
    return _acknowledged_in_a(clusters)


def recreated_topic(make: Callable[[list[str]], Clusters]) -> FailOver:
    """The topic in b was deleted and created again; a has a snapshot of the former one."""
    clusters = make(["ab"])
    clusters.subscribe("s")
    clusters.publish("b", "two")
    clusters.publish("a", "one")
    clusters.run()
    clusters.snapshot("a")
    clusters.recreate("b")
    for _ in range(3):
        clusters.publish("b", "lost")
    clusters.acknowledge("a", "s", "one", "two")
    clusters.run()
    return fail_over(clusters)


def _acknowledged_in_a(clusters: Clusters) -> FailOver:
    clusters.run()
    clusters.snapshot("a")
    clusters.acknowledge("a", "s", "one", "two")
    clusters.run()
    clusters.resend()
    clusters.run()
    return fail_over(clusters)


LOSSES: tuple[Story, ...] = (
    selective_replication,
    old_backlog,
    cleared_backlog,
    reordered,
    no_full_mesh,
    recreated_topic,
)


# ---- what PIP-33 repeats ---------------------------------------------------------------------------------------------


def out_of_order(make: Callable[[list[str]], Clusters]) -> FailOver:
    """All but the first message were acknowledged, one by one."""
    clusters = make(["ab"])
    clusters.subscribe("s")
    for number in range(10):
        clusters.publish("a", f"{number}")
    clusters.run()
    clusters.snapshot("a")
    clusters.acknowledge("a", "s", *(f"{number}" for number in range(1, 10)))
    clusters.run()
    return fail_over(clusters)


def behind_the_snapshot(make: Callable[[list[str]], Clusters]) -> FailOver:
    """Messages came, and were acknowledged, behind the last snapshot."""
    clusters = make(["ab"])
    clusters.subscribe("s")
    clusters.publish("a", "0")
    clusters.run()
    clusters.snapshot("a")
    for number in range(1, 6):
        clusters.publish("a", f"{number}")
    clusters.run()
    clusters.acknowledge("a", "s", *(f"{number}" for number in range(6)))
    clusters.run()
    return fail_over(clusters)


def in_order(make: Callable[[list[str]], Clusters]) -> FailOver:
    """What a snapshot is for: all before it was acknowledged, in order."""
    clusters = make(["ab", "ac", "bc"])
    clusters.subscribe("s")
    for cluster in "abc":
        clusters.publish(cluster, f"from {cluster}")
    clusters.run()
    clusters.snapshot("a")
    clusters.acknowledge("a", "s", "from a", "from b", "from c")
    clusters.run()
    return fail_over(clusters)


REPEATS: tuple[Story, ...] = (out_of_order, behind_the_snapshot)


def compare(story: Story) -> tuple[FailOver, FailOver]:
    """Return what a fail-over does with PIP-33, and with the shipped machines."""
    return story(Pip33), story(Shipped)
