"""`pyreplog broker` as processes: they replicate, hand over when they are told to end, and start again."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.metadata.topic_metadata import TopicMetadata, create_topic, state_key
from pyreplog.partition.protocol.partition_state import PartitionState
from tests.cli.support import process
from tests.ledger.processes import ROOT, Process, ProcessGroup
from tests.net.test_tls import Authority
from tests.waiting import until

QUICK = ("--set", "lease_ms=1000", "--set", "segment_bytes=1048576", "--set", "balance_ms=100")
NAMES = ("a", "b", "c")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path}/metadata.sqlite") as processes:
        yield processes


def start(processes: ProcessGroup, name: str, *options: object) -> Process:
    return processes.start(
        "pyreplog",
        "broker",
        str(processes.folder / name),
        "--json",
        "--metadata",
        processes.url,
        *QUICK,
        *map(str, options),
    )


def end(broker: Process) -> None:
    broker.signal(signal.SIGTERM)
    assert (broker.wait(), broker.error_text()) == (0, "")


def scraped(broker: Process) -> str:
    return urllib.request.urlopen(f"http://{broker.wait_for('metrics')}/metrics", timeout=30).read().decode()


def metrics(broker: Process) -> dict[str, float]:
    """The samples of a broker, without the label that names it."""
    samples = re.findall(r"^(\w+)\{broker=\"\w+\",?(.*)\} (.*)$", scraped(broker), re.MULTILINE)
    return {name + labels: float(value) for name, labels, value in samples}


def state(store: SQLiteStore, topic: TopicMetadata, partition: int) -> PartitionState | None:
    stored = store.get(state_key(topic.topic_id, partition))
    return None if stored is None else PartitionState.decode(stored.value)


def test_three_brokers_behind_a_secret_and_tls(processes: ProcessGroup, tmp_path: Path) -> None:
    """One that ends hands its partitions over at once; it joins again when it is back, and leads what it should lead."""
    authority, secret = Authority(tmp_path, "all"), tmp_path / "secret"
    secret.write_bytes(b"what all brokers know\n")
    files = ("--secret-file", secret, "--tls-ca", authority.file, "--metrics", "0")
    options = {name: (*files, "--tls-cert", authority.issue(name), "--rack", f"rack {name}") for name in NAMES}
    brokers = {name: start(processes, name, *options[name]) for name in NAMES}
    assert [brokers[name].wait_for("broker") for name in NAMES] == ["a@1", "b@1", "c@1"]

    with SQLiteStore(tmp_path / "metadata.sqlite") as store:
        topic = create_topic(store, "flights", partitions=3, replication_factor=3, now_us=1)
        partitions = range(topic.partitions)

        def replicated(members: int) -> bool:
            states = [state(store, topic, number) for number in partitions]
            return all(each is not None and each.leader and len(each.isr) == members for each in states)

        until(lambda: replicated(3))
        until(lambda: all(metrics(broker)['pyreplog_broker_replicasrole="leader"'] == 1 for broker in brokers.values()))
        until(lambda: metrics(brokers["a"])['pyreplog_broker_replicasrole="follower"'] == 2)
        shown = metrics(brokers["a"])
        assert shown["pyreplog_broker_partitions_under_replicated"] == 0
        assert shown["pyreplog_broker_registered"] == 1
        assert [value for name, value in shown.items() if name.startswith("pyreplog_partition_isr")] == [3]

        guide = (ROOT / "docs" / "partitions.md").read_text()
        assert all(f"`{name}`" in guide for name in re.findall(r"^(\w+)\{", scraped(brokers["a"]), re.MULTILINE))

        end(brokers.pop("b"))
        states = [state(store, topic, number) for number in partitions]
        assert all(each is not None and each.leader not in ("", "b") for each in states), "it waited for others to lead"
        until(lambda: metrics(brokers["a"])["pyreplog_broker_partitions_under_replicated"] >= 1)

        brokers["b"] = start(processes, "b", *options["b"])
        assert brokers["b"].wait_for("broker") == "b@1", "it ended cleanly"
        until(lambda: replicated(3))
        until(lambda: all(metrics(broker)['pyreplog_broker_replicasrole="leader"'] == 1 for broker in brokers.values()))
    for broker in brokers.values():
        broker.signal(signal.SIGTERM)
    assert [broker.wait() for broker in brokers.values()] == [0, 0, 0]


def test_a_directory_stays_that_of_its_broker(processes: ProcessGroup) -> None:
    broker = start(processes, "a")
    broker.wait_for("broker")
    end(broker)

    def refused(*options: object) -> str:
        done = process("broker", processes.folder / "a", *options)
        assert done.code not in (0, 1) and done.error.startswith("pyreplog: ") and done.error.count("\n") == 1, done
        return done.error

    metadata = ("--metadata", processes.url)
    assert "a" in refused(*metadata, "--name", "other")
    assert "--metadata" in refused()
    assert "expected both" in refused(*metadata, "--tls-ca", Authority(processes.folder, "one").file)
    assert "lease_ms" in refused(*metadata, "--set", "lease_ms=1")
    assert "no_such" in refused(*metadata, "--set", "no_such=1")
