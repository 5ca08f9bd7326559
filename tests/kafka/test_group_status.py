"""Consumer groups as rows, from the records of `__consumer_offsets` and what leaders tell."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pyreplog.kafka import EmbeddedKafka
from pyreplog.kafka.groups.group_records import (
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from pyreplog.kafka.groups.group_requests import OffsetCommitRequest, OffsetToCommit
from pyreplog.kafka.groups.group_status import GroupPartitionStatus, GroupStatus, LedgerBounds, unread_offsets
from pyreplog.kafka.groups.group_trends import GroupTrends
from pyreplog.kafka.groups.groups_overview import GroupsWatch
from pyreplog.kafka.groups.stored_groups import StoredGroups
from pyreplog.kafka.metrics import kafka_metrics
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.requests import PartitionQuery
from pyreplog.partition.topic_partition import TopicPartition
from tests.partition.settled import until_settled
from tests.waiting import PATIENCE_S, until

SECOND = 1_000_000
NOW_US = 1_800_000_000 * SECOND
ORDERS = TopicPartition("orders", 0)


def place(
    offset: int, end: int | None = 100, *, start: int = 0, oldest_s: float | None = 30.0, moved_s: float | None = 5.0,
    rates: tuple[float | None, float | None] = (None, None), partition: int = 0,
) -> GroupPartitionStatus:  # fmt: skip
    """oldest_s, moved_s: seconds ago."""
    return GroupPartitionStatus.of(
        "orders", partition, offset, now_us=NOW_US, start=start, end=end,
        oldest_us=None if oldest_s is None else NOW_US - round(oldest_s * SECOND),
        moved_us=None if moved_s is None else NOW_US - round(moved_s * SECOND), rate_in=rates[0], rate_out=rates[1],
    )  # fmt: skip


# ---- rows -------------------------------------------------------------------------------------------------------


def test_a_lag_in_messages_and_seconds_and_when_it_is_gone() -> None:
    row = place(60, rates=(2.0, 6.0))
    assert (row.lag, row.lag_s, row.drain_s, row.status, row.is_stalled) == (40, 30.0, 10.0, "draining", False)


def test_a_group_that_has_consumed_all() -> None:
    row = place(100, oldest_s=None, moved_s=9_000.0, rates=(0.0, 0.0))
    assert (row.lag, row.lag_s, row.drain_s, row.status, row.is_stalled) == (0, 0.0, 0.0, "done", False)


def test_records_that_were_removed_are_no_lag() -> None:
    assert place(10, start=70).lag == 30
    assert place(120, start=70).lag == 0, "offsets may be committed for a topic that was made anew"


@pytest.mark.parametrize(
    ("rates", "drain_s", "status"),
    [
        ((5.0, 5.0), None, "growing"), ((1.0, 0.0), None, "stalled"), ((None, 1.0), None, None),
        ((1.0, None), None, None), ((0.0, 0.5), 80.0, "draining"),
    ],
)  # fmt: skip
def test_the_outlook_of_a_lag_follows_from_its_rates(
    rates: tuple[float | None, float | None], drain_s: float | None, status: str | None
) -> None:
    row = place(60, rates=rates)
    assert (row.drain_s, row.status) == (drain_s, status)


def test_a_group_is_stalled_when_both_it_and_a_message_wait() -> None:
    assert place(60, oldest_s=70.0, moved_s=60.0).is_stalled
    assert not place(60, oldest_s=70.0, moved_s=59.0).is_stalled
    assert not place(60, oldest_s=59.0, moved_s=70.0).is_stalled, "it had nothing to do until then"
    assert not place(100, oldest_s=None, moved_s=70.0).is_stalled


def test_a_partition_whose_leader_does_not_answer() -> None:
    row = place(60, None)
    assert (row.lag, row.lag_s, row.drain_s, row.status) == (None,) * 4
    assert place(60, oldest_s=None).lag_s is None


def test_a_group_is_the_sum_of_its_partitions() -> None:
    first, second = place(60, rates=(2.0, 6.0)), place(99, oldest_s=3.0, rates=(0.0, 1.0), partition=1)
    group = GroupStatus(group="billing", partitions=(first, second))
    assert (group.lag, group.lag_s, group.drain_s, group.rate_in, group.rate_out) == (41, 30.0, 10.0, 2.0, 7.0)
    done = place(100, oldest_s=None)
    assert GroupStatus(group="g", partitions=(done, place(60))).drain_s is None
    assert GroupStatus(group="g", partitions=(done,)).drain_s == 0.0
    unknown = GroupStatus(group="g", partitions=(first, place(60, None)))
    assert (unknown.lag, unknown.lag_s, unknown.drain_s) == (None, None, None)
    growing = GroupStatus(group="g", partitions=(place(60, rates=(5.0, 5.0), oldest_s=90.0, moved_s=80.0),))
    assert growing.states == ("stalled", "growing") and growing.of_topic("other").partitions == ()
    assert growing.topics == ("orders",) and growing.to_dict()["partitions"][0]["lag"] == 40


# ---- what is stored ---------------------------------------------------------------------------------------------


def commit(stored: StoredGroups, offset: int | None, second: int, *, group: str = "billing") -> None:
    value = None if offset is None else encode_offset(OffsetCommitValue(offset, commit_timestamp=second * 1000))
    stored.add(encode_offset_key(group, *ORDERS), value)


def test_stored_groups_know_where_an_offset_is_and_was() -> None:
    stored = StoredGroups(60 * SECOND)
    for offset, second in ((5, 10), (5, 20), (7, 30), (30, 100)):
        commit(stored, offset, second)
    history = stored.groups["billing"].offsets[ORDERS]
    assert (history.offset, history.moved_us) == (30, 100 * SECOND)
    assert [history.at(second * SECOND) for second in (29, 40, 99, 100)] == [None, 7, 7, 30], "29: before the window"
    commit(stored, 31, 99)
    assert history.moved_us == 100 * SECOND, "the clock of another broker may be behind"


def test_groups_and_offsets_that_are_deleted() -> None:
    stored = StoredGroups(SECOND)
    commit(stored, 5, 10)
    key = encode_group_key("billing")
    stored.add(key, encode_group(GroupMetadataValue("consumer", 1, members=(MemberMetadata("m"),))))
    assert len(getattr(stored.groups["billing"].metadata, "members")) == 1  # noqa: B009
    stored.add(key, None)
    commit(stored, None, 11)
    stored.add(key, None)
    commit(stored, None, 12)
    assert not stored.groups


def test_records_that_are_damaged_or_of_a_later_kind_are_left_out() -> None:
    stored = StoredGroups(SECOND)
    for key, value in ((b"\0\x63later", b"x"), (b"\0", b""), (encode_offset_key("g", *ORDERS), b"\0\3\0"), (None, b"")):
        stored.add(key, value)
    assert not stored.groups


# ---- scrapes ----------------------------------------------------------------------------------------------------


def test_rates_from_one_scrape_to_the_next() -> None:
    trends, place = GroupTrends(), ("billing", ORDERS)
    assert trends.add_sample(place, 0, end=100, offset=0, lag=100).drain_s is None
    course = trends.add_sample(place, 10 * SECOND, end=110, offset=60, lag=50)
    assert (course.rate_in, course.rate_out, course.drain_s) == (1.0, 6.0, 10.0)
    assert trends.add_sample(place, 80 * SECOND, end=110, offset=60, lag=50).stalled
    trends.keep([])
    assert trends.add_sample(place, 90 * SECOND, end=110, offset=60, lag=50).rate_in is None


def test_rates_do_not_depend_on_the_scrape_interval() -> None:
    trends, place = GroupTrends(), ("billing", ORDERS)
    for step in range(400 * 10):
        course = trends.add_sample(place, step * SECOND // 10, end=step, offset=step // 2, lag=step - step // 2)
    assert course.rate_in == pytest.approx(10.0) and course.rate_out == pytest.approx(5.0, rel=0.01)


def test_a_group_in_a_topic_on_ledgers_has_its_lag() -> None:
    places = [
        GroupPartitionStatus.of("orders", number, 5, now_us=NOW_US, moved_us=NOW_US - 10 * SECOND, rate_out=2.0)
        for number in range(3)
    ]
    group = GroupStatus(group="billing", partitions=tuple(places))
    kept = {TopicPartition("orders", 0): range(7, 10), TopicPartition("orders", 1): range(5)}
    assert unread_offsets([group], kept) == {TopicPartition("orders", 0): {7}}
    bounds = {name: LedgerBounds(each.start, each.stop, 1.0, {7: NOW_US - SECOND}) for name, each in kept.items()}
    first, second, third = group.on_ledgers(bounds, NOW_US).partitions
    assert (first.lag, first.lag_s, first.drain_s, first.status) == (3, 1.0, 3.0, "draining")
    assert (second.lag, second.lag_s, second.status) == (0, 0.0, "done")
    assert third == places[2] and third.lag is None
    assert group.of_partition(TopicPartition("orders", 1)).partitions == (places[1],)


# ---- brokers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        create_topic(kafka.store, "orders", partitions=2, replication_factor=1, now_us=time.time_ns() // 1000)
        kafka.servers["1"].create_offsets_topic()
        with PartitionClient.connect(kafka.metadata_url) as client:
            until_settled(client, "orders", "__consumer_offsets")
        yield kafka


def committed(kafka: EmbeddedKafka, group: str, offset: int, name: TopicPartition = ORDERS) -> None:
    request = OffsetCommitRequest("", -1, {name: OffsetToCommit(offset)})
    until(lambda: kafka.servers["1"].groups.commit_offsets(group, request).result(PATIENCE_S)[name] == 0)


def test_a_watch_reads_groups_and_then_their_news(kafka: EmbeddedKafka) -> None:
    with PartitionClient.connect(kafka.metadata_url) as client:
        topic = client.topic("orders")
        topic[0].append_batch([b"%d" % number for number in range(10)])
        before_us = time.time_ns() // 1000
        committed(kafka, "billing", 4)
        watch = GroupsWatch(client, 300.0)
        now_us = time.time_ns() // 1000
        view = watch.sample(now_us)
        group = {group.group: group for group in view.groups}["billing"]
        assert (group.group, group.lag, group.members, group.state, view.notes) == ("billing", 6, None, None, ())
        (row,) = group.partitions
        assert row.moved_us is not None and row.moved_us >= before_us - 1000
        assert row.lag_s is not None and 0 < row.lag_s < 3600
        assert (row.rate_in, row.rate_out, row.drain_s) == (10 / 300, None, None), "it was not there before the window"
        at_us = row.moved_us + 301 * SECOND
        (later,) = [
            each for group in watch.sample(at_us).groups for each in group.partitions if group.group == "billing"
        ]
        assert (later.rate_out, later.status, later.is_stalled) == (0.0, "stalled", True)

        committed(kafka, "billing", 10)
        committed(kafka, "audit", 0)
        lags = {group.group: (group.lag, group.lag_s) for group in watch.sample(time.time_ns() // 1000).groups}
        assert lags["billing"] == (0, 0.0) and lags["audit"][0] == 10
        assert [each.topic for each in watch.sample(now_us, ["orders"]).overview.partitions] == ["orders"] * 2
        assert watch.sample(now_us, ["no such topic"]).groups == ()


def measured(kafka: EmbeddedKafka, group: str) -> dict[str, float]:
    """The metrics of the place of a group in partition 0 of its topic."""
    return {
        metric.name.removeprefix("pyreplog_kafka_group_"): float(value)  # type: ignore[arg-type]
        for metric in kafka_metrics(kafka.servers["1"])
        for labels, value in metric.samples
        if labels.get("group") == group and labels.get("partition") == "0"
    }


def test_metrics_have_the_lag_in_seconds_and_the_drain_time(kafka: EmbeddedKafka) -> None:
    create_topic(kafka.store, "measured", partitions=1, replication_factor=1, now_us=time.time_ns() // 1000)
    name = TopicPartition("measured", 0)

    with PartitionClient.connect(kafka.metadata_url) as client:
        client.topic("measured")[0].append_batch([b"a", b"b", b"c"])
        until_settled(client, "measured")
    committed(kafka, "metrics", 1, name)
    first = measured(kafka, "metrics")
    assert (first["offset"], first["lag"], first["stalled"]) == (1, 2, 0) and 0 < first["lag_seconds"] < 3600
    assert "drain_seconds" not in first, "nothing is known of rates yet"
    committed(kafka, "metrics", 2, name)
    second = measured(kafka, "metrics")
    assert second["lag"] == 1 and second["drain_seconds"] > 0
    committed(kafka, "metrics", 3, name)
    third = measured(kafka, "metrics")
    assert (third["lag"], third["lag_seconds"], third["drain_seconds"]) == (0, 0, 0)


def times(client: PartitionClient, name: TopicPartition, *offsets: int) -> tuple[int, ...]:
    """When the records at these offsets were appended."""
    overview = client.overview([name.topic], queries={name: PartitionQuery(None, offsets)})
    return overview.descriptions[name].times_us


def test_a_lag_begins_where_the_log_does(kafka: EmbeddedKafka) -> None:
    with PartitionClient.connect(kafka.metadata_url) as client:
        topic = client.create_topic("trimmed")
        topic[0].append_batch([b"a", b"b"])
        name = TopicPartition("trimmed", 0)
        topic[0].append(b"c")
        until_settled(client, "trimmed")
        (_, left_us) = times(client, name, 0, 2)
        committed(kafka, "late", 0, name)
        kafka.brokers["1"].delete_records({name: 2}).result(PATIENCE_S)
        assert times(client, name, 0) == (left_us,)
        watch = GroupsWatch(client, 300.0)
        (group,) = [group for group in watch.sample(time.time_ns() // 1000).groups if group.group == "late"]
        assert group.lag == 1 and group.lag_s is not None
        values = measured(kafka, "late")
        assert values["lag"] == 1 and values["lag_seconds"] > 0
