"""Settings that are given as keywords: a type checker sees which there are, and of which types."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.bookie.config import BookieConfig, BookieSettings
from pyreplog.config import LogConfig, LogSettings, Settings
from pyreplog.cursors.subscription_config import SubscriptionConfig, SubscriptionSettings
from pyreplog.geo.geo_replication import GeoReplication
from pyreplog.geo.policy import ReplicationPolicy, ReplicationSettings
from pyreplog.ha.config import NodeConfig, NodeSettings
from pyreplog.ha.relay.applier import Applier
from pyreplog.ha.relay.config import ApplierConfig, ApplierSettings
from pyreplog.ha.relay.relay import Relay
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.topic.model.config import TopicConfig, TopicSettings

ROOT = Path(pyreplog.__file__).parent.parent
KINDS = [
    (LogConfig, LogSettings), (BookieConfig, BookieSettings), (NodeConfig, NodeSettings),
    (ApplierConfig, ApplierSettings), (TopicConfig, TopicSettings), (SubscriptionConfig, SubscriptionSettings),
    (ReplicationPolicy, ReplicationSettings),
]  # fmt: skip
TOPICS = (
    pyreplog.TopicLike, pyreplog.Topic, pyreplog.RemoteTopic, pyreplog.PartitionedTopic, pyreplog.RemotePartitionedTopic,
)  # fmt: skip
TAKERS: list[tuple[Callable[..., Any], type]] = [
    (pyreplog.open, LogSettings), (LedgerCluster.embedded, BookieSettings), (ha.open_master, NodeSettings),
    (ha.open_replica, NodeSettings), (Applier.__init__, ApplierSettings), (Relay.__init__, ApplierSettings),
    (pyreplog.Cluster.topic, TopicSettings), (pyreplog.Client.topic, TopicSettings),
    *((getattr(kind, name), SubscriptionSettings) for kind in TOPICS for name in ("subscribe", "create_subscription")),
    *((kind.configure, TopicSettings) for kind in TOPICS),
    (GeoReplication.set_policy, ReplicationSettings),
]  # fmt: skip


@pytest.mark.parametrize(("config", "keywords"), KINDS)
def test_keywords_are_the_fields_of_the_configuration(config: type[Settings], keywords: Any) -> None:
    fields = dataclasses.fields(config)
    assert typing.get_type_hints(keywords) == {
        field.name: typing.get_type_hints(config)[field.name] for field in fields
    }
    needed = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    hints = typing.get_type_hints(keywords, include_extras=True)
    assert {name for name, hint in hints.items() if typing.get_origin(hint) is typing.Required} == needed


@pytest.mark.parametrize(("function", "keywords"), TAKERS)
def test_functions_name_their_settings(function: Callable[..., Any], keywords: type) -> None:
    assert function.__annotations__["settings"] == f"Unpack[{keywords.__name__}]"


PROGRAM = """\
import pyreplog
from pyreplog import Cluster, ha

log = pyreplog.open("log", durability="synced", segment_bytes=1 << 20)
pyreplog.open("log", segment_byte=1)  # wrong
pyreplog.open("log", segment_bytes="1")  # wrong
pyreplog.open("log", durability="sync")  # wrong
first: bytes = log[0]
key: bytes | None = log.get(0).key
times = [batch.timestamp.max() for batch in log.read(0, 10)]
Cluster.embedded("cluster", bookies=3, durability="appended")
Cluster.embedded("cluster", bookie=3)  # wrong
ha.open_master("copy", name="a", members=["a"], port=7001)
ha.open_master("copy", port=7001)  # wrong
ha.open_replica("copy", name="b", prot=7001)  # wrong


def newest(log: pyreplog.LogLike) -> bytes:
    return log[-1]


newest(log)
newest(pyreplog.open("log", "r"))
newest(Cluster.embedded("cluster").open_ledger(3))
newest(ha.open_replica("copy", name="b").log)
newest("text")  # wrong
pyreplog.open("log").scan()  # wrong
"""

TOPIC_PROGRAM = """\
from datetime import UTC, datetime

import pyreplog

cluster = pyreplog.Cluster.embedded("cluster")
client = pyreplog.connect("pyreplog://127.0.0.1:7400")


def work(topic: pyreplog.TopicLike) -> int | pyreplog.PartitionOffset:
    topic.configure(retention_ms=None, compression="zstd")
    topic.configure(retention_m=1)  # wrong
    topic.create_subscription("s", start="earliest", max_redeliveries=3)
    topic.create_subscription("s", start=5)  # wrong
    with topic.subscribe("s", type="shared", queue=10) as consumer:
        topic.subscribe("s", type="share")  # wrong
        message = consumer.receive(timeout=5.0)
        message.value  # wrong
        if message is not None:
            consumer.acknowledge(message)
            value: bytes = message.value
        for batch in consumer.batches(timeout=1.0):
            consumer.acknowledge(batch)
        consumer.seek(datetime.now(UTC))
        consumer.recieve()  # wrong
    with topic.producer("p") as producer:
        producer.publish(b"value", event_time=datetime.now(UTC), deliver_at=1_800_000_000_000_000)
        producer.publish("value")  # wrong
        producer.submit(b"value").result(1.0)
    return topic.publish(b"value", b"key", delay=5)


work(cluster.topic("orders", deduplicate=True, linger_ms=5))
work(cluster.topic("clicks", partitions=4))
work(client.topic("orders", create=False))
work(client.topic("clicks", partitions=4, ensemble=1))
work(cluster)  # wrong
cluster.topic("orders", lingerms=5)  # wrong
cluster.topic("orders", compression="gzip")  # wrong
cluster.topic("clicks", partitions=4, linger_ms="5")  # wrong
client.topic("orders", wait=1.0)  # wrong
client.topic("clicks", partitions=4, retention_ms="1d")  # wrong

place: int = cluster.topic("orders").publish(b"value")  # wrong
cluster.topic("orders").end  # wrong
clicks = cluster.topic("clicks", partitions=4)
parted: pyreplog.PartitionOffset = clicks.publish(b"value")
clicks.partition(0).skip("s", 1)
clicks.seek("s", 5)  # wrong
visits = client.topic("clicks", partitions=4)
visits.seek("s", parted)
for at in visits.publish_batch([b"a", b"b"]):
    at.offsets.start

orders = cluster.topic("orders")
assert isinstance(orders, pyreplog.Topic)
offset: int = orders.publish(b"value")
offsets: range = orders.publish_batch([b"a", b"b"], event_times=[datetime.now(UTC), None])
orders.skip_to("s", orders.end - len(offsets))
remote = client.topic("orders")
if isinstance(remote, pyreplog.RemoteTopic):
    mine: int = remote.submit(b"value").result(1.0)
    remote.submit(b"value", priority=1)  # wrong


async def loop(topic: pyreplog.TopicLike, orders: pyreplog.Topic) -> int:
    await topic.configure_async(retention_ms=1)
    await topic.configure_async(retention_m=1)  # wrong
    async with await topic.subscribe_async("s", type="shared") as consumer:
        async for message in consumer:
            value: bytes = message.value
        await topic.subscribe_async("s", type="share")  # wrong
    opened = await cluster.topic_async("clicks", partitions=4, linger_ms=5)
    at: pyreplog.PartitionOffset = await opened.publish_async(b"value", b"key", timeout=5)
    await client.topic_async("clicks", lingerms=5)  # wrong
    await orders.publish_async("value")  # wrong
    async for batch in orders.read_async(0, 10):
        batch.values()
    return await orders.publish_async(b"value", event_time=datetime.now(UTC))


consumer: pyreplog.Consumer = orders.subscribe("s", start=offset)
orders.subscribe("s", start="first")  # wrong
"""


@pytest.mark.parametrize("source", [PROGRAM, TOPIC_PROGRAM], ids=["logs", "topics"])
def test_a_type_checker_finds_wrong_settings(source: str, tmp_path: Path) -> None:
    """In a program of a user, with the strictest checks."""
    mypy = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(source)
    version = (
        f"--python-version={sys.version_info.major}.{sys.version_info.minor}"  # libraries have no stubs for older ones
    )
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"), version]
    out, err, _ = mypy.run([*config, "--strict", str(program)])
    lines = sorted({int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line})
    wrong = [number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# wrong")]
    assert lines == wrong, out + err
