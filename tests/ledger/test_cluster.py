"""Embedded clusters: opening, closing and reopening; and which arguments `LedgerCluster` refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

import pyreplog
from pyreplog.bookie.protocol import RequestKind
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    EmptyDirectoryError,
    ForkedError,
    InvalidArgumentError,
    InvalidMetadataError,
    KeyExistsError,
    LockedError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    OutOfRangeError,
    UnauthorizedError,
    WrongTypeError,
)
from pyreplog.ledger import closing
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import Fragment, State, metadata_key
from pyreplog.ledger.ledger_store import NEXT_LEDGER, load_ledger
from pyreplog.ledger.repair_notes import note_repair
from tests.ledger.conftest import SEGMENT_BYTES
from tests.ledger.fault_injection import FailingStore, RequestInterceptor


def embedded(folder: Path, bookies: int = 3) -> LedgerCluster:
    return LedgerCluster.embedded(folder, bookies=bookies, segment_bytes=SEGMENT_BYTES)


def values(cluster: LedgerCluster, ledger: int) -> list[bytes]:
    with cluster.open_ledger(ledger) as reader:
        return [bytes(record.value) for batch in reader.read() for record in batch]


def fill(cluster: LedgerCluster, *quorums: int, entries: int = 20) -> int:
    with cluster.create_ledger(*quorums) as ledger:
        ledger.append_batch([b"%d" % entry for entry in range(entries)])
    return ledger.id


EXPECTED = [b"%d" % entry for entry in range(20)]


def test_public_names_of_ledgers_are_exported() -> None:
    assert issubclass(pyreplog.Cluster, LedgerCluster)
    assert (pyreplog.Ledger.__name__, pyreplog.LedgerReader.__name__) == ("Ledger", "LedgerReader")
    assert set(pyreplog.__all__) <= set(dir(pyreplog))
    with pytest.raises(AttributeError, match="nothing"):
        pyreplog.nothing  # noqa: B018


# ---- embedded clusters -----------------------------------------------------------------------------------------


def test_an_embedded_cluster_keeps_its_ledgers(folder: Path) -> None:
    with embedded(folder) as cluster:
        first = fill(cluster)
        open_one = cluster.create_ledger()
        open_one.append(b"left open")
        open_one.abandon()  # leave it as a process that died does
    with embedded(folder) as cluster:
        assert cluster.ledgers() == [first, open_one.id]
        assert values(cluster, first) == EXPECTED
        assert cluster.ledger_metadata(open_one.id).state is State.OPEN
        assert values(cluster, open_one.id) == [b"left open"]
        assert fill(cluster) == open_one.id + 1, "ids are never given twice"


def test_ids_are_not_given_twice(folder: Path) -> None:
    with embedded(folder) as cluster, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: fill(cluster, entries=1), range(16)))
        assert sorted(results) == list(range(16))
        cluster.delete_ledger(15)
        assert fill(cluster) == 16
        assert 15 not in cluster.ledgers()


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_an_embedded_cluster_is_reopened_with_another_number_of_bookies(folder: Path, before: int, after: int) -> None:
    """A cluster with another number of bookies is opened with all existing bookies, as these hold copies."""
    with embedded(folder, before) as cluster:
        number = fill(cluster, before, 2, 2)
    with embedded(folder, after) as cluster:
        assert len(cluster.status().bookies) == 4
        assert values(cluster, number) == EXPECTED
        assert values(cluster, fill(cluster, 4, 3, 2)) == EXPECTED


def test_a_lost_folder_is_noticed(folder: Path) -> None:
    with embedded(folder) as cluster:
        number = fill(cluster, 3, 3, 2)
    shutil.rmtree(folder / "bookie-1")
    with pytest.raises(EmptyDirectoryError):
        embedded(folder)
    with LedgerCluster.embedded(folder, replace=True, segment_bytes=SEGMENT_BYTES) as cluster:
        assert values(cluster, number) == EXPECTED
        assert cluster.status().below_write_quorum == 20, "its successor does not count as holding them"


def test_second_process_gets_locked_error(folder: Path) -> None:
    code = f"from pyreplog import Cluster; Cluster.embedded({str(folder)!r}).close()"
    with embedded(folder):
        with pytest.raises(LockedError) as caught:
            embedded(folder)
        assert caught.value.pid == os.getpid()
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
        assert f"process {os.getpid()}" in other.stderr and "LockedError" in other.stderr
    subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=180, check=True)


def test_a_program_that_forgets_to_close_ends(folder: Path) -> None:
    """The program does not hang; its threads finish their work, and confirmed entries are stored."""
    code = (
        "import threading; from pyreplog import Cluster\n"
        f"cluster = Cluster.embedded({str(folder)!r}, segment_bytes={SEGMENT_BYTES})\n"
        "ledger = cluster.create_ledger()\n"
        "ledger.append(b'first')\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    ledger.append(b'second')\n"
        "    other = cluster.create_ledger(); other.append(b'third'); other.close()\n"
        "threading.Thread(target=late).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    with embedded(folder) as cluster:
        assert cluster.ledger_metadata(1).state is State.CLOSED
        assert values(cluster, 0) == [b"first", b"second"]


def test_deleted_space_comes_back(folder: Path) -> None:
    with LedgerCluster.embedded(folder, segment_bytes=SEGMENT_BYTES, collect_interval_ms=20) as cluster:
        number = fill(cluster, entries=5)
        with cluster.create_ledger() as ledger:
            for _ in range(40):
                ledger.append_batch([bytes(4000)] * 10)
        before = segment_files(folder)
        cluster.delete_ledger(ledger.id)
        for _ in range(3000):
            if segment_files(folder) < before // 2:
                break
            threading.Event().wait(0.01)
        assert segment_files(folder) < before // 2
        assert len(values(cluster, number)) == 5


def segment_files(folder: Path) -> int:
    """Return the blocks of segment files on disk. Files may be deleted meanwhile."""
    blocks = 0
    for path in folder.glob("bookie-*/log/*.*"):
        with contextlib.suppress(FileNotFoundError):
            blocks += path.stat().st_blocks
    return blocks


# ---- closing ---------------------------------------------------------------------------------------------------


def test_closing_a_cluster_closes_its_ledgers(folder: Path) -> None:
    cluster = embedded(folder)
    ledger = cluster.create_ledger()
    futures = [ledger.submit(b"%d" % entry) for entry in range(20)]
    reader = cluster.open_ledger(fill(cluster))
    cluster.close()
    cluster.close()
    assert [future.result(0) for future in futures] == list(range(20))
    for call in (cluster.create_ledger, cluster.ledgers, cluster.status, lambda: cluster.open_ledger(0),
                 lambda: ledger.append(b""), lambda: list(reader.read())):  # fmt: skip
        with pytest.raises(ClosedError):
            call()
    reader.close()
    with embedded(folder) as cluster:
        assert cluster.ledger_metadata(ledger.id).state is State.CLOSED
        assert values(cluster, ledger.id) == EXPECTED


def test_closing_ends_the_waiting_of_others(folder: Path) -> None:
    cluster = embedded(folder)
    ledger = cluster.create_ledger()
    interceptor = RequestInterceptor(cluster)
    interceptor.add_rule(interceptor.lose, kind=RequestKind.LAST)
    interceptor.add_rule(interceptor.lose, kind=RequestKind.WAIT_LAC)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(cluster.open_ledger, ledger.id), pool.submit(cluster.status)]
        interceptor.wait_for(RequestKind.LAST, 6)
        cluster.close()
        for waiter in waiting:
            with pytest.raises(ClosedError):
                waiter.result(30)


def test_garbage_collected_cluster_emits_a_resource_warning(folder: Path) -> None:
    with pytest.warns(ResourceWarning, match="unclosed cluster in"):
        cluster = embedded(folder)
        runtime = cluster.runtime
        del cluster
    for thread in threading.enumerate():
        if thread.name == "pyreplog-close":
            thread.join()
    with pytest.raises(ClosedError):
        runtime.metadata.list("/")
    embedded(folder).close()


def test_clusters_stay_in_their_process(folder: Path) -> None:
    with embedded(folder) as cluster:
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(cluster)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                cluster.create_ledger()
            except ForkedError:
                cluster.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert values(cluster, fill(cluster)) == EXPECTED


# ---- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"ensemble": 0}, InvalidArgumentError),
        ({"ensemble": 2, "write_quorum": 3}, InvalidArgumentError),
        ({"ensemble": 3, "write_quorum": 2, "ack_quorum": 3}, InvalidArgumentError),
        ({"ensemble": 3, "ack_quorum": 0}, InvalidArgumentError),
        ({"ensemble": "3"}, TypeError),
        ({"durability": "perhaps"}, InvalidArgumentError),
        ({"password": "text"}, WrongTypeError),
        ({"properties": {"a": 1}}, WrongTypeError),
        ({"properties": {"a": "\ud800"}}, InvalidArgumentError),
        ({"window_bytes": 0}, InvalidArgumentError),
        ({"ensemble": 5}, NotEnoughBookiesError),
    ],
)
def test_impossible_ledgers_are_refused(
    shared: LedgerCluster, arguments: dict[str, object], error: type[Exception]
) -> None:
    before = shared.ledgers()
    with pytest.raises(error):
        shared.create_ledger(**arguments)  # type: ignore[arg-type]
    assert shared.ledgers() == before


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"bookies": 0}, InvalidArgumentError),
        ({"bookies": "3"}, InvalidArgumentError),
        ({"colour": "red"}, ConfigError),
        ({"segment_bytes": 5}, ConfigError),
    ],
)
def test_impossible_clusters_are_refused(folder: Path, settings: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        LedgerCluster.embedded(folder, **settings)  # type: ignore[arg-type]


def test_malformed_urls_of_metadata_stores_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        LedgerCluster.connect("http://example.org")


def test_ledger_properties_are_stored_with_its_metadata(shared: LedgerCluster) -> None:
    with shared.create_ledger(2, properties={"topic": "flights"}, durability="appended") as ledger:
        ledger.append(b"")
        assert ledger.properties == {"topic": "flights"}
        ledger.properties.clear()  # type: ignore[attr-defined]
        assert ledger.properties == {"topic": "flights"}, "a copy was given"
    with shared.open_ledger(ledger.id) as reader:
        assert reader.properties == {"topic": "flights"}
    with shared.create_ledger(2) as plain:
        assert plain.properties == {}
    ledger_metadata = shared.ledger_metadata(ledger.id)
    assert (dict(ledger_metadata.custom), ledger_metadata.durability) == ({"topic": "flights"}, "appended")
    assert (ledger_metadata.ensemble_size, ledger_metadata.write_quorum, ledger_metadata.ack_quorum) == (2, 2, 2)


# ---- a metadata store that fails ---------------------------------------------------------------------------------


def test_the_store_fails_while_a_ledger_is_made(folder: Path) -> None:
    with embedded(folder) as cluster:
        fill(cluster)
        store = FailingStore.before(cluster)
        for error in (MetadataUnavailableError("away"), OutcomeUnknownError("lost")):
            store.fail("put", error)
            with pytest.raises(type(error)):
                cluster.create_ledger()
            store.fail("create", error)
            with pytest.raises(type(error)):
                cluster.create_ledger()
        store.fail("create", OutcomeUnknownError("the reply was lost"), done=True)
        with cluster.create_ledger() as ledger:  # the token in the metadata shows that this call made it
            ledger.append(b"value")
        assert values(cluster, ledger.id) == [b"value"]


def test_a_ledger_that_another_client_made(folder: Path) -> None:
    with embedded(folder) as cluster:
        number = fill(cluster)
        stored = cluster.metadata.get(NEXT_LEDGER)
        assert stored is not None
        cluster.metadata.put(NEXT_LEDGER, b"%d" % number, stored.version)
        with pytest.raises(KeyExistsError):
            cluster.create_ledger()
        assert values(cluster, number) == EXPECTED


@pytest.mark.parametrize("value", [b"seven", b"", b"-1", b"9" * 19, b"9" * 5000], ids=lambda value: value[:8].decode())
def test_a_malformed_counter_of_ledgers_is_refused(value: bytes, folder: Path) -> None:
    with embedded(folder) as cluster:
        cluster.metadata.create(NEXT_LEDGER, value)
        with pytest.raises(InvalidMetadataError):
            cluster.create_ledger()


# ---- how it is -------------------------------------------------------------------------------------------------


def test_the_status_of_a_cluster_lists_bookies_and_ledgers(folder: Path) -> None:
    with embedded(folder, 4) as cluster:
        number = fill(cluster, 4, 3, 2)
        with cluster.create_ledger(3, 3, 2) as ledger:
            ledger.append_batch([b"a", b"b"])
            status = cluster.status()
            assert [bookie.read_only for bookie in status.bookies] == [False] * 4
            closed, opened = status.ledgers
            assert (closed.ledger, closed.state, closed.last_add_confirmed, closed.distance) == (
                number,
                "closed",
                19,
                0,
            )
            assert (opened.state, opened.last_add_pushed, opened.below_write_quorum) == ("open", 1, 0)
            assert status.below_write_quorum == 0
            RequestInterceptor(cluster).add_rule(lambda *_: _[2](ClosedError("away")), kind=RequestKind.LAST)
            assert cluster.status().ledgers[1].last_add_pushed == -1, "nobody tells"


def test_count_copies_counts_stored_copies_of_each_entry(folder: Path) -> None:
    with embedded(folder, 4) as cluster:
        interceptor = RequestInterceptor(cluster)
        with cluster.create_ledger(4, 3, 2, password=b"secret") as ledger:
            with pytest.raises(InvalidArgumentError, match="is open"):
                cluster.count_copies(ledger.id)
            for _ in range(6):
                ledger.append_batch([bytes(3000)] * 20)
        with pytest.raises(UnauthorizedError):
            cluster.count_copies(ledger.id)
        assert cluster.count_copies(ledger.id, password=b"secret").tolist() == [3] * 120
        first, second, *_ = ledger.metadata.last_fragment.ensemble
        interceptor.add_rule(interceptor.fail, bookie=first)
        expected = [2, 3, 2, 2] * 30  # entry 1 is on the second, third and fourth bookie
        assert cluster.count_copies(ledger.id, password=b"secret").tolist() == expected
        interceptor.add_rule(
            interceptor.changing_reply(lambda reply: reply._replace(body=b"\x01" * len(reply.body))), bookie=second
        )
        assert cluster.count_copies(ledger.id, password=b"secret").tolist() == [1, 2, 2, 1] * 30
        assert cluster.count_copies(fill(cluster, 3, 3, 2, entries=0)).tolist() == []


def test_a_bookie_of_which_one_copy_is_noted_is_looked_at_whole(folder: Path) -> None:
    """A recovery notes one entry of a bookie that may lack many."""
    with embedded(folder, 4) as cluster:
        with cluster.create_ledger(3, 3, 2) as ledger:
            ledger.append_batch([b"%d" % i for i in range(20)])
        ledger_metadata = load_ledger(cluster.metadata, ledger.id)
        lost, *others = ledger_metadata.metadata.last_fragment.ensemble
        (spare,) = {status.bookie for status in cluster.status().bookies} - {lost, *others}
        moved = dataclasses.replace(ledger_metadata.metadata, fragments=(Fragment(0, (spare, *others)),))
        cluster.metadata.put(metadata_key(ledger.id), moved.encode(), ledger_metadata.version)
        note_repair(cluster.metadata, ledger.id, spare, 19)
        done, left = cluster.repair()
        assert len(done) == 20 and not left
        assert cluster.count_copies(ledger.id).tolist() == [3] * 20
        assert cluster.status().below_write_quorum == 0


def test_repair_noted_by_a_closing_client_survives_an_earlier_repair_round(folder: Path) -> None:
    """A client that closes a ledger notes first which bookies lack entries. While the ledger is open, the entries that
    a bookie should have are not known."""
    with embedded(folder, 4) as cluster:
        with cluster.create_ledger(3, 3, 2) as ledger:
            ledger.append_batch([b"%d" % i for i in range(20)])
            bookie = ledger.metadata.last_fragment.ensemble[0]
            note_repair(cluster.metadata, ledger.id, bookie, 7)
            note_repair(cluster.metadata, ledger.id, bookie, 7, lacking_since_us=1)
            note_repair(cluster.metadata, ledger.id, bookie, 8)
            assert cluster.status().repairs == [(ledger.id, 7, bookie), (ledger.id, 8, bookie)]
            assert len(cluster.repair()[0]) == 2
            assert cluster.status().repairs == [(ledger.id, 7, bookie)]
        assert cluster.repair() == ([(ledger.id, 7, bookie)], {})
        assert cluster.status().repairs == [] and cluster.metadata.list("/repairs") == []


def test_repairs_that_cannot_be_made_stay(folder: Path) -> None:
    with embedded(folder) as cluster:
        with cluster.create_ledger(password=b"secret") as ledger:
            ledger.append(b"value")
        gone = fill(cluster)
        bookie = ledger.metadata.last_fragment.ensemble[0]
        note_repair(cluster.metadata, ledger.id, bookie, 0)
        note_repair(cluster.metadata, ledger.id, "another@00", 0)
        note_repair(cluster.metadata, gone, bookie, 3)
        note_repair(cluster.metadata, ledger.id, bookie, 1)  # an entry after the end, which recovery did not keep
        cluster.delete_ledger(gone)
        done, left = cluster.repair()
        assert [type(error) for error in left.values()] == [UnauthorizedError]
        assert set(done) == {
            (ledger.id, 0, "another@00"), (gone, 3, bookie), (ledger.id, 1, bookie),
        }  # fmt: skip
        assert cluster.repair(password=b"secret")[0][0][:2] == (ledger.id, 0)
        assert cluster.repair() == ([], {})
        with pytest.raises(UnauthorizedError):  # although no copy is missing
            cluster.repair(ledger.id)
        with pytest.raises(NoSuchLedgerError):
            cluster.ledger_metadata(gone)
        cluster.metadata.create("/repairs/7/seven-b", b"")
        assert [odd.key for odd in cluster.status().garbled] == ["/repairs/7/seven-b"]


# ---- metadata that make no sense -------------------------------------------------------------------------------


def test_a_garbled_ledger_is_reported_and_does_not_stand_in_the_way(folder: Path) -> None:
    with embedded(folder) as cluster:
        first, garbled, last = (fill(cluster) for _ in range(3))
        key = metadata_key(garbled)
        stored = cluster.metadata.get(key)
        assert stored is not None
        cluster.metadata.put(key, b"{", stored.version)
        cluster.metadata.create("/ledgers/seven", b"")
        cluster.metadata.create("/repairs/x/y", b"")
        assert cluster.ledgers() == [first, garbled, last]
        status = cluster.status()
        assert [ledger.ledger for ledger in status.ledgers] == [first, last]
        assert [odd.key for odd in status.garbled] == [key, "/ledgers/seven", "/repairs/x/y"]
        with pytest.raises(InvalidMetadataError):
            cluster.delete_ledger(garbled)
        cluster.repair()
        for name in (str(garbled), "seven"):
            cluster.delete_garbled(name)
            with pytest.raises(NoSuchKeyError):
                cluster.delete_garbled(name)
        assert cluster.ledgers() == [first, last] and values(cluster, last) == EXPECTED
        assert [odd.key for odd in cluster.status().garbled] == ["/repairs/x/y"]


def test_a_crashed_bookie_starts_beside_garbled_ledgers(folder: Path) -> None:
    """For all that the bookie knows, these ledgers may be open."""
    with embedded(folder) as cluster:
        closed, garbled = fill(cluster), fill(cluster)
        stored = cluster.metadata.get(metadata_key(garbled))
        assert stored is not None
        cluster.metadata.put(metadata_key(garbled), b"{", stored.version)
        cluster.metadata.create("/ledgers/seven", b"")
    for cut in folder.glob("bookie-*/log"):
        (cut / "aside" / "0-1").mkdir(parents=True)  # a crash has cut a record
    with embedded(folder) as cluster:
        assert sorted({ledger for ledger, _ in cluster.status().limbo}) == [garbled]
        assert values(cluster, closed) == EXPECTED


# ---- closing many ----------------------------------------------------------------------------------------------


def test_closing_takes_one_deadline_for_all_ledgers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ledger here can be closed. All begin to close, then one time-out runs for all of them, then all give up."""
    monkeypatch.setattr(closing, "GIVE_UP_S", 0.1)
    cluster = embedded(folder)
    ledgers = [cluster.create_ledger() for _ in range(40)]
    interceptor = RequestInterceptor(cluster)
    interceptor.add_rule(interceptor.lose, kind=RequestKind.ADD)
    futures = [ledger.submit(b"never acknowledged") for ledger in ledgers]
    steps: list[str] = []
    for name in ("begin_close", "give_up", "end_close"):
        monkeypatch.setattr(Ledger, name, noting_calls(steps, getattr(Ledger, name)))
    store = FailingStore.before(cluster)
    store.fail("put", *[MetadataUnavailableError("put")] * 100_000)
    cluster.close(timeout=0.3)
    assert steps[:120:40] == ["begin_close", "give_up", "end_close"] and steps[:40] == ["begin_close"] * 40
    assert steps[40:80] == ["give_up"] * 40 and steps.count("end_close") == 40
    assert all(isinstance(future.exception(), OutcomeUnknownError) for future in futures)


def noting_calls(steps: list[str], method: Callable[[Ledger], object]) -> Callable[[Ledger], object]:
    def call(ledger: Ledger) -> object:
        steps.append(method.__name__)
        return method(ledger)

    return call


# ---- copies ----------------------------------------------------------------------------------------------------


def test_all_copies_of_a_ledger_can_be_looked_at(folder: Path) -> None:
    with embedded(folder, 4) as cluster:
        number = fill(cluster, 4, 3, 2)
        metadata = cluster.ledger_metadata(number)
        lost = metadata.last_fragment.ensemble[1]
        runtime: Any = cluster.runtime
        fresh = embedded(folder.with_name("elsewhere"), 1)
        with fresh:
            (empty,) = cast(Any, fresh.runtime).bookies.values()
            whole, runtime.bookies[lost] = runtime.bookies[lost], empty
            assert sorted(cluster.count_copies(number).tolist()) == [2] * 15 + [3] * 5
            done, left = cluster.repair(number)
            assert not left and sorted(repair.entry for repair in done) == sorted(
                entry for stripe in metadata.holdings(lost) for entry in stripe
            )
            assert cluster.count_copies(number).tolist() == [3] * 20
            assert cluster.repair(number) == ([], {})
            runtime.bookies[lost] = whole
        with cluster.create_ledger(3, 3, 2) as ledger, pytest.raises(InvalidArgumentError):
            cluster.repair(ledger.id)


def test_ledgers_that_are_too_long_are_not_counted(folder: Path) -> None:
    with embedded(folder) as cluster:
        number = fill(cluster)
        ledger_metadata = load_ledger(cluster.metadata, number)
        lying = ledger_metadata.metadata.closed(1 << 60, 1, 1)
        cluster.metadata.put(metadata_key(number), lying.encode(), ledger_metadata.version)
        with pytest.raises(InvalidArgumentError):
            cluster.count_copies(number)


@pytest.mark.parametrize("name", [b"x", 3, None, ["x"]])
def test_names_of_garbled_keys_are_texts(name: object, tmp_path: Path) -> None:
    with embedded(tmp_path) as cluster, pytest.raises(WrongTypeError, match="name: expected a str, found"):
        cluster.delete_garbled(cast(str, name))


def test_entries_behind_the_end_of_a_closed_ledger(tmp_path: Path) -> None:
    """These entries do not belong to the closed ledger. In a ledger that is being written, they are merely unconfirmed."""
    with embedded(tmp_path) as cluster, cluster.create_ledger() as ledger:
        ledger.append_batch([b"x"] * 3)
        with cluster.open_ledger(ledger.id, recover=False) as reader, pytest.raises(OutOfRangeError) as caught:
            reader.get(3)
        assert not isinstance(caught.value, NoSuchEntryError)
        ledger.close()
        with cluster.open_ledger(ledger.id) as reader:
            assert reader.get(2).value == reader[2] == reader[-1] == b"x"
            for call in (lambda: reader.get(3), lambda: reader.read(0, 4), lambda: reader.read_range(3, 4)):
                with pytest.raises(NoSuchEntryError):
                    call()
            for call in (lambda: reader.get(-1), lambda: reader.read_range(2, 2)):
                with pytest.raises(OutOfRangeError) as caught:
                    call()
                assert not isinstance(caught.value, NoSuchEntryError)
