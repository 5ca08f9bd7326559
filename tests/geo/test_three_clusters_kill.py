"""Three clusters, each a server process with SQLite, replicate to each other; one after another is killed with kill -9
while all publish and one consumes.

`PYREPLOG_GEO_KILLS=N` kills N times (`make geokills`); a run of all tests kills less often.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import pyreplog
from pyreplog import Cluster
from tests.geo.sites import NOWHERE, SYNCED
from tests.ledger.processes import ProcessGroup
from tests.topic.remoting import Wire
from tests.waiting import until

KILLS = int(os.environ.get("PYREPLOG_GEO_KILLS", "2"))
BATCH = 3


class Place:
    """A cluster in a process of its own, and a client of it."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.name, self._path = path.name, path
        self._processes = stack.enter_context(ProcessGroup(path.parent, ""))
        self._wire = stack.enter_context(Wire(NOWHERE))
        self.url = f"pyreplog://{self._wire.address}"
        self.begin()

    def connect(self, stack: ExitStack) -> None:
        self.cluster = stack.enter_context(Cluster.connect(f"sqlite:{self._path / 'metadata.sqlite'}"))
        self._client = stack.enter_context(pyreplog.connect(self.url, timeout=60.0))

    @property
    def topic(self) -> Any:
        return self._client.topic("t", **SYNCED, deduplicate=True)

    def begin(self) -> None:
        """Start the process; it may still have to recover."""
        self._process = self._processes.start("pyreplog", "serve", str(self._path), "--bookies", "1", "--json")

    def serves(self) -> None:
        """Wait until the process serves, and let the others reach it."""
        self._wire.lead_to(self._process.wait_for("address"))

    def kill(self) -> None:
        self._process.kill()
        self._wire.lead_to(NOWHERE)
        self._wire.cut()

    def replicate(self, *others: Place) -> None:
        for other in others:
            self.cluster.geo.add_cluster(other.name, other.url)
        self.cluster.geo.set_policy("t", targets=[other.name for other in others], replicated_subscriptions=True)

    def values(self) -> list[bytes]:
        return [value for batch in self.topic.read() for value in batch.values()]

    def consume(self, count: int) -> set[bytes]:
        """Acknowledge so many messages, of which some may be acknowledged elsewhere; return them."""
        with self.topic.subscribe("s", type="shared") as consumer:
            messages = [consumer.receive(timeout=60.0) for _ in range(count)]
            for message in messages:
                consumer.acknowledge(message)
            consumer.flush(timeout=60.0)
        return {message.value for message in messages}

    def is_ready(self) -> bool:
        """Return whether a fail-over to either of the other clusters would lose and repeat nothing."""
        rows = self.cluster.geo.readiness("t", everywhere=True)
        return len(rows) == 2 and all(row.is_ready and not row.error and not row.alarm for row in rows)


class Publisher:
    """Publishes numbered messages in a cluster, in a thread of its own; those without an outcome are sent again."""

    def __init__(self, place: Place) -> None:
        self._place, self._is_over = place, threading.Event()
        self.confirmed = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        topic, name = self._place.topic, self._place.name
        while not self._is_over.wait(0.01):  # the pace
            numbers = range(self.confirmed, self.confirmed + BATCH)
            topic.publish_batch(
                [b"%s %d" % (name.encode(), number) for number in numbers], producer=name, sequences=numbers
            )
            self.confirmed += BATCH

    def awaits(self, batches: int) -> None:
        """Wait until so many more batches are confirmed."""
        least = self.confirmed + batches * BATCH
        until(lambda: self.confirmed >= least)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def test_any_of_three_clusters_is_killed(tmp_path: Path, seed: int) -> None:
    """Each message is once in each cluster, those of one origin in order; each is acknowledged or delivered."""
    random, acked = Random(seed), set[bytes]()
    with ExitStack() as stack:
        places = [Place(stack, tmp_path / name) for name in "abc"]
        for place in places:
            place.serves()
            place.connect(stack)
        for place in places:
            place.replicate(*(other for other in places if other is not place))
        places[0].topic.create_subscription("s", start="earliest")
        publishers = {place: stack.enter_context(Publisher(place)) for place in places}
        until(lambda: all("s" in place.topic.subscriptions() for place in places), pause_s=0.1)
        for _ in range(KILLS):
            acked |= random.choice(places).consume(random.randrange(1, 20))
            victim = random.choice(places)
            publishers[victim].awaits(random.randrange(1, 20))
            victim.kill()
            for place, publisher in publishers.items():
                if place is not victim:
                    publisher.awaits(random.randrange(1, 20))
            victim.begin()
            victim.serves()
            publishers[victim].awaits(1)
        for publisher in publishers.values():
            publisher.end()
        sent = {
            place: [b"%s %d" % (place.name.encode(), number) for number in range(publisher.confirmed)]
            for place, publisher in publishers.items()
        }
        everything = [value for values in sent.values() for value in values]
        until(lambda: all(len(place.topic) >= len(everything) for place in places), pause_s=0.1)
        for place in places:
            stored = place.values()
            assert len(stored) == len(everything)
            for origin, values in sent.items():
                assert [value for value in stored if value.startswith(origin.name.encode() + b" ")] == values
        until(lambda: all(place.is_ready() for place in places), pause_s=0.1)
        left = random.choice(places).consume(len(everything) - len(acked))
        assert left == {*everything} - acked
