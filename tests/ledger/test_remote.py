"""Clusters over TCP, with bookies in the process of the test: where they differ from embedded clusters."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import RequestKind
from pyreplog.bookie.registration import Availability, availability_key
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NotConnectedError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    RecordTooLargeError,
    WindowFullError,
)
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import WINDOW_BYTES
from pyreplog.ledger.ledger_metadata import State
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.ledger.remote_runtime import QUEUED_BYTES
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.net.channel import Channel
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from tests.ledger.conftest import Apart
from tests.ledger.fault_injection import RequestInterceptor
from tests.waiting import until

NAMES = ("b0", "b1", "b2", "b3")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path_factory.mktemp("remote") / "metadata") as store:
        yield store


@pytest.fixture(scope="module")
def nodes(store: SQLiteStore) -> Iterator[dict[str, BookieNode]]:
    """Running bookies by name. A test that closes one starts it again."""
    nodes_by_name = {name: node(store, name) for name in NAMES}
    yield nodes_by_name
    for item in nodes_by_name.values():
        item.close()


def node(store: SQLiteStore, name: str) -> BookieNode:
    return BookieNode(
        store.path.parent / name, name, store, BookieConfig(segment_bytes=8 << 20),
        ledgers=StoredLedgers(store),
    )  # fmt: skip


@pytest.fixture
def cluster(store: SQLiteStore, nodes: dict[str, BookieNode]) -> Iterator[LedgerCluster]:
    with LedgerCluster.connect(f"sqlite:{store.path}", request_timeout_ms=30_000) as cluster:
        yield cluster


def values(cluster: LedgerCluster, ledger: int) -> list[bytes]:
    with cluster.open_ledger(ledger) as reader:
        return [bytes(record.value) for batch in reader.read() for record in batch]


@pytest.mark.parametrize("timeout_ms", [0, -1, 86_400_001])
def test_a_malformed_timeout_is_refused(store: SQLiteStore, timeout_ms: int) -> None:
    with pytest.raises(InvalidArgumentError, match="request_timeout_ms"):
        LedgerCluster.connect(f"sqlite:{store.path}", request_timeout_ms=timeout_ms)


def test_many_threads_append_to_a_remote_ledger(cluster: LedgerCluster) -> None:
    """Some threads drive and others wait; a thread that does neither closes the ledger."""
    with cluster.create_ledger(4, 3, 2) as ledger, ThreadPoolExecutor(8) as pool:
        ids = [
            item for some in pool.map(lambda _: [ledger.append(b"value") for _ in range(40)], range(8)) for item in some
        ]
    assert sorted(ids) == list(range(320))
    assert values(cluster, ledger.id) == [b"value"] * 320


def test_coroutines_append_to_a_remote_ledger(cluster: LedgerCluster) -> None:
    async def main() -> list[int]:
        ledger = await asyncio.to_thread(cluster.create_ledger, 3, 3, 2, window_bytes=20_000)

        async def write_one(number: int) -> int:
            await ledger.room()
            entry: int = await ledger.submit(b"%d" % number)
            return entry

        try:
            return await asyncio.gather(*(write_one(number) for number in range(100)))
        finally:
            await asyncio.to_thread(ledger.close)

    assert sorted(asyncio.run(main())) == list(range(100))


def test_callbacks_run_in_the_driver_and_must_not_wait(cluster: LedgerCluster, apart: Apart) -> None:
    with cluster.create_ledger() as ledger:
        interceptor = RequestInterceptor(cluster)
        told: AppendFuture[list[object]] = AppendFuture()

        def callback(_: AppendFuture[int]) -> None:
            errors: list[object] = []
            for call in (lambda: ledger.append(b""), lambda: cluster.open_ledger(ledger.id), cluster.close):
                try:
                    call()
                except Exception as error:
                    errors.append(type(error))
            errors.append(ledger.submit(b"more"))
            set_result(told, errors)

        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        ledger.submit(b"first").add_done_callback(callback)
        interceptor.clear()
        interceptor.release()
        *errors, more = told.result(30)
        assert errors == [InvalidArgumentError] * 3
        assert apart(cluster.runtime.wait, more) == 1


def test_the_largest_entry_and_large_batches(cluster: LedgerCluster) -> None:
    size = cluster.runtime.entry_bytes_max - 64
    big = bytes(size)
    with cluster.create_ledger(3, 3, 2) as ledger:
        assert ledger.append(big) == 0
        assert ledger.append_batch([bytes(1 << 20)] * 6) == range(1, 7)
        with pytest.raises(RecordTooLargeError):
            ledger.append(bytes(size + 8))
    actual_values = values(cluster, ledger.id)
    assert actual_values[0] == big and actual_values[1:] == [bytes(1 << 20)] * 6
    assert cluster.count_copies(ledger.id).tolist() == [3] * 7


def test_a_bookie_that_comes_back_elsewhere(
    store: SQLiteStore, cluster: LedgerCluster, nodes: dict[str, BookieNode]
) -> None:
    ledger = cluster.create_ledger(3, 3, 3)  # each of the three has stored the first entry before one is closed
    ledger.append(b"before")
    name = ledger.metadata.last_fragment.ensemble[0].partition("@")[0]
    nodes[name].close()
    try:
        ledger.append(b"without it")
        ledger.close()
        assert len(ledger.metadata.fragments) == 2
        assert cluster.count_copies(ledger.id).tolist() == [2, 3]
    finally:
        nodes[name] = node(store, name)
    addresses = {node.address for node in nodes.values()}
    until(lambda: {bookie.address for bookie in cluster.status().bookies} == addresses)
    assert cluster.count_copies(ledger.id).tolist() == [3, 3]


def test_appends_fail_and_closing_ends_without_any_bookie(
    store: SQLiteStore, cluster: LedgerCluster, nodes: dict[str, BookieNode]
) -> None:
    ledger = cluster.create_ledger(4, 3, 2)
    try:
        for each_node in nodes.values():
            each_node.close()
        with pytest.raises(NotEnoughBookiesError):
            ledger.append(b"value")
        with pytest.raises(NotEnoughBookiesError):
            ledger.close()
        until(lambda: not cluster.status().bookies)
        with pytest.raises(NotEnoughBookiesError):
            cluster.create_ledger()
        # the writer that failed closes the ledger by itself
        until(lambda: cluster.ledger_metadata(ledger.id).state is State.CLOSED)
    finally:
        nodes.update({name: node(store, name) for name in NAMES})


def test_connected_client_follows_changes_of_read_only(store: SQLiteStore, cluster: LedgerCluster) -> None:
    """The client also sees that a bookie is writable again, as long as it is connected."""
    bookie = cluster.status().bookies[0].bookie

    def register(*, read_only: bool) -> None:
        stored = store.get(availability_key(bookie))
        assert stored is not None
        said = dataclasses.replace(Availability.decode(stored.value), read_only=read_only)
        store.put(availability_key(bookie), said.encode(), stored.version)
        until(
            lambda: (
                next(each_bookie for each_bookie in cluster.status().bookies if each_bookie.bookie == bookie).read_only
                is read_only
            )
        )

    register(read_only=True)
    with pytest.raises(NotEnoughBookiesError, match="expected 4 bookies for the ensemble, found 3 that take entries"):
        cluster.create_ledger(4)
    register(read_only=False)
    with cluster.create_ledger(4) as ledger:
        ledger.append(b"value")


def test_malformed_registrations_are_left_out(store: SQLiteStore, cluster: LedgerCluster) -> None:
    store.create(availability_key("garbage@00"), b"garbage")
    endless = b'{"address":"127.0.0.1:1","rack":"","read_only":false,"free_bytes":Infinity}'
    store.create(availability_key("endless@00"), endless)
    store.create(availability_key("nowhere@xyz"), b'{"address":"nowhere","rack":"","read_only":false,"free_bytes":1}')
    until(lambda: len(cluster.status().bookies) == 5)
    # the registration with a malformed address was noticed, or the bookie was not chosen
    with cluster.create_ledger(4, 4, 3) as ledger:
        ledger.append(b"value")
    assert "nowhere@xyz" not in ledger.metadata.last_fragment.ensemble
    for bookie in ("garbage@00", "endless@00", "nowhere@xyz"):
        stored = store.get(availability_key(bookie))
        assert stored is not None
        store.delete(availability_key(bookie), stored.version)
    until(lambda: len(cluster.status().bookies) == 4)


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_in_the_driving_thread_loses_no_entry(cluster: LedgerCluster) -> None:
    """The thread that waits drives all ledgers meanwhile: a step that has begun is finished, whenever Ctrl-C comes."""
    ledger = cluster.create_ledger(3, 3, 2)
    main, ended = threading.get_ident(), threading.Event()

    def append() -> None:
        ledger.append(b"value")

    def handle(number: int, frame: FrameType | None) -> None:
        """Ignore it: between two appends no code would catch the exception."""
        while frame is not None:
            if frame.f_code is append.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def interrupt() -> None:
        while not ended.wait(0.003):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, handle)
    interrupted = 0
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        while interrupted < 100:
            try:
                append()
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    last = ledger.append(b"last")
    ledger.close()
    assert ledger.metadata.last_entry == last
    assert len(values(cluster, ledger.id)) == last + 1


def test_closing_wakes_driving_threads(store: SQLiteStore) -> None:
    cluster = LedgerCluster.connect(f"sqlite:{store.path}")
    ledger = cluster.create_ledger(3, 3, 2, window_bytes=1)
    interceptor = RequestInterceptor(cluster)
    interceptor.add_rule(interceptor.lose)
    future = ledger.submit(b"fills the window")
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ledger.append, b"waits"), pool.submit(cluster.runtime.wait, future)]
        interceptor.wait_for(RequestKind.ADD, 3)
        with pytest.raises(OutcomeUnknownError):
            ledger.close(timeout=0.05)
        cluster.close()
        for waiter in waiting:
            with pytest.raises((OutcomeUnknownError, ClosedError, WindowFullError)):
                waiter.result(30)


def test_a_connection_that_fails_leaves_nothing_behind(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MetadataUnavailableError("no watches today")

    monkeypatch.setattr(SQLiteStore, "watch", fail)
    before = {thread for thread in threading.enumerate() if "pyreplog" in thread.name}
    with pytest.raises(MetadataUnavailableError):
        LedgerCluster.connect(f"sqlite:{store.path}")
    left = {thread for thread in threading.enumerate() if "pyreplog" in thread.name} - before
    until(lambda: not any(thread.is_alive() for thread in left))


def test_request_beyond_the_queue_limit_fails_before_the_bookie_said_hello() -> None:
    """The channel's queue has room for two windows. The bookie fails when the time-out is over, and with that error."""
    assert QUEUED_BYTES >= 2 * WINDOW_BYTES
    with socket.create_server(("127.0.0.1", 0)) as silent, Reactor() as reactor:
        channel = Channel(reactor, silent.getsockname(), limits=Limits(queued_bytes=1000))
        answers: list[object] = []
        for size in (600, 400, 1):
            channel.request(bytes(size), on_reply=answers.append, timeout=30)
        assert reactor.drive(lambda: bool(answers), 30)
        (error,) = answers
        assert isinstance(error, NotConnectedError)
        assert "1000 of at most 1000 bytes wait for it (queued_bytes)" in str(error) and "lost" not in str(error)
        channel.close()
