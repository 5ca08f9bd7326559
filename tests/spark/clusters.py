"""Clusters to be read: embedded ones in a directory, and bookies over TCP in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.net.handshake import Secret
from tests import samples
from tests.spark.reading import read_table

SEGMENT = 128 << 10
Place = tuple[int, int]
"""Ledger and entry."""
KEPT: dict[str, Any] = {"retention_bytes": None}
"""Settings of a topic that nobody subscribes to in time: its owner removes what is not kept, every second."""


@contextmanager
def embedded(path: Path, bookies: int = 3) -> Iterator[pyreplog.Cluster]:
    with pyreplog.Cluster.embedded(path, bookies=bookies, durability="appended", segment_bytes=SEGMENT) as cluster:
        yield cluster


def value_of(ledger: int, entry: int) -> bytes:
    return b"%d/%d." % (ledger, entry) * ((ledger * 31 + entry * 7) % 40 + 1)


def fill(cluster: pyreplog.Cluster, counts: Sequence[int], quorums: tuple[int, int, int] = (3, 2, 2)) -> list[Place]:
    """Ledgers of so many entries; which entries there are."""
    sample = []
    for count in counts:
        with cluster.create_ledger(*quorums, durability="appended") as ledger:
            for first in range(0, count, 100):
                ledger.append_batch([value_of(ledger.id, n) for n in range(first, min(first + 100, count))])
        sample += [(ledger.id, entry) for entry in range(count)]
    return sample


def values(path: Path | None, **options: object) -> dict[Place, bytes]:
    """Each entry's value; no entry comes twice."""
    rows = read_table(path, columns="ledgerId,entryId,value", **options).to_pylist()
    values = {(row["ledgerId"], row["entryId"]): row["value"] for row in rows}
    assert len(values) == len(rows)
    return values


def copies(path: Path | None, **options: object) -> Counter[Place]:
    """How many copies of each entry are given."""
    rows = read_table(path, columns="ledgerId,entryId", replica="all", **options).to_pylist()
    return Counter((row["ledgerId"], row["entryId"]) for row in rows)


def corrupt(path: Path, place: Place, bookie: str | None = None) -> None:
    """The copies of an entry: those of a bookie, or all."""
    rows = read_table(path, columns="ledgerId,entryId,segment,position,bookie", replica=bookie or "all").to_pylist()
    actual_rows = [row for row in rows if (row["ledgerId"], row["entryId"]) == place]
    assert actual_rows
    for row in actual_rows:
        base = int(row["segment"].partition(".")[0])
        folder = path / row["bookie"].partition("@")[0] / "log"
        samples.flip(folder / row["segment"], row["position"] - base + 70)


class Nodes:
    """Bookies over TCP, with their metadata in a file."""

    def __init__(self, folder: Path, names: Sequence[str], secret: bytes | None = None) -> None:
        self.folder, self.secret = folder, secret
        self._closing = ExitStack()
        self.store = self._closing.enter_context(SQLiteStore(folder / "metadata"))
        self.url = f"sqlite:{folder / 'metadata'}"
        self.nodes = {name: self._start(name) for name in names}

    def _start(self, name: str) -> BookieNode:
        config = BookieConfig(segment_bytes=8 << 20, durability="appended")
        secret = None if self.secret is None else Secret(self.secret)
        ledgers = StoredLedgers(self.store)
        node = BookieNode(self.folder / name, name, self.store, config, ledgers=ledgers, secret=secret)
        self._closing.callback(node.close)
        return node

    def stop(self, *names: str) -> None:
        for name in names:
            self.nodes.pop(name).close()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
