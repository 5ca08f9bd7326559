"""Owners of topics as separate processes, each with an access of its own to the metadata, which may fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.clock import SystemClock
from pyreplog.errors import ClosedError, MetadataUnavailableError, OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from tests.topic.batches import submit
from tests.topic.counting import Faults
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

WRITES = ("put", "create", "delete")


def config(**settings: Any) -> TopicConfig:
    return TopicConfig.of({"ensemble": 1, "durability": "appended", "roll_entries": 2, **settings})


def entry(*values: bytes) -> bytes:
    return encode_messages(list(values))


def publish(topic: ManagedLedger, values: Sequence[bytes]) -> AppendFuture[range]:
    """Publish one entry."""
    return submit(topic.writer, [entry(*values)], [len(values)])


def result(future: AppendFuture[Any]) -> Any:
    return future.result(PATIENCE_S)


def read_all(topic: ManagedLedger, offset: int | None = None, **options: Any) -> dict[int, bytes]:
    """Return each message by its offset."""
    at = topic.start.offset if offset is None else offset
    contents: dict[int, bytes] = {}
    while len(batch := result(topic.read(at, **options))):
        contents.update(zip(batch.offset.tolist(), batch.values(), strict=True))
        assert batch.end > at
        at = batch.end
    return contents


class FaultyWrites:
    """Wraps a metadata store: counts writes, one of which fails. A dead process cannot read either."""

    def __init__(self, store: Any, faults: Faults) -> None:
        self._store, self._faults = store, faults

    def __getattr__(self, name: str) -> Any:
        method, faults = getattr(self._store, name), self._faults
        if name in ("get", "list"):
            return lambda *args: self._read(method, *args)
        if name not in WRITES:
            return method
        error: ReplogError = OutcomeUnknownError("lost") if faults.after else MetadataUnavailableError("away")
        return lambda *args: faults.call(name, lambda: method(*args), error)

    def _read(self, method: Any, *args: Any) -> Any:
        if self._faults.is_dead:
            raise MetadataUnavailableError("away")
        return method(*args)


class _SharedRuntime:
    """The runtime of another handle, with another metadata store. This handle must not close it."""

    def __init__(self, runtime: Any, metadata: Any) -> None:
        self._runtime, self.metadata = runtime, metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def end_calls_by(self, deadline: float) -> None:
        return

    def close(self, timeout: float | None = None) -> None:
        return


@contextmanager
def process(cluster: LedgerCluster, faults: Faults) -> Iterator[LedgerCluster]:
    """Open another handle of a cluster. If its process dies, everything is left as it is."""
    runtime: Any = _SharedRuntime(cluster.runtime, FaultyWrites(cluster.metadata, faults))
    ledger_cluster = LedgerCluster("process", runtime, SystemClock())
    try:
        yield ledger_cluster
    finally:
        for ledger in ledger_cluster.open_ledgers:
            ledger.refuse_calls(ClosedError("its process died"))
            ledger.abandon()
        ledger_cluster.refuse_calls(ClosedError("it died"))
        faults.settle()
