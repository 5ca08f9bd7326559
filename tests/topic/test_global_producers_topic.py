"""In a topic with global producers, a message that one cluster stored is not stored again when another one sends it.

A message that is not known to be stored is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.cluster import Cluster
from pyreplog.errors import ConfigError, InvalidArgumentError, OriginSessionError, TopicFullError
from pyreplog.future import AppendFuture
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import GateState, OriginGate, OriginGates
from pyreplog.origins.origin import Gap, GapCause, Origin, OriginEntry, OriginState
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import GlobalProducers
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.dedup_cursor import DEDUP, GLOBAL_PRODUCERS
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import PATIENCE_S, SMALL, open_cluster, trim
from tests.topic.killable_processes import kill, killable_process
from tests.topic.publishing import Bench
from tests.topic.remoting import serve_cluster

NAME = "t"
A, C = Origin(bytes(range(16)), "0123456789abcdef"), Origin(bytes(range(16, 32)), "fedcba9876543210")
A_ANEW = Origin(A.cluster, "another creation")
TIME_US = 1_700_000_000_000_000
SETTINGS: dict[str, Any] = {**SMALL, "retention_bytes": None, "deduplicate": True, "global_producers": True}
FULL = TopicFullError(NAME, "it is full")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("global")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
        yield
    with cluster.topic(NAME, **SETTINGS) as topic:
        topic.delete()


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[Topic]:
    with cluster.topic(NAME, **SETTINGS) as topic:
        yield topic


def publish(topic: Topic, *numbers: int) -> list[int]:
    return [topic.publish(b"here %d" % number, producer="p", sequence=number) for number in numbers]


def entry(first: int, *numbers: int, producer: bytes = b"p") -> OriginEntry:
    """Return an entry of messages of a producer, from an offset at their origin on."""
    values = [b"there %d" % number for number in numbers]
    return OriginEntry(
        encode_messages(values, producer=producer, sequences=list(numbers)), len(numbers), first, TIME_US + first
    )


def send(topic: Topic, *entries: OriginEntry, origin: Origin = A, session: int = 1) -> int:
    topic.origins.open(origin, session).result(PATIENCE_S)
    return topic.origins.replicate(origin, session, entries).result(PATIENCE_S)


def stored(topic: Topic) -> list[bytes]:
    """Return all messages that are kept."""
    return [value for batch in topic.read() for value in batch.values()]


def gaps_of(topic: Topic) -> list[tuple[Gap, ...]]:
    """Return the gaps of each replicated entry."""
    return [
        OriginAttribute.from_bytes(value).gaps
        for batch in topic.read()
        for index in range(batch.entries)
        if (value := batch.entry_origin(index)) is not None
    ]


# ---- a producer that moved -----------------------------------------------------------------------------------------


def test_late_originals_become_gaps(topic: Topic) -> None:
    """Cluster a stored 0 to 4, and sent 0 to 2 before it was lost. The producer had no confirmation of 3 and 4."""
    assert send(topic, entry(0, 0, 1, 2)) == 3
    assert publish(topic, 3, 4, 5) == [3, 4, 5]
    assert send(topic, entry(3, 3), entry(4, 4), session=2) == 5
    assert stored(topic) == [b"there 0", b"there 1", b"there 2", b"here 3", b"here 4", b"here 5"]
    assert topic.origins.all()[A].stored == 5
    assert send(topic, entry(5, 6), session=2) == 6
    assert gaps_of(topic) == [(), (Gap(3, 5, GapCause.DUPLICATE),)]


def test_a_gap_before_a_later_entry_of_the_call_is_stored_with_it(topic: Topic) -> None:
    publish(topic, 0)
    later = entry(3, 1)._replace(gaps=(Gap(2, 3, GapCause.FOREIGN),))
    first = entry(1, 0)._replace(gaps=(Gap(0, 1, GapCause.FILTERED),))
    assert send(topic, first, later) == 4
    assert stored(topic) == [b"here 0", b"there 1"]
    causes = GapCause.FILTERED, GapCause.DUPLICATE, GapCause.FOREIGN
    assert gaps_of(topic) == [tuple(Gap(at, at + 1, cause) for at, cause in enumerate(causes))]


def test_publish_of_a_message_stored_through_another_cluster_is_a_duplicate(topic: Topic) -> None:
    """The producer goes on here, and repeats messages that another cluster had stored and sent."""
    send(topic, entry(0, 0, 1), entry(2, 2))
    assert publish(topic, 1, 2, 3) == [-1, -1, 3]
    columns = topic.publish_batch([b"2", b"3", b"4"], producer="p", sequences=[2, 3, 4])
    assert columns == range(4, 5)
    assert stored(topic)[-1] == b"4" and len(stored(topic)) == 5


def test_originals_below_the_highest_number_are_stored(topic: Topic) -> None:
    """Cluster a had confirmed 3 and 4, so that the producer did not repeat them here: this copy is the only one."""
    publish(topic, 5, 6, 7)
    assert send(topic, entry(0, 3, 4)) == 2
    assert publish(topic, 3, 4, 2, 8) == [-1, -1, 5, 6]
    assert sorted(stored(topic)) == [b"here 2", b"here 5", b"here 6", b"here 7", b"here 8", b"there 3", b"there 4"]


def test_an_entry_that_is_stored_in_part_is_stored_whole(topic: Topic) -> None:
    publish(topic, 3)
    assert send(topic, entry(0, 3, 4)) == 2
    assert stored(topic) == [b"here 3", b"there 3", b"there 4"]
    assert publish(topic, 4) == [-1]


def test_two_clusters_send_the_same(topic: Topic) -> None:
    send(topic, entry(0, 0, 1))
    assert send(topic, entry(0, 0), entry(1, 1), entry(2, 2), origin=C) == 3
    assert stored(topic) == [b"there 0", b"there 1", b"there 2"]


def test_a_topic_that_was_made_anew_begins_anew(topic: Topic) -> None:
    send(topic, entry(0, 0, 1))
    assert send(topic, entry(0, 0, 1), origin=A_ANEW) == 2
    assert len(stored(topic)) == 4


def test_messages_without_numbers_and_others_producers_are_stored(topic: Topic) -> None:
    publish(topic, 0)
    plain = OriginEntry(encode_messages([b"plain"]), 1, 1, TIME_US, ())
    assert send(topic, entry(0, 0, producer=b"q"), plain) == 2
    assert stored(topic) == [b"here 0", b"there 0", b"plain"]


def test_a_producer_has_to_pass_its_numbers(topic: Topic) -> None:
    """The next number here may be that of another message in another cluster."""
    for call in (
        lambda: topic.publish(b"v", producer="p"),
        lambda: topic.submit(b"v", producer="p"),
        lambda: topic.publish_batch([b"v"], producer="p"),
        lambda: topic.producer("p").publish(b"v"),
    ):
        with pytest.raises(InvalidArgumentError, match="global_producers"):
            call()
    assert topic.publish(b"v") == 0
    assert topic.producer("p").publish(b"v", sequence=7) == 1


# ---- owners --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_the_next_owner_knows_global_producers(cluster: Cluster, has_snapshot: bool) -> None:
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **SETTINGS)
        assert isinstance(topic, Topic)
        send(topic, entry(0, 0, 1))
        publish(topic, 3, 4)
        if has_snapshot:
            assert topic.dedup is not None
            topic.dedup.store().result(PATIENCE_S)
        send(topic, entry(2, 3), session=2)
        publish(topic, 7)
        kill(one)
    with cluster.topic(NAME, **SETTINGS) as topic:
        assert topic.origins.all()[A] == OriginState(3, topic.origins.all()[A].last)
        assert publish(topic, 0, 1, 3, 4, 7) == [-1] * 5
        assert send(topic, entry(3, 4), entry(4, 5), entry(5, 7), session=3) == 6
        assert stored(topic)[5:] == [b"there 5"]


def test_stored_numbers_outlive_their_messages(cluster: Cluster) -> None:
    settings = {**SETTINGS, "retention_bytes": 0, "roll_entries": 2}
    with cluster.topic(NAME, **settings) as topic:
        publish(topic, *range(5))
        trim(topic)
        assert topic.start == 0, "entries behind the mark would have to be read again"
        assert topic.dedup is not None
        topic.dedup.store().result(PATIENCE_S)
        trim(topic)
        assert topic.start > 0
    with cluster.topic(NAME, **settings) as topic:
        assert send(topic, entry(0, 0), entry(1, 1), entry(2, 9)) == 3
        assert stored(topic)[-1] == b"there 9" and topic.end == 6


def test_the_setting_may_be_changed(cluster: Cluster) -> None:
    def cursors(topic: Topic) -> set[str]:
        return {cursor.name for cursor in topic.internal_stats().cursors}

    plain = {**SETTINGS, "global_producers": False}
    with cluster.topic(NAME, **plain) as topic:
        publish(topic, 0, 1)
        send(topic, entry(0, 5))
        assert DEDUP in cursors(topic)
        topic.configure(global_producers=True)
    with cluster.topic(NAME, create=False) as topic:
        assert GLOBAL_PRODUCERS in cursors(topic) and DEDUP not in cursors(topic)
        assert publish(topic, 0, 1, 5, 2) == [-1, -1, -1, 3]
        topic.configure(global_producers=False)
    with cluster.topic(NAME, create=False) as topic:
        assert DEDUP in cursors(topic) and GLOBAL_PRODUCERS not in cursors(topic)
        assert publish(topic, 2, 3) == [-1, 4]


def test_the_setting_needs_deduplication() -> None:
    with pytest.raises(ConfigError, match="deduplicate=True"):
        TopicConfig(global_producers=True)
    with pytest.raises(ConfigError, match="global_producers: expected a bool"):
        TopicConfig(global_producers=1, deduplicate=True)  # type: ignore[arg-type]
    assert "global_producers" not in TopicConfig(deduplicate=True).encoded(), "versions before it refuse the key"
    config = TopicConfig(deduplicate=True, global_producers=True)
    assert TopicConfig.stored(config.encoded()) == config


# ---- on their way --------------------------------------------------------------------------------------------------


class Held:
    """A publisher to which the test gives outcomes, and an origin with an open session."""

    def __init__(self) -> None:
        self.gates = OriginGates(NAME)
        self.gate = self.gates.add(GateState(A, 1, 0, None, ()))
        self.bench = Bench(producers=GlobalProducers(), gates=self.gates, deduplicate=True, global_producers=True)

    def send(self, *entries: OriginEntry, gate: OriginGate | None = None) -> AppendFuture[int]:
        return self.bench.publisher.replicate(gate or self.gate, 1, entries, ())

    def publish(self, number: int) -> AppendFuture[int]:
        return self.bench.submit(b"here %d" % number, producer="p", sequence=number)

    def store_gaps(self) -> None:
        """Store the gaps, as the cursor of the origins does."""

        def store(_: int) -> None:
            for gate in self.gates:
                gate.persisted(gate.snapshot())

        self.bench.publisher.with_gates(store)

    @property
    def numbers(self) -> Sequence[bytes]:
        return self.bench.ledgers.values()


def test_an_entry_waits_for_the_copy_that_is_on_its_way() -> None:
    held = Held()
    here = held.publish(3)
    there = held.send(entry(0, 3))
    assert held.bench.ledgers.held == 1 and not there.done()
    held.bench.ledgers.confirm()
    assert here.result(0) == 0 and not there.done(), "the gap is not stored yet"
    held.store_gaps()
    assert there.result(0) == 1 and held.numbers == [b"here 3"]


@pytest.mark.parametrize("fails", [False, True])
def test_entries_behind_one_in_doubt_wait_for_it(fails: bool) -> None:
    """They go on as soon as that outcome is known, in order, whatever it is."""
    held = Held()
    held.publish(3)
    there = [held.send(entry(0, 3)), held.send(entry(1, 4), entry(2, 5)), held.send(entry(3, 6))]
    other = held.gates.add(GateState(C, 1, 0, None, ()))
    stranger = held.send(entry(0, 9), gate=other)
    held.bench.ledgers.fail(FULL) if fails else held.bench.ledgers.confirm()
    assert not any(future.done() for future in there)
    while held.bench.ledgers.held:
        held.bench.ledgers.confirm()
    held.store_gaps()
    assert stranger.result(0) == 1 and held.gate.stored == 4
    assert all(future.result(0) >= end for future, end in zip(there, (1, 3, 4), strict=True))
    here = b"there 3" if fails else b"here 3"
    mine = [value for value in held.numbers if value != b"there 9"]
    assert mine == [here, b"there 4", b"there 5", b"there 6"]


def test_a_new_session_does_not_wait_for_an_entry_in_doubt_of_the_former_one() -> None:
    held = Held()
    held.publish(3)
    there = [held.send(entry(0, 3)), held.send(entry(1, 4))]
    opened: AppendFuture[OriginState] = AppendFuture()
    held.bench.publisher.with_gates(lambda _: held.gate.open(2, opened))
    held.store_gaps()
    assert opened.result(0).stored == 0 and isinstance(there[1].exception(0), OriginSessionError)
    again = held.bench.publisher.replicate(held.gate, 2, [entry(0, 7)], ())
    held.bench.ledgers.confirm()
    assert isinstance(there[0].exception(0), OriginSessionError)
    held.bench.ledgers.confirm()
    assert again.result(0) == 1 and held.numbers == [b"here 3", b"there 7"]


def test_an_entry_whose_copy_fails_is_stored() -> None:
    held = Held()
    here = held.publish(3)
    there = held.send(entry(0, 3))
    held.bench.ledgers.fail(FULL)
    assert here.exception(0) is FULL
    held.bench.ledgers.confirm()
    assert there.result(0) == 1 and held.numbers == [b"there 3"]


def test_a_message_waits_for_the_original_that_is_on_its_way() -> None:
    held = Held()
    there = held.send(entry(0, 3))
    here = held.publish(3)
    assert held.bench.ledgers.held == 1
    held.bench.ledgers.confirm()
    assert there.result(0) == 1 and here.result(0) == -1


def test_messages_of_entries_that_were_not_stored_are_new() -> None:
    """The first entry of the call is stored, and the second one is not."""
    held = Held()
    there = held.send(entry(0, 3), entry(1, 4))
    here = [held.publish(3), held.publish(4)]
    held.bench.ledgers.fail(FULL, stored=1)
    assert there.exception(0) is FULL and here[0].result(0) == -1
    held.bench.ledgers.confirm()
    assert here[1].result(0) == 1 and held.numbers == [b"there 3", b"here 4"]
    again = held.send(entry(0, 3), entry(1, 4))
    held.store_gaps()
    assert again.result(0) == 2 and held.numbers == [b"there 3", b"here 4"]


def test_two_clusters_send_the_same_at_once() -> None:
    held = Held()
    other = held.gates.add(GateState(C, 1, 0, None, ()))
    first, second = held.send(entry(0, 3)), held.send(entry(0, 3), gate=other)
    assert held.bench.ledgers.held == 1
    held.bench.ledgers.confirm()
    held.store_gaps()
    assert first.result(0) == second.result(0) == 1 and held.numbers == [b"there 3"]


def test_waiting_entries_fail_when_the_topic_ends() -> None:
    held = Held()
    held.publish(3)
    there = held.send(entry(0, 3))
    held.bench.publisher.stop(FULL)
    assert there.exception(0) is FULL


# ---- clients -------------------------------------------------------------------------------------------------------


def test_a_client_sends_numbers_in_any_order(tmp_path: Path) -> None:
    """The client's own count of numbers is not used, and the client assigns none."""
    with serve_cluster(tmp_path) as server:
        topic = server.client().topic(NAME, **SETTINGS)
        assert topic.config.global_producers
        with topic.producer("p") as producer:
            assert [producer.publish(b"%d" % number, sequence=number) for number in (5, 7, 3, 5, 3, 6)] == [
                0, 1, 2, -1, -1, 3,
            ]  # fmt: skip
            with pytest.raises(InvalidArgumentError, match="global_producers"):
                producer.publish(b"v")
        assert producer.last_sequence == 7
