"""Clusters and servers for the tests of programs that use pyreplog: they start in a fraction of a second.

`pyreplog.testing.plugin` has them as fixtures of pytest, which finds them by itself once pyreplog is installed. The
context managers here serve any other framework. Each has a directory of its own, and leaves nothing behind: no files,
no threads, no ports.

| context manager | fixture | gives |
|---|---|---|
| `temporary_cluster` | `pyreplog_cluster` | an embedded `Cluster` |
| `temporary_topic_server` | `pyreplog_server` | the URL of a topic server, for `pyreplog.connect` |
| `temporary_kafka` | `pyreplog_kafka` | the address of a Kafka, `bootstrap.servers` of its clients |
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyreplog.cluster import Cluster

SEGMENT_BYTES = 1 << 20
"""Size of segment files: small, because each is made before the first append."""


@contextmanager
def temporary_cluster(
    directory: str | Path | None = None, *, bookies: int = 1, segment_bytes: int = SEGMENT_BYTES
) -> Iterator[Cluster]:
    """Make an embedded cluster, and remove it at the end of the block.

    Args:
        directory: of the cluster, which is made if it holds none; it stays. None: a temporary one, which is removed.
        bookies: number of bookies. Topics with the default settings work with any number: they have as many copies as
            there are bookies, up to three.
        segment_bytes: size of segment files, bytes.

    Yields:
        The cluster. Any thread may use it.

    Raises:
        InvalidArgumentError: an argument is out of its bounds.

    Example:
        ```python
        from pyreplog.testing import temporary_cluster

        with temporary_cluster() as cluster:
            cluster.topic("orders").publish(b"order 1")
        ```
    """
    from pyreplog.cluster import Cluster  # a test session that uses no fixture does not load it

    if directory is not None:
        with Cluster.embedded(directory, bookies=bookies, segment_bytes=segment_bytes) as cluster:
            yield cluster
        return
    with (
        tempfile.TemporaryDirectory(prefix="pyreplog-") as temporary,
        Cluster.embedded(Path(temporary) / "cluster", bookies=bookies, segment_bytes=segment_bytes) as cluster,
    ):
        yield cluster


@contextmanager
def temporary_topic_server(
    directory: str | Path | None = None, *, bookies: int = 1, segment_bytes: int = SEGMENT_BYTES
) -> Iterator[str]:
    """Make an embedded cluster with a topic server on a free port of 127.0.0.1, until the end of the block.

    Args:
        directory: as of `temporary_cluster`.
        bookies: as of `temporary_cluster`.
        segment_bytes: as of `temporary_cluster`.

    Yields:
        The URL, for `pyreplog.connect`, for programs under test, and for the command line.

    Raises:
        InvalidArgumentError: an argument is out of its bounds.

    Example:
        ```python
        import pyreplog
        from pyreplog.testing import temporary_topic_server

        with temporary_topic_server() as url, pyreplog.connect(url) as client:
            client.topic("orders").publish(b"order 1")
        ```
    """
    from pyreplog.topic.server.topic_server import TopicServer

    with (
        temporary_cluster(directory, bookies=bookies, segment_bytes=segment_bytes) as cluster,
        TopicServer(cluster) as server,
    ):
        yield f"pyreplog://{server.address}"


@contextmanager
def temporary_kafka(
    directory: str | Path | None = None, *, brokers: int = 1, segment_bytes: int = SEGMENT_BYTES
) -> Iterator[str]:
    """Make a Kafka on free ports of 127.0.0.1, until the end of the block.

    Topics are made when a client asks for them, with up to three replicas, as there are brokers.

    Args:
        directory: of the Kafka, which is made if it holds none; it stays. None: a temporary one, which is removed.
        brokers: number of brokers.
        segment_bytes: size of segment files, bytes.

    Yields:
        The addresses of the brokers, with commas between: `bootstrap.servers` of clients.

    Raises:
        InvalidArgumentError: an argument is out of its bounds.
        ConfigError: `segment_bytes` is out of its bounds.

    Example:
        ```python
        import confluent_kafka
        from pyreplog.testing import temporary_kafka

        with temporary_kafka() as bootstrap_servers:
            producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers})
            producer.produce("orders", b"order 1")
            producer.flush()
        ```
    """
    from pyreplog.kafka import EmbeddedKafka
    from pyreplog.partition.config import BrokerConfig

    config = BrokerConfig(segment_bytes=segment_bytes)
    with ExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pyreplog-"))
        kafka = stack.enter_context(EmbeddedKafka(directory, brokers, broker_config=config))
        yield kafka.bootstrap_servers
