"""Bugs of BookKeeper's history that take whole clusters or threads to show; the others are in the tests of what they broke.

By number: #2614, #2615, #1067, #2612, #2908, BOOKKEEPER-150, -152, -355, -500, -581, -584 and -815 in test_recovery; #1591,
#1886, #1887, #4097, #4261, #4459 in test_writer; the coverage that 5e399df broke in test_recovery (13) and test_lac; #4462
in tests/bookie. Beside those of recovery and the writer: #4613 in test_ledger_reader, #4789 in test_reading, #4551 in
test_ledger_metadata; #3285 in tests/bookie/test_bookie, #4544 and #4607 in test_collector there; #4105 in
tests/unit/test_checkpoint.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from pyreplog._native.bookie.fast_add import as_fast_add
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import IncarnationError, LedgerClosedError, LedgerFencedError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from tests.bookie.asking import ANY_SPACE, add, last
from tests.ledger.fault_injection import RequestInterceptor
from tests.ports import free_ports
from tests.waiting import until

WAIT_S = 60.0


def test_a_writer_adds_nothing_to_empty_bookies_at_the_addresses_of_its_own(tmp_path: Path) -> None:
    """#4812: empty bookies do not know the fence, and the ledger is closed at another end: entries that they took would
    be lost."""
    ports = dict(zip(("b0", "b1", "b2"), free_ports(3), strict=True))
    with ExitStack() as stack:
        store = stack.enter_context(SQLiteStore(tmp_path / "metadata"))

        def start(*, make_new: bool) -> list[BookieNode]:
            bookie_nodes = [
                BookieNode(
                    tmp_path / name, name, store, BookieConfig(segment_bytes=1 << 20), ledgers=StoredLedgers(store),
                    port=port, make_new=make_new,
                )
                for name, port in ports.items()
            ]  # fmt: skip
            return [stack.enter_context(node) for node in bookie_nodes]

        nodes = start(make_new=False)
        cluster, other = (stack.enter_context(LedgerCluster.connect(f"sqlite:{store.path}")) for _ in range(2))
        ledger = cluster.create_ledger(3, 3, 2)
        ledger.append(b"before")
        with other.open_ledger(ledger.id) as reader:  # closes the ledger, and fences its bookies
            assert len(reader) == 1
        for name, node in zip(ports, nodes, strict=True):
            node.close()
            shutil.rmtree(tmp_path / name)
        nodes = start(make_new=True)
        channels = list(cast(Any, cluster.runtime)._channels.values())
        assert len(channels) == 3
        until(lambda: all(channel.connected or isinstance(channel.error, IncarnationError) for channel in channels))
        with pytest.raises((LedgerClosedError, LedgerFencedError)):
            ledger.append(b"lost")
        assert [node.bookie.log.last_entry(ledger.id) for node in nodes] == [None] * 3


def test_a_copy_in_a_fenced_ledger_is_repaired(cluster: LedgerCluster) -> None:
    """PR #4163: re-replication lost the flag of its adds, and a fenced ledger takes only adds with it."""
    interceptor = RequestInterceptor(cluster)
    writer = cluster.create_ledger(3, 3, 2)
    writer.append_batch([b"%d" % entry for entry in range(10)])
    with cluster.open_ledger(writer.id) as reader:
        first = reader.metadata.last_fragment.ensemble[0]
        interceptor.add_rule(interceptor.changing_reply(_damaged), kind=RequestKind.READ, bookie=first)
        assert [bytes(record.value) for batch in reader.read() for record in batch] == [b"%d" % n for n in range(10)]
        counts = cluster.runtime.counts
        until(lambda: 0 < len(cluster.status().repairs) == counts.bad_copies)  # the notes are written in the background
        interceptor.clear()
        repaired, failed = cluster.repair()
    assert repaired and not failed
    with pytest.raises(LedgerFencedError):
        writer.append(b"late")


def _damaged(reply: Reply) -> Reply:
    body = bytearray(reply.body)
    body[len(body) // 2] ^= 1
    return reply._replace(body=bytes(body))


@pytest.mark.parametrize("flags", [Flag.UNSYNCED, 0], ids=["unsynced", "synced"])
def test_no_entry_is_acknowledged_beyond_the_end_that_a_fence_reported(tmp_path: Path, flags: int) -> None:
    """#4701: a ledger had two objects, so that checking the fence and appending were under different locks."""
    settings = {"durability": "appended", "segment_bytes": 1 << 20, **ANY_SPACE}
    with LocalBookie(tmp_path, BookieConfig.of(settings)) as bookie:
        for ledger in range(1, 41):
            acknowledged, begun, fenced = list[int](), threading.Event(), threading.Event()

            def write(ledger: int = ledger, acknowledged: list[int] = acknowledged) -> None:
                entry, more = 0, 20  # how many more to add once the fence was answered
                while more and _added(bookie, add(entry, ledger=ledger, flags=flags)):
                    acknowledged.append(entry)
                    begun.set()  # noqa: B023 - the thread ends within its turn
                    more -= fenced.is_set()  # noqa: B023
                    entry += 1

            thread = threading.Thread(target=write)
            thread.start()
            assert begun.wait(WAIT_S)
            fenced_at = _asked(bookie, last(fence=True, ledger=ledger)).last
            fenced.set()
            thread.join()
            assert max(acknowledged) <= fenced_at


def _added(bookie: LocalBookie, request: Request) -> bool:
    """Return whether the entry was added; use the fast path where that is possible."""
    plain = as_fast_add(request)
    if plain is not None and bookie.add_fast(plain) is not None:
        return True
    return _asked(bookie, request).status == ReplyStatus.OK


def _asked(bookie: LocalBookie, request: Request) -> Reply:
    come, replies = threading.Event(), list[Reply]()

    def take(reply: Reply) -> None:
        replies.append(reply)
        come.set()

    bookie.request(request, take)
    assert come.wait(WAIT_S)
    return replies[0]
