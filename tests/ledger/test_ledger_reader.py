"""Reading ledgers, closed and open ones, with bookies and metadata that are wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from pyreplog._native.log.batch import RecordBatch
from pyreplog.bookie.protocol import Reply, ReplyStatus, RequestKind
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidMetadataError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OutOfRangeError,
    UnauthorizedError,
    UnreadableError,
    WrongTypeError,
)
from pyreplog.ledger import readahead
from pyreplog.ledger import reader as reader_module
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import Fragment, State, metadata_key
from pyreplog.ledger.reader import LedgerReader
from tests.ledger.fault_injection import FailingStore, RequestInterceptor
from tests.waiting import until


def value(entry: int, size: int = 20) -> bytes:
    return b"%d." % entry * size


def fill(cluster: LedgerCluster, entries: int, *quorums: int, size: int = 20, password: bytes = b"") -> int:
    with cluster.create_ledger(*quorums, password=password) as ledger:
        for first in range(0, entries, 50):
            ledger.submit_batch([value(entry, size) for entry in range(first, min(first + 50, entries))])
    return ledger.id


def read_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "REPLY_BYTES", 4096)
    monkeypatch.setattr(readahead, "AHEAD_BYTES", 16384)


def flat(batches: object) -> list[tuple[int, bytes]]:
    return [(record.entry, bytes(record.value)) for batch in batches for record in batch]  # type: ignore[attr-defined]


@pytest.fixture
def interceptor(cluster: LedgerCluster) -> RequestInterceptor:
    return RequestInterceptor(cluster)


# ---- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (4, 3, 2), (4, 2, 1)])
def test_a_reader_gives_every_entry_in_order(
    shared: LedgerCluster, monkeypatch: pytest.MonkeyPatch, quorums: tuple[int, int, int]
) -> None:
    read_little_at_a_time(monkeypatch)
    with shared.open_ledger(fill(shared, 333, *quorums)) as reader:
        assert (len(reader), reader.last_add_confirmed, reader.is_closed) == (333, 332, True)
        batches = list(reader.read())
        assert len(batches) > 5 and all(isinstance(batch, RecordBatch) for batch in batches)
        assert flat(batches) == [(entry, value(entry)) for entry in range(333)]
        assert flat(reader.read(100, 103)) == [(entry, value(entry)) for entry in range(100, 103)]
        assert flat(reader.read(332)) == [(332, value(332))]
        assert flat(reader.read(333)) == flat(reader.read(7, 7)) == []
        assert flat(reader.read(331, 333)) == [(331, value(331)), (332, value(332))]
        assert flat(reader.read_unconfirmed(332, 333)) == [(332, value(332))]
        assert (reader.get(7).entry, reader.get(7).value) == (7, value(7))
        assert (reader[7], reader[-1], reader[-333]) == (value(7), value(332), value(0))
        assert reader[330:] == reader[-3:400] == [value(330), value(331), value(332)] == reader[332:329:-1][::-1]
        assert reader[5:5] == []
        for entry in (333, -334):
            with pytest.raises(OutOfRangeError):
                reader[entry]
        for wrong in (1.5, slice("a", None)):
            with pytest.raises(WrongTypeError):
                reader[wrong]  # type: ignore[index]
        with pytest.raises(InvalidArgumentError):
            reader[::0]
        for start, end in ((-1, 5), (0, 334), (333, 334)):
            with pytest.raises(OutOfRangeError):
                reader.read(start, end)
        with pytest.raises(NoSuchEntryError):
            list(reader.read_unconfirmed(333, 334))
        for end in (4, 5):
            with pytest.raises(InvalidArgumentError):
                reader.read_unconfirmed(5, end)


def test_an_empty_ledger_reads_as_no_entries(cluster: LedgerCluster) -> None:
    with cluster.open_ledger(fill(cluster, 0)) as reader:
        assert (len(reader), flat(reader.read()), flat(reader.follow_batches(0))) == (0, [], [])


def test_several_threads_read_at_once(cluster: LedgerCluster) -> None:
    with cluster.open_ledger(fill(cluster, 200)) as reader, ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: flat(reader.read()), range(12)))
    assert results == [[(entry, value(entry)) for entry in range(200)]] * 12


def test_batches_dropped_by_a_reader_are_freed_without_garbage_collection(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timer, driver or dropped iterator keeps a batch that its reader has dropped, and no garbage collection is
    needed."""
    read_little_at_a_time(monkeypatch)
    with cluster.open_ledger(fill(cluster, 300, 4, 3, 2)) as reader:
        gc.collect()
        others = {id(instance) for instance in gc.get_objects() if type(instance) is RecordBatch}
        gc.disable()
        try:
            dropped = reader.read()
            next(dropped)
            del dropped
            assert sum(map(len, reader.read())) == 300
            until(lambda: cluster.runtime._expected == set())  # the reads of the dropped iterator have ended
            until(
                lambda: (
                    not any(
                        type(instance) is RecordBatch and id(instance) not in others for instance in gc.get_objects()
                    )
                )
            )
        finally:
            gc.enable()


# ---- bookies that misbehave ------------------------------------------------------------------------------------


def test_the_next_replica_is_asked(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    number = fill(cluster, 100, 4, 3, 2)
    with cluster.open_ledger(number) as reader:
        lost, liar = reader.metadata.last_fragment.ensemble[2:]  # the two bookies that are asked first
        interceptor.add_rule(interceptor.fail, bookie=lost)
        assert flat(reader.read()) == [(entry, value(entry)) for entry in range(100)]
        interceptor.clear()
        interceptor.add_rule(
            interceptor.changing_reply(lambda reply: reply._replace(body=flipped(reply.body))), bookie=liar
        )
        assert flat(reader.read()) == [(entry, value(entry)) for entry in range(100)]
        interceptor.clear()
        interceptor.add_rule(interceptor.replying(status=ReplyStatus.OK, last=99, body=b""), bookie=liar)
        assert flat(reader.read()) == [(entry, value(entry)) for entry in range(100)]


def test_bad_copies_are_noted_and_repaired(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    number = fill(cluster, 100, 4, 3, 2)
    with cluster.open_ledger(number) as reader:
        liar = reader.metadata.last_fragment.ensemble[2]  # this bookie has entries 0 to 2 of each four
        interceptor.add_rule(
            interceptor.changing_reply(lambda reply: reply._replace(body=flipped(reply.body))), bookie=liar
        )
        list(reader.read())
        bad_copies = cluster.runtime.counts.bad_copies
        assert bad_copies > 0
        until(lambda: len(cluster.status().repairs) == bad_copies)  # the notes are written in the background
        noted = cluster.status().repairs
        assert {repair.bookie for repair in noted} == {liar}
        assert cluster.status().below_write_quorum == len(noted)
        interceptor.clear()
        assert cluster.repair() == (noted, {})
        assert cluster.status().repairs == []


def test_a_replica_that_is_slow_is_not_waited_for(
    cluster: LedgerCluster, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module.LedgerReadOp.__init__, "__kwdefaults__", {
        **reader_module.LedgerReadOp.__init__.__kwdefaults__, "speculate_s": 0.01,
    })  # fmt: skip
    number = fill(cluster, 10, 3, 3, 2)
    with cluster.open_ledger(number) as reader:
        interceptor.add_rule(interceptor.lose, kind=RequestKind.READ, bookie=reader.metadata.last_fragment.ensemble[0])
        assert flat(reader.read()) == [(entry, value(entry)) for entry in range(10)]


def test_an_unreachable_copy_is_not_taken_for_a_missing_one(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    number = fill(cluster, 10, 3, 3, 2)
    with cluster.open_ledger(number) as reader:
        interceptor.add_rule(interceptor.fail)
        with pytest.raises(UnreadableError, match="the connection was lost"):
            list(reader.read())


def flipped(body: bytes | memoryview) -> bytes:
    changed = bytearray(body)
    if changed:
        changed[len(changed) // 2] ^= 1
    return bytes(changed)


# ---- who may, and what there is --------------------------------------------------------------------------------


def test_a_ledger_with_a_password_opens_only_with_it(cluster: LedgerCluster) -> None:
    number = fill(cluster, 3, password=b"secret")
    for password in (b"", b"other"):
        for recover in (True, False):
            with pytest.raises(UnauthorizedError):
                cluster.open_ledger(number, password=password, recover=recover)
    with cluster.open_ledger(number, password=b"secret") as reader:
        assert len(reader) == 3


@pytest.mark.parametrize("number", [5_000_000, -1, 10**30])
def test_unknown_ledgers_are_refused_by_every_call(shared: LedgerCluster, number: int) -> None:
    for recover in (True, False):
        with pytest.raises(NoSuchLedgerError):
            shared.open_ledger(number, recover=recover)
    with pytest.raises(NoSuchLedgerError):
        shared.delete_ledger(number)
    with pytest.raises(NoSuchLedgerError):
        shared.ledger_metadata(number)


def test_a_ledger_deleted_while_read_gives_entries_that_bookies_have(
    cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that bookies still have are read; following the ledger and opening it fail."""
    read_little_at_a_time(monkeypatch)
    ledger = cluster.create_ledger()
    ledger.append_batch([value(entry) for entry in range(300)])
    with ledger, cluster.open_ledger(ledger.id, recover=False) as reader:
        assert reader.wait_beyond(250, 30)
        batches = reader.read(0, 251)
        next(batches)
        cluster.delete_ledger(ledger.id)
        assert flat(batches)[-1] == (250, value(250))
        with pytest.raises(NoSuchLedgerError):
            reader.refresh()
        with pytest.raises(NoSuchLedgerError):
            list(reader.follow_batches(300))
        with pytest.raises(NoSuchLedgerError):
            ledger.close()


LIES = {
    "ensemble of the wrong size": lambda body: body["fragments"][0][1].pop(),
    "a bookie twice": lambda body: body["fragments"][0].__setitem__(1, ["b@00"] * 3),
    "first fragment not at 0": lambda body: body["fragments"][0].__setitem__(0, 3),
    "fragments out of order": lambda body: body["fragments"].extend([[7, ["a", "b", "c"]], [5, ["a", "b", "c"]]]),
    "no fragments": lambda body: body.update(fragments=[]),
    "unknown state": lambda body: body.update(state="half-open"),
    "an end while it is open": lambda body: body.update(state="open", last_entry=5),
    "closed at -2": lambda body: body.update(state="closed", last_entry=-2),
    "ack quorum above write quorum": lambda body: body.update(ack_quorum=4),
    "write quorum above ensemble": lambda body: body.update(write_quorum=9),
    "for newer readers": lambda body: body.update(min_reader=99),
    "version 0": lambda body: body.update(version=0),
    "a field too few": lambda body: body.pop("token"),
    "numbers as text": lambda body: body.update(last_entry="4"),
    "a proof that is none": lambda body: body.update(proof=7),
    "another ledger's": lambda body: body.update(ledger=77),
}


def test_contradictory_ledger_metadata_are_refused(cluster: LedgerCluster) -> None:
    number = fill(cluster, 5)
    truth = cluster.metadata.get(metadata_key(number))
    assert truth is not None
    for lie, change in LIES.items():
        body = json.loads(truth.value)
        change(body)
        overwrite(cluster, number, json.dumps(body).encode())
        with pytest.raises(InvalidMetadataError):
            cluster.open_ledger(number)
            raise AssertionError(lie)
        assert [odd.key for odd in cluster.status().garbled] == [metadata_key(number)], lie


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"version":1}'])
def test_malformed_ledger_metadata_are_refused(shared: LedgerCluster, garbage: bytes) -> None:
    number = fill(shared, 5)
    ledger = shared.create_ledger()
    ledger.append(b"value")
    overwrite(shared, number, garbage)
    overwrite(shared, ledger.id, garbage)
    with pytest.raises(InvalidMetadataError):
        shared.open_ledger(number, recover=False)
    with pytest.raises(InvalidMetadataError):
        ledger.close()


def overwrite(cluster: LedgerCluster, ledger: int, value: bytes) -> None:
    stored = cluster.metadata.get(metadata_key(ledger))
    assert stored is not None
    cluster.metadata.put(metadata_key(ledger), value, stored.version)


def test_a_ledger_on_unknown_bookies_is_unreadable(cluster: LedgerCluster) -> None:
    number = fill(cluster, 5)
    changed = dataclasses.replace(
        cluster.ledger_metadata(number), fragments=(Fragment(0, ("nobody", "b@xyz", "c@" + "0" * 32)),)
    )
    overwrite(cluster, number, changed.encode())
    with cluster.open_ledger(number) as reader, pytest.raises(UnreadableError):
        list(reader.read())


# ---- following -------------------------------------------------------------------------------------------------


def test_following_a_writer_to_its_end(cluster: LedgerCluster) -> None:
    ledger = cluster.create_ledger(4, 3, 2)
    ledger.append_batch([value(entry) for entry in range(10)])
    with cluster.open_ledger(ledger.id, recover=False) as reader, ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: flat(reader.follow_batches(0)))
        for entry in range(10, 60):
            ledger.append(value(entry))
        ledger.close()
        assert following.result(30) == [(entry, value(entry)) for entry in range(60)]
        assert reader.is_closed


def test_the_end_is_noticed_at_once(cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies do not report the end: without the watch, the long poll would take its full time."""
    monkeypatch.setattr(reader_module, "POLL_MS", 600_000)
    ledger = cluster.create_ledger()
    ledger.append(b"last")
    interceptor = RequestInterceptor(cluster)
    with cluster.open_ledger(ledger.id, recover=False) as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait_beyond, 0)
        interceptor.wait_for(RequestKind.WAIT_LAC)
        ledger.close()
        assert waiting.result(30) is False
        assert reader.is_closed


def test_close_before_the_long_poll_begins_ends_the_wait(
    cluster: LedgerCluster, interceptor: RequestInterceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "POLL_MS", 600_000)
    ledger = cluster.create_ledger()
    states: list[State] = []

    def close(*_: object) -> None:
        """Close the ledger after the reader has read the metadata, and never answer. The watch of this function is set
        later than the reader's, and fires later."""
        if not states:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ledger.close).result(30)
            with cluster.metadata.watch(
                metadata_key(ledger.id), lambda _: states.append(cluster.ledger_metadata(ledger.id).state)
            ):
                until(lambda: states)

    interceptor.add_rule(close, kind=RequestKind.WAIT_LAC)
    with cluster.open_ledger(ledger.id, recover=False) as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait_beyond, -1)
        try:
            assert waiting.result(30) is False
        finally:
            reader.close()
    assert states[0] is State.CLOSED and ledger.metadata.state is State.CLOSED


def test_reader_gets_the_explicit_lac_of_an_idle_writer(cluster: LedgerCluster) -> None:
    """The last entry carries the LAC before it; an explicit LAC follows a little later."""
    with cluster.create_ledger() as ledger, cluster.open_ledger(ledger.id, recover=False) as reader:
        ledger.append(b"only")
        assert reader.wait_beyond(-1, 30)
        assert reader[0] == b"only"


def test_records_are_followed_one_by_one(cluster: LedgerCluster) -> None:
    """Without a start, following begins with the next record that is confirmed."""
    with cluster.create_ledger() as ledger, cluster.open_ledger(ledger.id, recover=False) as reader:
        ledger.append_batch([b"a", b"b"])
        assert reader.wait_beyond(0, 30) and len(reader) in (1, 2)
        start = len(reader)
        records, late = reader.follow(0), reader.follow()
        ledger.append(b"c")
        ledger.close()
        assert [(record.entry, record.value) for record in records] == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert [record.entry for record in late] == list(range(start, 3))


def test_records_are_followed_in_a_coroutine(cluster: LedgerCluster) -> None:
    """It ends with the ledger. An iteration that was left goes on after the last record that it returned."""

    async def follow(reader: LedgerReader) -> list[bytes]:
        values: list[bytes] = []
        records = reader.follow(0, timeout=30)
        for stop in (3, 7, None):
            async for record in records:
                values.append(bytes(record.value))
                if len(values) == stop:
                    break
        return values

    ledger = cluster.create_ledger(4, 3, 2)
    ledger.append_batch([value(entry) for entry in range(10)])
    with cluster.open_ledger(ledger.id, recover=False) as reader, ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: asyncio.run(follow(reader)))
        for entry in range(10, 60):
            ledger.append(value(entry))
        ledger.close()
        assert following.result(30) == [value(entry) for entry in range(60)]
        assert reader.is_closed


def test_following_in_a_coroutine_leaves_its_loop_free(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    """Other tasks run while it waits. A cancelled task ends at once, `close` ends the others, and a time-out ends one."""

    async def follow(reader: LedgerReader, timeout: float | None) -> list[int]:
        return [record.entry async for record in reader.follow(0, timeout=timeout)]

    async def run(reader: LedgerReader) -> None:
        assert await follow(reader, 0.05) == []
        interceptor.add_rule(interceptor.lose, kind=RequestKind.WAIT_LAC)
        asked = interceptor.count(RequestKind.WAIT_LAC)
        cancelled, closed = (asyncio.create_task(follow(reader, None)) for _ in range(2))
        while interceptor.count(RequestKind.WAIT_LAC) < asked + 2 * 3:
            await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not closed.done()
        reader.close()
        with pytest.raises(ClosedError):
            await asyncio.wait_for(closed, 30)

    with cluster.create_ledger() as ledger, cluster.open_ledger(ledger.id, recover=False) as reader:
        asyncio.run(asyncio.wait_for(run(reader), 60))
        interceptor.clear()


def test_waiting_for_entries_times_out(cluster: LedgerCluster) -> None:
    with cluster.create_ledger() as ledger, cluster.open_ledger(ledger.id, recover=False) as reader:
        assert reader.wait_beyond(-1, 0) is False
        assert reader.wait_beyond(-1, 0.05) is False
        assert list(reader.follow_batches(timeout=0.05)) == []
        assert reader.refresh() == -1
        with pytest.raises(OutOfRangeError):
            reader.follow(-1)
        with pytest.raises(InvalidArgumentError):
            reader.wait_beyond(0, float("nan"))


def test_bookies_that_answer_at_once_are_not_asked_without_end(
    cluster: LedgerCluster, interceptor: RequestInterceptor
) -> None:
    """Some number of polls takes at least some time, however slow the machine is."""
    with (
        cluster.create_ledger() as ledger,
        ThreadPoolExecutor(1) as pool,
        cluster.open_ledger(ledger.id, recover=False) as reader,
    ):
        interceptor.add_rule(interceptor.replying(status=ReplyStatus.OK), kind=RequestKind.WAIT_LAC)
        began = time.monotonic()
        waiting = pool.submit(reader.wait_beyond, -1)
        interceptor.wait_for(RequestKind.WAIT_LAC, 3 * 8)
        rounds = interceptor.count(RequestKind.WAIT_LAC) / 3
        assert rounds <= (time.monotonic() - began) / reader_module.PAUSE_S + 1
        reader.close()
        with pytest.raises(ClosedError):
            waiting.result(30)


def test_closing_ends_the_waiting_of_others(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    number = fill(cluster, 5)
    with (
        cluster.create_ledger() as ledger,
        ThreadPoolExecutor(2) as pool,
        cluster.open_ledger(ledger.id, recover=False) as following,
        cluster.open_ledger(number) as reading,
    ):
        interceptor.add_rule(interceptor.lose)
        waiting = [pool.submit(following.wait_beyond, -1), pool.submit(lambda: list(reading.read()))]
        interceptor.wait_for(RequestKind.WAIT_LAC)
        interceptor.wait_for(RequestKind.READ)
        for reader in (following, reading):
            reader.close()
            reader.close()
        for waiter in waiting:
            with pytest.raises(ClosedError):
                waiter.result(30)
        interceptor.clear()
    for call in (reading.read, reading.refresh, lambda: reading[0], reading.follow):
        with pytest.raises(ClosedError):
            call()


def test_an_iterator_ends_with_its_reader(cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    read_little_at_a_time(monkeypatch)
    with cluster.open_ledger(fill(cluster, 300)) as reader:
        batches = reader.read()
        next(batches)
    with pytest.raises(ClosedError):
        list(batches)


def test_readers_follow_the_ensemble(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    """The bookies of the ledger were replaced after it was opened (#4613)."""
    with cluster.create_ledger(3, 3, 2) as ledger:
        ledger.append_batch([value(entry) for entry in range(5)])
        # otherwise the bookie that fails would be replaced in the first fragment
        until(lambda: ledger.pending_entries == 0)
        with cluster.open_ledger(ledger.id, recover=False) as reader:
            old = ledger.metadata.last_fragment.ensemble
            interceptor.add_rule(interceptor.fail, bookie=old[0])
            ledger.append_batch([value(entry) for entry in range(5, 10)])
            interceptor.clear()
            for bookie in old:
                interceptor.add_rule(interceptor.fail, bookie=bookie)
            reader._lac = 9
            assert flat(reader.read(5)) == [(entry, value(entry)) for entry in range(5, 10)]
            assert old[0] not in reader.metadata.last_fragment.ensemble
            interceptor.clear()


def test_a_store_that_is_away_does_not_hide_why(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    with cluster.open_ledger(fill(cluster, 5)) as reader:
        interceptor.add_rule(interceptor.fail)
        store = FailingStore.before(cluster)
        store.fail("get", MetadataUnavailableError("get"))
        with pytest.raises(UnreadableError):
            list(reader.read())
        store.fail("get", *[None] * 5)


# ---- recovery --------------------------------------------------------------------------------------------------


def test_concurrent_recoveries_agree_on_the_last_entry(cluster: LedgerCluster) -> None:
    ledger = cluster.create_ledger(4, 3, 2)
    ledger.append_batch([value(entry) for entry in range(20)])
    with ThreadPoolExecutor(8) as pool:
        readers: list[LedgerReader] = list(pool.map(lambda _: cluster.open_ledger(ledger.id), range(8)))
    assert {(reader.last_add_confirmed, reader.metadata.state) for reader in readers} == {(19, State.CLOSED)}
    for reader in readers:
        reader.close()
    ledger.close()  # all at the same end: no entry is lost


def test_recovery_of_entries_that_are_large_together(cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries are written back in requests that fit into frames."""
    monkeypatch.setattr("pyreplog.ledger.protocol.pending_adds.BATCH_BYTES", 8192)
    ledger = cluster.create_ledger()
    interceptor = RequestInterceptor(cluster)
    interceptor.add_rule(interceptor.changing_reply(lambda reply: reply._replace(lac=-1)))
    for first in range(0, 40, 10):
        ledger.append_batch([bytes(3000) for _ in range(first, first + 10)])
    with cluster.open_ledger(ledger.id) as reader:
        assert len(reader) == 40
    written = [request for _, request in interceptor.requests if request.kind == RequestKind.ADD and request.flags & 1]
    assert written and max(memoryview(request.records).nbytes for request in written) <= 8192
    ledger.close()


def test_too_few_bookies_for_a_recovery(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    ledger = cluster.create_ledger(3, 3, 2)
    ledger.append(b"value")
    for bookie in ledger.metadata.last_fragment.ensemble[:2]:
        interceptor.add_rule(interceptor.fail, bookie=bookie)
    with pytest.raises(UnreadableError):
        cluster.open_ledger(ledger.id)
    assert cluster.ledger_metadata(ledger.id).state is State.IN_RECOVERY
    interceptor.clear()
    with cluster.open_ledger(ledger.id) as reader:
        assert len(reader) == 1
    ledger.close()


def test_the_store_fails_in_a_recovery(cluster: LedgerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.ledger.protocol.recovery.RETRY_METADATA_S", 0.01)
    for failing in count():
        ledger = cluster.create_ledger()
        ledger.append(b"value")
        store = FailingStore.before(cluster)
        store.fail("put", *[None] * failing, MetadataUnavailableError("put"))
        with cluster.open_ledger(ledger.id) as reader:
            assert len(reader) == 1
        assert ledger.close() is None
        if store._faults["put"]:
            break  # the store was not called again
    assert failing >= 2


def test_answers_that_know_no_limits(cluster: LedgerCluster, interceptor: RequestInterceptor) -> None:
    """A bookie that returns an impossible LAC makes reads fail, and has no other effect."""
    with cluster.create_ledger() as ledger:
        ledger.append(b"value")
        interceptor.add_rule(
            interceptor.changing_reply(lambda reply: reply._replace(lac=1 << 61)), kind=RequestKind.LAST
        )
        with cluster.open_ledger(ledger.id, recover=False) as reader:
            assert reader.last_add_confirmed == 1 << 61
            with pytest.raises((NoSuchEntryError, UnreadableError)):
                list(reader.read(1))
    assert isinstance(Reply(ReplyStatus.OK), Reply)
