"""The programs of docs/spark.md run as they are printed: in other places, and with a stream that ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pyreplog
from pyreplog.offload.copying import offload
from tests.guides import ROOT, blocks, placed, run, server
from tests.spark.clusters import KEPT, Nodes, embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")

GUIDE = ROOT / "docs" / "spark.md"
SECRET = "swordfish-and-more"
LOGGED, PUBLISHED, REMOTE, FILED = 3000, 200, 50, 40


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the guide's reader has, and where it is here."""
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("guide")
    with pyreplog.open(folder / "data" / "orders", segment_bytes=64 << 10) as log:
        log.append_batch([b"order %d" % n for n in range(LOGGED)], [b"customer %d" % (n % 7) for n in range(LOGGED)])
    offload(folder / "data" / "orders", f"file://{folder}/bucket/orders")
    with embedded(folder / "data" / "cluster") as cluster:
        for name in ("orders", "returns"):
            topic = cluster.topic(name, deduplicate=True, durability="appended", **KEPT)
            topic.create_subscription("billing", start="earliest")
            topic.publish_batch([b"%d" % n for n in range(PUBLISHED)])
            topic.close()
    orders = [{"id": n, "customer": f"customer {n % 7}"} for n in range(FILED)]
    parquet.write_table(pa.Table.from_pylist(orders), folder / "orders.parquet")
    (folder / "nodes").mkdir()
    with (
        Nodes(folder / "nodes", ("b0", "b1", "b2"), secret=SECRET.encode()) as nodes,
        server(str(folder / "data" / "cluster")) as address,
    ):
        with pyreplog.Cluster.connect(nodes.url, secret=SECRET.encode()) as remote:
            topic = remote.topic("orders-eu", durability="appended", **KEPT)
            topic.publish_batch([b"%d" % n for n in range(REMOTE)])
            topic.close()
        yield {
            '"data/shop"': f'"{folder}/data/cluster"',
            '"data/': f'"{folder}/data/',
            '"orders.parquet"': f'"{folder}/orders.parquet"',
            "s3://bucket/orders": f"file://{folder}/bucket/orders",
            "zk://zk1:2181,zk2:2181/pyreplog": nodes.url,
            "127.0.0.1:7400": address,
            "host:port": address,
            'processingTime="10 seconds"': "availableNow=True",
        }


def ends(places: dict[str, str]) -> dict[str, int]:
    """How many messages the topics have."""
    with pyreplog.connect(f"pyreplog://{places['host:port']}") as client:
        return {name: client.topic(name).offsets().stop for name in ("orders", "returns")}


def test_programs_of_the_spark_guide_run(spark: SparkSession, places: dict[str, str]) -> None:
    laptop, topics, objects, stream, acknowledging, writing, asking = (
        placed(block, places) for block in blocks(GUIDE)
    )  # fmt: skip
    namespace: dict[str, Any] = {"secret": SECRET, "options": "{}"}
    run(laptop, namespace)
    assert namespace["spark"] is spark
    assert namespace["per_minute"].agg({"sum(size)": "sum"}).collect()[0][0] == sum(
        len(b"order %d" % n) for n in range(LOGGED)
    )
    run(topics, namespace)
    assert [namespace[name].count() for name in ("orders", "remote", "backlog")] == [2 * PUBLISHED, REMOTE, PUBLISHED]
    run(objects, namespace)
    offloaded = namespace["orders"].count()
    assert sum(namespace["per_minute"]["entries"].to_pylist()) == offloaded > LOGGED // 2
    streamed(namespace, stream, acknowledging)
    before = ends(places)
    run(writing, namespace)
    namespace["query"].processAllAvailable()
    namespace["query"].stop()
    assert ends(places) == before | {"orders": before["orders"] + FILED + LOGGED}
    run(asking, namespace)
    assert sum(namespace["table"]["entries"].to_pylist()) == LOGGED
    assert len(set(namespace["skew"]["key"].to_pylist())) == 8, "seven customers, and messages without a key"
    assert namespace["frame"].count() == 0


def streamed(namespace: dict[str, Any], stream: str, acknowledging: str) -> None:
    run(stream, namespace)
    namespace["query"].awaitTermination()
    run(acknowledging, namespace)
    assert namespace["moved"] == {"orders": PUBLISHED}
