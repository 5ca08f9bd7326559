"""pyreplog: a ledger on three bookies, three copies of which two confirm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pyreplog
from benchmarks.ledgers import SPARES, WINDOW_BYTES, Bookies
from benchmarks.peers.replicated.peer import ReplicatedPeer
from benchmarks.result import Durability
from pyreplog import AppendFuture
from pyreplog.ledger.ledger_handle import Ledger


class OurLedger(ReplicatedPeer):
    """Batches follow each other without a wait, as far as the window takes them."""

    title = "pyreplog ledger, E=3 Qw=3 Qa=2"
    durabilities: ClassVar[frozenset[Durability]] = frozenset({"appended", "synced"})
    settings: ClassVar[dict[str, Any]] = {"spare_segments": SPARES, "collect_interval_ms": 1}
    """Fields of BookieConfig: entries that are forgotten leave segments that are written over."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._durability = durability
        self._stack = ExitStack()
        self._ledger: Ledger | None = None
        self._last: AppendFuture[range] | None = None
        try:
            self._side = Bookies(directory, self._stack, 3, {"durability": durability} | self.settings)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def version() -> str:
        return f"pyreplog {pyreplog.__version__}"

    def start(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._side.cluster.delete_ledger(self._ledger.id)
            self._side.collect()
        self._ledger = self._side.cluster.create_ledger(
            3, 3, 2, durability=self._durability, window_bytes=WINDOW_BYTES
        )  # fmt: skip

    def append(self, value: bytes) -> None:
        assert self._ledger is not None
        self._ledger.append(value)

    def append_batch(self, values: list[bytes]) -> None:
        assert self._ledger is not None
        self._last = self._ledger.submit_batch(values)

    def flush(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None

    def values(self) -> Iterator[bytes]:
        assert self._ledger is not None
        self._ledger.close()
        with self._side.cluster.open_ledger(self._ledger.id) as reader:
            for batch in reader.read():
                yield from batch.values()

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
        self._stack.close()
