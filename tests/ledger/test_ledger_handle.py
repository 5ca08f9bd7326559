"""The handle of a ledger: appending, back-pressure and closing, from threads and coroutines, with bookies that fail."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyreplog.bookie.protocol import ReplyStatus, RequestKind
from pyreplog.errors import (
    ClosedError,
    ForkedError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    RecordTooLargeError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger import ledger_handle
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import State
from pyreplog.ledger.protocol import recovery, writer
from pyreplog.ledger.protocol.staging import Entry
from tests.ledger.conftest import SEGMENT_BYTES, Apart
from tests.ledger.fault_injection import FailingStore, RequestInterceptor
from tests.waiting import until

WINDOW = 4096


@pytest.fixture
def ledger(cluster: LedgerCluster) -> Iterator[Ledger]:
    with cluster.create_ledger(3, 3, 2) as ledger:
        yield ledger


@pytest.fixture
def interceptor(cluster: LedgerCluster) -> RequestInterceptor:
    return RequestInterceptor(cluster)


def values(cluster: LedgerCluster, ledger: int) -> list[bytes]:
    with cluster.open_ledger(ledger) as reader:
        return [bytes(record.value) for batch in reader.read() for record in batch]


def all_copies(ledger: Ledger) -> None:
    """Wait until all entries have all copies. A bookie that fails before that is replaced in the fragment of these
    entries."""
    until(lambda: ledger.pending_entries == 0)


# ---- appending -------------------------------------------------------------------------------------------------


def test_entries_are_numbered_in_order(ledger: Ledger, cluster: LedgerCluster) -> None:
    assert (ledger.append(b"0"), ledger.append(b"1", b"key", event_time=-5)) == (0, 1)
    assert ledger.append_batch([b"2", b"3"]) == range(2, 4)
    assert ledger.append_batch([]) == range(4, 4)
    assert ledger.submit(bytearray(b"4")).result() == 4
    assert (ledger.last_add_pushed, ledger.last_add_confirmed) == (4, 4)
    ledger.close()
    with cluster.open_ledger(ledger.id) as reader:
        (batch,) = reader.read()
    assert [(r.value, r.key, r.event_time) for r in batch][:2] == [(b"0", None, None), (b"1", b"key", -5)]
    assert values(cluster, ledger.id) == [b"%d" % n for n in range(5)]


def test_entries_behind_an_append_that_fails_are_sent_all_the_same(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Entry.of(b"other", None, None, size_max=SEGMENT_BYTES)

    def fail() -> None:
        monkeypatch.undo()
        assert not ledger._staging.add(other), "it does not wait for the one on its way"
        raise WrongTypeError("not this one")

    monkeypatch.setattr(ledger, "_clock", SimpleNamespace(now_us=fail))
    with pytest.raises(WrongTypeError):
        ledger.append(b"value")
    assert other.future.result(30) == 0
    assert ledger.append(b"value") == 1


def test_appends_of_many_threads_share_batches(ledger: Ledger, interceptor: RequestInterceptor) -> None:
    """While a batch is in flight, the other threads wait, and their entries become one batch."""
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(ledger.append, b"first")
        interceptor.wait_for(RequestKind.ADD, 3)
        rest = [pool.submit(ledger.append, b"later") for _ in range(8)]
        while len(ledger._staging) < 8:
            assert not first.done()
        interceptor.clear()
        interceptor.release()
        assert first.result(30) == 0 and sorted(late.result(30) for late in rest) == list(range(1, 9))
    assert interceptor.count(RequestKind.ADD) == 6


def test_batches_come_behind_what_was_submitted_before(ledger: Ledger, interceptor: RequestInterceptor) -> None:
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    single = [ledger.submit(b"%d" % n) for n in range(3)]  # the first batch is in flight, and the others wait for it
    batch = ledger.submit_batch([b"3", b"4"])
    last = ledger.submit(b"5")
    interceptor.clear()
    interceptor.release()
    assert [future.result(30) for future in single] == [0, 1, 2]
    assert (batch.result(30), last.result(30)) == (range(3, 5), 5)


def test_entries_of_each_thread_keep_their_order(ledger: Ledger, cluster: LedgerCluster) -> None:
    def work(name: int) -> list[int]:
        futures = []
        for n in range(0, 100, 4):
            futures += [ledger.submit(b"%d %d" % (name, n + i)) for i in range(3)]
            futures.append(ledger.submit_batch([b"%d %d" % (name, n + 3)]))  # type: ignore[arg-type]
        return [result if isinstance(result := future.result(30), int) else result[0] for future in futures]

    with ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(work, range(6)))
    ledger.close()
    stored = values(cluster, ledger.id)
    for name, mine in enumerate(ids):
        assert mine == sorted(mine)
        assert [stored[n] for n in mine] == [b"%d %d" % (name, n) for n in range(100)]


def test_large_batches_are_sent_in_parts(
    cluster: LedgerCluster, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of a batch are consecutive all the same, and no request is larger than a frame."""
    monkeypatch.setattr("pyreplog.ledger.protocol.pending_adds.BATCH_BYTES", 4096)
    with cluster.create_ledger(4, 2, 2) as ledger:
        assert ledger.append_batch([b"%03d" % n * 300 for n in range(100)]) == range(100)
    adds = [request for _, request in interceptor.requests if request.kind == RequestKind.ADD]
    assert max(memoryview(request.records).nbytes for request in adds) <= 4096
    assert ledger.metadata.length == 100 * 900
    assert values(cluster, ledger.id) == [b"%03d" % n * 300 for n in range(100)]


def test_refused_append_does_not_affect_other_appends(ledger: Ledger, interceptor: RequestInterceptor) -> None:
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    good = [ledger.submit(b"first"), ledger.submit(b"second")]
    for value, key, error in (
        ("text", None, WrongTypeError),
        (b"", bytes(1 << 16), RecordTooLargeError),
        (bytes(SEGMENT_BYTES), None, RecordTooLargeError),
    ):
        with pytest.raises(error):
            ledger.submit(value, key)  # type: ignore[arg-type]
        with pytest.raises(error):
            ledger.submit_batch([b"fine", value], [None, key])  # type: ignore[list-item]
    good.append(ledger.submit(b"third"))
    interceptor.clear()
    interceptor.release()
    assert [future.result(30) for future in good] == [0, 1, 2]


def test_the_largest_entry_fits(ledger: Ledger, cluster: LedgerCluster) -> None:
    size = cluster.runtime.entry_bytes_max - 64
    assert ledger.append(bytes(size)) == 0
    with pytest.raises(RecordTooLargeError):
        ledger.append(bytes(size + 8))


# ---- asyncio ---------------------------------------------------------------------------------------------------


def test_many_tasks_append_to_one_ledger(cluster: LedgerCluster) -> None:
    async def append_one(ledger: Ledger, number: int) -> int:
        await ledger.room()
        return await ledger.submit(b"%d" % number)

    async def main() -> list[int]:
        ledger = await cluster.create_ledger_async(3, 3, 2, window_bytes=WINDOW)
        try:
            return await asyncio.gather(*(append_one(ledger, number) for number in range(30)))
        finally:
            await asyncio.to_thread(ledger.close)

    assert sorted(asyncio.run(main())) == list(range(30))


def test_coroutines_go_on_to_twice_the_window_and_never_wait(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)

    async def main(ledger: Ledger) -> int:
        futures: list[AppendFuture[range]] = []
        with pytest.raises(WindowFullError):
            futures.extend(ledger.submit_batch([bytes(100)]) for _ in range(1000))
        assert WINDOW < ledger.pending_bytes <= 2 * WINDOW + 256
        room = ledger.room()
        assert not room.done()
        interceptor.clear()
        interceptor.release()
        await room
        await ledger.submit_batch([b"again"])
        return len([await future for future in futures])

    with cluster.create_ledger(3, 3, 2, window_bytes=WINDOW) as ledger:
        assert asyncio.run(main(ledger)) == ledger.last_add_confirmed


# ---- back-pressure ---------------------------------------------------------------------------------------------


def test_a_bookie_that_never_answers_stops_the_writer_at_the_window(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    """The ack quorum is reached without that bookie: entries are confirmed, and memory stays bounded."""
    with cluster.create_ledger(3, 3, 2, window_bytes=WINDOW) as ledger:
        slow = ledger.metadata.last_fragment.ensemble[1]
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD, bookie=slow)
        entries = 0
        while ledger.room().done():
            entries = ledger.append(bytes(100)) + 1
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ledger.append, b"waits")
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            assert ledger.last_add_pushed == entries - 1
            interceptor.clear()
            interceptor.release()
            assert waiting.result(30) == entries
    assert entries == WINDOW // 168 + 1, "each is 168 bytes long, encoded"


def test_the_number_of_entries_bounds_the_window(
    cluster: LedgerCluster, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_handle, "WINDOW_ENTRIES", 10)
    with cluster.create_ledger(3, 3, 2) as ledger:
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        ledger.submit_batch([b""] * 10)
        assert not ledger.room().done()
        interceptor.clear()
        interceptor.release()
        ledger.room().result(30)


def test_calls_that_wait_for_room_fail_when_the_ledger_ends(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    ledger = cluster.create_ledger(3, 3, 2, window_bytes=1)
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    first = ledger.submit(b"fills it")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ledger.append, b"waits")
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        with pytest.raises(OutcomeUnknownError):
            ledger.close(timeout=0)
        with pytest.raises((OutcomeUnknownError, ClosedError)):
            waiting.result(30)
    with pytest.raises(OutcomeUnknownError):
        first.result(0)
    with pytest.raises(ClosedError):
        ledger.room()


# ---- callbacks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["synced", "appended"])
def test_callbacks_of_appends_may_submit_the_next_entry(folder: Path, apart: Apart, durability: str) -> None:
    """Each entry is submitted by the callback of the entry before. With "appended", all callbacks run within one call."""
    with (
        LedgerCluster.embedded(folder, segment_bytes=SEGMENT_BYTES, durability=durability) as cluster,
        cluster.create_ledger(durability=durability) as ledger,
    ):
        done: AppendFuture[int] = AppendFuture()

        def go_on(future: AppendFuture[int]) -> None:
            if future.result() == 100:
                set_result(done, future.result())
            else:
                ledger.submit(b"next").add_done_callback(go_on)

        apart(lambda: ledger.submit(b"first").add_done_callback(go_on))
        assert done.result(30) == 100


def test_a_callback_that_would_wait_is_refused(
    ledger: Ledger, cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    raised: AppendFuture[list[type]] = AppendFuture()
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)

    def callback(_: AppendFuture[int]) -> None:
        errors = []
        for call in (lambda: ledger.append(b""), lambda: cluster.open_ledger(ledger.id), cluster.close):
            try:
                call()
            except Exception as error:
                errors.append(type(error))
        set_result(raised, errors)

    ledger.submit(b"").add_done_callback(callback)
    interceptor.clear()
    interceptor.release()
    assert raised.result(30) == [InvalidArgumentError] * 3
    assert ledger.append(b"") == 1, "what a callback could not wait for was not appended"


def test_callbacks_of_appends_may_close_the_ledger(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    ledger = cluster.create_ledger()
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    ledger.submit(b"last").add_done_callback(lambda _: ledger.close())
    interceptor.clear()
    interceptor.release()
    assert ledger.ended.result(30).state is State.CLOSED
    with pytest.raises(ClosedError):
        ledger.append(b"")
    assert values(cluster, ledger.id) == [b"last"]


def test_a_flush_waits_for_staged_entries(ledger: Ledger, interceptor: RequestInterceptor) -> None:
    """Staged entries wait for the batch before them; they have an outcome when the flush returns."""
    ledger.flush()
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    futures = [ledger.submit(b"%d" % number) for number in range(6)]
    flushed, at_end = ledger.flush_async(), list[bool]()
    flushed.add_done_callback(lambda _: at_end.extend(future.done() for future in futures))
    with pytest.raises(OutcomeUnknownError):
        ledger.flush(timeout=0.01)
    assert not flushed.done()
    interceptor.clear()
    interceptor.release()
    ledger.flush(timeout=30.0)
    assert flushed.done() and at_end == [True] * 6
    assert [future.result(0) for future in futures] == list(range(6))


def test_submit_beyond_the_window_in_a_callback_raises_window_full_error(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    with cluster.create_ledger(3, 3, 2, window_bytes=1) as ledger:
        slow, *quick = ledger.metadata.last_fragment.ensemble
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        error: AppendFuture[type] = AppendFuture()

        def callback(_: AppendFuture[int]) -> None:
            try:
                ledger.submit(bytes(100))
            except Exception as submit_error:
                set_result(error, type(submit_error))

        ledger.submit(bytes(100)).add_done_callback(callback)
        interceptor.clear()
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD, bookie=slow)
        interceptor.release(*quick)
        assert error.result(30) is WindowFullError
        interceptor.clear()
        interceptor.release()


# ---- bookies that misbehave ------------------------------------------------------------------------------------


def test_a_failed_bookie_is_replaced(ledger: Ledger, interceptor: RequestInterceptor, cluster: LedgerCluster) -> None:
    ledger.append_batch([b"%d" % n for n in range(5)])
    all_copies(ledger)
    lost = ledger.metadata.last_fragment.ensemble[0]
    interceptor.add_rule(interceptor.fail, bookie=lost)
    ledger.append_batch([b"%d" % n for n in range(5, 10)])
    ledger.close()
    assert [fragment.first for fragment in ledger.metadata.fragments] == [0, 5]
    assert lost not in ledger.metadata.last_fragment.ensemble
    assert values(cluster, ledger.id) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(
    "answer",
    [
        {"status": ReplyStatus.UNKNOWN},
        {"status": ReplyStatus.READ_ONLY},
        {"status": ReplyStatus.OK, "last": 7},
        {"status": ReplyStatus.OK, "ledger": 99},
    ],
)
def test_bookie_with_invalid_replies_is_replaced(
    ledger: Ledger, interceptor: RequestInterceptor, answer: dict[str, int]
) -> None:
    liar = ledger.metadata.last_fragment.ensemble[2]
    interceptor.add_rule(interceptor.replying(**answer), kind=RequestKind.ADD, bookie=liar)
    assert ledger.append(b"value") == 0
    ledger.close()
    assert liar not in ledger.metadata.last_fragment.ensemble


def test_a_delayed_change_is_made_when_the_window_is_full(
    cluster: LedgerCluster, interceptor: RequestInterceptor, apart: Apart
) -> None:
    """The window keeps entries for the bookie that failed. Without a change of the ensemble, no append would ever find
    room."""
    ledger = cluster.create_ledger(3, 3, 2, delay_ensemble_change=True, window_bytes=20_000)
    failing = ledger.metadata.last_fragment.ensemble[0]
    interceptor.add_rule(interceptor.fail, kind=RequestKind.ADD, bookie=failing)

    def append() -> None:
        for _ in range(100):
            ledger.append(bytes(1000))

    apart(append)
    assert failing not in ledger.metadata.last_fragment.ensemble
    ledger.close()


def test_too_few_bookies_end_the_ledger_at_what_is_confirmed(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    ledger = cluster.create_ledger(4, 2, 2)
    ledger.append_batch([b"a", b"b"])
    interceptor.add_rule(interceptor.fail, kind=RequestKind.ADD)
    with pytest.raises(NotEnoughBookiesError):
        ledger.append(b"c")
    with pytest.raises(NotEnoughBookiesError):
        ledger.submit_batch([b"d"])
    with pytest.raises(NotEnoughBookiesError):
        ledger.submit(b"d").result(30)
    with pytest.raises(NotEnoughBookiesError):
        ledger.close()
    interceptor.clear()
    assert values(cluster, ledger.id)[:2] == [b"a", b"b"]


def test_a_failure_shows_where_it_came_from(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    """Closing the ledger raises the same error, and so does closing the cluster."""
    interceptor.add_rule(interceptor.fail, kind=RequestKind.ADD)
    with pytest.raises(NotEnoughBookiesError) as failed, cluster.create_ledger(4, 2, 2) as ledger:
        ledger.append(b"lost")
    assert failed.traceback[1].name.endswith("append")
    with pytest.raises(NotEnoughBookiesError) as failed, cluster:
        cluster.create_ledger(4, 2, 2).append(b"lost")
    assert failed.traceback[1].name.endswith("append")


def test_a_fenced_writer_ends(cluster: LedgerCluster) -> None:
    ledger = cluster.create_ledger()
    ledger.append(b"before")
    assert values(cluster, ledger.id) == [b"before"]
    for _ in range(2):
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            ledger.append(b"after")
    with pytest.raises((LedgerFencedError, LedgerClosedError)):
        ledger.close()
    assert values(cluster, ledger.id) == [b"before"]


def test_a_submit_while_a_batch_is_refused_fails(
    ledger: Ledger, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would wait for a batch that was never sent."""
    ledger.append(b"before")
    late: list[AppendFuture[int]] = []

    def refuse(*_: object, **__: object) -> object:
        if len(late) < 3:
            late.append(ledger.submit(b"late"))
        raise LedgerFencedError(ledger.id, "it was recovered")

    monkeypatch.setattr(ledger._writer, "append", refuse)
    for future in (ledger.submit(b"refused"), *late):
        with pytest.raises(LedgerFencedError):
            future.result(30)
    monkeypatch.undo()
    ledger.append(b"after")


# ---- closing ---------------------------------------------------------------------------------------------------


def test_close_waits_for_all_copies(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    ledger = cluster.create_ledger(3, 3, 2)
    slow = ledger.metadata.last_fragment.ensemble[0]
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD, bookie=slow)
    assert ledger.append(b"value") == 0
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(ledger.close)
        with pytest.raises(TimeoutError):
            closing.result(0.1)
        interceptor.clear()
        interceptor.release()
        closing.result(30)
    assert (ledger.metadata.state, ledger.metadata.last_entry, ledger.metadata.length) == (State.CLOSED, 0, 5)


def test_close_gives_up_in_time(
    cluster: LedgerCluster, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is closed at the last confirmed entry, in the middle of a batch, and the other entries fail."""
    monkeypatch.setattr(ledger_handle, "GIVE_UP_S", 30.0)
    ledger = cluster.create_ledger(3, 3, 2)
    ledger.append(b"value")
    interceptor.add_rule(interceptor.lose, kind=RequestKind.ADD)
    lost = [ledger.submit_batch([b"lost"] * 3), ledger.submit_batch([b"lost"])]
    with pytest.raises(OutcomeUnknownError):
        ledger.close(timeout=0.05)
    assert [type(future.exception(0)) for future in lost] == [OutcomeUnknownError] * 2
    assert (ledger.metadata.state, ledger.metadata.last_entry, ledger.metadata.length) == (State.CLOSED, 0, 5)
    interceptor.clear()
    assert values(cluster, ledger.id) == [b"value"]


def test_a_ledger_may_be_closed_twice(ledger: Ledger) -> None:
    ledger.submit(b"flushed")
    ledger.close()
    ledger.close()
    assert ledger.metadata.last_entry == 0
    for call in (lambda: ledger.append(b""), lambda: ledger.submit_batch([b""]), ledger.room):
        with pytest.raises(ClosedError):
            call()
    assert "closed" in repr(ledger)


def test_garbage_collected_ledger_emits_a_resource_warning_and_stays_open(cluster: LedgerCluster) -> None:
    ledger = cluster.create_ledger()
    ledger.append(b"kept")
    ledger._progressed = lambda: None  # type: ignore[method-assign]  # no timer holds it
    number, gone = ledger.id, weakref.ref(ledger)
    with pytest.warns(ResourceWarning, match=f"unclosed ledger {number}"):
        del ledger
        until(lambda: (gc.collect(), gone() is None)[1])  # its timer drops its reference
    assert cluster.ledger_metadata(number).state is State.OPEN
    assert values(cluster, number) == [b"kept"]


def test_handles_stay_in_their_process(ledger: Ledger) -> None:
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(ledger)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger.append(b"child")
        except ForkedError:
            ledger.close()  # closing it in the child leaves the parent's bookies alone
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ledger.append(b"parent") == 0


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_in_a_waiting_append_leaves_the_ledger_usable(ledger: Ledger, interceptor: RequestInterceptor) -> None:
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    main, caught = threading.get_ident(), threading.Event()

    def once(number: int, frame: object) -> None:
        """Raise once: a second signal may arrive while the first exception propagates."""
        if not caught.is_set():
            caught.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, once)

    def interrupt() -> None:
        interceptor.wait_for(RequestKind.ADD, 3)
        # sent again: CPython misses a signal that arrives just before it begins to wait for a lock
        while not caught.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            caught.wait(1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ledger.append(b"interrupted")
    finally:
        caught.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    interceptor.clear()
    interceptor.release()
    assert ledger.append(b"next") == 1
    ledger.close()
    assert ledger.metadata.last_entry == 1


# ---- a metadata store that fails in the middle -------------------------------------------------------------------


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("error", [MetadataUnavailableError, OutcomeUnknownError])
def test_the_store_fails_while_the_ledger_is_closed(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch, error: type[Exception], done: bool
) -> None:
    monkeypatch.setattr(writer, "RETRY_METADATA_S", 0.01)
    ledger = cluster.create_ledger()
    ledger.append(b"value")
    store = FailingStore.before(cluster)
    store.fail("put", error("put"), done=done)
    store.fail("get", error("get"))
    ledger.close()
    assert cluster.ledger_metadata(ledger.id).last_entry == 0
    assert store.calls.count("put") == (1 if done else 2)


def test_bookies_without_entries_are_noted_before_the_ledger_is_closed(
    cluster: LedgerCluster, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may die between the two steps, or the store may fail."""
    monkeypatch.setattr(writer, "RETRY_METADATA_S", 0.01)
    monkeypatch.setattr(ledger_handle, "GIVE_UP_S", 30.0)
    ledger = cluster.create_ledger(3, 3, 2)
    silent = ledger.metadata.last_fragment.ensemble[0]
    interceptor.add_rule(interceptor.lose, kind=RequestKind.ADD, bookie=silent)
    ledger.append_batch([b"value"] * 3)
    store = FailingStore.before(cluster)
    store.fail("create", MetadataUnavailableError("create"))
    with pytest.raises(OutcomeUnknownError):
        ledger.close(timeout=0.05)
    assert [call for call in store.calls if call in ("create", "put")] == ["create", "create", "put"]
    interceptor.clear()
    assert cluster.status().repairs == [(ledger.id, 0, silent)] and cluster.runtime.counts.bad_copies == 1
    done, left = cluster.repair()
    assert len(done) == 3 and not left
    assert cluster.count_copies(ledger.id).tolist() == [3] * 3 and cluster.status().repairs == []


@pytest.mark.parametrize("done", [False, True])
def test_the_store_fails_while_the_ensemble_changes(
    cluster: LedgerCluster, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(writer, "RETRY_METADATA_S", 0.01)
    with cluster.create_ledger(3, 3, 2) as ledger:
        ledger.append(b"value")
        all_copies(ledger)
        store = FailingStore.before(cluster)
        store.fail("put", OutcomeUnknownError("put"), done=done)
        store.fail("get", MetadataUnavailableError("get"), ValueError("not one of ours"))
        interceptor.add_rule(interceptor.fail, bookie=ledger.metadata.last_fragment.ensemble[0])
        assert ledger.append(b"value") == 1
    assert len(ledger.metadata.fragments) == 2
    assert store.calls.count("put") == (2 if done else 3)  # the note is stored with the close


def test_a_store_that_stays_away_does_not_keep_close(cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_handle, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(recovery, "RETRY_METADATA_S", 0.001)
    ledger = cluster.create_ledger()
    ledger.append(b"value")
    store = FailingStore.before(cluster)
    store.fail("put", *[MetadataUnavailableError("put")] * 100)
    with pytest.raises(OutcomeUnknownError):
        ledger.close(timeout=0.05)
    assert values(cluster, ledger.id) == [b"value"]


def test_unavailable_metadata_store_is_logged_once_and_counted(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger_handle, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(writer, "RETRY_METADATA_S", 0.001)
    counts = cluster.runtime.counts
    ledger, other = cluster.create_ledger(), cluster.create_ledger()
    store = FailingStore.before(cluster)
    store.fail("put", MetadataUnavailableError("put"))
    store.fail("get", *[MetadataUnavailableError("get")] * 20)
    ledger.close()
    warnings = [record.message for record in caplog.records if "waits for the metadata store" in record.message]
    assert store.calls.count("get") > 20 and warnings == [f"ledger {ledger.id} waits for the metadata store: put"]
    assert counts.waiting_for_metadata == 0
    store.fail("put", *[MetadataUnavailableError("put")] * 1000)
    store.fail("get", *[MetadataUnavailableError("get")] * 100_000)
    seen: list[int] = []
    monkeypatch.setattr(counts, "wait_for_metadata", lambda change: seen.append(change))
    other.begin_close()
    until(lambda: seen == [1])
    with pytest.raises(OutcomeUnknownError):
        other.close(timeout=0.05)
    assert seen == [1, -1], "who has given up waits no more"


def test_closing_the_cluster_ends_a_recovery_that_waits_for_the_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch, apart: Apart
) -> None:
    monkeypatch.setattr(recovery, "RETRY_METADATA_S", 0.001)
    cluster = LedgerCluster.embedded(folder, bookies=3, segment_bytes=SEGMENT_BYTES)
    ledger = cluster.create_ledger()
    ledger.abandon()
    store = FailingStore.before(cluster)
    store.fail("put", *[MetadataUnavailableError("put")] * 100_000)
    store.fail("get", None, *[MetadataUnavailableError("get")] * 100_000)
    waiting = threading.Thread(target=lambda: caught.append(error_of(lambda: cluster.open_ledger(ledger.id))))
    caught: list[object] = []
    waiting.start()
    until(lambda: cluster.runtime.counts.waiting_for_metadata)
    apart(cluster.close)
    waiting.join(30)
    assert isinstance(caught[0], ClosedError)


def error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def test_a_ledger_deleted_under_its_writer(
    ledger: Ledger, cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    ledger.append(b"value")
    cluster.delete_ledger(ledger.id)
    interceptor.add_rule(interceptor.fail, bookie=ledger.metadata.last_fragment.ensemble[0])
    with pytest.raises(Exception, match="deleted"):
        ledger.append(b"value")
    with pytest.raises(Exception, match="deleted"):
        ledger.close()
