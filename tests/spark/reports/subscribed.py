"""A cluster with topics and subscriptions, and what plain Python knows of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

import pyreplog
from pyreplog.clock import ManualClock
from pyreplog.reports.gathering import gather
from pyreplog.reports.snapshot import Snapshot
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.owner.subscription import NOBODY
from tests.spark.clusters import SEGMENT
from tests.spark.reading import options_of, read_table
from tests.topic.owners import until

BEGIN_US = 1_700_000_000_000_000
SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def moment(time_us: int | None) -> datetime | None:
    return None if time_us is None else EPOCH + timedelta(microseconds=time_us)


def offsets_in(text: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(sorted(text), np.int64)


@dataclass
class Sub:
    """acked: everything below the start of the subscription, too. marks: (time, mark from then on)."""

    acked: set[int]
    marks: list[tuple[int, int]]

    @property
    def mark(self) -> int:
        return self.marks[-1][1]


@dataclass
class Known:
    """times, sizes: of all messages that were ever published, by offset."""

    topic: pyreplog.Topic
    times: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    subs: dict[str, Sub] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.times)

    def left(self, name: str) -> list[int]:
        """Offsets that are not acknowledged."""
        return [offset for offset in range(self.end) if offset not in self.subs[name].acked]


class World:
    """Topics by name; all that is done to them waits until it is stored."""

    def __init__(self, path: Path, cluster: pyreplog.Cluster, clock: ManualClock) -> None:
        self.path, self.cluster, self.clock = path, cluster, clock
        self.topics: dict[str, Known] = {}

    def make(self, name: str, **settings: Any) -> Known:
        """Nothing is removed from it until that is asked for."""
        kept = {"retention_bytes": None, "retention_ms": None}
        known = Known(self.cluster.topic(name, durability="appended", ensemble=1, **kept, **settings))
        self.topics[name] = known
        return known

    def publish(self, known: Known, sizes: list[int]) -> None:
        """One entry."""
        known.topic.publish_batch([b"x" * size for size in sizes])
        known.times += [self.clock.now_us()] * len(sizes)
        known.sizes += sizes

    def subscribe(self, known: Known, name: str, start: int = 0) -> None:
        known.topic.create_subscription(name, start=start if start else "earliest")
        known.subs[name] = Sub(set(range(start)), [(self.clock.now_us(), start)])

    def acknowledge(self, known: Known, name: str, offsets: Iterable[int]) -> None:
        """One by one; of what was there when somebody was last connected, or the subscription was made."""
        subscription, some = known.topic.subscription(name), offsets_in(offsets)
        subscription.acknowledge(NOBODY, some)
        until(lambda: subscription.inspect(lambda cursor, _: cursor.mask(some).all()))
        self._stored(known, name, some.tolist())

    def upto(self, known: Known, name: str, end: int) -> None:
        """All below."""
        known.topic.subscription(name).skip_to(end).result(30)
        self._stored(known, name, range(end))

    def _stored(self, known: Known, name: str, offsets: Iterable[int]) -> None:
        known.topic.subscription(name).flush_async().result(30)
        sub = known.subs[name]
        sub.acked |= {*offsets}
        mark = next((offset for offset in range(known.end) if offset not in sub.acked), known.end)
        if mark != sub.mark:
            sub.marks.append((self.clock.now_us(), mark))

    def roll(self, known: Known) -> None:
        known.topic.managed.roll().result(30)

    def snapshot(self, window_s: float = 300.0, **options: object) -> Snapshot:
        """Once bookies know what is confirmed."""
        snapshots: list[Snapshot] = []

        def is_settled() -> bool:
            snapshots[:] = [gather(options_of(self.path, **options), self.clock.now_us(), round(window_s * 1000))]
            return all(fact.end.offset == self.topics[fact.name].end for fact in snapshots[0].topics)

        until(is_settled)
        return snapshots[0]

    # ---- what is expected -----------------------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Row, Known, str, Sub]]:
        """(its names, topic, name, subscription) of all."""
        for row, known in self.partitions():
            for name, sub in known.subs.items():
                yield {**row, "subscription": name}, known, name, sub

    def partitions(self) -> Iterator[tuple[Row, Known]]:
        """(its names, topic)."""
        for name, known in self.topics.items():
            topic, partition = partition_of(name) or (name, -1)
            yield {"topic": topic, "partition": partition}, known

    def stored_bytes(self, name: str, offsets: Iterable[int]) -> int:
        """Of the entries that hold any of these messages."""
        wanted = {*offsets}
        rows = read_table(self.path, topics=f'["{name}"]', columns="offset,ledgerId,entryId").to_pylist()
        entries = {(row["ledgerId"], row["entryId"]) for row in rows if row["offset"] in wanted}
        if not entries:
            return 0
        ledgers = ",".join(str(ledger) for ledger in {ledger for ledger, _ in entries})
        sizes = read_table(self.path, ledgers=ledgers, columns="ledgerId,entryId,size").to_pylist()
        return sum(row["size"] for row in sizes if (row["ledgerId"], row["entryId"]) in entries)


@contextmanager
def world(path: Path) -> Iterator[World]:
    clock = ManualClock(BEGIN_US)
    with pyreplog.Cluster.embedded(path, durability="appended", segment_bytes=SEGMENT, clock=clock) as cluster:
        yield World(path, cluster, clock)


def fill(world: World, rng: random.Random) -> None:
    """Topics of every sort, with what was acknowledged of them, over some two weeks."""
    plain = world.make("plain", roll_entries=4)
    squeezed = world.make("a, b", roll_entries=7, compression="zstd")
    parts = [world.make(f"orders-partition-{n}", roll_entries=5) for n in (0, 1, 2)]
    trimmed = world.make("trimmed", roll_entries=2)
    world.make("empty")
    quiet = world.make("quiet")
    everything = [plain, squeezed, *parts, trimmed]
    for _ in range(12):
        world.clock.advance(rng.choice((SECOND, 50 * SECOND, 9000 * SECOND, 200_000 * SECOND)))
        for known in (*everything, quiet):
            if rng.random() < 0.7:
                world.publish(known, [rng.choice((0, 1, 40, 3000)) for _ in range(rng.randrange(1, 9))])
    world.subscribe(parts[1], "only here")
    for known in everything:
        for name in ("billing", "audit"):
            world.subscribe(known, name)
    world.subscribe(plain, "late", start=plain.end // 2)
    world.subscribe(plain, "newest", start=plain.end)
    for known in everything:
        for name in known.subs:
            _acknowledge(world, known, name, rng)
    world.upto(squeezed, "audit", squeezed.end)
    for name in ("billing", "audit"):
        world.upto(trimmed, name, trimmed.end * 2 // 3)
    trimmed.topic.configure(retention_bytes=0, retention_ms=0)
    trimmed.topic.trim()
    assert trimmed.topic.start > 0
    world.clock.advance(30 * SECOND)
    world.publish(plain, [7, 7])
    world.clock.advance(30 * SECOND)
    world.snapshot()


def _acknowledge(world: World, known: Known, name: str, rng: random.Random) -> None:
    world.clock.advance(rng.randrange(SECOND, 400 * SECOND))
    left = known.left(name)
    if rng.random() < 0.7 and left:
        world.upto(known, name, rng.choice(left))
    left = known.left(name)
    if rng.random() < 0.8 and left:
        world.acknowledge(known, name, rng.sample(left, rng.randrange(1, len(left) + 1) * 2 // 3 or 1))
