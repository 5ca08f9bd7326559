"""What only the SQLite store has: a file, its damage, its locks, and leases by clock and process."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from pyreplog.clock import ManualClock
from pyreplog.errors import (
    CorruptionError,
    DiskError,
    FormatVersionError,
    InvalidArgumentError,
    LeaseLostError,
    MetadataUnavailableError,
)
from pyreplog.metadata import LeaseState
from pyreplog.metadata.process_identity import ProcessIdentity
from pyreplog.metadata.sqlite import SQLiteStore
from tests.waiting import until

PATIENCE_S = 60.0

TTL_S = 900
"""Of leases by a clock that the test moves: nobody renews them meanwhile, unless the test says so."""

TTL_US = TTL_S * 1_000_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


def test_stored_values_are_found_after_reopening(path):
    with SQLiteStore(path) as store:
        version = store.put("/a/b", b"two", store.create("/a/b", b"one"))
    with SQLiteStore(path) as store:
        assert (store.get("/a/b").value, store.get("/a/b").version) == (b"two", version)
        assert store.put("/a/b", b"three", version) != version


def test_a_version_never_fits_another_life_of_its_key(path):
    with SQLiteStore(path) as store:
        first = store.create("/a", b"")
        store.delete("/a", first)
        assert store.create("/a", b"") != first


def test_only_the_owner_may_read_the_files(path):
    with SQLiteStore(path) as store:
        store.create("/a", b"secret")
        files = list(path.parent.glob("metadata.db*"))
        assert len(files) == 3  # the write-ahead log and its index too
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_every_commit_is_synced_to_a_write_ahead_log(path):
    with SQLiteStore(path) as store:
        connection = store._database._connection
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


# ---- bad files -------------------------------------------------------------------------------------------------


def test_a_database_of_another_application_is_refused_unchanged(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InvalidArgumentError, match="database of another application"):
        SQLiteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_files_that_are_no_database(path, content):
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=str(path)):
        SQLiteStore(path)
    assert path.read_bytes() == content


def test_a_database_of_a_later_format_is_refused(path):
    SQLiteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FormatVersionError, match="99"):
        SQLiteStore(path)


def test_a_database_without_its_table_is_a_corruption_error(path):
    with SQLiteStore(path) as store:
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE keys")
        connection.close()
        with pytest.raises(CorruptionError, match="keys"):
            store.get("/a")


def test_a_store_at_an_impossible_path_is_a_disk_error(tmp_path):
    for path in (tmp_path / "missing" / "metadata.db", tmp_path):
        with pytest.raises(DiskError, match=str(path)):
            SQLiteStore(path)


@pytest.mark.parametrize("found", ["none", "a file"])
def test_a_store_in_a_missing_directory_names_it_and_what_to_do(tmp_path: Path, found: str) -> None:
    directory = tmp_path / "data"
    if found == "a file":
        directory.touch()
    with pytest.raises(DiskError) as raised:
        SQLiteStore(directory / "metadata")
    assert str(raised.value).endswith(
        f"{directory / 'metadata'} cannot be opened: expected the directory {directory} for the metadata store, "
        f"found {found}. Create it (mkdir -p {directory}), or correct the path"
    )
    assert not (directory / "metadata").exists()


# ---- others at work --------------------------------------------------------------------------------------------


def test_a_writer_that_does_not_end(path):
    """Reads go on; writes are refused in time, and nothing of them is done."""
    with SQLiteStore(path, timeout=0.05) as store:
        version = store.create("/a", b"one")
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        for call in (
            lambda: store.put("/a", b"two", version),
            lambda: store.create("/b", b""),
            lambda: store.delete("/a", version),
            lambda: store.lease(5),
        ):
            with pytest.raises(MetadataUnavailableError, match="locked"):
                call()
        assert store.get("/a").value == b"one" and store.list("/") == ["a"]
        connection.execute("ROLLBACK")
        connection.close()
        store.put("/a", b"two", version)


def test_calls_end_at_the_deadline(path):
    """Those that wait already, too; what waits for nobody is still done."""
    errors: list[BaseException] = []
    with SQLiteStore(path, timeout=PATIENCE_S) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        version = store.create("/a", b"one")
        other.execute("BEGIN IMMEDIATE")

        def put():
            with pytest.raises(MetadataUnavailableError, match="locked") as caught:
                store.put("/a", b"two", version)
            errors.append(caught.value)

        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: store._database._lock.locked())
        began = time.monotonic()
        store.end_calls_by(began + 0.05)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(errors) == 3 and time.monotonic() - began < PATIENCE_S / 2
        other.execute("ROLLBACK")
        store.put("/a", b"three", version)


# ---- leases ----------------------------------------------------------------------------------------------------


def commits(path: Path) -> int:
    """Return the number of commits in the write-ahead log of a database: frames with the size of the database."""
    log = Path(f"{path}-wal").read_bytes()
    salt, frame_bytes = log[16:24], 24 + int.from_bytes(log[8:12], "big")
    frames = [log[start : start + 24] for start in range(32, len(log), frame_bytes)]
    return sum(frame[8:16] == salt and frame[4:8] != bytes(4) for frame in frames)


def test_a_lease_is_one_commit(path: Path) -> None:
    """Each commit is a sync of the disk, and a broker that starts waits for it."""
    with SQLiteStore(path) as store:
        before = commits(path)
        with store.lease(TTL_S) as lease:
            assert lease.state is LeaseState.HELD
            assert commits(path) == before + 1
            lease.create("/a", b"")
            assert commits(path) == before + 2


def test_leases_of_a_silent_owner_expire_at_the_ttl(path):
    """By a clock that stands still until the test moves it: exactly at the ttl, for everybody at once."""
    clock = ManualClock(0)
    lost: list[str] = []
    with SQLiteStore(path, clock=clock) as owner, SQLiteStore(path, clock=clock) as other:
        with owner.lease(TTL_S, on_loss=lambda: lost.append("lost")) as lease:
            lease.create("/a", b"")
            assert lease.state is LeaseState.HELD
            clock.advance(TTL_US)
            assert lease.state is not LeaseState.HELD
            assert other.get("/a") is None and owner.get("/a") is None
            lease._heartbeat.renew_now()
            until(lambda: lost)
            assert lease.state is LeaseState.LOST
            with pytest.raises(LeaseLostError):
                lease.create("/a", b"")
        other.create("/a", b"somebody else's")
    with SQLiteStore(path) as store:
        assert store.get("/a").value == b"somebody else's"


def test_expired_lease_is_not_renewed_before_its_expiry_was_noticed(path):
    clock = ManualClock(0)
    with SQLiteStore(path, clock=clock) as store, store.lease(TTL_S) as lease:
        clock.advance(TTL_US)
        lease._heartbeat.renew_now()
        until(lambda: lease.state is LeaseState.LOST)


def test_renewal_holds_for_longer_than_the_ttl(path):
    """By a clock that goes on when the lease was renewed, and not before: no pause of this machine can end it."""
    clock, ttl_us = ManualClock(0), 600_000
    with SQLiteStore(path, clock=clock) as store, SQLiteStore(path, clock=clock) as owner:
        with owner.lease(ttl_us / 1e6) as lease:
            lease.create("/a", b"")
            seen: list[object] = []
            with store.watch("/a", lambda key: seen.append(store.get("/a"))):
                for _ in range(4):
                    clock.advance(ttl_us * 2 // 3)
                    until(lambda: lease._heartbeat._held_until == clock.monotonic_us() + ttl_us)
                    assert store.get("/a") is not None
                until(lambda: seen)
            assert None not in seen and lease.state is LeaseState.HELD


def forge(path, **changes: object) -> None:
    """Change the owner of all leases."""
    connection = sqlite3.connect(path)
    for column, value in changes.items():
        connection.execute(f"UPDATE leases SET {column} = ?", (value,))
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "changes, gone",
    [
        ({"boot": "another"}, True),
        ({"started": 1}, True),  # the process id was used again
        ({"pid": 1 << 30}, True),
        ({"pid": 1 << 30, "pid_namespace": 7}, False),  # a container whose processes cannot be seen
        ({"expires_us": 0}, True),
    ],
)
def test_lease_of_an_ended_process_of_this_host_is_over(path, changes, gone):
    with SQLiteStore(path) as store, store.lease(1000) as lease, SQLiteStore(path) as other:
        lease.create("/a", b"")
        heard: list[bool] = []
        with other.watch("/a", lambda key: heard.append(other.get(key) is None)):
            until(lambda: heard[-1:] == [False])
            forge(path, **changes)
            assert (other.get("/a") is None) == gone
            if gone:
                until(lambda: True in heard)


def test_watch_reports_a_key_created_and_deleted_between_two_polls(path):
    """Who was told that it is free, and was too late, is told again."""
    told: list[str] = []
    with SQLiteStore(path, poll_interval=3600) as store, SQLiteStore(path) as other:
        other.create("/topics/b", b"")
        with store.watch("/topics/a", told.append):
            until(lambda: told)
            looks = len(told)
            other.delete("/topics/a", other.create("/topics/a", b""))
            store.create("/elsewhere", b"")  # its own writes are looked at
            until(lambda: len(told) > looks)


def test_watch_reports_a_key_deleted_with_its_parent(path):
    told: list[str] = []
    with SQLiteStore(path, poll_interval=3600) as store, SQLiteStore(path) as other:
        versions = {key: other.create(key, b"") for key in ("/topics", "/topics/a", "/topics/a/b")}
        with store.watch("/topics/a/b", told.append):
            until(lambda: told)
            looks = len(told)
            for key in ("/topics/a/b", "/topics/a"):
                other.delete(key, versions[key])
            store.create("/elsewhere", b"")  # its own writes are looked at
            until(lambda: len(told) > looks)


def test_a_process_identity_tells_whether_its_process_lives():
    own = ProcessIdentity.this_process()
    assert not own.is_dead() and own.pid == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        code = f"from pyreplog.metadata.process_identity import _started; print(_started({child.pid}))"
        started = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        owner = ProcessIdentity(own.boot, own.pid_namespace, child.pid, started)
        assert not owner.is_dead()
        child.kill()
        until(owner.is_dead)  # a zombie: nobody has waited for it yet
        child.wait()
        assert owner.is_dead()


def test_other_processes_leave_the_write_ahead_log_alone(tmp_path: Path) -> None:
    """Two connections to a file, of which the second opened and closed a descriptor of its own, held no lock any more:
    the last other process removed the log under them, and what they wrote went nowhere."""
    path = tmp_path / "metadata.db"
    code = f"from pyreplog.metadata import open_store; open_store('sqlite:{path}').close()"
    with SQLiteStore(path) as store:
        version = store.create("/key", b"before")
        subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
        assert path.with_name(f"{path.name}-wal").exists()
        store.put("/key", b"after", version)
        read = f"from pyreplog.metadata import open_store; print(open_store('sqlite:{path}').get('/key').value)"
        result = subprocess.run([sys.executable, "-c", read], timeout=60, check=True, capture_output=True, text=True)
        assert result.stdout == "b'after'\n"
