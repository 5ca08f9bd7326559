"""Reads of ranges, without waiting: of closed ledgers, of a ledger that is written, and again after entries were moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyreplog.errors import ClosedError, MetadataUnavailableError, NoSuchLedgerError, OutOfRangeError, UnreadableError
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.reader import LedgerReader
from tests.ledger.fault_injection import FailingStore, RequestInterceptor


@pytest.fixture
def interceptor(cluster: LedgerCluster) -> Iterator[RequestInterceptor]:
    interceptor = RequestInterceptor(cluster)
    yield interceptor
    interceptor.clear()


def moved(cluster: LedgerCluster, interceptor: RequestInterceptor) -> int:
    """Return a closed ledger with a fragment from entry 5 on, in which one bookie was replaced. The bookies of the
    first ensemble do not answer."""
    with cluster.create_ledger(3, 3, 3) as ledger:  # each bookie has stored the first five entries before one fails
        ledger.append_batch([b"%d" % entry for entry in range(5)])
        old = ledger.metadata.last_fragment.ensemble
        interceptor.add_rule(interceptor.fail, bookie=old[0])
        ledger.append_batch([b"%d" % entry for entry in range(5, 10)])
        interceptor.clear()
    for bookie in old:
        interceptor.add_rule(interceptor.fail, bookie=bookie)
    return ledger.id


def check_some(ledger: Ledger | LedgerReader) -> None:
    """Read ranges of a ledger of fifty entries of a thousand bytes."""
    assert ledger.read_range(7, 50, bytes_max=1).result(30).entry.tolist() == [7]
    some = ledger.read_range(7, 50, bytes_max=5000).result(30).entry.tolist()
    assert some == list(range(7, 7 + len(some))) and 1 < len(some) < 10
    assert ledger.read_range(3, 6).result(30).entry.tolist() == [3, 4, 5]
    assert ledger.read_range(49, 50).result(30).entry.tolist() == [49]
    for start, end in ((-1, 2), (3, 3), (3, 2), (49, 51), (50, 51)):
        with pytest.raises(OutOfRangeError):
            ledger.read_range(start, end)


def test_up_to_so_many_bytes(cluster: LedgerCluster) -> None:
    with cluster.create_ledger(3, 3, 2) as ledger:
        ledger.append_batch([bytes(1000)] * 50)
        check_some(ledger)
    with cluster.open_ledger(ledger.id) as reader:
        check_some(reader)
    for each_ledger in (ledger, reader):
        with pytest.raises(ClosedError):
            each_ledger.read_range(0, 1)


def test_a_range_read_in_a_callback_does_not_wait(cluster: LedgerCluster) -> None:
    """The read in the callback does not wait."""
    with cluster.create_ledger(3, 3, 2) as ledger:
        values_read: AppendFuture[list[int]] = AppendFuture()

        def callback(ids: AppendFuture[int]) -> None:
            read = ledger.read_range(0, 1)
            read.add_done_callback(lambda _: set_result(values_read, read.result().entry.tolist()))

        ledger.submit(b"first").add_done_callback(callback)
        assert values_read.result(30) == [0]


def test_once_more_where_the_entries_are_now(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    number = moved(cluster, interceptor)
    with cluster.open_ledger(number) as reader:
        now, first = reader.metadata, reader.metadata.fragments[0]
        # the metadata before the bookie was replaced
        reader.metadata = now.replace_bookies({0: (first.ensemble[0], 5)})
        assert reader.read_range(5, 10).result(30).values() == [b"%d" % entry for entry in range(5, 10)]
        assert reader.metadata == now
        with pytest.raises(UnreadableError):
            reader.read_range(0, 5).result(30)


def test_read_raises_its_own_error_when_metadata_cannot_be_looked_up(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    """The error of the read is raised, unless the ledger was deleted."""
    number = moved(cluster, interceptor)
    with cluster.open_ledger(number) as reader:
        store = FailingStore.before(cluster)
        store.fail("get", MetadataUnavailableError("away"))
        with pytest.raises(UnreadableError):
            reader.read_range(0, 5).result(30)
        cluster.delete_ledger(number)
        with pytest.raises(NoSuchLedgerError):
            reader.read_range(0, 5).result(30)
