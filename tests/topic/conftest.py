"""Fixtures of topics: in this process, and through a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.topic.client.remote.client import Client
from tests.topic.remoting import ServedCluster, Wire, serve_cluster


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedCluster]:
    with serve_cluster(tmp_path / "cluster") as served:
        yield served


@pytest.fixture
def wire(served: ServedCluster) -> Iterator[Wire]:
    """A wire to the server, which can be cut."""
    with Wire(served.server.address) as wire:
        yield wire


@pytest.fixture
def client(served: ServedCluster) -> Client:
    return served.client()


@pytest.fixture(params=["here", "elsewhere"])
def place(request: pytest.FixtureRequest, served: ServedCluster) -> Cluster | Client:
    """The cluster itself, or a client of its server."""
    return served.cluster if request.param == "here" else served.client()
