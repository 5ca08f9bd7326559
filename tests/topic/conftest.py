"""Fixtures of topics: in this process, and through a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.topic.client.remote.client import Client
from tests.topic.remoting import Served, Wire, served


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "cluster") as here:
        yield here


@pytest.fixture
def wire(here: Served) -> Iterator[Wire]:
    """A wire to the server, which can be cut."""
    with Wire(here.server.address) as wire:
        yield wire


@pytest.fixture
def client(here: Served) -> Client:
    return here.client()


@pytest.fixture(params=["here", "elsewhere"])
def place(request: pytest.FixtureRequest, here: Served) -> Cluster | Client:
    """The cluster itself, or a client of its server."""
    return here.cluster if request.param == "here" else here.client()
