"""A cursor that only counts, and a cluster for a CursorLog in which a call fails or the process dies."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

from pyreplog.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.cursors.cursor_log import CursorLog, RecoveredSubscription
from pyreplog.cursors.cursor_persister import CursorPersister
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.errors import MetadataUnavailableError, NotEnoughBookiesError, OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.ledger.cluster import LedgerCluster
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until

Call = Callable[[], Any]


class Counting:
    """A cursor whose state is a growing number. A record is "kind sequence number", padded.

    Attributes:
        persisted_state: the state that is known to be durable.
        lost_with: the error with which the cursor was lost.
    """

    def __init__(self, recovered: list[bytes] | None = None, *, padding: int = 0) -> None:
        self.lock = threading.Lock()
        self.state, self.sequence = restore(recovered or [])
        self.persisted_state = self.state
        self.padding = padding
        self.parts = 1  # the last ones are in further records of the snapshot
        self.records: dict[int, int] = {}  # the state at each sequence
        self._taken = self.state
        self.taken: list[str] = []
        self.came = threading.Event()
        self.lost_with: ReplogError | None = None

    def acknowledge(self) -> int:
        with self.lock:
            self.state += 1
            return self.state

    def take_changes(self) -> tuple[int, bytes] | None:
        with self.lock:
            return None if self._taken == self.state else self._record(b"delta", self.state - self._taken)

    def snapshot_record(self) -> tuple[int, bytes]:
        with self.lock:
            return self._record(b"whole", max(0, self.state - self.parts + 1))

    def _record(self, kind: bytes, number: int) -> tuple[int, bytes]:
        self.sequence += 1
        self._taken = number if kind == b"whole" else self.state
        self.records[self.sequence] = self._taken
        self.taken.append(kind.decode())
        return self.sequence, b"%b %d %d " % (kind, self.sequence, number) + b"." * self.padding

    def persisted(self, sequence: int) -> None:
        with self.lock:
            assert self.persisted_state <= self.records[sequence]
            self.persisted_state = self.records[sequence]

    def lost(self, error: ReplogError) -> None:
        self.lost_with = error
        self.came.set()


def restore(records: list[bytes]) -> tuple[int, int]:
    """Return state and last sequence; fail at a gap between records and at a change without a snapshot."""
    state, last = 0, 0
    for record in records:
        kind, sequence, number = record.split()[:3]
        if kind == b"whole":
            state = int(number)
        else:
            assert int(sequence) == last + 1, "a record is missing"
            state += int(number)
        last = int(sequence)
    return state, last


def create(cluster: LedgerCluster, topic: str, name: str = "s", snapshot: bytes = b"whole 0 0 ") -> None:
    subscription_metadata = SubscriptionMetadata(token=secrets.token_hex(8), created_us=1, snapshot=snapshot)
    create_subscription(cluster.metadata, topic, name, subscription_metadata)


def attach(log: CursorLog, topic: str, name: str = "s", *, padding: int = 0) -> tuple[Counting, CursorPersister]:
    recovered: RecoveredSubscription = log.recover(topic, name)
    source = Counting(recovered.records, padding=padding)
    return source, log.attach(recovered, source)


def mark(source: Counting, persister: CursorPersister) -> int:
    """Acknowledge one more, and wait until that is durable."""
    state = source.acknowledge()
    persister.dirty()
    persister.flush().result(PATIENCE_S)
    assert source.persisted_state >= state
    return state


def state_of(cluster: LedgerCluster, topic: str, name: str = "s") -> int:
    """Return the state that another owner recovers."""
    with open_log(cluster) as log:
        return restore(log.recover(topic, name).records)[0]


def open_log(cluster: LedgerCluster, **settings: Any) -> CursorLog:
    chosen = {"ensemble": 1, "durability": "appended", "flush_ms": 1, "retry_ms": 1, "retry_max_ms": 10, **settings}
    return CursorLog(cluster, config=CursorLogConfig.of(chosen))


class Faults:
    """Counts calls, one of which fails. after: the call is done, and only its answer is lost. dies: no later call is
    done or answered."""

    def __init__(self, at: int = -1, *, after: bool = False, dies: bool = False) -> None:
        self.at, self.after, self.dies = at, after, dies
        self.calls: list[str] = []
        self.is_dead = self.is_paused = False
        self._lock = threading.Lock()
        self._busy = 0  # how many calls are in progress
        self._waiters: list[Call] = []

    def wait(self, future: AppendFuture[None]) -> bool:
        """Wait for a future, or the death of the process; return whether the future is done."""
        came = threading.Event()
        future.add_done_callback(lambda _: came.set())
        with self._lock:
            self._waiters.append(came.set)
            if self.is_dead:
                came.set()
        assert came.wait(PATIENCE_S), self.calls[-20:]
        return future.done()

    def pause(self) -> None:
        """Neither count calls nor let them fail."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def settle(self) -> None:
        """Wait for the calls in progress."""
        until(lambda: not self._busy)

    def call(self, name: str, do: Call, error: ReplogError) -> Any:
        with self._lock:
            counts = not self.is_paused
            now = counts and len(self.calls) == self.at
            self.calls += [name] if counts else []
            refused = (counts and self.is_dead) or (now and not self.after)
            if now and self.dies and not self.after:
                self.is_dead = True
            self._busy += not refused
        if refused:
            self._wake_waiters()
            raise error
        try:
            result = do()
        finally:
            with self._lock:
                self._busy -= 1
        if now:
            self.is_dead = self.dies
            self._wake_waiters()
            raise error
        return result

    def _wake_waiters(self) -> None:
        if self.is_dead:
            with self._lock:
                for wake in self._waiters:
                    wake()


class FaultyStore:
    def __init__(self, store: Any, faults: Faults) -> None:
        self._store, self._faults = store, faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("get", "put", "create", "delete", "list"):
            return method
        faults = self._faults
        lost = faults.after and name not in ("get", "list")
        error: ReplogError = OutcomeUnknownError("lost") if lost else MetadataUnavailableError("away")
        return lambda *args: faults.call(name, lambda: method(*args), error)


class FaultyLedger:
    def __init__(self, ledger: Any, faults: Faults) -> None:
        self._ledger, self._faults = ledger, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def submit_batch(self, values: list[bytes]) -> AppendFuture[range]:
        failed: AppendFuture[range] = AppendFuture()
        try:
            return self._faults.call("append", lambda: self._submit(values), NotEnoughBookiesError("lost"))  # type: ignore[no-any-return]
        except ReplogError as error:
            if not self._faults.is_dead:
                set_exception(failed, error)
            return failed

    def _submit(self, values: list[bytes]) -> AppendFuture[range]:
        ids: AppendFuture[range] = self._ledger.submit_batch(values)
        ids.result(PATIENCE_S)
        return ids

    def close(self, timeout: float | None = None) -> None:
        """Close the ledger, unless the process is dead."""
        if not self._faults.is_dead:
            self._ledger.close(timeout)


class _SharedRuntime:
    def __init__(self, runtime: Any, metadata: Any) -> None:
        self._runtime, self.metadata = runtime, metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class FaultyCluster:
    """A cluster as seen by a process whose calls may fail."""

    def __init__(self, cluster: LedgerCluster, faults: Faults) -> None:
        self._cluster, self._faults = cluster, faults
        self.metadata = FaultyStore(cluster.metadata, faults)
        self.runtime = _SharedRuntime(cluster.runtime, self.metadata)
        self.made: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def create_ledger(self, *args: Any, **kwargs: Any) -> FaultyLedger:
        def do() -> FaultyLedger:
            self.made.append(self._cluster.create_ledger(*args, **kwargs))
            return FaultyLedger(self.made[-1], self._faults)

        error = OutcomeUnknownError("lost") if self._faults.after else NotEnoughBookiesError("none")
        return self._faults.call("create_ledger", do, error)  # type: ignore[no-any-return]

    def delete_ledger(self, ledger: int) -> None:
        self._faults.call(
            "delete_ledger", lambda: self._cluster.delete_ledger(ledger), MetadataUnavailableError("lost")
        )

    def close_ledgers(self) -> None:
        """Close the ledgers that a dead process, or a lost answer, has left open."""
        self._faults.settle()
        for ledger in self.made:
            try:
                ledger.close(1.0)
            except ReplogError:
                continue
