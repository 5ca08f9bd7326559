"""The plugin of pytest: clusters and servers as fixtures. pytest loads it by its entry point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pyreplog.testing import temporary_cluster, temporary_kafka, temporary_topic_server

if TYPE_CHECKING:
    from pyreplog.cluster import Cluster


@pytest.fixture
def pyreplog_cluster() -> Iterator[Cluster]:
    """Give an embedded `Cluster` of this test, empty, with one bookie."""
    with temporary_cluster() as cluster:
        yield cluster


@pytest.fixture
def pyreplog_server() -> Iterator[str]:
    """Give the URL of a topic server of this test, which has no topics yet."""
    with temporary_topic_server() as url:
        yield url


@pytest.fixture
def pyreplog_kafka() -> Iterator[str]:
    """Give the address of a Kafka of this test, which has no topics yet: `bootstrap.servers` of its clients."""
    with temporary_kafka() as bootstrap_servers:
        yield bootstrap_servers
