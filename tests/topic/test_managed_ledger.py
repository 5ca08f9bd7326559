"""The managed ledger on embedded clusters: offsets across ledgers, reads, positions, trimming, back-pressure and
closing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyreplog.bookie.protocol import RequestKind
from pyreplog.clock import Clock, ManualClock, SystemClock
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchTopicError,
    OutOfRangeError,
    RecordTooLargeError,
    TrimmedError,
    UnreadableError,
)
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.reader import LedgerReader
from pyreplog.topic.model.positions import EntryPosition, TopicPosition
from pyreplog.topic.owner.managed import closed_ledger_readers
from pyreplog.topic.owner.managed.chain_store import find_chain
from pyreplog.topic.owner.managed.ledgers import LedgerDeleter, LedgerMaker
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from tests.ledger.fault_injection import FailingStore, RequestInterceptor
from tests.topic.batches import submit
from tests.topic.handling import note_reads
from tests.topic.owners import config, entry, publish, read_all, result, until

US = 1_700_000_000_000_000


class SharedClock(SystemClock):
    """The clock of `shared`. Its time of day is the machine's, or that of a clock that a test sets."""

    wall: Clock = SystemClock()

    def now_us(self) -> int:
        return self.wall.now_us()


CLOCK = SharedClock()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerCluster]:
    """A cluster for tests that leave only topics behind."""
    folder = tmp_path_factory.mktemp("shared")
    with LedgerCluster.embedded(
        folder, bookies=3, clock=CLOCK, segment_bytes=1 << 20, collect_interval_ms=3_600_000
    ) as cluster:
        yield cluster


@pytest.fixture
def topic(shared: LedgerCluster, request: pytest.FixtureRequest) -> Iterator[ManagedLedger]:
    """A managed ledger with ledgers of two entries."""
    with ManagedLedger.open(shared, request.node.name, config=config()) as topic:
        yield topic


def fill(topic: ManagedLedger, counts: list[int]) -> list[list[bytes]]:
    """Publish entries with these numbers of messages; return their values."""
    values = [[b"%d.%d" % (number, at) for at in range(count)] for number, count in enumerate(counts)]
    futures = [publish(topic, some) for some in values]
    first = 0
    for future, count in zip(futures, counts, strict=True):
        assert result(future) == range(first, first + count)
        first += count
    return values


def test_offsets_are_dense_across_ledgers(topic: ManagedLedger) -> None:
    values = fill(topic, [1, 3, 2, 2, 1, 4, 1])
    flat = [value for some in values for value in some]
    assert topic.end == TopicPosition(14, 7, sum(len(entry(*some)) for some in values))
    assert [item.entries for item in topic.chain.ledgers] == [2, 2, 2, 0]
    for offset in range(14):
        assert read_all(topic, offset)[13] == flat[13]
        assert list(read_all(topic, offset).values())[-(14 - offset) :] == flat[offset:]
    assert read_all(topic) == dict(enumerate(flat))


def test_an_idle_topic_has_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no thread either."""
    start, here, started = threading.Thread.start, threading.current_thread(), list[str]()

    def note(thread: threading.Thread) -> None:
        if threading.current_thread() is here:  # other clusters of this process may start threads at any time
            started.append(thread.name)
        start(thread)

    with LedgerCluster.embedded(tmp_path, bookies=1) as cluster:
        monkeypatch.setattr(threading.Thread, "start", note)
        topics = [ManagedLedger.open(cluster, f"idle-{number}", config=config()) for number in range(20)]
        assert started == [] and cluster.ledgers() == []
        assert all(topic.stats().state == "idle" and topic.end == TopicPosition(0, 0, 0) for topic in topics)
        for topic in topics:
            topic.close()
        assert cluster.ledgers() == []


def test_a_reopened_managed_ledger_keeps_messages_and_settings(shared: LedgerCluster) -> None:
    for number in range(3):
        with ManagedLedger.open(shared, "reopened", config=config(roll_entries=9)) as topic:
            assert topic.epoch == number + 1
            assert result(publish(topic, [b"a", b"b"])) == range(2 * number, 2 * number + 2)
    with ManagedLedger.open(shared, "reopened", create=False) as topic:
        assert read_all(topic) == dict(enumerate([b"a", b"b"] * 3))
        assert len(topic.chain.ledgers) == 3 and topic.config.roll_entries == 9, "the settings it was made with"


def test_no_topic_of_that_name(shared: LedgerCluster) -> None:
    with pytest.raises(NoSuchTopicError):
        ManagedLedger.open(shared, "nobody", create=False)
    shared.metadata.create("/topics/parent/subscriptions/s", b"")
    with pytest.raises(NoSuchTopicError):
        ManagedLedger.open(shared, "parent", create=False)
    with ManagedLedger.open(shared, "parent", config=config()) as topic:
        assert topic.epoch == 1


# ---- reading ---------------------------------------------------------------------------------------------------


def test_reads_end_at_the_given_end(topic: ManagedLedger) -> None:
    fill(topic, [3, 3, 3, 3])
    assert read_all(topic, 2, end=4).keys() == set(range(6)), "the entry that begins before the end is whole"
    assert read_all(topic, 0, end=3).keys() == {0, 1, 2}
    batch = result(topic.read(4, end=100))
    assert (batch.first, batch.end) == (3, 6), "from the entry with the offset, to the end of its ledger"
    assert (result(topic.read(0, bytes_max=1)).first, result(topic.read(0, bytes_max=1)).end) == (0, 3)
    nothing = result(topic.read(12))
    assert (len(nothing), nothing.end) == (0, 12) == (len(result(topic.read(50))), 12)
    with pytest.raises(OutOfRangeError):
        result(topic.read(-1))


def test_a_message_is_located_by_its_offset(topic: ManagedLedger) -> None:
    rng = random.Random(7)
    counts = [rng.choice((1, 1, 2, 50)) for _ in range(20)]
    topic.set_config(config(roll_entries=9))
    values = fill(topic, counts)
    first = size = 0
    for number, (count, some) in enumerate(zip(counts, values, strict=True)):
        for offset in (first, first + count - 1):
            place = result(topic.locate(offset))
            assert isinstance(place, EntryPosition)
            assert (place.first, place.count, place.size) == (first, count, len(entry(*some)))
            assert place.before == TopicPosition(first, number, size)
            assert place.behind == TopicPosition(first + count, number + 1, size + place.size)
        first, size = first + count, size + place.size
    with pytest.raises(OutOfRangeError):
        result(topic.locate(first))


def test_sequential_reads_do_not_search(topic: ManagedLedger, shared: LedgerCluster, monkeypatch: Any) -> None:
    result(topic.set_config(config(roll_entries=50)))
    fill(topic, [1, 9, 1, 1, 9, 1, 2])
    reads = note_reads(monkeypatch)
    read_all(topic, bytes_max=1)
    assert [(start, end) for _, start, end in reads] == [(entry, 7) for entry in range(7)]


def test_a_message_is_located_by_its_time(shared: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(US)
    monkeypatch.setattr(CLOCK, "wall", clock)
    with ManagedLedger.open(shared, "times", config=config(roll_entries=3), clock=clock) as topic:
        assert result(topic.offset_at_time(0)) == 0
        times: list[int] = []
        for number in range(8):
            clock.advance(1_000_000)
            result(publish(topic, [b"a"] * (number % 3 + 1)))
            times += [clock.now_us()] * (number % 3 + 1)
        for time_us in range(US, clock.now_us() + 2_000_000, 500_000):
            expected = next((offset for offset, at in enumerate(times) if at >= time_us), len(times))
            actual_result = result(topic.offset_at_time(time_us))
            assert actual_result == expected, (time_us - US, actual_result, expected)


def _times(topic: ManagedLedger) -> list[int]:
    """Return the publish time of each message."""
    numbers: list[int] = []
    while len(batch := result(topic.read(len(numbers)))):
        numbers += batch.publish_time.tolist()
    return numbers


class Setting:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = US

    def now_us(self) -> int:
        return self.now

    def monotonic_us(self) -> int:
        return 0


def test_offsets_at_times_of_clocks_that_are_set_back(shared: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ledgers are closed by their writer, and others by the next owner. The times in the entries count."""
    clock, chance = Setting(), random.Random(7)
    monkeypatch.setattr(CLOCK, "wall", clock)
    times: list[int] = []
    with ExitStack() as owners:
        for _ in range(6):
            topic = owners.enter_context(ManagedLedger.open(shared, "back", config=config(roll_entries=3), clock=clock))
            for _ in range(chance.randint(1, 8)):
                clock.now = US + chance.randint(0, 40) * 1_000_000
                result(publish(topic, [b"a"] * chance.randint(1, 3)))
            times = _times(topic)
            for time_us in range(US - 500_000, US + 42_000_000, 500_000):
                expected = next((offset for offset, at in enumerate(times) if at >= time_us), len(times))
                assert result(topic.offset_at_time(time_us)) == expected, (time_us - US, expected)
    backwards = [offset for offset in range(1, len(times)) if times[offset] < times[offset - 1]]
    assert len(backwards) > 3, "their clocks were set back"


def test_offsets_at_times_where_a_last_entry_could_not_be_read(
    shared: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner that took over does not know the last time of that ledger, and reads its entries."""
    clock = Setting()
    monkeypatch.setattr(CLOCK, "wall", clock)
    settings: dict[str, Any] = {"config": config(roll_entries=9), "clock": clock}
    with ManagedLedger.open(shared, "unread", **settings) as managed_ledger:
        result(publish(managed_ledger, [b"a"]))
        clock.now += 5_000_000
        result(publish(managed_ledger, [b"b"]))
        with monkeypatch.context() as patch:
            patch.setattr(LedgerMaker, "reader", _unreadable)
            two = ManagedLedger.open(shared, "unread", **settings)
        with two:
            clock.now += 1_000_000
            result(publish(two, [b"c"]))
            for time_us, expected in ((US, 0), (US + 1, 1), (US + 5_000_001, 2), (US + 6_000_001, 3)):
                assert result(two.offset_at_time(time_us)) == expected


def _unreadable(maker: LedgerMaker, metadata: LedgerMetadata) -> LedgerReader:
    raise UnreadableError(metadata.ledger, "for this test")


def test_readers_of_closed_ledgers_are_bounded(topic: ManagedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_ledger_readers, "READERS_MAX", 3)
    fill(topic, [1] * 14)
    with ThreadPoolExecutor(4) as pool:
        for item in pool.map(lambda _: read_all(topic), range(8)):
            assert item.keys() == set(range(14))
    assert topic.stats().readers <= 3


def test_a_reader_that_others_drive_out(topic: ManagedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader was closed just before a read: it is opened again."""
    monkeypatch.setattr(closed_ledger_readers, "READERS_MAX", 1)
    fill(topic, [1] * 7)
    first, second, *_ = (item.ledger for item in topic.chain.ledgers)
    keep, maker, kept = topic._entries._keep, topic._maker, list[int]()

    def drive_out(reader: LedgerReader) -> LedgerReader:
        stays = keep(reader)
        kept.append(reader.id)
        if len(kept) < 3:
            keep(maker.open_reader(second))
        return stays

    monkeypatch.setattr(topic._entries, "_keep", drive_out)
    assert len(result(topic.read(0))) == 2 and kept == [first] * 3


# ---- growing ---------------------------------------------------------------------------------------------------


def test_growth_of_a_managed_ledger_is_reported(topic: ManagedLedger) -> None:
    ends: list[int] = []
    topic.on_grow.append(lambda: ends.append(topic.end.offset))
    fill(topic, [2] * 10)
    assert ends == sorted(set(ends)) and ends[-1] == 20, "each time there is more, and the last time all"


def test_published_messages_are_readable_in_the_callback_of_their_publish(topic: ManagedLedger) -> None:
    """A callback of the publish may read the message at once."""
    ends: list[tuple[int, int]] = []
    futures = [publish(topic, [b"a", b"b"]) for _ in range(9)]
    for future in futures:
        future.add_done_callback(lambda done: ends.append((done.result().stop, topic.end.offset)))
    result(futures[-1])
    until(lambda: len(ends) == 9)
    assert all(stop <= end for stop, end in ends)


def test_publishes_from_a_callback_keep_their_order(topic: ManagedLedger, shared: LedgerCluster) -> None:
    """A callback must not wait, and does not have to."""
    outcome: AppendFuture[list[Any]] = AppendFuture()

    def callback(first: AppendFuture[range]) -> None:
        more = [publish(topic, [b"%d" % number]) for number in range(5)]
        try:
            topic._runtime.wait(more[-1])
        except Exception as error:
            set_result(outcome, [first.result(), type(error), more])

    with RequestInterceptor(shared) as interceptor:
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        # before the message is confirmed, so that the function runs as a callback
        publish(topic, [b"a"]).add_done_callback(callback)
        interceptor.wait_for(RequestKind.ADD)
        interceptor.clear()
        interceptor.release()
    first, error, more = result(outcome)
    assert first == range(1) and error is InvalidArgumentError
    assert [result(future) for future in more] == [range(number + 1, number + 2) for number in range(5)]


def test_messages_of_each_publisher_are_in_order(topic: ManagedLedger) -> None:
    """The messages of each publisher are in its order, and offsets are dense."""

    def run(number: int) -> list[range]:
        futures = [publish(topic, [b"%d %d" % (number, at)]) for at in range(40)]
        return [result(future) for future in futures]

    topic.set_config(config(roll_entries=7))
    with ThreadPoolExecutor(6) as pool:
        ranges = list(pool.map(run, range(6)))
    assert sorted(item.start for some in ranges for item in some) == list(range(240))
    records = read_all(topic)
    for number, some in enumerate(ranges):
        assert some == sorted(some, key=lambda report: report.start)
        assert [records[item.start] for item in some] == [b"%d %d" % (number, at) for at in range(40)]
    assert all(item.entries <= 7 for item in topic.chain.ledgers)


def test_an_entry_that_is_too_large_is_refused_alone(topic: ManagedLedger) -> None:
    futures = [submit(topic.writer, [value], [1]) for value in (entry(b"a"), bytes(5 << 20), entry(b"b"))]
    assert result(futures[0]) == range(1) and result(futures[2]) == range(1, 2)
    with pytest.raises(RecordTooLargeError):
        result(futures[1])
    assert topic.pending_bytes == 0


def test_a_ledger_beyond_its_age_is_closed(shared: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(US)
    monkeypatch.setattr(CLOCK, "wall", clock)
    with ManagedLedger.open(shared, "old", config=config(roll_ms=1000, roll_entries=99), clock=clock) as topic:
        result(publish(topic, [b"a"]))
        clock.advance(999_000)
        topic.roll_if_old(clock.now_us())
        result(publish(topic, [b"b"]))
        clock.advance(1_000)
        result(publish(topic, [b"c"]))
        assert [item.entries for item in topic.chain.ledgers] == [2, 0]
        clock.advance(1_000_000)
        topic.roll_if_old(clock.now_us())
        until(lambda: [item.entries for item in topic.chain.ledgers] == [2, 1])
        assert topic.stats().state == "idle"


def test_a_ledger_that_was_begun_far_ahead_ends(shared: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was set back: until the ledger is closed, its messages have the time of its beginning."""
    clock = Setting()
    monkeypatch.setattr(CLOCK, "wall", clock)
    with ManagedLedger.open(shared, "ahead", config=config(roll_ms=1000, roll_entries=99), clock=clock) as topic:
        result(publish(topic, [b"a"]))
        clock.now -= 999_000
        topic.roll_if_old(clock.now)
        result(publish(topic, [b"b"]))
        clock.now -= 1_000
        topic.roll_if_old(clock.now)
        until(lambda: topic.stats().state == "idle")
        result(publish(topic, [b"c"]))
        assert _times(topic) == [US, US, US - 1_000_000]


def test_ledgers_end_at_so_many_bytes(shared: LedgerCluster) -> None:
    size = len(entry(bytes(100)))
    with ManagedLedger.open(shared, "bytes", config=config(roll_bytes=3 * size - 1, roll_entries=99)) as topic:
        for _ in range(7):
            result(publish(topic, [bytes(100)]))
        assert [item.entries for item in topic.chain.ledgers] == [3, 3, 0]
        assert [item.size for item in topic.chain.ledgers[:2]] == [3 * size] * 2


def test_rolling_waits_for_the_metadata_store(tmp_path: Any) -> None:
    """Without the store the open ledger goes on, however full it is."""
    with (
        LedgerCluster.embedded(tmp_path, bookies=1) as cluster,
        ManagedLedger.open(cluster, "t", config=config()) as topic,
    ):
        fill(topic, [1, 1])
        store = FailingStore.before(cluster)
        store.fail("put", *[MetadataUnavailableError("away")] * 10_000)
        assert [result(publish(topic, [b"a"])) for _ in range(3)] == [range(n, n + 1) for n in range(2, 5)]
        assert len(topic.chain.ledgers) == 1 and topic.stats().failures == 0
        store._faults.clear()
        until(lambda: result(publish(topic, [b"a"])) and len(topic.chain.ledgers) > 1)
        assert topic.chain.ledgers[0].entries > 2


# ---- trimming --------------------------------------------------------------------------------------------------


def test_trim_removes_whole_ledgers(topic: ManagedLedger, shared: LedgerCluster) -> None:
    fill(topic, [1, 2, 3, 4, 5, 6, 7])  # closed ledgers of 3, 7 and 11 messages, and an open one of 7
    first, second, third, last = (item.ledger for item in topic.chain.ledgers)
    now_us = topic.chain.ledgers[-1].created_us
    assert result(topic.trim(2, now_us)) == 0
    assert result(topic.trim(20, now_us)) == 2
    assert topic.start.offset == 10 and [item.ledger for item in topic.chain.ledgers] == [third, last]
    for call in (topic.read, topic.locate):
        with pytest.raises(TrimmedError):
            result(call(9))
    assert read_all(topic).keys() == set(range(10, 28))
    until(lambda: not {first, second} & set(shared.ledgers()) and not find_pending_deletion(shared, topic.name))
    assert result(topic.trim(28, now_us)) == 1 and topic.start.offset == 21


def find_pending_deletion(cluster: LedgerCluster, name: str) -> tuple[int, ...]:
    chain = find_chain(cluster.metadata, name)
    assert chain is not None and chain.chain is not None
    return chain.chain.pending_deletion


def test_retention_keeps_ledgers_by_bytes_and_age(shared: LedgerCluster) -> None:
    """Limits of bytes and of age keep ledgers, and the first one that is reached counts."""
    size = len(entry(b"a"))
    kept = config(retention_bytes=4 * size, retention_ms=None)
    with ManagedLedger.open(shared, "retention", config=kept) as topic:
        fill(topic, [1] * 9)
        assert result(topic.trim(9, US * 2)) == 2 and topic.start.offset == 4
        result(topic.set_config(config(retention_bytes=None, retention_ms=1000)))
        closed_us = topic.chain.ledgers[0].closed_us
        assert result(topic.trim(9, closed_us + 1_000_000)) == 0
        assert result(topic.trim(6, closed_us + 1_000_001)) == 1
    with ManagedLedger.open(shared, "retention") as topic:
        assert topic.start.offset == 6 and topic.config.retention_ms == 1000


def test_a_reader_of_what_is_deleted(topic: ManagedLedger, shared: LedgerCluster) -> None:
    """A read that began before the trim reaches a ledger after it was trimmed."""
    fill(topic, [1] * 5)
    views = [topic._view]
    result(topic.trim(4, US * 2))
    until(lambda: len(shared.ledgers()) and not find_pending_deletion(shared, topic.name))
    topic._entries.close()
    topic._entries._is_closed = False
    topic._reader._view = lambda: views.pop() if views else topic._view
    with pytest.raises(TrimmedError):
        result(topic.read(0))
    assert not views


class LaterRuntime:
    """Holds jobs and timers until the test runs them."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], object]] = []
        self.timers: list[Callable[[], None]] = []

    def work(self, job: Callable[[], object]) -> None:
        self.jobs.append(job)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append(call)


def test_an_owner_that_has_ended_deletes_nothing() -> None:
    """Ledgers that it could not delete are left to the next owner."""
    tried: list[int] = []

    def delete(ledger: int) -> None:
        tried.append(ledger)
        raise MetadataUnavailableError("away")

    runtime = LaterRuntime()
    store: Any = SimpleNamespace(chain=SimpleNamespace(pending_deletion=(7,)))
    maker: Any = SimpleNamespace(delete=delete)
    deleter = LedgerDeleter("t", store, maker, cast("Any", runtime))
    deleter.begin()
    for attempts in (1, 2):
        runtime.jobs.pop()()
        assert tried == [7] * attempts
        if attempts == 2:
            deleter.end()
        runtime.timers.pop()()
    assert not runtime.jobs and not runtime.timers


def test_clear_removes_all_messages(topic: ManagedLedger) -> None:
    result(topic.set_config(config(retention_bytes=None, retention_ms=None)))
    fill(topic, [2] * 5)
    assert result(topic.trim(10, US * 2)) == 0
    assert result(topic.clear()) == 3
    assert topic.start == topic.end and topic.end.offset == 10 and not topic.chain.ledgers
    assert result(publish(topic, [b"a"])) == range(10, 11) and read_all(topic) == {10: b"a"}


def test_delete_removes_ledgers_and_metadata(shared: LedgerCluster) -> None:
    topic = ManagedLedger.open(shared, "deleted", config=config())
    fill(topic, [1] * 5)
    ledgers = topic.chain.ids
    shared.metadata.create("/topics/deleted/subscriptions/s", b"")
    topic.delete()
    assert not ledgers & set(shared.ledgers()) and find_chain(shared.metadata, "deleted") is None
    with pytest.raises(ClosedError):
        publish(topic, [b"a"])
    with ManagedLedger.open(shared, "deleted", config=config()) as again:
        assert result(publish(again, [b"a"])) == range(1)
