"""Who a bookie is (48): the directory, the file and the metadata agree, or it does not start."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog._native.system.checksum import crc32c
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.identity import IDENTITY, LOG, BookieIdentity, claim, is_registered, register
from pyreplog.bookie.ledger_list import LedgerList
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.protocol import ReplyStatus
from pyreplog.bookie.registration import Availability, Registration, availability_key
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    EmptyDirectoryError,
    ForeignDirectoryError,
    FormatVersionError,
    IdentityError,
    InvalidArgumentError,
    InvalidMetadataError,
    LockedError,
    MetadataUnavailableError,
    MissingIdentityError,
    RetiredBookieError,
    StaleDirectoryError,
    StaleMetadataError,
    UnknownBookieError,
    WrongIncarnationError,
    WrongLogError,
)
from pyreplog.log.lock import WriterLock
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.memory import MemoryLease, MemoryStore
from tests import running
from tests.bookie.asking import ANY_SPACE, Facts, add, last, read
from tests.bookie.test_local import WAIT_S, ask

CONFIG = BookieConfig.of({"durability": "appended", "segment_bytes": 64 << 10, **ANY_SPACE})


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as memory_store:
        yield memory_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bookie"


def start(
    path: Path, store: MemoryStore, name: str = "b1", *, make_new: bool = False, lost: tuple[int, ...] = ()
) -> BookieIdentity:
    """Open and close it."""
    identity, bookie = opened(path, store, name, make_new=make_new, lost=lost)
    bookie.close()
    return identity


def opened(
    path: Path, store: MemoryStore, name: str = "b1", *, make_new: bool = False, lost: tuple[int, ...] = ()
) -> tuple[BookieIdentity, LocalBookie]:
    return open_bookie(path, name, store, CONFIG, ledgers=Facts(*lost), make_new=make_new)


def test_the_same_incarnation_for_ever(path: Path, store: MemoryStore) -> None:
    first = start(path, store)
    assert first.registered and first.cluster == cluster_id(store) and is_registered(store, first)
    again = start(path, store)
    assert (again.id, again.log, again.opens, first.opens) == (first.id, first.log, 2, 1)
    assert first.id == f"b1@{first.incarnation.hex()}"
    other = start(path.with_name("other"), store, "b2")
    assert other.incarnation != first.incarnation and other.cluster == first.cluster


def test_an_emptied_directory_is_refused_until_replaced(path: Path, store: MemoryStore) -> None:
    first = start(path, store)
    shutil.rmtree(path)
    for _ in range(2):
        with pytest.raises(EmptyDirectoryError, match="--replace"):
            start(path, store)
    bookie = start(path, store, make_new=True)
    assert bookie.incarnation != first.incarnation and not is_registered(store, first)
    assert start(path, store).id == bookie.id


@pytest.mark.parametrize("phase", BookiePhase)
def test_a_retired_bookie_does_not_come_back(phase: BookiePhase, path: Path, store: MemoryStore) -> None:
    """One that counts as lost may: its copies are there again, and the auditor decides."""
    first = start(path, store)
    store.create(bookie_state_key(first.id), BookieState(phase, 0).encode())
    if phase is not BookiePhase.RETIRED:
        assert start(path, store).id == first.id
        return
    for make_new in (False, True):
        with pytest.raises(RetiredBookieError, match=r"was retired: .* with --replace"):
            start(path, store, make_new=make_new)
    shutil.rmtree(path)
    assert start(path, store, make_new=True).id != first.id


def test_a_directory_whose_log_is_gone_is_refused(path: Path, store: MemoryStore) -> None:
    start(path, store)
    shutil.rmtree(path / LOG)
    for make_new in (False, True):
        with pytest.raises(WrongLogError, match=r"is gone: .* does not exist"):
            start(path, store, make_new=make_new)
    (path / LOG).mkdir()
    with pytest.raises(WrongLogError, match=r"is gone: .* holds no log"):
        start(path, store)


def test_a_directory_without_its_identity_file_is_refused(path: Path, store: MemoryStore) -> None:
    start(path, store)
    (path / IDENTITY).unlink()
    for make_new in (False, True):
        with pytest.raises(MissingIdentityError):
            start(path, store, make_new=make_new)


def test_a_directory_of_another_bookie_is_refused(path: Path, store: MemoryStore) -> None:
    other = path.with_name("other")
    start(path, store, "b1")
    start(other, store, "b2")
    for make_new in (False, True):
        with pytest.raises(WrongIncarnationError, match="bookie b1@"):
            start(path, store, "b2", make_new=make_new)


def test_an_older_copy_of_a_directory_that_was_replaced(path: Path, store: MemoryStore) -> None:
    start(path, store)
    shutil.move(path, path.with_name("older"))
    start(path, store, make_new=True)
    for make_new in (False, True):
        with pytest.raises(WrongIncarnationError, match="registered is b1@"):
            start(path.with_name("older"), store, make_new=make_new)


def used(path: Path, store: MemoryStore, entry: int) -> None:
    """A life in which an entry is stored."""
    _, bookie = opened(path, store)
    assert ask(bookie, add(entry)).status == ReplyStatus.OK
    bookie.close()


def test_a_log_of_another_bookie_is_refused(path: Path, store: MemoryStore) -> None:
    """Its directory is the right one: its entries are another bookie's."""
    other = path.with_name("other")
    used(path, store, 0)
    _, bookie = opened(other, store, "b2")
    ask(bookie, add(0, 1, 2))
    bookie.close()
    shutil.rmtree(path / LOG)
    shutil.copytree(other / LOG, path / LOG)
    for make_new in (False, True):
        with pytest.raises(WrongLogError, match=r"is log .*; that of bookie b1@"):
            start(path, store, make_new=make_new)


def test_an_older_copy_of_a_log(path: Path, store: MemoryStore) -> None:
    used(path, store, 0)
    older = path.with_name("older")
    shutil.copytree(path / LOG, older)
    used(path, store, 1)
    now = path.with_name("now")
    shutil.move(path / LOG, now)
    shutil.copytree(older, path / LOG)
    with pytest.raises(WrongLogError, match="older copy"):
        start(path, store)
    shutil.rmtree(path / LOG)
    shutil.move(now, path / LOG)
    _, bookie = opened(path, store)
    assert ask(bookie, last()).last == 1
    bookie.close()


def test_an_older_copy_of_a_directory(path: Path, store: MemoryStore) -> None:
    """Nothing in it disagrees: the metadata know that the bookie was opened since."""
    used(path, store, 0)
    older = path.with_name("older")
    shutil.copytree(path, older)
    used(path, store, 1)
    for make_new in (False, True):
        with pytest.raises(StaleDirectoryError, match="opened 1 times, that bookie 2 times"):
            start(older, store, make_new=make_new)
    assert start(path, store).opens == 3


def copied(store: MemoryStore, identity: BookieIdentity) -> MemoryStore:
    """What the metadata say of a bookie now."""
    copy = MemoryStore()
    for key in (identity.key, "/cluster"):
        stored = store.get(key)
        assert stored is not None
        copy.create(key, stored.value)
    return copy


def test_metadata_older_than_the_directory_are_refused(path: Path, store: MemoryStore) -> None:
    """They would give ledgers' numbers again, and have newer ones collected: the bookie knows better."""
    older = copied(store, start(path, store))
    start(path, store)
    with older, pytest.raises(StaleMetadataError, match=r"know of 1 openings of .*, which was opened 2 times"):
        start(path, older)
    assert start(path, store).opens == 3


def test_metadata_that_are_older_by_a_ledger(path: Path, store: MemoryStore) -> None:
    facts = Facts()
    facts.next_ledger = 5
    _, bookie = open_bookie(path, "b1", store, CONFIG, ledgers=facts)
    facts.next_ledger = 7  # two were made while it ran
    bookie.close()
    for number in (6, 0):
        facts.next_ledger = number
        with pytest.raises(StaleMetadataError, match=rf"gets number {number}, and bookie b1@\w+ has seen 7 before"):
            open_bookie(path, "b1", store, CONFIG, ledgers=facts)
    identity, bookie = open_bookie(path, "b1", store, CONFIG, ledgers=facts, older_metadata=True)
    assert facts.next_ledger > 7 + 1_000_000 and identity.next_ledger == facts.next_ledger
    bookie.close()
    for older_metadata in (False, True):  # which these are no more
        open_bookie(path, "b1", store, CONFIG, ledgers=facts, older_metadata=older_metadata)[1].close()
    assert facts.next_ledger == identity.next_ledger


def test_garbage_collection_notes_the_number_of_the_next_ledger(path: Path, store: MemoryStore) -> None:
    """A bookie that is killed later has it in its file."""
    facts = Facts()
    identity, bookie = open_bookie(path, "b1", store, CONFIG, ledgers=facts)
    facts.next_ledger = 9
    collector = Collector(
        bookie.log,
        bookie.config,
        LedgerList(store, facts, identity),
        bookie.with_bookie,
        on_metadata_read=bookie.on_metadata_read,
    )
    collector.collect()
    assert BookieIdentity.decode(path, (path / IDENTITY).read_bytes()).next_ledger == 9
    bookie.close()


def test_a_crash_before_the_metadata_count_an_opening(path: Path, store: MemoryStore) -> None:
    """The file counts first: metadata that have one less are no older copy then."""
    older = copied(store, start(path, store))

    class Away(MemoryStore):
        def _put(self, key: str, value: bytes, version: int) -> int:
            raise MetadataUnavailableError("away")

    with Away() as away:
        for key in ("/cluster", "/bookies/b1"):
            stored = older.get(key)
            assert stored is not None
            away.create(key, stored.value)
        for _ in range(3):
            with pytest.raises(MetadataUnavailableError):
                start(path, away)
    with older:
        assert start(path, older).opens == 5
    with pytest.raises(StaleMetadataError):
        start(path, store)


def test_an_identity_of_version_2(path: Path) -> None:
    head = (2, 2, b"i" * 16, b"c" * 16, 1, 2, b"l" * 16, 1 << 40, 7)
    packed = struct.Struct("<8sIHH16s16sHH16sqq")
    data = packed.pack(b"RPBOOK01", 0, *head) + b"b1"
    data = packed.pack(b"RPBOOK01", crc32c(data[12:]), *head) + b"b1"
    assert BookieIdentity.decode(path, data) == BookieIdentity("b1", b"i" * 16, b"c" * 16, True, b"l" * 16, 1 << 40, 7)


@pytest.mark.parametrize(
    ("is_registered", "is_confirmed", "registered"), [(False, False, 0), (True, True, 1), (True, False, 2)]
)
def test_an_identity_of_version_3(is_registered: bool, is_confirmed: bool, registered: int, path: Path) -> None:
    """The bytes are those of the table in FORMAT.md."""
    identity = BookieIdentity("b1", b"i" * 16, b"c" * 16, is_registered, b"l" * 16, 1 << 40, 7, is_confirmed, 9)
    packed = struct.Struct("<8sIHH16s16sHH16sqqq")
    head = (3, 3, b"i" * 16, b"c" * 16, registered, 2, b"l" * 16, 1 << 40, 7, 9)
    data = packed.pack(b"RPBOOK01", 0, *head) + b"b1"
    data = packed.pack(b"RPBOOK01", crc32c(data[12:]), *head) + b"b1"
    assert identity.encode() == data
    assert BookieIdentity.decode(path, data) == identity


def test_a_new_identity_is_unregistered_and_counts_from_zero(path: Path) -> None:
    data = BookieIdentity("b1", b"i" * 16, b"c" * 16).encode()
    assert data[48:50] + data[52:92] == bytes(42)


@pytest.mark.parametrize("opens", ["", '"opens": "x"', '"opens": null', '"opens": Infinity'])
def test_metadata_that_do_not_count(opens: str, path: Path, store: MemoryStore) -> None:
    identity = start(path, store)
    stored = store.get(identity.key)
    assert stored is not None
    store.put(identity.key, stored.value.replace(b'"opens": 1', opens.encode() or b'"open": 1'), stored.version)
    with pytest.raises(InvalidMetadataError):
        start(path, store)


def test_a_directory_of_another_cluster_is_refused(path: Path, store: MemoryStore) -> None:
    start(path, store)
    with MemoryStore() as elsewhere:
        other = cluster_id(elsewhere).hex()
        with pytest.raises(ForeignDirectoryError) as error:
            start(path, elsewhere)
        assert f"is of cluster {cluster_id(store).hex()}, and the {elsewhere.what} holds cluster {other}" in str(
            error.value
        )
        assert "with an empty directory" in str(error.value)


def test_metadata_of_no_cluster_are_not_made_one(path: Path, store: MemoryStore) -> None:
    """A wrong root stays as it is, and emptied metadata can be restored."""
    start(path, store)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with MemoryStore() as elsewhere:
        for make_new in (False, True):
            with pytest.raises(ForeignDirectoryError, match="holds no cluster"):
                start(path, elsewhere, make_new=make_new)
        assert elsewhere.list("/") == []
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_bookie_is_registered_in_the_metadata_of_its_cluster_only(path: Path, store: MemoryStore) -> None:
    """Its key alone says little: the metadata may be a copy, or those of a new cluster that took the key over."""
    identity = start(path, store)
    stored = store.get(identity.key)
    assert stored is not None
    with MemoryStore() as elsewhere:
        elsewhere.create(identity.key, stored.value)
        assert not is_registered(elsewhere, identity), "it has no cluster yet"
        assert cluster_id(elsewhere) != identity.cluster
        assert not is_registered(elsewhere, identity)


def test_a_bookie_unknown_to_the_metadata_is_refused(path: Path, store: MemoryStore) -> None:
    identity = start(path, store)
    stored = store.get(identity.key)
    assert stored is not None
    store.delete(identity.key, stored.version)
    assert not is_registered(store, identity)
    with pytest.raises(UnknownBookieError):
        start(path, store)


@pytest.mark.parametrize("done", ["claimed", "log made", "registered"])
def test_a_start_after_a_crash_completes_the_identity(done: str, path: Path, store: MemoryStore) -> None:
    """The next start goes on, with the same incarnation; also when it replaces another."""
    for make_new in (False, True):
        identity = claim(path, "b1", store, make_new=make_new)
        file = (path / IDENTITY).read_bytes()
        if done != "claimed":
            LocalBookie(path, CONFIG).close()
        if done == "registered":
            register(path, identity, store, bytes(16), 0)
            (path / IDENTITY).write_bytes(file)
        finished = start(path, store, make_new=make_new)
        assert finished.incarnation == identity.incarnation and finished.registered
        shutil.rmtree(path)


def test_a_name_that_another_bookie_took_is_refused(path: Path, store: MemoryStore) -> None:
    claim(path, "b1", store)
    start(path.with_name("other"), store, "b1")
    with pytest.raises(WrongIncarnationError):
        start(path, store, "b1")


def test_a_directory_is_opened_by_one_bookie_at_a_time(path: Path, store: MemoryStore) -> None:
    path.mkdir()
    lock = WriterLock(path)
    with pytest.raises(LockedError):
        start(path, store)
    lock.release()
    _, bookie = opened(path, store)
    with pytest.raises(LockedError):
        start(path, store)
    bookie.close()


@pytest.mark.parametrize("at", [0, 8, 12, 16, 40, -1])
def test_a_damaged_identity_file_is_a_corruption_error(at: int, path: Path, store: MemoryStore) -> None:
    start(path, store)
    data = bytearray((path / IDENTITY).read_bytes())
    data[at] ^= 0x40
    (path / IDENTITY).write_bytes(data)
    with pytest.raises(CorruptionError, match=IDENTITY):
        start(path, store)


def test_an_identity_is_decoded_and_a_cut_one_is_refused(path: Path) -> None:
    bookie_identity = BookieIdentity("b1", b"i" * 16, b"c" * 16, True, b"l" * 16, 1 << 40, 7, True, 12)
    assert BookieIdentity.decode(path, bookie_identity.encode()) == bookie_identity
    for length in range(len(bookie_identity.encode())):
        with pytest.raises(CorruptionError):
            BookieIdentity.decode(path, bookie_identity.encode()[:length])


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "a b", "x" * 101, "é"])
def test_malformed_names_of_bookies_are_refused(name: str, path: Path, store: MemoryStore) -> None:
    with pytest.raises(InvalidArgumentError):
        start(path, store, name)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b'{"id": "00"}',
        b'{"version": 2, "cluster": "00"}',
        b'{"version": 2, "id": "00"}',
        b"\xff",
        b'{"id": 5}',
        b"[" * 100_000,
    ],
    ids=lambda value: str(value[:9]),
)
def test_metadata_that_makes_no_sense(value: bytes, path: Path, store: MemoryStore) -> None:
    store.create("/cluster", value)
    with pytest.raises(InvalidMetadataError):
        start(path, store)


def test_every_refusal_is_an_identity_error() -> None:
    for kind in (
        EmptyDirectoryError,
        MissingIdentityError,
        RetiredBookieError,
        WrongIncarnationError,
        ForeignDirectoryError,
        StaleDirectoryError,
        StaleMetadataError,
        UnknownBookieError,
        WrongLogError,
    ):
        assert issubclass(kind, IdentityError)
    assert not issubclass(FormatVersionError, IdentityError)


# ---- limbo -----------------------------------------------------------------------------------------------------


def tear(path: Path, store: MemoryStore) -> None:
    """As after a power cut: an entry is gone, one behind it is there, neither was synced."""
    _, bookie = opened(path, store)
    ask(bookie, add(0, 1))
    ask(bookie, add(0, ledger=8))
    copy = running.copied(bookie.log.log.commit_log, path, path.with_name("copy"))
    bookie.close()
    shutil.rmtree(path)
    shutil.move(copy, path)
    (segment,) = [file for file in (path / LOG).glob("*.log") if file.read_bytes().find(b"7/0") >= 0]
    data = bytearray(segment.read_bytes())
    data[data.index(b"7/0")] ^= 1
    segment.write_bytes(data)


def test_open_ledgers_are_in_limbo_after_a_crash_that_cut_records(path: Path, store: MemoryStore) -> None:
    start(path, store)
    tear(path, store)
    for round_ in range(3):  # also after restarts, clean ones
        _, bookie = opened(path, store, lost=(7, 99) if round_ == 0 else ())
        assert bookie.log.cut_records == (3 if round_ == 0 else 0)
        assert [ask(bookie, read(0, 9, ledger=ledger)).status for ledger in (7, 99)] == [ReplyStatus.LIMBO] * 2
        assert ask(bookie, last(ledger=5)).status == ReplyStatus.OK
        bookie.close()
    _, bookie = opened(path, store)
    bookie.with_bookie(lambda machine: machine.limbo.leave(7))
    assert ask(bookie, read(0, 9)).status == ReplyStatus.OK
    bookie.close()


def test_a_crash_before_limbo_was_noted_is_not_forgotten(path: Path, store: MemoryStore) -> None:
    start(path, store)
    tear(path, store)

    class Away(Facts):
        def open_with(self, bookie: str, *, unsynced: bool) -> tuple[int, ...]:
            raise MetadataUnavailableError("out of reach")

    with pytest.raises(MetadataUnavailableError):
        open_bookie(path, "b1", store, CONFIG, ledgers=Away())
    _, bookie = opened(path, store, lost=(7,))
    assert bookie.log.cut_records == 0 and ask(bookie, last(ledger=7)).status == ReplyStatus.LIMBO
    bookie.close()


# ---- registration ----------------------------------------------------------------------------------------------


class Described:
    def __init__(self) -> None:
        self.now = Availability("127.0.0.1:7", "r1", False, 123_456_789)

    def __call__(self) -> Availability:
        return self.now


def stored_availability(store: MemoryStore) -> Availability | None:
    stored = store.get(availability_key("b1@00"))
    return None if stored is None else Availability.decode(stored.value)


def test_registration_is_refreshed_when_the_availability_changes(store: MemoryStore) -> None:
    described = Described()
    with Registration(store, "b1@00", described, ttl=10) as registration:
        registration.refresh()
        state = stored_availability(store)
        assert state is not None and (state.address, state.rack, state.read_only) == ("127.0.0.1:7", "r1", False)
        assert 0.9 * 123_456_789 < state.free_bytes <= 123_456_789
        version = store.get(availability_key("b1@00"))
        described.now = Availability("127.0.0.1:7", "r1", False, 123_456_000)
        registration.refresh()
        assert store.get(availability_key("b1@00")) == version, "hardly anything changed"
        described.now = Availability("127.0.0.1:7", "r1", True, 0)
        registration.refresh()
        assert stored_availability(store) == described.now
    assert stored_availability(store) is None
    with pytest.raises(ClosedError):
        registration.refresh()


def test_registration_comes_back_after_the_lease_was_lost(store: MemoryStore) -> None:
    with Registration(store, "b1@00", Described(), ttl=10) as registration:
        registration.refresh()
        lease = registration._lease
        assert isinstance(lease, MemoryLease)
        lease.expire()
        lease._heartbeat._thread.join(WAIT_S)  # it registers again
        assert stored_availability(store) is not None and registration._lease is not lease
        lease.close()
        registration.refresh()
        assert stored_availability(store) is not None


def test_a_key_of_an_earlier_life_is_taken_over(store: MemoryStore) -> None:
    store.create(availability_key("b1@00"), b"old")
    described = Described()
    with Registration(store, "b1@00", described, ttl=10) as registration:
        registration.refresh()
        stored = store.get(availability_key("b1@00"))
        assert stored is not None
        store.delete(availability_key("b1@00"), stored.version)
        described.now = Availability("127.0.0.1:8")
        registration.refresh()
        assert stored_availability(store) == described.now


def test_a_bookie_of_an_earlier_build_does_not_say_when_it_was_verified() -> None:
    value = b'{"address":"a:1","rack":"","read_only":false,"free_bytes":16}'
    assert Availability.decode(value) == Availability("a:1", free_bytes=16)
    said = Availability("a:1", free_bytes=16, verified_since_us=5)
    assert Availability.decode(said.encode()) == said


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"address": "x"}',
        b'{"address":"","rack":"","read_only":false,"free_bytes":"x"}',
        b'{"address":"","rack":"","read_only":false,"free_bytes":Infinity}',
        b'{"address":"","rack":"","read_only":false,"free_bytes":-1}',
        b'{"address":"","rack":"","read_only":false,"free_bytes":%d}' % 10**400,
        b'{"address":"","rack":7,"read_only":false,"free_bytes":1}',
        b'{"address":"a\\u0000b:1","rack":"","read_only":false,"free_bytes":1}',
        b'{"address":"\\ud800:1","rack":"","read_only":false,"free_bytes":1}',
        b'{"address":"a:1","rack":"","read_only":false,"free_bytes":1,"verified_since_us":-1}',
        b'{"address":"a:1","rack":"","read_only":false,"free_bytes":1,"verified_since_us":"x"}',
    ],
)
def test_availability_that_makes_no_sense(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError):
        Availability.decode(data)
