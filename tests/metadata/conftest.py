"""The three stores, each empty for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.metadata import MetadataStore, open_store


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/metadata.db"


@pytest.fixture(params=["sqlite", "zookeeper"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """Of a store that several processes may open."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["memory", "sqlite", "zookeeper"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory:"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def store(url: str) -> Iterator[MetadataStore]:
    with open_store(url) as store:
        yield store


@pytest.fixture
def other(url: str, store: MetadataStore) -> Iterator[MetadataStore]:
    """Another handle of the same store; in memory there is only one."""
    if url == "memory:":
        yield store
    else:
        with open_store(url) as other:
            yield other
