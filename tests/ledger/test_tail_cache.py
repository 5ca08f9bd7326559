"""The last entries are read from the writer's memory until those who were told of them have read; results equal those
of bookies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.serial_executor import SerialExecutor
from pyreplog.bookie.protocol import RequestKind
from pyreplog.errors import ClosedError, OutOfRangeError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.protocol.pending_adds import batches_of
from pyreplog.ledger.tail_cache import KEPT_BYTES, TailCache
from tests.ledger.fault_injection import RequestInterceptor
from tests.waiting import PATIENCE_S, until

VALUES = [b"x" * size for size in (1, 500, 20, 0, 3000, 7)]


@pytest.fixture
def interceptor(cluster: LedgerCluster) -> Iterator[RequestInterceptor]:
    with RequestInterceptor(cluster) as interceptor:
        yield interceptor


def push(ledger: Ledger, values: list[bytes]) -> range:
    return ledger.push_batch(values, messages=[1 + at for at in range(len(values))]).result(PATIENCE_S)


def read(ledger: Ledger, start: int, end: int, bytes_max: int = 1 << 20) -> RecordBatch:
    return ledger.read_range(start, end, bytes_max=bytes_max).result(PATIENCE_S)


def rows(batch: RecordBatch) -> list[tuple[object, ...]]:
    """Return all fields of each record, except its place in a buffer."""
    return [
        (record.ledger, record.entry, record.lac, record.timestamp, record.kind, record.key, record.value, record.ledger_bytes,
         record.ledger_messages)
        for record in batch
    ]  # fmt: skip


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_the_cache_returns_what_bookies_return(
    cluster: LedgerCluster, interceptor: RequestInterceptor, quorums: tuple[int, int, int]
) -> None:
    with cluster.create_ledger(*quorums) as ledger:
        push(ledger, VALUES[::-1])
        ids = push(ledger, VALUES)
        places = [(first, last + 1) for first, last in itertools.product(ids, ids) if first <= last]
        here = {
            (place, size): rows(read(ledger, *place, size))
            for place in places
            for size in (1, 600, 1200, 4000, 1 << 20)
        }
        assert interceptor.count(RequestKind.READ) == 0
        until(lambda: ledger.pending_entries == 0)  # each bookie has all entries that it should have
        ledger.release_tail()
        for (place, size), item in here.items():
            new_rows = rows(read(ledger, *place))
            assert item == new_rows[: len(item)]
            assert len(item) == (1 if size == 1 else len(new_rows) if size == 1 << 20 else len(item)) >= 1
            assert len(item) == 1 or sum(72 + len(row[6]) for row in item) <= size  # type: ignore[arg-type]
        assert interceptor.count(RequestKind.READ) > 0


def test_entries_older_than_the_tail_cache_are_read_from_bookies(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    with cluster.create_ledger(3, 3, 2) as ledger:
        push(ledger, [b"a", b"b"])
        push(ledger, [b"c"])
        until(lambda: ledger.pending_entries == 0)  # otherwise the first bookie asked may lack the second batch
        assert read(ledger, 1, 3).values() == [b"b", b"c"]
        assert interceptor.count(RequestKind.READ) >= 1


def test_nothing_unconfirmed_is_given_out(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    with cluster.create_ledger(3, 3, 2) as ledger:
        push(ledger, [b"a"])
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        coming = ledger.push_batch([b"b"], messages=[1])
        interceptor.wait_for(RequestKind.ADD, 6)
        with pytest.raises(OutOfRangeError):
            ledger.read_range(1, 2)
        assert read(ledger, 0, 1).values() == [b"a"]
        interceptor.release(ledger.metadata.last_fragment.ensemble[0])
        with pytest.raises(OutOfRangeError):  # one of the two bookies that are needed
            ledger.read_range(1, 2)
        interceptor.clear()
        interceptor.release()
        assert coming.result(PATIENCE_S) == range(1, 2)
        assert read(ledger, 1, 2).values() == [b"b"]


def test_nothing_is_kept_once_all_readers_were_notified(cluster: LedgerCluster) -> None:
    with cluster.create_ledger(3, 3, 2) as ledger:
        push(ledger, [b"a"])
        ledger.release_tail()
        assert ledger._tail_cache.read(0, 1, 1) is None
        ledger.append(b"b")
        ledger.append_batch([b"c"])
        assert ledger._tail_cache.read(2, 3, 1) is None, "who appends for himself does not read it"


def batch(first: int, values: list[bytes]) -> EntryBatch:
    """Return the last batch in which entries from `first` on are sent."""
    entries = encode_entries(values, ledger=5, first=first, lac=-1, time=1)
    *_, last = batches_of(first, entries.view, entries.offsets)
    return last


def test_readers_that_were_notified_read_from_the_cache() -> None:
    """Entries that are appended meanwhile are kept for those who are told of these later."""
    tail_cache, record_batches = TailCache(5), list[RecordBatch | None]()

    class Reader(SerialExecutor):
        def _run(self) -> None:
            record_batches.append(tail_cache.read(0, 1, 1))

    class Owner(SerialExecutor):
        def _run(self) -> None:
            tail_cache.keep(batch(0, [b"a"]))
            Reader()._go_on()
            tail_cache.release()
            Writer()._go_on()

    class Writer(SerialExecutor):
        def _run(self) -> None:
            record_batches.append(tail_cache.read(0, 1, 1))
            tail_cache.keep(batch(1, [b"b"]))
            tail_cache.release()
            tail_cache.keep(batch(2, [b"c"]))

    Owner()._go_on()
    values = [None if item is None else item.values() for item in record_batches]
    assert values == [[b"a"], None] and tail_cache.read(1, 2, 1) is None
    assert tail_cache.read(2, 3, 1) is not None, "that is yet to be told"
    tail_cache.release()
    assert tail_cache.read(2, 3, 1) is None


def test_tail_cache_keeps_only_batches_below_its_size_limit() -> None:
    tail_cache = TailCache(5)
    for values in ([bytes(KEPT_BYTES)], [bytes(1000)] * (KEPT_BYTES // 1000), [bytes(1 << 20), b"rest"]):
        tail_cache.keep(batch(0, [b"a"]))
        tail_cache.keep(large := batch(1, values))
        assert tail_cache.read(large.first, large.last + 1, KEPT_BYTES) is None and tail_cache.read(0, 1, 1) is None
    tail_cache.keep(batch(0, [bytes(KEPT_BYTES - 100)]))
    assert tail_cache.read(0, 1, 1) is not None


def test_read_range_of_a_closed_handle_raises_closed_error(cluster: LedgerCluster) -> None:
    with cluster.create_ledger(3, 3, 2) as ledger:
        push(ledger, [b"a"])
    with pytest.raises(ClosedError):
        ledger.read_range(0, 1)
