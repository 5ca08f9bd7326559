"""Embedded clusters with small segments, so that tests reach the ends of segments."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest

from pyreplog.ledger.cluster import LedgerCluster

SEGMENT_BYTES = 64 << 10
PATIENCE_S = 60.0


class Apart(Protocol):
    """Calls a function in another thread, and fails if it hangs."""

    def __call__(self, call: Any, *args: Any, **kwargs: Any) -> Any: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def cluster(folder: Path) -> Iterator[LedgerCluster]:
    """A cluster of four bookies."""
    with LedgerCluster.embedded(folder, bookies=4, segment_bytes=SEGMENT_BYTES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerCluster]:
    """A cluster of four bookies for all tests of a module that leave nothing but ledgers."""
    with LedgerCluster.embedded(tmp_path_factory.mktemp("shared"), bookies=4, segment_bytes=SEGMENT_BYTES) as cluster:
        yield cluster


@pytest.fixture
def apart() -> Iterator[Apart]:
    pool = ThreadPoolExecutor(1)
    yield lambda call, *args, **kwargs: pool.submit(call, *args, **kwargs).result(timeout=PATIENCE_S)
    pool.shutdown(wait=False)
