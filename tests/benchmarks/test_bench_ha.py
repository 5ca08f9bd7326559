"""What the rows of replica groups rely on: nodes in processes of their own that tell the truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.entries import BATCH, VALUES, stride
from benchmarks.rows.ha.node import RemoteNode, remote
from pyreplog._native.log.segment import HEADER_BYTES

SIZE = 100
LOG = {"segment_bytes": 1 << 20}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RemoteNode, RemoteNode]]:
    with ExitStack() as stack:
        master = remote(stack, tmp_path / "a", "a", members=["a", "b"], sync_replicas=1, log=LOG)
        yield master, remote(stack, tmp_path / "b", "b", master=master.address, log=LOG)


def test_a_load_counts_what_its_replica_has(pair: tuple[RemoteNode, RemoteNode]) -> None:
    master, replica = pair
    window_bytes = 4 * BATCH * stride(SIZE)
    load_result = master.call("load", SIZE, 0.05, window_bytes)
    assert load_result["entries"] >= BATCH
    assert load_result["entries"] % BATCH == 0
    assert 0 <= load_result["lag"] <= window_bytes + 2 * HEADER_BYTES  # a roll may lie between
    assert replica.call("verified", SIZE, VALUES, load_result["entries"]) == f"{load_result['entries']:,} entries"


def test_a_replica_with_other_entries_is_noticed(pair: tuple[RemoteNode, RemoteNode]) -> None:
    master, replica = pair
    end = master.call("fill", SIZE, VALUES)
    assert replica.call("received", end) > 0
    with pytest.raises(RuntimeError, match="ended with status 1"):
        replica.call("verified", SIZE + 1, VALUES, VALUES)
