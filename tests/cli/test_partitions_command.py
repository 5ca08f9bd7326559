"""`pyreplog partitions`, on three brokers of this process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.kafka import EmbeddedKafka
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.config import BrokerConfig
from tests.cli.support import Done, Run
from tests.partition.settled import until_settled
from tests.waiting import until

NAMES = ("1", "2", "3")
Partitions = Callable[..., Done]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    config = BrokerConfig(segment_bytes=1 << 20, lease_ms=2_000, lag_ms=2_000)
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), 3, broker_config=config) as kafka:
        kafka.servers["1"].create_offsets_topic()
        yield kafka


@pytest.fixture
def partitions(run: Run, kafka: EmbeddedKafka) -> Partitions:
    return lambda *arguments: run("partitions", "--metadata", kafka.metadata_url, *arguments)


def succeeded(done: Done) -> str:
    assert (done.code, done.error) == (0, ""), done
    return done.out


def values(done: Done) -> Any:
    return json.loads(succeeded(done))


def test_a_topic_from_its_creation_to_its_end(partitions: Partitions, kafka: EmbeddedKafka) -> None:
    created = values(partitions("create", "flights", "--partitions", 2, "--set", "min.insync.replicas=2", "--json"))
    assert created == {"topic": "flights", "partitions": 2, "replicas": 3}
    assert values(partitions("list", "--json")) == ["__consumer_offsets", "flights"]
    assert succeeded(partitions("list")) == "__consumer_offsets\nflights\n"
    with PartitionClient.connect(kafka.metadata_url) as client:
        client.topic("flights")[1].append_batch([b"a", b"b", b"c"])
        until_settled(client, "flights")

    until(lambda: [row["high_watermark"] for row in described(partitions, "flights")] == [0, 3])
    for number, row in enumerate(described(partitions, "flights")):
        assert row["topic"] == "flights" and row["partition"] == number and row["leader"] in NAMES
        assert sorted(row["isr"]) == sorted(row["replicas"]) == list(NAMES) and row["out_of_sync"] == []
        assert row["start"] == row["lag"] == 0 and row["end"] == row["high_watermark"] == row["last_stable"]
    table = succeeded(partitions("describe", "flights")).split("\n")
    assert re.split(r"  +", table[1]) == [
        "topic", "partition", "leader", "epoch", "ISR", "not in sync", "start", "high watermark", "lag", "replica lag",
    ]  # fmt: skip
    assert re.fullmatch(r"flights +1 +[123] +\d+ +1,2,3 +- +0 +3 +0 +-", table[3]), table
    assert all(row["start"] is None for row in values(partitions("describe", "--no-offsets", "--json")))

    altered = values(partitions("alter", "flights", "--partitions", 3, "--set", "retention.ms=60000", "--json"))
    assert (altered["partitions"], altered["retention.ms"], altered["min.insync.replicas"]) == (3, 60_000, 2)
    shown = dict(line.split() for line in succeeded(partitions("alter", "flights")).splitlines())
    assert (shown["partitions"], shown["retention.ms"], shown["retention.bytes"]) == ("3", "60000", "-1")
    assert values(partitions("alter", "flights", "--set", "retention.ms=default", "--json"))["retention.ms"] is None

    assert values(partitions("delete", "flights", "--yes", "--json")) == {"topic": "flights"}
    assert succeeded(partitions("list")) == "__consumer_offsets\n"


def described(partitions: Partitions, *topics: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = values(partitions("describe", *topics, "--json"))
    return rows


def led(partitions: Partitions, topic: str) -> list[dict[str, Any]]:
    """The partitions of a topic, once they have leaders: a replica that begins lets one be elected again."""
    until(lambda: all(row["high_watermark"] is not None for row in described(partitions, topic)))
    return described(partitions, topic)


def test_partitions_brokers_lists_brokers(partitions: Partitions, kafka: EmbeddedKafka) -> None:
    rows = values(partitions("brokers", "--json"))
    assert [(row["broker"], row["incarnation"], row["state"]) for row in rows] == [(name, 1, "alive") for name in NAMES]
    assert [row["kafka"] for row in rows] == [server.advertised for server in kafka.servers.values()]
    assert [row["address"] for row in rows] == [broker.address for broker in kafka.brokers.values()]
    assert re.search(r"^ +1 +1 +alive +127", succeeded(partitions("brokers")), re.MULTILINE)


def test_replicas_move_and_leaders_are_elected(partitions: Partitions) -> None:
    succeeded(partitions("create", "moved", "--partitions", 2, "--replicas", 1))
    (first, second) = led(partitions, "moved")
    target = next(name for name in NAMES if name != first["leader"])
    assert succeeded(partitions("reassign", "moved", f"0={target},{first['leader']}")) == "moved-0: done\n"
    until(lambda: described(partitions, "moved")[0]["replicas"] == [target, first["leader"]])
    until(lambda: values(partitions("reassign", "--json")) == [])
    assert succeeded(partitions("reassign")) == ""

    until(lambda: set(described(partitions, "moved")[0]["isr"]) == {target, first["leader"]})
    until(lambda: partitions("elect", "moved", 0).code == 0)
    until(lambda: described(partitions, "moved")[0]["leader"] == target)
    again = partitions("elect", "moved", 0)
    assert again.code == 0 and again.out == f"moved-0: ELECTION_NOT_NEEDED: {target} leads\n"
    both = values(partitions("elect", "moved", "--json"))
    assert [(row["topic"], row["partition"], row["error"]) for row in both] == [
        ("moved", number, "ELECTION_NOT_NEEDED") for number in (0, 1)
    ]
    unclean = partitions("elect", "moved", 1, "--unclean", "--yes")
    assert unclean.out == f"moved-1: ELECTION_NOT_NEEDED: {second['leader']} leads\n"

    refused = partitions("reassign", "moved", "0=1", "1=nobody")
    assert refused.code == 6
    assert refused.out.endswith("moved-1: INVALID_REPLICA_ASSIGNMENT: expected registered brokers, found nobody\n")
    assert partitions("reassign", "moved", "7=1").out.startswith("moved-7: UNKNOWN_TOPIC_OR_PARTITION")
    cancelled = partitions("reassign", "moved", "--cancel")
    assert cancelled.code == 0 or "NO_REASSIGNMENT_IN_PROGRESS" in cancelled.out  # it may be complete by now
    succeeded(partitions("delete", "moved", "--yes"))


BAD = {
    "no topic": (("describe", "nowhere"), "there is no such topic"),
    "no topic to alter": (("alter", "nowhere"), "there is no such topic"),
    "no topic to delete": (("delete", "nowhere", "--yes"), "there is no such topic"),
    "not confirmed": (("delete", "__consumer_offsets"), "confirm it with --yes"),
    "exists": (("create", "__consumer_offsets"), "__consumer_offsets"),
    "no partitions": (("create", "x", "--partitions", 0), "partitions: expected 1 to 65536, found 0"),
    "no replicas": (("create", "x", "--replicas", 0), "replication_factor: expected 1 to 64, found 0"),
    "unknown setting": (("create", "x", "--set", "no.such=1"), "unknown setting 'no.such'"),
    "no setting": (("create", "x", "--set", "retention.ms"), "expected NAME=VALUE"),
    "no number": (("create", "x", "--set", "retention.ms=soon"), "retention.ms: expected 0 to"),
    "no bound": (("create", "x", "--set", "message.timestamp.after.max.ms=-1"), "expected a number or 'default'"),
    "fixed": (("alter", "__consumer_offsets", "--set", "segment.bytes=65536"), "cannot be changed"),
    "fewer partitions": (("alter", "__consumer_offsets", "--partitions", 1), "expected at least 4, found 1"),
    "no target": (("reassign", "__consumer_offsets"), "or --cancel"),
    "both": (("reassign", "__consumer_offsets", "0=1", "--cancel"), "or --cancel"),
    "no brokers": (("reassign", "__consumer_offsets", "0="), "expected PARTITION=BROKER,..., found '0='"),
    "not a partition": (("reassign", "__consumer_offsets", "x=1"), "expected the number of a partition, found 'x'"),
    "twice": (("reassign", "__consumer_offsets", "0=1", "0=2"), "expected each partition once"),
    "unclean": (("elect", "--unclean"), "confirm it with --yes"),
    "elect what": (("elect", "__consumer_offsets", "-0"), "expected the number of a partition, found '-0'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_partitions_command_refuses_invalid_arguments(partitions: Partitions, kind: str) -> None:
    arguments, expected = BAD[kind]
    done = partitions(*arguments)
    assert done.code == 2 and done.out == "" and expected in done.error, done
    assert "Traceback" not in done.error


def test_a_topic_that_has_too_few_brokers(partitions: Partitions) -> None:
    """It is created, and its leaders are elected when there are more."""
    done = partitions("--timeout", 0, "create", "wide", "--replicas", 5)
    assert done.code == 1 and "it is created, and 1 partitions have no leader after 0 s" in done.error
    assert described(partitions, "wide") == []
    succeeded(partitions("delete", "wide", "--yes"))


def test_no_metadata_store_is_made(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("partitions", "--metadata", f"sqlite:{tmp_path}/typo", "list")
    assert done.code == 2 and "there is no metadata store" in done.error and not list(tmp_path.iterdir())
    monkeypatch.delenv("PYREPLOG_CLUSTER", raising=False)
    done = run("partitions", "list")
    assert done.code == 2 and "--metadata URL or $PYREPLOG_CLUSTER" in done.error


def test_a_leader_that_is_dead_is_not_asked(partitions: Partitions, kafka: EmbeddedKafka) -> None:
    """Runs last: it closes a broker."""
    succeeded(partitions("create", "alone", "--replicas", 1))
    (row,) = led(partitions, "alone")
    kafka.servers[row["leader"]].close()
    kafka.brokers[row["leader"]].close()
    dead = until(lambda: [row for row in values(partitions("brokers", "--json")) if row["state"] == "dead"])
    assert [row["broker"] for row in dead] == [row["leader"]]
    until(lambda: partitions("describe", "alone").out.split("\n")[2].split()[-3:] == ["-", "-", "-"])
    until(lambda: partitions("elect", "alone", "--unclean", "--yes").code == 6)
