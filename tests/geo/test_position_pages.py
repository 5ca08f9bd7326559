"""Stored pages of positions may be missing, outdated or damaged: the positions of a topic are always those of a full
scan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pyreplog.errors import MetadataUnavailableError, TopicFencedError
from pyreplog.geo.position_pages import PositionPages, pages_key
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.metadata.memory import MemoryStore
from pyreplog.origins.origin import Origin
from pyreplog.topic.model.chain import LedgerChain, LedgerTotals
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from pyreplog.topic.owner.topic_context import TopicContext
from tests.geo.exchanging import cluster_id, origin
from tests.geo.replicated import take, two
from tests.geo.test_topic_positions import Entry, batch_of
from tests.waiting import until

ORIGINS = {1: origin("b"), 2: origin("c"), 3: origin("d")}
"""By the key in records."""
BATCH = 2
"""How many entries a read returns."""


class View(NamedTuple):
    """All values that can be queried of the positions of a topic."""

    ends: dict[Origin, int]
    runs: int
    messages: dict[Origin, list[list[int]]]
    back: dict[Origin, list[int]]
    foreign: list[list[int]]


def view_of(positions: TopicPositions) -> View:
    translation, offsets = positions.translation, np.arange(positions.start, positions.end)
    messages = {
        origin: [edge.tolist() for edge in edges]
        for origin, edges in translation.to_origins((offsets, offsets + 1)).items()
    }
    whole = np.zeros(1, np.int64), np.array([1 << 20])
    back = {key: np.concatenate(translation.to_local(key, whole)).tolist() for key in translation.ends()}
    foreign = [edge.tolist() for edge in translation.foreign_between(0, 1 << 62)]
    return View(translation.ends(), translation.runs, messages, back, foreign)


class Managed:
    """The part of a managed ledger that the pages use."""

    def __init__(self, chain: LedgerChain) -> None:
        self.chain = chain
        self.refuses: Exception | None = None

    def verify(self) -> None:
        if self.refuses is not None:
            raise self.refuses


class World:
    """A topic in memory: entries, a chain of ledgers, and a metadata store with pages."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.managed = Managed(
            LedgerChain(topic="t", token="token", epoch=1, owner="", nonce="", created_us=1, config=TopicConfig())
        )
        self.log: list[Entry] = []
        self.known = dict(ORIGINS)
        self.ledgers = 0
        self.jobs: list[Callable[[], object]] = []
        self.waits = False
        """Whether jobs are queued, to be lost when the owner crashes."""
        self.pages: PositionPages
        self.positions: TopicPositions
        self.read: set[int] = set()
        """Ledgers whose entries were read since the last opening."""

    # ---- the topic ----

    @property
    def chain(self) -> LedgerChain:
        return self.managed.chain

    @property
    def end(self) -> int:
        return self.log[-1].offset + self.log[-1].count if self.log else 0

    def publish(self, key: int, gap: int, count: int) -> None:
        if self.chain.open_ledger is None:
            self.ledgers += 1
            self.managed.chain = self.chain.added(self.ledgers, 1)
        ends = [entry.first + entry.count for entry in self.log if entry.key == key]
        first = -1 if key == 0 else max((ends[-1] if ends else 0) + gap, 0)
        self.log.append(Entry(key, first, self.end, count))

    def roll(self) -> None:
        if (last := self.chain.open_ledger) is not None:
            entries = [entry for entry in self.log if entry.offset >= last.start.offset]
            messages = sum(entry.count for entry in entries)
            totals = LedgerTotals(last.ledger, len(entries), messages, 10, self.ledgers, 1)
            self.managed.chain = self.chain.closed(totals)

    def trim(self, ledgers: int) -> None:
        closed = [item.end.offset for item in self.chain.ledgers if item.is_closed]
        if closed:
            self.managed.chain = self.chain.trimmed(closed[:ledgers][-1])

    # ---- its owner ----

    def names(self, key: int) -> Origin | None:
        """Look an origin up, by its key in records (a small number here) or by the key of the origin."""
        return self.known.get(key) or next((origin for origin in self.known.values() if origin.key == key), None)

    def empty(self) -> TopicPositions:
        tokens = [self.chain.token, *(token for token, _ in self.chain.renewals)]
        identities = [Origin(cluster_id("a"), token) for token in tokens]
        ends = [offset for _, offset in self.chain.renewals]
        former = list(zip(identities[:-1], ends, strict=True))
        return TopicPositions(identities[-1], self.chain.start.offset, self.names, former)

    def work(self, job: Callable[[], object]) -> None:
        if self.waits:
            self.jobs.append(job)
        else:
            job()

    def open(self) -> None:
        """Open the topic as its next owner does."""
        context = SimpleNamespace(name="t", managed=self.managed, metadata=self.store, work=self.work)
        self.pages, self.positions, self.read = PositionPages(cast(TopicContext, context)), self.empty(), set()
        self.pages.load()
        self._read(self.pages.add_to)

    def read_on(self) -> None:
        self._read(lambda _: None)

    def _read(self, first: Callable[[TopicPositions], object]) -> None:
        while True:
            first(self.positions)
            if self.positions.end >= self.end:
                return
            item = self.chain.ledgers[self.chain.index_of(self.positions.end)]
            end = item.end.offset if item.is_closed else self.end
            entries = [entry for entry in self.log if self.positions.end <= entry.offset < end]
            self.read.add(item.ledger)
            self.positions.add(batch_of(entries[:BATCH]))
            self.pages.seal(self.positions)

    def scanned(self) -> TopicPositions:
        positions = self.empty()
        for entry in self.log:
            if entry.offset >= positions.start:
                positions.add(batch_of([entry]))
        return positions

    # ---- the store ----

    def stored(self) -> dict[int, bytes]:
        """Return the stored pages by ledger."""
        folder = pages_key("t")
        values = {int(name): self.store.get(f"{folder}/{name}") for name in self.store.list(folder)}
        return {ledger: value.value for ledger, value in values.items() if value is not None}

    def put(self, ledger: int, page: bytes | None) -> None:
        key = f"{pages_key('t')}/{ledger}"
        if (stored := self.store.get(key)) is not None:
            self.store.delete(key, stored.version)
        if page is not None:
            self.store.create(key, page)


class Pages(RuleBasedStateMachine):
    """After each opening the positions equal those of a scan of all entries."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.older: list[bytes] = []

    @initialize()
    def begin(self) -> None:
        self.world.open()

    @rule(
        entries=st.lists(
            st.tuples(st.sampled_from([0, *ORIGINS]), st.sampled_from([0, 0, 0, 1, -1]), st.integers(1, 3)),
            min_size=1, max_size=6,
        ),
        rolls=st.booleans(),
    )  # fmt: skip
    def publish(self, entries: list[tuple[int, int, int]], rolls: bool) -> None:
        for entry in entries:
            self.world.publish(*entry)
        if rolls:
            self.world.roll()
        self.world.read_on()

    @rule()
    def roll(self) -> None:
        self.world.roll()

    @rule(ledgers=st.integers(1, 2))
    def trim(self, ledgers: int) -> None:
        self.world.trim(ledgers)
        self.world.positions.trim(self.world.chain.start.offset)

    @rule(key=st.sampled_from(sorted(ORIGINS)))
    def forget_or_learn_an_origin(self, key: int) -> None:
        """Delete an origin from the cursor of origins, or restore it, and open the topic again."""
        if self.world.known.pop(key, None) is None:
            self.world.known[key] = ORIGINS[key]
        self.open_again()

    @rule(number=st.integers(0, 10))
    def renew_the_identity(self, number: int) -> None:
        """Give the topic another identity, from the beginning of a ledger or from its end on."""
        chain = self.world.chain
        offsets = [*(item.start.offset for item in chain.ledgers), self.world.end]
        self.world.managed.chain = chain.renewed(f"{len(chain.renewals)}/{number}", offsets[number % len(offsets)])
        self.open_again()

    @rule(data=st.data(), how=st.sampled_from(["flipped", "truncated", "deleted", "older", "of another ledger"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        stored = {ledger: page for ledger, page in self.world.stored().items() if page}
        if not stored:
            return
        ledger = data.draw(st.sampled_from(sorted(stored)))
        page = bytearray(stored[ledger])
        self.older.append(bytes(page))
        match how:
            case "flipped":
                page[data.draw(st.integers(0, len(page) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                self.world.put(ledger, bytes(page))
            case "truncated":
                self.world.put(ledger, bytes(page[: data.draw(st.integers(0, len(page) - 1))]))
            case "deleted":
                self.world.put(ledger, None)
            case "older":
                self.world.put(ledger, data.draw(st.sampled_from(self.older)))
            case _:
                self.world.put(ledger, stored[data.draw(st.sampled_from(sorted(stored)))])

    @rule()
    def crash(self) -> None:
        """Lose the jobs that did not run, and open the topic again."""
        self.world.waits, self.world.jobs = not self.world.waits, []
        self.open_again()

    @rule()
    def open_again(self) -> None:
        self.world.open()
        assert view_of(self.world.positions) == view_of(self.world.scanned())

    def teardown(self) -> None:
        self.world.waits = False
        self.open_again()
        assert self.world.stored().keys() <= self.world.chain.ids
        self.open_again()
        self.world.store.close()


TestPages = Pages.TestCase


@pytest.fixture
def world() -> Iterator[World]:
    """Three closed ledgers and an open one."""
    world = World()
    world.open()
    for _ in range(3):
        for key in (0, 1, 0, 2):
            world.publish(key, 0, 2)
        world.roll()
    world.publish(1, 0, 1)
    world.read_on()
    yield world
    world.store.close()


def test_only_ledgers_without_pages_are_read(world: World) -> None:
    assert world.stored().keys() == {1, 2, 3}
    world.open()
    assert world.read == {4}
    world.put(2, None)
    world.open()
    assert world.read == {2, 4} and world.stored().keys() == {1, 2, 3}
    assert view_of(world.positions) == view_of(world.scanned())


@pytest.mark.parametrize("page", [b"", b"no page", bytes(100)])
def test_a_page_that_does_not_count_is_made_anew(world: World, page: bytes, caplog: pytest.LogCaptureFixture) -> None:
    right = world.stored()[2]
    world.put(2, page)
    with caplog.at_level(logging.WARNING):
        world.open()
        assert world.read == {2, 4}
        world.open()
    assert world.read == {4} and world.stored()[2] == right
    assert [record.message.partition(": position")[0] for record in caplog.records] == [
        "topic t: the entries of ledger 2 are read"
    ]


def test_pages_of_another_identity_are_replaced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """All are replaced at once, and the log has one line for all of them."""
    before = world.stored()
    world.managed.chain = world.chain.renewed("another", 10)
    with caplog.at_level(logging.WARNING):
        world.open()
    assert world.read == {1, 2, 3, 4} and len(caplog.records) == 1
    assert world.stored().keys() == before.keys() and not {*world.stored().values()} & {*before.values()}
    world.open()
    assert world.read == {4} and view_of(world.positions) == view_of(world.scanned())


def test_a_page_that_is_too_large_is_not_kept_in_memory(world: World) -> None:
    right = world.stored()[2]
    world.put(2, bytes(100_000))
    world.open()
    assert world.read == {2, 4} and world.stored()[2] == right


def test_pages_of_trimmed_ledgers_are_deleted(world: World) -> None:
    world.trim(2)
    world.publish(0, 0, 1)
    world.read_on()
    assert world.stored().keys() == {3}
    world.trim(1)
    world.open()
    assert world.stored() == {}


def test_a_ledger_with_an_unknown_origin_is_read(world: World) -> None:
    world.publish(3, 0, 1)
    del world.known[3]
    world.read_on()
    world.roll()
    world.open()
    assert world.read == {4} and world.stored().keys() == {1, 2, 3}
    world.known[3] = ORIGINS[3]
    world.open()
    assert world.read == {4} and world.stored().keys() == {1, 2, 3, 4}
    del world.known[3]
    world.open()
    assert world.read == {4}
    assert view_of(world.positions) == view_of(world.scanned())


@pytest.mark.parametrize("error", [TopicFencedError("t", "another owner"), MetadataUnavailableError("away")])
def test_an_owner_that_cannot_store_pages_goes_on(world: World, error: Exception) -> None:
    world.managed.refuses = error
    world.roll()
    world.publish(0, 0, 1)
    world.read_on()
    assert world.stored().keys() == {1, 2, 3}
    world.managed.refuses = None
    world.open()
    assert world.stored().keys() == {1, 2, 3, 4}


def test_all_pages_of_a_topic_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {ledger: len(page) for ledger, page in world.stored().items()}
    for ledger in sizes:
        world.put(ledger, None)
    monkeypatch.setattr("pyreplog.geo.position_pages.TOPIC_BYTES_MAX", sizes[1] + sizes[2])
    for _ in range(2):
        world.open()
        assert world.stored().keys() == {1, 2}
        assert view_of(world.positions) == view_of(world.scanned())


def test_removed_pages_stay_removed(world: World) -> None:
    world.waits = True
    world.roll()
    world.publish(0, 0, 1)
    world.read_on()
    world.pages.remove()
    for job in world.jobs:
        job()
    assert world.jobs and world.stored() == {}


def test_an_opening_reads_no_ledger_that_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements of the other cluster are mapped by means of the pages. Deleting the topic deletes its pages."""
    reads, read = list[int](), ManagedLedger.read

    def note(self: ManagedLedger, offset: int, **settings: Any) -> Any:
        reads.append(offset)
        return read(self, offset, **settings)

    with two(tmp_path, begins=False) as (a, b):
        a.topic.configure(roll_entries=4)
        a.end()
        a.begin_again()
        a.follow(b)
        b.follow(a)
        a.topic.create_subscription("s", start="earliest")
        for number in range(0, 40, 2):
            a.publish(number, number + 1)
            b.publish(number + 1, number + 2)
        until(lambda: len(a.topic) == len(b.topic) == 40 and "s" in b.topic.subscriptions())
        a.publish(40, 41)
        folder, cluster = pages_key("t"), b.cluster
        until(lambda: len(a.site.cluster.metadata.list(folder)) >= 5)
        a.end()
        with b.subscribe() as consumer:
            messages = take(consumer, 40)
            for number in (3, 8, 9, 22, 31):
                consumer.acknowledge(messages[number])
            consumer.flush()
        a.site.begin()
        store, ledgers = a.site.cluster.metadata, a.topic.managed.chain.ledgers
        behind = ledgers[len(store.list(folder)) - 1].end.offset
        a.wire.lead_to(a.site.server.address)
        with monkeypatch.context() as patched:
            patched.setattr(ManagedLedger, "read", note)
            a.follow(b, cluster)
            assert a.subscriptions is not None
            where = a.subscriptions.where
            until(lambda: where("s") and not where("s")[0].error)
        assert reads and behind > 0 and not [offset for offset in reads if offset < behind]
        until(lambda: a.acked() == [3, 8, 9, 22, 31], pause_s=0.05)
        a.subscriptions.close()
        a.topic.delete()
        assert store.list(folder) == []
