"""`pyreplog ledger` and `pyreplog cluster`, on an embedded cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyreplog.cli.app import main
from pyreplog.ledger import ledger_handle
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import metadata_key
from pyreplog.ledger.repair_notes import note_repair
from pyreplog.metadata.layout import CLUSTER, cluster_id, encode_cluster
from pyreplog.metadata.sqlite import SQLiteStore
from tests.cli.support import Done, Run, process
from tests.ledger.processes import ProcessGroup

LINES = b"".join(b"line %d\n" % number for number in range(1000))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cluster"
    LedgerCluster.embedded(path, segment_bytes=64 << 10).close()
    return path


@pytest.fixture
def ledger(run: Run, folder: Path) -> Callable[..., Done]:
    return lambda *arguments: run("ledger", "--embedded", folder, *arguments)


@pytest.fixture
def filled(folder: Path) -> int:
    """A ledger of 1000 lines, made by a process of its own, as it reads standard input."""
    done = process("ledger", "--json", "--embedded", folder, "create", "--ack-quorum", 2, data=LINES + b"no end")
    assert done.code == 0, done.error
    assert (done.json["state"], done.json["last_entry"], done.json["write_quorum"]) == ("closed", 1000, 3)
    return int(done.json["ledger"])


def test_ledger_read_prints_the_lines_that_were_written(ledger: Callable[..., Done], filled: int) -> None:
    assert ledger("list").out == f"{filled}\n"
    assert ledger("read", filled).out.encode() == LINES + b"no end\n"
    assert ledger("read", filled, "--from", 3, "--to", 5).out == "line 3\nline 4\n"
    assert ledger("tail", filled, "--from", 999).out == "line 999\nno end\n"
    documents = [json.loads(line) for line in ledger("read", filled, "--to", 2, "--format", "json").out.splitlines()]
    assert [(row["entry"], row["value"]) for row in documents] == [(0, "line 0"), (1, "line 1")]


def test_ledger_info_and_list_describe_a_ledger(
    ledger: Callable[..., Done], run: Run, folder: Path, filled: int
) -> None:
    described = ledger("info", filled).out
    assert "fragment 0" in described and "bookie-0@" in described and "closed" in described
    report = run("ledger", "--json", "--embedded", folder, "info", filled).json
    assert (report["ledger"], report["length"], report["messages"]) == (filled, len(LINES) - 1000 + 6, 1001)
    assert run("ledger", "--json", "--embedded", folder, "list").json == [filled]


def test_recovering_what_was_left_open(
    ledger: Callable[..., Done], run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_handle, "EXPLICIT_LAC_S", 86_400.0)  # nobody is told how far it is confirmed
    with LedgerCluster.embedded(folder) as cluster:
        left = cluster.create_ledger(password=b"secret")
        left.append_batch([b"a", b"b"])
        left.abandon()
    secret = folder / "password"
    secret.write_bytes(b"secret\n")
    assert ledger("recover", left.id).code == 7
    assert ledger("tail", left.id, "--timeout", 0, "--password-file", secret).out == ""
    assert ledger("recover", left.id, "--password-file", secret).out == f"ledger {left.id} is closed: 2 entries\n"
    report = run("ledger", "--json", "--embedded", folder, "recover", left.id, "--password-file", secret).json
    assert (report["state"], report["last_entry"]) == ("closed", 1)


def test_cluster_status_finds_lost_copies_that_ledger_repair_restores(
    ledger: Callable[..., Done], run: Run, folder: Path, filled: int
) -> None:
    fine = run("cluster", "--embedded", folder, "status").out
    assert "every entry has all its copies" in fine and "copies are green" in fine
    with LedgerCluster.embedded(folder) as cluster:
        bookie = cluster.ledger_metadata(filled).last_fragment.ensemble[0]
        note_repair(cluster.metadata, filled, bookie, 7)
    printed = run("cluster", "--embedded", folder, "status").out
    assert f"to repair: entry 7 of ledger {filled} on {bookie}" in printed and "1 copy below" in printed
    report = run("cluster", "--json", "--embedded", folder, "status").json
    assert (report["below_write_quorum"], len(report["bookies"]), report["ledgers"][0]["state"]) == (1, 3, "closed")
    assert ledger("repair").out == "1 copy repaired\n"
    assert run("ledger", "--json", "--embedded", folder, "repair").json == {"repaired": [], "left": []}


def test_a_degraded_ledger_is_shown(run: Run, folder: Path) -> None:
    """To who did not write it: its writer has noted the bookie that it goes on without, and since when."""
    with LedgerCluster.embedded(folder) as cluster:
        new_ledger = cluster.create_ledger()
        bookie = new_ledger.metadata.last_fragment.ensemble[1]
        note_repair(cluster.metadata, new_ledger.id, bookie, 3, lacking_since_us=1_700_000_000_000_000)
        note_repair(cluster.metadata, new_ledger.id, "elsewhere@00", 3, lacking_since_us=1)
        new_ledger.abandon()
    printed = run("cluster", "--embedded", folder, "status").out
    assert f"degraded: its writer goes on without copies on {bookie}, since 2023-11-14T22:13:20" in printed
    assert "copies are amber" in printed
    report = run("cluster", "--json", "--embedded", folder, "status").json
    (ledger,) = report["ledgers"]
    assert report["health"] == "amber" and ledger["lacking"] == [bookie]
    assert ledger["lacking_since_us"] == 1_700_000_000_000_000


def test_ledger_repair_reports_a_failed_repair(ledger: Callable[..., Done], folder: Path) -> None:
    with LedgerCluster.embedded(folder) as cluster:
        with cluster.create_ledger(password=b"secret") as new_ledger:
            new_ledger.append(b"value")
        note_repair(cluster.metadata, new_ledger.id, new_ledger.metadata.last_fragment.ensemble[1], 0)
    done = ledger("repair")
    assert done.code == 7 and "0 copies repaired" in done.out and "the password differs" in done.out


def test_a_repair_that_waits_for_a_bookie_has_an_exit_code_of_its_own(run: Run, tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path / 'metadata.sqlite'}") as processes:
        processes.start_bookies("b0", "b1", "b2")
        with LedgerCluster.connect(processes.url) as cluster:
            with cluster.create_ledger() as ledger:
                ledger.append(b"value")
            for bookie in ledger.metadata.bookies():
                note_repair(cluster.metadata, ledger.id, bookie, 0)
        stopped = ledger.metadata.last_fragment.ensemble[0]
        processes.bookies[stopped].kill()
        done = run("ledger", "--cluster", processes.url, "repair")
        assert done.code == 9 and "2 copies repaired" in done.out and f"on {stopped}" in done.out
        assert "run the command again when these bookies answer" in done.error


def test_a_directory_without_a_cluster_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    for arguments in (
        ("cluster", "--embedded", tmp_path / "none", "status"),
        ("ledger", "--embedded", tmp_path, "list"),
    ):
        done = run(*arguments)
        assert done.code == 2 and "holds no cluster" in done.error
    assert list(tmp_path.iterdir()) == []


def test_ledger_delete_removes_a_ledger_for_all_commands(ledger: Callable[..., Done], filled: int) -> None:
    assert ledger("delete", filled).code == 0
    assert ledger("list").out == ""
    for action in ("read", "tail", "info", "recover", "delete"):
        done = ledger(action, filled)
        assert (done.code, done.out) == (2, "") and f"ledger {filled}" in done.error


def test_ledger_commands_refuse_invalid_arguments(
    ledger: Callable[..., Done], run: Run, folder: Path, filled: int
) -> None:
    assert ledger("delete", -1).code == 2
    assert ledger("read", filled, "--from", 5000).code == 0, "behind the end: nothing"
    assert ledger("read", filled, "--to", 5000).code == 1
    assert ledger("read", filled, "--from", -5).code == 1
    assert run("ledger", "list").code == 2, "no cluster is named"
    assert run("ledger", "--cluster", "http://example.org", "list").code == 2
    assert ledger("read", filled, "--password-file", folder / "none").code == 1
    with LedgerCluster.embedded(folder):
        assert ledger("list").code == 3
    done = process("ledger", "--embedded", folder, "create", "--ensemble", 9)
    assert done.code == 6 and "9 bookies" in done.error
    with pytest.raises(SystemExit):
        main(["ledger", "--embedded", str(folder)])


def test_undecodable_metadata_is_reported_and_deleted_with_force(
    ledger: Callable[..., Done], run: Run, folder: Path, filled: int
) -> None:
    with LedgerCluster.embedded(folder) as cluster:
        stored = cluster.metadata.get(metadata_key(filled))
        assert stored is not None
        cluster.metadata.put(metadata_key(filled), b"{", stored.version)
    status = run("cluster", "--embedded", folder, "status")
    assert status.code == 0 and f"garbled: {metadata_key(filled)}" in status.out and "every entry" not in status.out
    assert ledger("delete", filled).code == 4
    assert ledger("delete", "--force", filled).code == 0 and ledger("list").out == ""
    assert ledger("delete", "seven").code == 2 and ledger("delete", "--force", filled).code == 1


def test_an_older_store_is_migrated(run: Run, folder: Path, ledger: Callable[..., Done], filled: int) -> None:
    """Here one whose migration did not end."""
    with SQLiteStore(folder / "metadata.sqlite") as store:
        stored_value = store.get(CLUSTER)
        assert stored_value is not None
        store.put(CLUSTER, encode_cluster(cluster_id(store), is_migrating=True), stored_value.version)
        stored = store.get(metadata_key(filled))
        assert stored is not None
        store.create(f"/ledgers/{filled:019d}", stored.value)
    refused = run("cluster", "--embedded", folder, "status")
    assert refused.code == 4 and "pyreplog cluster migrate" in refused.error
    assert run("cluster", "migrate").code == 2, "no cluster is named"
    assert run("cluster", "--embedded", folder / "none", "migrate").code == 2
    assert "1 ledger moved" in run("cluster", "--embedded", folder, "migrate").out
    again = run("cluster", "--json", "--cluster", f"sqlite:{folder / 'metadata.sqlite'}", "migrate").json
    assert again == {"layout": 2, "moved_ledgers": 0}
    assert str(filled) in ledger("list").out


def test_limbo_is_shown_and_ended(ledger: Callable[..., Done], run: Run, folder: Path) -> None:
    with LedgerCluster.embedded(folder, durability="appended") as cluster:
        new_ledger = cluster.create_ledger(durability="appended")
        new_ledger.append_batch([b"a", b"b"])
        new_ledger.abandon()
    for bookie in folder.glob("bookie-*"):
        (bookie / "unsynced").write_bytes(b"another boot's")
    assert run("cluster", "--embedded", folder, "status").out.count(f"in limbo: ledger {new_ledger.id} on bookie-") == 3
    done = ledger("recover", new_ledger.id)
    assert done.code == 1 and "LIMBO" in done.error
    assert ledger("recover", "--force", new_ledger.id).out == f"ledger {new_ledger.id} is closed: 2 entries\n"
    assert ledger("repair").out == "0 copies repaired\n"
    assert ledger("repair", new_ledger.id).out == "0 copies repaired\n"
